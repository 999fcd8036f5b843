"""``on MODEL`` and ``off`` hold the engine's lock: nothing new, leases end, then the engine moves.

Source: design, "Control the existing daemon".
"""

from dataclasses import replace

from strata_router.core.admission import Admit, CancelLoad, Load, Refuse, Unload
from strata_router.core.vocabulary import TicketId
from tests.core.admission_story import LOAD_FAILED, PRIORITY, WAIT_FIRST, A, B, Story


def one(number: int) -> TicketId:
    return TicketId(number)


def test_on_loads_at_once_when_no_lease_is_active() -> None:
    assert Story().operator_load(A, 0) == [Load(A)]


def test_on_waits_for_active_leases_and_admits_nothing_meanwhile() -> None:
    story = Story().serving(A, 1, 0)
    assert story.operator_load(B, 1) == []
    assert story.ask(2, A, now=2, tier=PRIORITY) == []
    assert story.leave(1, 3) == [Load(B)]


def test_on_ignores_grace() -> None:
    story = Story().serving(A, 1, 0)
    story.leave(1, 1)
    assert story.operator_load(B, 1.5) == [Load(B)]


def test_on_ignores_the_cooldown() -> None:
    story = Story()
    story.ask(1, A, now=0)
    story.fail(A, 1)
    assert story.operator_load(A, 2) == [Load(A)]


def test_a_request_that_arrives_during_the_operators_load_waits_for_it() -> None:
    story = Story()
    story.operator_load(A, 0)
    assert story.ask(1, A, now=1) == []
    assert story.ask(2, B, now=1) == []
    assert story.ready(A, 5) == [Admit(one(1), A, model_switch=False)]


def test_a_ticket_for_another_model_does_not_cancel_the_operators_load() -> None:
    story = Story()
    story.operator_load(A, 0)
    assert story.ask(1, B, now=1) == []
    assert story.ready(A, 5) == [Admit(one(1), B, model_switch=True), Load(B)]


def test_on_for_the_model_that_is_loading_anyway_is_that_load() -> None:
    story = Story()
    story.ask(1, A, now=0)
    assert story.operator_load(A, 1) == []
    assert story.ready(A, 5) == []
    assert story.ask(2, A, now=6) == [Admit(one(2), A, model_switch=False)]


def test_on_for_the_model_that_is_ready_is_fulfilled() -> None:
    story = Story().serving(A, 1, 0)
    assert story.operator_load(A, 1) == []
    assert story.ask(2, A, now=2) == [Admit(one(2), A, model_switch=False)]


def test_on_for_the_model_that_is_ready_restarts_its_idle_clock() -> None:
    """Source: design, "the idle clock restarts when on finishes"."""
    story = Story(replace(WAIT_FIRST, idle_ms=10_000, model_grace_ms=0)).serving(A, 1, 0)
    story.leave(1, 1)
    assert story.operator_load(A, 9) == []
    assert story.take(18.9) == []
    assert story.scheduler.next_deadline() == 19
    assert story.take(19) == [Unload()]


def test_on_cancels_the_load_of_another_model_that_no_lease_waits_for() -> None:
    story = Story()
    story.ask(1, A, now=0)
    story.ask(2, A, now=0)
    story.leave(1, 1)
    assert story.operator_load(B, 2) == [CancelLoad()]
    assert story.cancelled(A, 3) == [Load(B)]
    assert story.ready(B, 9) == [Admit(one(2), A, model_switch=True), Load(A)]


def test_on_waits_for_the_load_and_the_answer_of_an_active_lease() -> None:
    story = Story()
    story.ask(1, A, now=0)
    assert story.operator_load(B, 1) == []
    assert story.ready(A, 5) == []
    assert story.leave(1, 9) == [Load(B)]


def test_a_failed_operator_load_is_over_and_tickets_go_on() -> None:
    story = Story().serving(A, 1, 0)
    story.leave(1, 1)
    story.operator_load(B, 2)
    story.ask(2, A, now=3)
    assert story.fail(B, 4) == [Admit(one(2), A, model_switch=True), Load(A)]


def test_tickets_for_the_model_of_a_failed_operator_load_are_refused() -> None:
    story = Story()
    story.operator_load(B, 0)
    story.ask(1, B, now=1)
    assert story.fail(B, 4) == [Refuse(one(1), LOAD_FAILED)]


def test_off_unloads_when_the_last_lease_has_ended() -> None:
    story = Story().serving(A, 1, 0)
    assert story.operator_unload(1) == []
    assert story.leave(1, 5) == [Unload()]
    assert story.stopped(6) == []


def test_off_is_answered_by_an_unload_also_when_nothing_is_loaded() -> None:
    story = Story()
    assert story.operator_unload(0) == [Unload()]
    assert story.take(1) == []
    story.stopped(1)
    assert story.ask(1, A, now=2) == [Admit(one(1), A, model_switch=True), Load(A)]


def test_off_cancels_a_load_that_no_lease_waits_for_and_then_unloads() -> None:
    story = Story()
    story.ask(1, A, now=0)
    story.leave(1, 1)
    assert story.operator_unload(2) == [CancelLoad()]
    assert story.cancelled(A, 3) == [Unload()]


def test_off_during_an_idle_unload_gets_its_own_unload_after_it() -> None:
    story = Story(replace(WAIT_FIRST, idle_ms=1000)).serving(A, 1, 0)
    story.leave(1, 0)
    assert story.take(3) == [Unload()]
    assert story.operator_unload(3.5) == []
    assert story.stopped(4) == [Unload()]
    assert story.stopped(4) == []


def test_an_engine_that_dies_while_off_waits_still_gets_its_unload() -> None:
    story = Story().serving(A, 1, 0)
    story.operator_unload(1)
    assert story.stopped(2) == []
    assert story.leave(1, 3) == [Unload()]


def test_cancelling_a_waiting_wish_lets_tickets_go_on() -> None:
    story = Story().serving(A, 1, 0)
    story.operator_load(B, 1)
    story.ask(2, A, now=2)
    assert story.operator_cancel(3) == [Admit(one(2), A, model_switch=False)]


def test_cancelling_the_operators_load_kills_it() -> None:
    story = Story()
    story.operator_load(A, 0)
    assert story.operator_cancel(1) == [CancelLoad()]
    assert story.cancelled(A, 2) == []
    assert story.scheduler.snapshot(2).loading is None


def test_cancelling_the_operators_load_spares_it_for_a_ticket_that_waits_for_it() -> None:
    story = Story()
    story.operator_load(A, 0)
    story.ask(1, A, now=1)
    assert story.operator_cancel(2) == []
    assert story.ready(A, 5) == [Admit(one(1), A, model_switch=False)]


def test_cancelling_an_unload_lets_it_run_to_its_end() -> None:
    story = Story().serving(A, 1, 0)
    story.leave(1, 1)
    story.operator_unload(2)
    assert story.operator_cancel(3) == []
    assert story.ask(2, A, now=4) == []
    assert story.stopped(5) == [Admit(one(2), A, model_switch=True), Load(A)]


def test_cancelling_without_a_wish_changes_nothing() -> None:
    assert Story().operator_cancel(0) == []


def test_a_load_cancelled_from_outside_ends_the_operators_wish() -> None:
    story = Story()
    story.operator_load(A, 0)
    assert story.cancelled(A, 1) == []
    assert story.ask(1, B, now=2) == [Admit(one(1), B, model_switch=True), Load(B)]
