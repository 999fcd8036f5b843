"""How many request-body bytes the daemon holds at once: the newest reader waits, the oldest never.

``max_buffered_body_bytes`` over all requests (contract 3, reliability.md "Bounds"). A body with a
Content-Length is reserved before it is read, a chunked one in steps. The oldest reader may always
exceed, so that some request always gets through and nothing can deadlock.
"""

from collections import OrderedDict

import trio

CHUNKED_STEP_BYTES = 1024 * 1024


class BodyBudget:
    """The shared account. Reservations are held by ``BodyReservation``s."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self.held_bytes = 0
        # Readers that may still ask for more, oldest first.
        self._readers: OrderedDict[BodyReservation, None] = OrderedDict()
        self._changed = trio.Event()

    def open(self) -> "BodyReservation":
        """A new reader, the newest of all."""
        reservation = BodyReservation(self)
        self._readers[reservation] = None
        return reservation

    async def grow(self, reservation: "BodyReservation", amount_bytes: int) -> None:
        while (
            self.held_bytes + amount_bytes > self._limit_bytes
            and next(iter(self._readers)) is not reservation
        ):
            await self._changed.wait()
        self.held_bytes += amount_bytes
        reservation.held_bytes += amount_bytes

    def stop_reading(self, reservation: "BodyReservation") -> None:
        if reservation in self._readers:
            del self._readers[reservation]
            self._wake()

    def give_back(self, reservation: "BodyReservation") -> None:
        self.held_bytes -= reservation.held_bytes
        reservation.held_bytes = 0
        self._readers.pop(reservation, None)
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


class BodyReservation:
    """What one request's body holds. ``release`` is synchronous and idempotent."""

    __slots__ = ("_budget", "held_bytes")

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self.held_bytes = 0

    async def reserve(self, total_bytes: int) -> None:
        """Wait until the budget has room for the body to reach total_bytes."""
        if total_bytes > self.held_bytes:
            await self._budget.grow(self, total_bytes - self.held_bytes)

    def whole(self) -> None:
        """The body has been read: it keeps its bytes, but is no reader any more."""
        self._budget.stop_reading(self)

    def release(self) -> None:
        """The body is gone from memory."""
        self._budget.give_back(self)
