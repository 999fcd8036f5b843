"""Many cheap timers in one task: stream commits, keep-alives, response deadlines.

A cancel scope per wait would cost an exchange more than its bytes do (facts/http-stack.md, section 2).
Callbacks run in the timer task, must not block and must not raise.
"""

import heapq
import itertools
from collections.abc import Callable

import trio

PURGE_AT = 512
"""Cancelled timers stay in the heap until due; beyond this many, and half the heap, they are swept out
(a response deadline of ten minutes outlives its exchange by that much)."""


class Timer:
    """One armed timer; ``cancel`` is idempotent and safe after it fired."""

    __slots__ = ("_owner", "callback")

    def __init__(self, owner: "Timers", callback: Callable[[], None]) -> None:
        self._owner = owner
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        if self.callback is not None:
            self.callback = None
            self._owner.note_cancelled()


class Timers:
    """A heap of deadlines on the event loop's clock."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._rearm = trio.Event()
        self._sleeping_until = float("inf")
        self._cancelled = 0

    def __len__(self) -> int:
        """Entries held, cancelled ones included."""
        return len(self._heap)

    def note_cancelled(self) -> None:
        """A timer of ours was cancelled; sweep when dead entries are the majority."""
        self._cancelled += 1
        if self._cancelled > PURGE_AT and self._cancelled * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].callback is not None]
            heapq.heapify(self._heap)
            self._cancelled = 0

    def at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Call back once at ``when`` (trio.current_time() seconds), or as soon after as may be."""
        timer = Timer(self, callback)
        heapq.heappush(self._heap, (when, next(self._order), timer))
        if when < self._sleeping_until:
            self._rearm.set()
        return timer

    async def run(self) -> None:
        """Fire timers until cancelled; one task per daemon runs this."""
        while True:
            now = trio.current_time()
            while self._heap and (self._heap[0][0] <= now or self._heap[0][2].callback is None):
                timer = heapq.heappop(self._heap)[2]
                callback, timer.callback = timer.callback, None
                if callback is None:
                    self._cancelled = max(0, self._cancelled - 1)
                else:
                    callback()
            self._sleeping_until = self._heap[0][0] if self._heap else float("inf")
            self._rearm = trio.Event()
            with trio.move_on_at(self._sleeping_until):
                await self._rearm.wait()
