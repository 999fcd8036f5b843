"""Why one ticket still waits, in a word and a few numbers, for people who look at the queue.

Reads the state and changes nothing. The reasons are tried in the order of the rules in ``turns``, so
each names the first rule that holds the ticket back. ``words`` makes a sentence of the outcome.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from strata_router.core.admission.cache_order import Standing
from strata_router.core.admission.engine_view import Phase
from strata_router.core.admission.state import AdmissionState
from strata_router.core.admission.waiting_room import Waiting
from strata_router.core.vocabulary import ModelId, TicketId, Tier


class WaitReason(StrEnum):
    """What a ticket waits for."""

    ENGINE_STOPPING = "engine_stopping"
    OPERATOR = "operator"
    OWN_LOAD = "own_load"
    OTHER_LOAD = "other_load"
    DUE_FIRST = "due_first"
    HIGHER_TIER = "higher_tier"
    PLACES = "places"
    HEADERS = "headers"
    """Legacy mode's lock: another request selects, loads or awaits the engine's response head."""
    CACHE_LOOKUP = "cache_lookup"
    LOADED_FIRST = "loaded_first"
    EARLIER_FIRST = "earlier_first"
    OTHER_LEASES = "other_leases"
    GRACE = "grace"
    NOTHING = "nothing"
    """Decisions have not been taken since the last input."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Why one ticket waits.

    model: its group now; None for an alias that nothing can serve.
    waited_s: since its arrival. due: its ``max_wait_ms`` has passed.
    behind_model: what is loaded, loading, wanted or asked for earlier and in its way, by reason; its
        own model where that is what it waits for; None where no model is. behind_tier: the tier in
        its way, for HIGHER_TIER only.
    leases: active ones, any of whose ends may let it go on. seconds_left: until its hold ends, None
        when no time ends it.
    """

    ticket: TicketId
    tier: Tier
    model: ModelId | None
    waited_s: float
    due: bool
    reason: WaitReason
    behind_model: ModelId | None
    behind_tier: Tier | None
    leases: int
    seconds_left: float | None


def wait_of(state: AdmissionState, waiting: Waiting, now: float) -> Wait:
    reason = _reason(state, waiting, now)
    until_s = {
        WaitReason.CACHE_LOOKUP: state.cache.budget_until_s,
        WaitReason.GRACE: state.engine.grace_until_s,
    }.get(reason)
    ticket = waiting.ticket
    return Wait(
        ticket=ticket.id,
        tier=ticket.tier,
        model=state.target(waiting.lane),
        waited_s=now - ticket.arrived_s,
        due=state.room.is_due(ticket.id),
        reason=reason,
        behind_model=_behind_model(state, ticket.tier, reason),
        behind_tier=state.room.highest_tier() if reason is WaitReason.HIGHER_TIER else None,
        leases=len(state.leases),
        seconds_left=None if until_s is None else until_s - now,
    )


def _reason(state: AdmissionState, waiting: Waiting, now: float) -> WaitReason:
    accepts = waiting.lane.accepts
    if state.engine.phase in (Phase.CANCELLING, Phase.UNLOADING):
        return WaitReason.ENGINE_STOPPING
    if (loading := state.engine.loading) is not None:
        return WaitReason.OWN_LOAD if loading in accepts else WaitReason.OTHER_LOAD
    if state.wish is not None:
        return WaitReason.OPERATOR
    due = state.room.first_due()
    if due is not None and due is not waiting:
        return WaitReason.DUE_FIRST
    if due is None and waiting.ticket.tier is not state.room.highest_tier():
        return WaitReason.HIGHER_TIER
    if state.engine.ready in accepts:
        return _reason_on_ready(state, now)
    return _reason_behind_ready(state, waiting, due, now)


def _reason_on_ready(state: AdmissionState, now: float) -> WaitReason:
    if not state.has_place:
        locked = state.policy.counts_header_waits and state.before_headers > 0
        return WaitReason.HEADERS if locked else WaitReason.PLACES
    if state.cache.standing(now) is Standing.AWAITED:
        return WaitReason.CACHE_LOOKUP
    return WaitReason.NOTHING


def _reason_behind_ready(
    state: AdmissionState, waiting: Waiting, due: Waiting | None, now: float
) -> WaitReason:
    tier, ready = waiting.ticket.tier, state.engine.ready
    if due is None:
        if ready is not None and state.room.count_for(ready, tier) > 0:
            return WaitReason.LOADED_FIRST
        first = state.room.first(tier)
        assert first is not None, "the ticket's own tier has a first ticket"
        if state.target(first.lane) != state.target(waiting.lane):
            return WaitReason.EARLIER_FIRST
    if state.leases:
        return WaitReason.OTHER_LEASES
    if due is None and tier is not Tier.PRIORITY and now < state.engine.grace_until_s:
        return WaitReason.GRACE
    return WaitReason.NOTHING


def _behind_model(state: AdmissionState, tier: Tier, reason: WaitReason) -> ModelId | None:
    match reason:
        case WaitReason.OWN_LOAD | WaitReason.OTHER_LOAD:
            return state.engine.loading
        case WaitReason.OPERATOR:
            return None if state.wish is None else state.wish.model
        case WaitReason.DUE_FIRST:
            return _model_of(state, state.room.first_due())
        case WaitReason.EARLIER_FIRST:
            return _model_of(state, state.room.first(tier))
        case WaitReason.OTHER_LEASES:
            return next(lease.model for lease in state.leases.values())  # all have the same
        case WaitReason.ENGINE_STOPPING | WaitReason.HIGHER_TIER | WaitReason.NOTHING:
            return None
        case (
            WaitReason.PLACES
            | WaitReason.HEADERS
            | WaitReason.CACHE_LOOKUP
            | WaitReason.LOADED_FIRST
            | WaitReason.GRACE
        ):
            return state.engine.ready
        case _:
            assert_never(reason)


def _model_of(state: AdmissionState, waiting: Waiting | None) -> ModelId | None:
    return None if waiting is None else state.target(waiting.lane)
