"""The tickets that wait, found by tier, by model group, by age and by deadline.

A *lane* holds the tickets of one tier that the same models may answer: one per concrete model, one
per alias. A loaded model's group is then the few lanes that accept it, and nothing has to move when
another model is loaded. It knows no engine and makes no decision; ``turns`` asks it, and most often it
is empty: an engine that keeps up has nobody waiting, so that question is answered first everywhere.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from heapq import merge

from strata_router.core.admission.ordering import ArrivalOrder, Deadlines
from strata_router.core.admission.policy import Policy
from strata_router.core.admission.ticket import Ticket
from strata_router.core.vocabulary import ModelId, TicketId, Tier


@dataclass(frozen=True, slots=True, eq=False)
class Lane:
    """Tickets of one tier that share ``accepts`` and ``preferred`` (see ``Ticket``)."""

    accepts: frozenset[ModelId]
    preferred: ModelId | None
    order: ArrivalOrder = field(default_factory=ArrivalOrder)


@dataclass(frozen=True, slots=True, eq=False)
class Waiting:
    """A ticket and the lane it stands in."""

    ticket: Ticket
    lane: Lane


@dataclass(frozen=True, slots=True, eq=False)
class _TierQueue:
    """One tier: all its tickets by arrival, and its lanes. Their number is bounded by the config."""

    order: ArrivalOrder = field(default_factory=ArrivalOrder)
    lanes: dict[tuple[tuple[ModelId, ...], ModelId | None], Lane] = field(default_factory=dict)
    accepting: dict[ModelId, list[Lane]] = field(default_factory=dict)

    def lane(self, accepts: tuple[ModelId, ...], preferred: ModelId | None) -> Lane:
        lane = self.lanes.get((accepts, preferred))
        if lane is None:
            lane = self.lanes[accepts, preferred] = Lane(frozenset(accepts), preferred)
            for model in lane.accepts:
                self.accepting.setdefault(model, []).append(lane)
        return lane


class WaitingRoom:
    """Every ticket is in here from arrival until it is admitted, refused or gone."""

    __slots__ = ("_due", "_due_later", "_expiry", "_max_wait_ms", "_policy", "_tiers", "_waiting")

    def __init__(self, policy: Policy, max_wait_ms: Mapping[Tier, int]) -> None:
        self._policy = policy
        self._max_wait_ms = max_wait_ms
        self._tiers = {tier: _TierQueue() for tier in sorted(Tier, key=lambda tier: tier.rank)}
        self._waiting: dict[TicketId, Waiting] = {}
        self._expiry = Deadlines()
        self._due_later = Deadlines()
        self._due = ArrivalOrder()

    def __len__(self) -> int:
        return len(self._waiting)

    def get(self, ticket_id: TicketId) -> Waiting | None:
        return self._waiting.get(ticket_id)

    def add(self, ticket: Ticket) -> None:
        assert ticket.id not in self._waiting, "a ticket arrives once"
        queue = self._tiers[ticket.tier]
        lane = queue.lane(ticket.accepts, ticket.preferred)
        lane.order.add(ticket.id)
        queue.order.add(ticket.id)
        self._waiting[ticket.id] = Waiting(ticket, lane)
        if (expires_s := self._policy.expires_s(ticket)) is not None:
            self._expiry.add(ticket.id, expires_s)
        if (max_wait_ms := self._max_wait_ms.get(ticket.tier, 0)) > 0:
            self._due_later.add(ticket.id, ticket.arrived_s + max_wait_ms / 1000)

    def remove(self, ticket_id: TicketId) -> Waiting:
        waiting = self._waiting.pop(ticket_id)
        waiting.lane.order.discard(ticket_id)
        self._tiers[waiting.ticket.tier].order.discard(ticket_id)
        self._expiry.discard(ticket_id)
        self._due_later.discard(ticket_id)
        self._due.discard(ticket_id)
        return waiting

    def pin(self, ticket_id: TicketId, model: ModelId) -> None:
        """Let only ``model`` answer the ticket from now on; it keeps its age."""
        waiting = self._waiting[ticket_id]
        lane = self._tiers[waiting.ticket.tier].lane((model,), model)
        if lane is waiting.lane:
            return  # Bound to that model already.
        waiting.lane.order.discard(ticket_id)
        lane.order.add(ticket_id)
        self._waiting[ticket_id] = Waiting(waiting.ticket, lane)

    def take_expired(self, now: float) -> list[TicketId]:
        """Ids that have waited longer than the mode allows; still in here until removed."""
        return self._expiry.take(now) if self._waiting else []

    def mark_due(self, now: float) -> None:
        """Let every ticket whose ``max_wait_ms`` has passed count as due from now on."""
        if self._waiting:
            for ticket_id in self._due_later.take(now):
                self._due.add(ticket_id)

    def next_deadline_s(self) -> float | None:
        """When the next ticket expires or becomes due."""
        if not self._waiting:
            return None
        soonest = [s for s in (self._expiry.first_s(), self._due_later.first_s()) if s is not None]
        return min(soonest, default=None)

    def first_due(self) -> Waiting | None:
        """The oldest due ticket of any tier."""
        ticket_id = self._due.first()
        return None if ticket_id is None else self._waiting[ticket_id]

    def is_due(self, ticket_id: TicketId) -> bool:
        return ticket_id in self._due

    def highest_tier(self) -> Tier | None:
        """The most urgent tier that has a ticket."""
        if not self._waiting:
            return None
        return next(tier for tier, queue in self._tiers.items() if len(queue.order) > 0)

    def walk_due(self) -> Iterator[Waiting]:
        """The due tickets of every tier, oldest first."""
        return (self._waiting[ticket_id] for ticket_id in self._due)

    def lanes(self, tier: Tier) -> list[Lane]:
        """The lanes of the tier that hold a ticket; no more than the configuration has names."""
        return [lane for lane in self._tiers[tier].lanes.values() if len(lane.order) > 0]

    def first(self, tier: Tier) -> Waiting | None:
        """The earliest ticket of the tier."""
        ticket_id = self._tiers[tier].order.first()
        return None if ticket_id is None else self._waiting[ticket_id]

    def first_for(self, model: ModelId, tier: Tier) -> Waiting | None:
        """The earliest ticket of the tier that ``model`` may answer."""
        heads = [lane.order.first() for lane in self._tiers[tier].accepting.get(model, ())]
        earliest = min((head for head in heads if head is not None), default=None)
        return None if earliest is None else self._waiting[earliest]

    def count_for(self, model: ModelId, tier: Tier) -> int:
        """How many tickets of the tier ``model`` may answer."""
        return sum(len(lane.order) for lane in self._tiers[tier].accepting.get(model, ()))

    def walk_for(self, model: ModelId, tier: Tier) -> Iterator[TicketId]:
        """The tickets of the tier that ``model`` may answer, in arrival order."""
        return merge(*(lane.order for lane in self._tiers[tier].accepting.get(model, ())))

    def wants(self, model: ModelId) -> bool:
        """Whether a ticket of any tier may be answered by ``model``."""
        return bool(self._waiting) and any(self.count_for(model, tier) for tier in self._tiers)

    def accepting(self, model: ModelId) -> list[TicketId]:
        """Every ticket that ``model`` may answer, in arrival order."""
        return list(merge(*(self.walk_for(model, tier) for tier in self._tiers)))

    def everyone(self) -> list[TicketId]:
        """Every ticket, in arrival order."""
        return list(merge(*(queue.order for queue in self._tiers.values())))

    def depth_by_tier(self) -> dict[Tier, int]:
        return {tier: len(queue.order) for tier, queue in self._tiers.items()}
