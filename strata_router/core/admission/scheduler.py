"""The scheduler: facts come in, decisions go out; who may use the engine next, and why.

A pure object for one task, ``runtime.coordinator``. It reads no clock, starts nothing and calls
nobody: every input takes ``now`` (monotonic seconds), ``take_decisions`` says what to do, in order,
and the coordinator reports back what came of it. After every input, and at ``next_deadline()``, the
coordinator takes decisions. The rules themselves are in ``turns``.

The dialogue about the engine: ``Load`` is answered by exactly one of ``engine_ready``,
``load_failed`` and ``load_cancelled``, ``CancelLoad`` by any of these too (whichever came first),
``Unload`` by ``engine_stopped``. Reports are believed over what was decided.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import islice

from strata_router.core.admission.decisions import Decision, Refuse
from strata_router.core.admission.engine_view import Phase
from strata_router.core.admission.foresight import foreseen_order
from strata_router.core.admission.operator_wish import OperatorWish
from strata_router.core.admission.settings import SchedulerSettings
from strata_router.core.admission.snapshot import Snapshot, take_snapshot
from strata_router.core.admission.state import AdmissionState
from strata_router.core.admission.ticket import Ticket
from strata_router.core.admission.turns import settle
from strata_router.core.admission.why import Wait, wait_of
from strata_router.core.refusal import Case, Refusal
from strata_router.core.vocabulary import ModelId, TicketId


class Scheduler:
    """Admission for one engine, wait-first or legacy as the settings say."""

    __slots__ = ("_state",)

    def __init__(self, settings: SchedulerSettings) -> None:
        self._state = AdmissionState(settings)

    # Requests

    def arrive(self, ticket: Ticket, now: float) -> None:
        """Queue a ticket, or refuse it where waiting could not help."""
        state = self._state
        refusal = self._refusal_for_all() or state.policy.refuses_arrival(
            len(state.room), len(state.leases)
        )
        if refusal is not None:
            state.decisions.append(Refuse(ticket.id, refusal))
            return
        state.room.add(ticket)
        state.cache.discard_scores()
        waiting = state.room.get(ticket.id)
        assert waiting is not None, "just added"
        if (refusal := state.unservable(waiting.lane, now)) is not None:
            state.refuse_waiting(ticket.id, refusal)

    def leave(self, ticket_id: TicketId, now: float) -> None:
        """The client is gone or the exchange has ended: forget the ticket or end the lease.

        An id that is neither is ignored, so an exchange may always say so once more. A refused
        lease (failed load) and a refused ticket have left already.
        """
        state = self._state
        if state.room.get(ticket_id) is not None:
            state.drop_waiting(ticket_id)
        elif (lease := state.end_lease(ticket_id)) is not None:
            state.engine.lease_ended(lease.model, now)

    def headers_arrived(self, ticket_id: TicketId, now: float) -> None:
        """The upstream response head was seen: legacy mode's lock is free. Unknown ids are ignored."""
        if (lease := self._state.leases.get(ticket_id)) is not None:
            self._state.end_header_wait(lease)

    def pin(self, ticket_id: TicketId, now: float) -> ModelId | Refusal:
        """Bind a ticket to the model that its committed response must name, and return that.

        A lease names its own model. A Refusal is the ticket's end and no ``Refuse`` follows, unless
        one was decided already and is still to be taken; then that one's refusal is returned.
        KeyError: the id neither waits nor holds a lease, and its refusal was taken or it has left.
        """
        state = self._state
        if (lease := state.leases.get(ticket_id)) is not None:
            return lease.model
        waiting = state.room.get(ticket_id)
        if waiting is None:
            return self._refusal_to_come(ticket_id)
        if (refusal := state.unservable(waiting.lane, now)) is not None:
            state.drop_waiting(ticket_id)
            return refusal
        model = state.target(waiting.lane)
        assert model is not None, "servable tickets have a model"
        state.room.pin(ticket_id, model)
        return model

    # The engine

    def load_started(self, model: ModelId, now: float) -> None:
        """A load runs, also one that was not decided here; a decided one may be reported or not."""
        state = self._state
        if state.engine.phase is Phase.CANCELLING and state.engine.is_about(model):
            return  # The report crossed with our CancelLoad, which stands.
        if state.engine.loading != model:
            state.engine.decided(Phase.LOADING, model)
            state.cache.engine_changed()

    def engine_ready(self, model: ModelId, now: float) -> None:
        """The engine answers with ``model``, proven; its cooldown is over."""
        state = self._state
        state.engine.became_ready(model, now)
        state.cache.engine_changed()
        if state.wish is not None and state.wish.model == model:
            state.wish = None

    def load_failed(self, model: ModelId, refusal: Refusal, now: float) -> None:
        """Refuse with ``refusal`` everyone whom ``model`` was being loaded for; start its cooldown.

        A refusal that names no time to come back gets the cooldown's.
        """
        state = self._state
        if refusal.retry_after_s is None:
            refusal = replace(refusal, retry_after_s=state.retry_after_s)
        for ticket_id in state.group(model):
            state.refuse_waiting(ticket_id, refusal)
        for ticket_id in [i for i, lease in state.leases.items() if lease.model == model]:
            state.end_lease(ticket_id)
            state.decisions.append(Refuse(ticket_id, refusal))
        state.engine.failed(model, now)
        self._engine_left(model)

    def load_cancelled(self, model: ModelId, now: float) -> None:
        """The load of ``model`` was killed, because of a CancelLoad or otherwise; no cooldown.

        A lease that waited for it is its exchange's to end. Ignored when the engine has moved on.
        """
        if self._state.engine.is_about(model):
            self._state.engine.became_empty()
            self._engine_left(model)

    def engine_stopped(self, now: float) -> None:
        """Nothing is loaded: after an Unload, or because the engine ended by itself.

        Leases on it are ended by their exchanges; until then no load is decided. While a load runs
        this is ignored: stopping the engine before is part of it, and its outcome is reported.
        """
        state = self._state
        if state.engine.phase in (Phase.LOADING, Phase.CANCELLING):
            return
        if (ready := state.engine.ready) is not None:
            state.engine.became_empty(died=ready)
        elif state.engine.phase is Phase.UNLOADING:
            state.engine.became_empty()
        state.cache.engine_changed()
        if state.wish is not None and state.wish.decided:
            state.wish = None

    def cache_scores(
        self,
        round: int,  # noqa: A002 -- the field LookUpCache.round, given back
        scores: Mapping[TicketId, tuple[int, int]] | None,
        supported: bool,
        now: float,
    ) -> None:
        """Answer to ``LookUpCache`` of that round: (cached_tokens, input_tokens) per ticket.

        scores: tickets left out count as having nothing cached; None (busy, failed, invalid) falls
        back to arrival order. supported: False is remembered until the engine changes. The scores
        of an older round are ignored.
        """
        self._state.cache.receive(round, scores, supported)

    def set_cache_min_tokens(self, tokens: int) -> None:
        """The loaded model's ``conversation_cache_min_tokens``; 0 when it has none."""
        self._state.cache.min_tokens = tokens

    # The operator

    def set_routing(self, on: bool, now: float) -> None:
        """Off refuses everyone who waits or arrives, until on; leases are left alone."""
        self._state.routing = on
        if not on:
            self._refuse_everyone(Refusal(Case.ROUTING_OFF))

    def refuse_all(self, case: Case, now: float) -> None:
        """Refuse everyone who waits or arrives, for good; leases are left alone."""
        self._state.closed = case
        self._refuse_everyone(Refusal(case))

    def operator_load(self, model: ModelId, now: float) -> None:
        """Load ``model`` as soon as no lease is left, ahead of tickets, grace and cooldown.

        A load of another model that nobody holds a lease on is cancelled. Done at ``engine_ready``
        or ``load_failed`` of the model; at once when it is ready, with its idle clock restarted.
        Replaces an earlier wish.
        """
        self._state.wish = OperatorWish(model)

    def operator_unload(self, now: float) -> None:
        """Stop the engine as soon as no lease is left; always answered by one ``Unload``.

        Replaces an earlier wish. Done at the ``engine_stopped`` after that ``Unload``.
        """
        self._state.wish = OperatorWish(None)

    def operator_cancel(self, now: float) -> None:
        """Withdraw the wish. A load that ran for it alone is cancelled, a stop runs to its end."""
        state = self._state
        wish, state.wish = state.wish, None
        if wish is None or not wish.decided or wish.model is None:
            return
        if not state.room.wants(wish.model):
            state.cancel_load()

    # What follows

    def take_decisions(self, now: float) -> list[Decision]:
        """Everything that is to be done now, in the order in which it is to be carried out."""
        state = self._state
        settle(state, now)
        decisions, state.decisions = state.decisions, []
        return decisions

    def next_deadline(self) -> float | None:
        """Monotonic second at which decisions must be taken again without any input.

        Valid after ``take_decisions``, and then later than its ``now``. None: only an input matters.
        """
        state = self._state
        ends = [s for s in (state.hold_until_s, state.room.next_deadline_s()) if s is not None]
        return min(ends, default=None)

    @property
    def awaits_scores(self) -> bool:
        """Whether the answer to the last ``LookUpCache`` still matters. Valid after ``take_decisions``."""
        return self._state.cache.awaits_answer

    def snapshot(self, now: float) -> Snapshot:
        """Counts and the engine's model; costs the same however many wait."""
        return take_snapshot(self._state, now)

    def why(self, ticket_id: TicketId, now: float) -> Wait | None:
        """What one waiting ticket waits for; None when it does not wait."""
        waiting = self._state.room.get(ticket_id)
        return None if waiting is None else wait_of(self._state, waiting, now)

    def waits(self, now: float) -> list[Wait]:
        """What every waiting ticket waits for, in arrival order."""
        room = self._state.room
        waiting = [room.get(ticket_id) for ticket_id in room.everyone()]
        return [wait_of(self._state, each, now) for each in waiting if each is not None]

    def queue(self, now: float, limit: int) -> list[Wait]:
        """The first ``limit`` tickets in the order in which they would be served as things stand, and
        what each waits for; costs ``limit``, however many wait."""
        foreseen = islice(foreseen_order(self._state), limit)
        return [wait_of(self._state, each, now) for each in foreseen]

    def order(self) -> list[TicketId]:
        """Every waiting ticket in that order; costs the length of the queue."""
        return [each.ticket.id for each in foreseen_order(self._state)]

    def active(self) -> list[TicketId]:
        """The leases, in the order of their admission."""
        return list(self._state.leases)

    def depths(self) -> tuple[int, int]:
        """(waiting tickets, leases): a record's ``queue_depth`` and ``in_flight`` at arrival."""
        return len(self._state.room), len(self._state.leases)

    def _refusal_for_all(self) -> Refusal | None:
        if self._state.closed is not None:
            return Refusal(self._state.closed)
        return None if self._state.routing else Refusal(Case.ROUTING_OFF)

    def _refusal_to_come(self, ticket_id: TicketId) -> Refusal:
        for decision in self._state.decisions:
            if isinstance(decision, Refuse) and decision.ticket == ticket_id:
                return decision.refusal
        raise KeyError(ticket_id)

    def _refuse_everyone(self, refusal: Refusal) -> None:
        for ticket_id in self._state.room.everyone():
            self._state.refuse_waiting(ticket_id, refusal)

    def _engine_left(self, model: ModelId) -> None:
        state = self._state
        state.cache.engine_changed()
        if state.wish is not None and state.wish.decided and state.wish.model == model:
            state.wish = None
