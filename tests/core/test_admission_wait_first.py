"""Who goes next in wait-first mode: tiers, model groups, grace, places, due tickets.

Source: contract section 7; design, "Wait-first scheduling" and "Service tiers".
"""

from dataclasses import replace

import pytest

from strata_router.core.admission import Admit, Decision, Load
from strata_router.core.vocabulary import TicketId, Tier
from tests.core.admission_story import DEFAULT, FLEX, PRIORITY, WAIT_FIRST, A, B, C, Story


def admit(number: int, model: str, *, switch: bool = False) -> Decision:
    return Admit(TicketId(number), A if model == "A" else B if model == "B" else C, switch)


def load(model: str) -> Decision:
    return Load(A if model == "A" else B if model == "B" else C)


def one_place() -> Story:
    return Story(replace(WAIT_FIRST, max_pending=1))


def test_a_cold_start_admits_the_first_ticket_and_then_loads_for_it() -> None:
    story = Story()
    assert story.ask(1, A, now=0) == [admit(1, "A", switch=True), load("A")]


def test_the_rest_of_the_group_waits_for_the_load_and_is_then_admitted_without_a_switch() -> None:
    story = Story()
    story.ask(1, A, now=0)
    assert story.ask(2, A, now=1) == []
    assert story.ready(A, 5) == [admit(2, "A")]


def test_requests_for_the_loaded_model_run_together() -> None:
    story = Story().serving(A, 1, 0)
    assert story.ask(2, A, now=1) == [admit(2, "A")]


def test_b09_alternating_models_are_served_in_groups_with_one_switch() -> None:
    """A busy, then A B A B A: engine order A A A B B (reports.md B09 a)."""
    story = one_place().serving(A, 1, 0)
    for number, model in enumerate((A, B, A, B, A), start=2):
        assert story.ask(number, model, now=1) == []
    assert story.leave(1, 2) == [admit(2, "A")]
    assert story.leave(2, 3) == [admit(4, "A")]
    assert story.leave(4, 4) == [admit(6, "A")]
    assert story.leave(6, 5) == []
    assert story.take(8) == [admit(3, "B", switch=True), load("B")]
    assert story.ready(B, 18) == []
    assert story.leave(3, 20) == [admit(5, "B")]


def test_wait_first_takes_no_more_leases_than_max_pending_and_refuses_nobody() -> None:
    story = Story(replace(WAIT_FIRST, max_pending=2)).serving(A, 1, 0)
    story.ask(2, A, now=0)
    for number in range(3, 500):
        assert story.ask(number, A, now=1) == []
    assert story.scheduler.depths() == (497, 2)


def test_max_pending_also_limits_an_engine_that_may_run_more_at_once() -> None:
    limited = replace(WAIT_FIRST, max_pending=1, cache_lookup_ms=1000, cache_max_active=4)
    story = Story(limited).serving(A, 1, 0)
    assert story.ask(2, A, now=1) == []


def test_wait_first_has_no_queue_deadline() -> None:
    story = Story(replace(WAIT_FIRST, queue_ms=1000)).serving(A, 1, 0)
    assert story.ask(2, B, now=0) == []
    assert story.take(1e6) == []


def test_another_model_waits_for_every_active_lease() -> None:
    story = Story(replace(WAIT_FIRST, model_grace_ms=0)).serving(A, 1, 0)
    story.ask(2, A, now=0)
    assert story.ask(3, B, now=1) == []
    assert story.leave(1, 2) == []
    assert story.leave(2, 3) == [admit(3, "B", switch=True), load("B")]


def test_grace_keeps_the_model_through_a_tool_call_gap() -> None:
    story = Story().serving(A, 1, 0)
    story.ask(2, B, now=1)
    assert story.leave(1, 2) == []
    assert story.scheduler.next_deadline() == 5
    assert story.ask(3, A, now=4) == [admit(3, "A")]


