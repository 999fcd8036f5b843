"""Whose turn it is: draws every decision that the present state allows.

The rules, in the order in which they are tried (contract section 7):

    0. the operator's wish, before any ticket;
    1. due tickets, oldest first, whatever tier or model;
    2. the highest waiting tier's tickets for the ready model, by cached fraction, then arrival;
    3. with no lease left and the grace over: the model of that tier's earliest ticket, by a load;
    4. with nothing waiting: the idle unload.

A load or stop under way is awaited, unless nobody wants the loading model while others wait. Called
by ``Scheduler.take_decisions`` only.
"""

from strata_router.core.admission.cache_order import Standing
from strata_router.core.admission.engine_view import Phase
from strata_router.core.admission.operator_wish import OperatorWish
from strata_router.core.admission.state import AdmissionState
from strata_router.core.admission.waiting_room import Waiting
from strata_router.core.refusal import Case, Refusal
from strata_router.core.vocabulary import ModelId, Tier


def settle(state: AdmissionState, now: float) -> None:
    """Append decisions to ``state.decisions`` until none is left to draw.

    Leaves in ``state.hold_until_s`` when a hold met on the way ends.
    """
    state.hold_until_s = None
    for ticket_id in state.room.take_expired(now):
        state.refuse_waiting(ticket_id, Refusal(Case.QUEUE_TIMEOUT))
    state.room.mark_due(now)
    ready = state.engine.ready
    if ready is None or not state.room.wants(ready):
        state.cache.nobody_competes()
    while _step(state, now):
        pass
    state.cache.settled()


def _step(state: AdmissionState, now: float) -> bool:
    """Draw one decision; False when everything that is left has to wait."""
    if state.engine.phase in (Phase.CANCELLING, Phase.UNLOADING):
        return False
    if state.wish is not None:
        return _serve_operator(state, state.wish, now)
    due = state.room.first_due()
    tier = state.room.highest_tier()
    if tier is None:
        return _unload_when_idle(state, now)
    first = due or state.room.first(tier)
    assert first is not None, "the highest waiting tier has a first ticket"
    if state.engine.phase is Phase.LOADING:
        return _drop_unwanted_load(state, first, now)
    ready = state.engine.ready
    if due is not None:
        if ready in due.lane.accepts:
            return _admit_if_place(state, due)
    elif ready is not None and state.room.count_for(ready, tier) > 0:
        return _admit_best(state, ready, tier, now)
    return _switch_towards(state, first, now, skips_grace=due is not None or tier is Tier.PRIORITY)


def _serve_operator(state: AdmissionState, wish: OperatorWish, now: float) -> bool:
    loading = state.engine.loading
    if wish.model is not None and wish.model == state.engine.ready:
        state.engine.wanted(now)
        state.wish = None
        return True
    if wish.decided or state.leases or (loading is not None and loading == wish.model):
        return False
    if loading is not None:
        state.cancel_load()
        return False
    wish.decided = True
    if wish.model is None:
        state.unload()
    else:
        state.load(wish.model)
    return False


def _drop_unwanted_load(state: AdmissionState, first: Waiting, now: float) -> bool:
    """A load that its asker left runs on for the next one, but not against those who wait."""
    loading = state.engine.loading
    assert loading is not None, "the phase is LOADING"
    if state.leases or state.room.wants(loading):
        return False
    if _refuse_unservable(state, first, now):
        return True
    state.cancel_load()
    return True


def _refuse_unservable(state: AdmissionState, first: Waiting, now: float) -> bool:
    refusal = state.unservable(first.lane, now)
    if refusal is None:
        return False
    state.refuse_waiting(first.ticket.id, refusal)
    return True


def _admit_if_place(state: AdmissionState, waiting: Waiting) -> bool:
    ready = state.engine.ready
    assert ready is not None, "asked only about the ready model's group"
    if not state.has_place:
        return False
    state.admit(waiting, ready, model_switch=False)
    return True


def _admit_best(state: AdmissionState, ready: ModelId, tier: Tier, now: float) -> bool:
    """Rule 2, once the cache order is known or does not matter."""
    if not state.has_place:
        return False
    cache = state.cache
    if cache.applies and state.room.count_for(ready, tier) > 1:
        standing = cache.standing(now)
        if standing is Standing.UNASKED:
            state.decisions.append(cache.ask(state.room.walk_for(ready, tier), now))
        if standing is not Standing.DECIDED:
            state.hold_until_s = cache.budget_until_s
            return False
    return _admit_if_place(state, _best(state, ready, tier))


def _best(state: AdmissionState, ready: ModelId, tier: Tier) -> Waiting:
    # A due ticket may have been taken out of this settling's ranking, and scores come from outside.
    while (ticket_id := state.cache.take_best()) is not None:
        ranked = state.room.get(ticket_id)
        if ranked is not None and ranked.ticket.tier is tier and ready in ranked.lane.accepts:
            return ranked
    earliest = state.room.first_for(ready, tier)
    assert earliest is not None, "the group was counted before"
    return earliest


def _switch_towards(
    state: AdmissionState, first: Waiting, now: float, *, skips_grace: bool
) -> bool:
    """Rule 3. The earliest ticket is admitted with the decision to load, before the load itself."""
    if _refuse_unservable(state, first, now):
        return True
    if state.leases:
        return False
    if not skips_grace and now < state.engine.grace_until_s:
        state.hold_until_s = state.engine.grace_until_s
        return False
    model = state.target(first.lane)
    assert model is not None, "unservable tickets were refused"
    state.admit(first, model, model_switch=state.engine.found_another(model))
    state.load(model)
    return True


def _unload_when_idle(state: AdmissionState, now: float) -> bool:
    idle_until_s = state.engine.idle_until_s()
    if idle_until_s is None or state.leases:
        return False
    if now < idle_until_s:
        state.hold_until_s = idle_until_s
        return False
    state.unload()
    return True
