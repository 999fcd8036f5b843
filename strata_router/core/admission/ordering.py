"""Ids kept in the two orders that admission needs: by arrival and by deadline.

Both delete lazily, so that a queue of ten thousand costs each decision no more than a queue of ten;
``tests/bench_admission.py`` measures it. Used by ``waiting_room``.
"""

import heapq
from bisect import bisect_left
from collections.abc import Iterator

from strata_router.core.vocabulary import TicketId

_SPARE = 32
"""Dead entries tolerated beyond the number of live ones, so that small queues never compact."""


class ArrivalOrder:
    """A set of ticket ids that knows its smallest and can be walked in ascending order.

    Amortised constant time where ids come in ascending order, which all but the pinned and the
    slowly uploaded do; those few are inserted by bisection. A discarded id may be added again: an
    exchange queues once more when the engine had died before the request was sent.
    """

    __slots__ = ("_ids", "_live", "_start")

    def __init__(self) -> None:
        self._ids: list[TicketId] = []
        self._live: set[TicketId] = set()
        self._start = 0

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, ticket_id: TicketId) -> bool:
        return ticket_id in self._live

    def __iter__(self) -> Iterator[TicketId]:
        for index in range(self._start, len(self._ids)):
            if self._ids[index] in self._live:
                yield self._ids[index]

    def add(self, ticket_id: TicketId) -> None:
        if self._ids and ticket_id <= self._ids[-1]:
            index = bisect_left(self._ids, ticket_id, lo=self._start)
            # Lazily deleted it may still lie there, and would be walked twice.
            if index == len(self._ids) or self._ids[index] != ticket_id:
                self._ids.insert(index, ticket_id)
        else:
            self._ids.append(ticket_id)
        self._live.add(ticket_id)

    def discard(self, ticket_id: TicketId) -> None:
        self._live.discard(ticket_id)
        if len(self._ids) > 2 * len(self._live) + _SPARE:
            self._ids = list(self)
            self._start = 0

    def first(self) -> TicketId | None:
        """The smallest id, or None when there is none."""
        if not self._live:
            return None
        while self._ids[self._start] not in self._live:
            self._start += 1
        return self._ids[self._start]


class Deadlines:
    """Ticket ids by the monotonic second at which something becomes true of them.

    An id that was discarded may come back with another second; what lies in the heap from before
    does not count, because each id is live with one second only.
    """

    __slots__ = ("_heap", "_live")

    def __init__(self) -> None:
        self._heap: list[tuple[float, TicketId]] = []
        self._live: dict[TicketId, float] = {}

    def add(self, ticket_id: TicketId, at_s: float) -> None:
        heapq.heappush(self._heap, (at_s, ticket_id))
        self._live[ticket_id] = at_s

    def discard(self, ticket_id: TicketId) -> None:
        self._live.pop(ticket_id, None)
        if len(self._heap) > 2 * len(self._live) + _SPARE:
            self._heap = [(at_s, ticket_id) for ticket_id, at_s in self._live.items()]
            heapq.heapify(self._heap)

    def take(self, now: float) -> list[TicketId]:
        """Remove and return every id whose second is not after ``now``, soonest first."""
        reached = []
        while (at_s := self.first_s()) is not None and at_s <= now:
            ticket_id = heapq.heappop(self._heap)[1]
            del self._live[ticket_id]
            reached.append(ticket_id)
        return reached

    def first_s(self) -> float | None:
        """The soonest second, or None when there is none."""
        while self._heap and self._live.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None
