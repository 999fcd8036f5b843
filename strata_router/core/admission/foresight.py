"""In which order the waiting tickets would be served if nothing but their service happened from now on.

A forecast for people who look at the queue, drawn from the same state as ``turns`` draws decisions
from: due tickets, then tier by tier; within a tier the group of the model that is then loaded, then
the group of the earliest ticket, and so on. It knows no arrival, no deadline to come and no cached
fraction; the latter is only asked for when a place is free. Reads the state and changes nothing.
"""

from collections.abc import Iterator
from heapq import merge

from strata_router.core.admission.state import AdmissionState
from strata_router.core.admission.waiting_room import Lane, Waiting, WaitingRoom
from strata_router.core.vocabulary import ModelId, TicketId, Tier


def foreseen_order(state: AdmissionState) -> Iterator[Waiting]:
    """Every waiting ticket once. Lazy: valid until the state changes, and costs what is taken."""
    wish = state.wish
    foresight = _Foresight(state.room, state.engine.selected if wish is None else wish.model)
    yield from foresight.due()
    for tier in sorted(Tier, key=lambda tier: tier.rank):
        yield from foresight.tier(tier)


class _Foresight:
    """Serves the tickets in thought. model: what would be loaded by then; None for nothing."""

    def __init__(self, room: WaitingRoom, model: ModelId | None) -> None:
        self._room = room
        self._model = model

    def due(self) -> Iterator[Waiting]:
        for waiting in self._room.walk_due():
            if self._model not in waiting.lane.accepts:
                self._model = waiting.lane.preferred or self._model
            yield waiting

    def tier(self, tier: Tier) -> Iterator[Waiting]:
        rests = [_Rest(lane, self._room) for lane in self._room.lanes(tier)]
        while rests := [rest for rest in rests if not rest.is_over]:
            group = [rest for rest in rests if self._model in rest.lane.accepts]
            if group:
                yield from map(self._get, merge(*group))
                continue
            first = min(rests, key=lambda rest: rest.head)
            if first.lane.preferred is not None:
                self._model = first.lane.preferred
            else:  # it is refused when its turn comes, and nothing is loaded for it
                yield self._get(next(first))

    def _get(self, ticket_id: TicketId) -> Waiting:
        waiting = self._room.get(ticket_id)
        assert waiting is not None, "a lane holds waiting tickets only"
        return waiting


class _Rest:
    """What of a lane is not due and not foreseen yet; takes away what it gives."""

    def __init__(self, lane: Lane, room: WaitingRoom) -> None:
        self.lane = lane
        self._ids = (ticket_id for ticket_id in lane.order if not room.is_due(ticket_id))
        self._head = next(self._ids, None)

    @property
    def is_over(self) -> bool:
        return self._head is None

    @property
    def head(self) -> TicketId:
        """The earliest ticket that is left."""
        assert self._head is not None, "asked only while it is not over"
        return self._head

    def __iter__(self) -> "_Rest":
        return self

    def __next__(self) -> TicketId:
        if self._head is None:
            raise StopIteration
        head, self._head = self._head, next(self._ids, None)
        return head
