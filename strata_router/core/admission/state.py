"""Everything admission knows at one instant, and the few ways in which it changes.

Shared by ``scheduler`` (facts come in), ``turns`` (decisions are drawn) and ``snapshot`` (read only).
It keeps the books; whose turn it is, is ``turns``' business.
"""

from dataclasses import dataclass
from math import ceil

from strata_router.core.admission.cache_order import CacheOrder
from strata_router.core.admission.decisions import Admit, CancelLoad, Decision, Load, Refuse, Unload
from strata_router.core.admission.engine_view import EngineView, Phase
from strata_router.core.admission.legacy import Legacy
from strata_router.core.admission.operator_wish import OperatorWish
from strata_router.core.admission.policy import Policy
from strata_router.core.admission.settings import SchedulerSettings
from strata_router.core.admission.wait_first import WaitFirst
from strata_router.core.admission.waiting_room import Lane, Waiting, WaitingRoom
from strata_router.core.refusal import Case, Refusal
from strata_router.core.vocabulary import ModelId, TicketId, Tier


@dataclass(slots=True, eq=False)
class Lease:
    """An admitted ticket, from its Admit until its exchange leaves.

    before_headers: upstream has not answered yet; legacy mode's lock.
    """

    model: ModelId
    tier: Tier
    before_headers: bool = True


class AdmissionState:
    """One scheduler's books; touched by one task only."""

    __slots__ = (
        "before_headers",
        "cache",
        "closed",
        "decisions",
        "engine",
        "hold_until_s",
        "leases",
        "policy",
        "retry_after_s",
        "room",
        "routing",
        "wish",
    )

    def __init__(self, settings: SchedulerSettings) -> None:
        self.policy: Policy = (
            WaitFirst.of(settings) if settings.wait_when_busy else Legacy.of(settings)
        )
        self.room = WaitingRoom(self.policy, settings.max_wait_ms)
        self.engine = EngineView(settings.model_grace_ms, settings.idle_ms, settings.cooldown_ms)
        self.cache = CacheOrder(settings.cache_lookup_ms)
        self.leases: dict[TicketId, Lease] = {}
        self.before_headers = 0
        self.retry_after_s = ceil(settings.cooldown_ms / 1000)
        """Whole seconds until a model whose load has just failed may be loaded again."""
        self.wish: OperatorWish | None = None
        self.routing = True
        self.closed: Case | None = None
        self.decisions: list[Decision] = []
        self.hold_until_s: float | None = None
        """Until when the last settling held back what it could have decided; None without a hold."""

    @property
    def has_place(self) -> bool:
        """Whether one more lease fits on the ready model."""
        return self.policy.has_place(len(self.leases), self.before_headers)

    def target(self, lane: Lane) -> ModelId | None:
        """The model of the lane's group now: ready or loading before preferred."""
        selected = self.engine.selected
        return selected if selected in lane.accepts else lane.preferred

    def unservable(self, lane: Lane, now: float) -> Refusal | None:
        """Why the lane's tickets cannot be served although a turn came; None when they can."""
        model = self.target(lane)
        if model is None:
            return Refusal(Case.MODEL_NOT_PREPARED)
        if model == self.engine.selected:
            return None
        return self.engine.cooldown_refusal(model, now)

    def group(self, model: ModelId) -> list[TicketId]:
        """The waiting tickets whose model is ``model`` now, in arrival order."""
        accepting = [(i, self.room.get(i)) for i in self.room.accepting(model)]
        return [i for i, w in accepting if w is not None and self.target(w.lane) == model]

    def admit(self, waiting: Waiting, model: ModelId, model_switch: bool) -> None:
        ticket = waiting.ticket
        self.room.remove(ticket.id)
        self.leases[ticket.id] = Lease(model, ticket.tier)
        self.before_headers += 1
        self.cache.place_taken()
        self.decisions.append(Admit(ticket.id, model, model_switch))

    def refuse_waiting(self, ticket_id: TicketId, refusal: Refusal) -> None:
        self.drop_waiting(ticket_id)
        self.decisions.append(Refuse(ticket_id, refusal))

    def drop_waiting(self, ticket_id: TicketId) -> None:
        self.room.remove(ticket_id)
        self.cache.discard_scores()

    def end_header_wait(self, lease: Lease) -> None:
        if lease.before_headers:
            lease.before_headers = False
            self.before_headers -= 1

    def end_lease(self, ticket_id: TicketId) -> Lease | None:
        lease = self.leases.pop(ticket_id, None)
        if lease is not None:
            self.end_header_wait(lease)
            self.cache.discard_scores()
        return lease

    def load(self, model: ModelId) -> None:
        self._engine_changes(Phase.LOADING, model)
        self.decisions.append(Load(model))

    def unload(self) -> None:
        self._engine_changes(Phase.UNLOADING, None)
        self.decisions.append(Unload())

    def cancel_load(self) -> None:
        self._engine_changes(Phase.CANCELLING, self.engine.loading)
        self.decisions.append(CancelLoad())

    def _engine_changes(self, phase: Phase, model: ModelId | None) -> None:
        self.engine.decided(phase, model)
        self.cache.engine_changed()