def test_a_same_model_request_restarts_the_grace() -> None:
    story = Story().serving(A, 1, 0)
    story.ask(2, B, now=1)
    story.leave(1, 2)
    story.ask(3, A, now=4)
    assert story.leave(3, 6) == []
    assert story.take(8.9) == []
    assert story.take(9) == [admit(2, "B", switch=True), load("B")]


def test_grace_holds_nobody_back_when_no_model_is_loaded() -> None:
    story = Story().serving(A, 1, 0)
    story.leave(1, 1)
    story.stopped(1.5)
    assert story.ask(2, B, now=2) == [admit(2, "B", switch=True), load("B")]


def test_a_model_that_nobody_used_yet_has_no_grace() -> None:
    story = Story()
    story.ask(1, A, now=0)
    story.leave(1, 1)
    story.ready(A, 5)
    assert story.ask(2, B, now=5) == [admit(2, "B", switch=True), load("B")]


def test_priority_skips_the_grace_hold() -> None:
    story = Story().serving(A, 1, 0)
    story.leave(1, 1)
    assert story.ask(2, B, now=1.5, tier=PRIORITY) == [admit(2, "B", switch=True), load("B")]


@pytest.mark.parametrize("tier", [DEFAULT, FLEX])
def test_default_and_flex_do_not_skip_the_grace_hold(tier: Tier) -> None:
    story = Story().serving(A, 1, 0)
    story.leave(1, 1)
    assert story.ask(2, B, now=1.5, tier=tier) == []
    assert story.scheduler.next_deadline() == 4


def test_b09_priority_for_another_model_holds_back_the_loaded_one_until_it_is_drained() -> None:
    """reports.md B09 b: new A admissions stop, B runs after the active A leases end."""
    story = Story().serving(A, 1, 0)
    assert story.ask(2, B, now=1, tier=PRIORITY) == []
    assert story.ask(3, A, now=2) == []
    assert story.leave(1, 3) == [admit(2, "B", switch=True), load("B")]
    assert story.ready(B, 13) == []
    assert story.leave(2, 20) == []
    assert story.take(23) == [admit(3, "A", switch=True), load("A")]


def test_a_higher_tier_is_never_preempting() -> None:
    story = Story().serving(A, 1, 0)
    assert story.ask(2, B, now=1, tier=PRIORITY) == []
    assert story.take(1000) == []


def test_within_one_model_priority_overtakes_default_and_default_overtakes_flex() -> None:
    story = one_place().serving(A, 1, 0)
    story.ask(2, A, now=1, tier=FLEX)
    story.ask(3, A, now=2)
    story.ask(4, A, now=3, tier=PRIORITY)
    assert story.leave(1, 4) == [admit(4, "A")]
    assert story.leave(4, 5) == [admit(3, "A")]
    assert story.leave(3, 6) == [admit(2, "A")]


def test_waiting_default_work_holds_back_flex_for_the_loaded_model_during_the_grace() -> None:
    story = Story().serving(A, 1, 0)
    story.ask(2, B, now=1)
    assert story.ask(3, A, now=1, tier=FLEX) == []
    assert story.leave(1, 2) == []
    assert story.take(5) == [admit(2, "B", switch=True), load("B")]


def test_two_cold_models_at_the_same_instant_are_both_served_in_order_of_arrival() -> None:
    story = Story()
    story.ask(1, A, now=0)
    assert story.ask(2, B, now=0) == []
    assert story.ready(A, 10) == []
    story.leave(1, 12)
    assert story.take(15) == [admit(2, "B", switch=True), load("B")]
    assert story.ready(B, 25) == []


def test_the_freshly_loaded_models_own_group_goes_before_an_older_ticket_for_another() -> None:
    """Never evicted between loaded and its own first request, also when the asker has left."""
    story = Story()
    story.ask(1, A, now=0)
    story.ask(2, B, now=1)
    story.ask(3, A, now=2)
    assert story.leave(1, 3) == []
    assert story.ready(A, 10) == [admit(3, "A")]


def test_a_late_upload_keeps_its_place_by_arrival() -> None:
    story = one_place().serving(A, 1, 0)
    story.ask(3, A, now=1)
    story.ask(2, A, now=2, arrived_s=0.5)
    assert story.leave(1, 3) == [admit(2, "A")]


