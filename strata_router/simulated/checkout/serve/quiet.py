"""What time and a silent engine cause while a request runs. Pure.

Once a second a line is printed; after a while without an engine line the client gets a comment;
after a long while the engine is given up.
"""

TICK_S = 1.0


class Quiet:
    """The three timers of one request; ``now`` is monotonic seconds."""

    def __init__(self, keepalive_s: float, silence_s: float, now: float) -> None:
        self.silence_s = silence_s
        self._keepalive_s = keepalive_s
        self._hopeless_at = now + silence_s
        self._comment_at = now + keepalive_s
        self._tick_at = now + TICK_S

    def heard(self, now: float) -> None:
        self._comment_at = now + self._keepalive_s
        self._hopeless_at = now + self.silence_s

    def patience_s(self, now: float) -> float:
        return max(0.0, min(self._tick_at, self._comment_at, self._hopeless_at) - now)

    def take_tick(self, now: float) -> bool:
        is_due = now >= self._tick_at
        if is_due:
            self._tick_at = now + TICK_S
        return is_due

    def take_comment(self, now: float) -> bool:
        is_due = now >= self._comment_at
        if is_due:
            self._comment_at = now + self._keepalive_s
        return is_due

    def is_hopeless(self, now: float) -> bool:
        return now >= self._hopeless_at
