"""Points in time as the product uses them: one monotonic half for durations, one UTC half for text.

Nothing here reads a clock; ``runtime.clock`` makes Moments and hands them in.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class Moment:
    """One instant, seen by both clocks.

    monotonic_s: seconds on the event loop's clock; only differences mean anything.
    unix_s: seconds since the epoch; may jump when the host's clock is set.
    """

    monotonic_s: float
    unix_s: float

    def rfc3339(self) -> str:
        """UTC text with millisecond precision, ending in Z: ``2026-11-29T12:00:00.123Z``."""
        # Round half down to whole milliseconds first: strftime would truncate a float's noise.
        whole_ms = int(self.unix_s * 1000 + 0.5)
        return f"{_whole_seconds_text(whole_ms // 1000)}.{whole_ms % 1000:03d}Z"


@lru_cache(
    maxsize=8
)  # a record's five moments lie in few seconds, and formatting is what they cost
def _whole_seconds_text(unix_s: int) -> str:
    return f"{datetime.fromtimestamp(unix_s, UTC):%Y-%m-%dT%H:%M:%S}"


def elapsed_ms(start: Moment, end: Moment) -> int:
    """Whole milliseconds from start to end, never negative (both come from one monotonic clock)."""
    return max(0, int((end.monotonic_s - start.monotonic_s) * 1000 + 0.5))