def test_a_ticket_whose_client_left_is_never_admitted() -> None:
    story = one_place().serving(A, 1, 0)
    story.ask(2, A, now=1)
    story.ask(3, A, now=1)
    story.leave(2, 2)
    assert story.leave(1, 3) == [admit(3, "A")]


def test_leaving_twice_or_unknown_changes_nothing() -> None:
    story = Story().serving(A, 1, 0)
    story.leave(1, 1)
    assert story.leave(1, 2) == []
    assert story.leave(99, 2) == []
    story.ask(2, B, now=2)
    assert story.scheduler.next_deadline() == 4  # The grace of the first leave.


# max_wait_ms

DUE = replace(WAIT_FIRST, max_wait_ms={DEFAULT: 20_000, FLEX: 60_000, PRIORITY: 0})


def test_without_max_wait_the_loaded_model_can_keep_another_waiting_for_ever() -> None:
    story = one_place().serving(A, 1, 0)
    story.ask(2, B, now=0)
    for number in range(3, 1000):
        story.ask(number, A, now=number)
        assert story.leave(number - 1 if number > 3 else 1, number + 0.5) == [admit(number, "A")]


def test_a_due_ticket_for_another_model_stops_admissions_and_skips_the_grace() -> None:
    story = Story(DUE).serving(A, 1, 0)
    story.ask(2, B, now=1)
    assert story.scheduler.next_deadline() == 21
    assert story.ask(3, A, now=20.9) == [admit(3, "A")]
    assert story.take(21) == []
    assert story.ask(4, A, now=22) == []
    story.leave(1, 23)
    assert story.leave(3, 24) == [admit(2, "B", switch=True), load("B")]


def test_a_due_ticket_for_another_model_goes_before_a_higher_tiers_switch() -> None:
    story = Story(DUE).serving(A, 1, 0)
    story.ask(2, B, now=0, tier=FLEX)
    story.ask(3, C, now=59, tier=PRIORITY)
    story.take(60)
    assert story.leave(1, 61) == [admit(2, "B", switch=True), load("B")]


def test_a_due_ticket_goes_before_a_higher_tier() -> None:
    story = Story(replace(DUE, max_pending=1)).serving(A, 1, 0)
    story.ask(2, A, now=0, tier=FLEX)
    story.ask(3, A, now=59, tier=PRIORITY)
    story.take(60)
    assert story.leave(1, 61) == [admit(2, "A")]


def test_of_two_due_tickets_the_older_goes_first_whatever_its_tier() -> None:
    story = Story(replace(DUE, max_pending=1)).serving(A, 1, 0)
    story.ask(2, A, now=0, tier=FLEX)
    story.ask(3, A, now=1)
    story.take(70)
    assert story.leave(1, 71) == [admit(2, "A")]
    assert story.leave(2, 72) == [admit(3, "A")]


def test_a_due_ticket_for_the_loaded_model_waits_for_a_place() -> None:
    story = Story(replace(DUE, max_pending=1)).serving(A, 1, 0)
    story.ask(2, A, now=0)
    assert story.take(30) == []
    assert story.leave(1, 31) == [admit(2, "A")]


def test_an_absent_or_zero_max_wait_never_makes_a_ticket_due() -> None:
    story = Story(DUE).serving(A, 1, 0)
    story.ask(2, B, now=0, tier=PRIORITY)
    assert story.scheduler.next_deadline() is None


def test_with_max_wait_waiting_is_bounded_under_endless_work_for_another_model() -> None:
    """Due at 20 s; then only the running lease (2 s) and its own load stand in the way."""
    story = Story(replace(DUE, max_pending=1)).serving(A, 1, 0)
    story.ask(2, B, now=0)
    now, running = 0.0, 1
    for number in range(3, 100):
        story.ask(number, A, now=now)
        now += 2
        decisions = story.leave(running, now)
        if admit(2, "B", switch=True) in decisions:
            break
        running = number
    assert now <= 20 + 2
