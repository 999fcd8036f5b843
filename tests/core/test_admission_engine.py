"""How loads, failures, deaths, cancelled loads and idle unloads meet waiting tickets.

Source: contract 4.2, 4.4, 6.5, 7; reports.md B01, B02, B13.
"""

from dataclasses import replace

from strata_router.core.admission import Admit, CancelLoad, Load, Refuse, Unload
from strata_router.core.refusal import Case, Refusal
from strata_router.core.vocabulary import TicketId
from tests.core.admission_story import LOAD_FAILED, PRIORITY, WAIT_FIRST, A, B, C, Story

IDLE = replace(WAIT_FIRST, idle_ms=60_000)
NO_GRACE = replace(WAIT_FIRST, model_grace_ms=0)


def one(number: int) -> TicketId:
    return TicketId(number)


def cooling(seconds: int) -> Refusal:
    return Refusal(Case.MODEL_LOAD_FAILED, retry_after_s=seconds)


# B01: switching


def test_b01_twenty_of_each_model_at_once_cost_one_switch_and_never_share_the_engine() -> None:
    story = Story(replace(NO_GRACE, max_pending=40)).serving(A, 1, 0)
    for number in range(2, 42):
        story.ask(number, (A, B)[number % 2], now=1)
    for number in (1, *range(2, 42, 2)):
        assert Load(B) not in story.decided
        story.leave(number, 2)
    assert story.decided[-2:] == [Admit(one(3), B, model_switch=True), Load(B)]
    admitted = story.ready(B, 12)
    assert admitted == [Admit(one(n), B, model_switch=False) for n in range(5, 42, 2)]
    assert [d for d in story.decided if isinstance(d, Load)] == [Load(A), Load(B)]


# Failed loads


def test_a_failed_load_refuses_its_lease_and_everyone_who_waits_for_that_model() -> None:
    story = Story()
    story.ask(1, A, now=0)
    story.ask(2, A, now=1)
    story.ask(3, B, now=1)
    decisions = story.fail(A, 5)
    assert sorted(decisions[:2], key=lambda d: d.ticket if isinstance(d, Refuse) else 0) == [
        Refuse(one(1), LOAD_FAILED),
        Refuse(one(2), LOAD_FAILED),
    ]
    assert decisions[2:] == [Admit(one(3), B, model_switch=True), Load(B)]


def test_who_meets_a_failed_load_is_told_when_its_cooldown_is_over_in_whole_seconds() -> None:
    story = Story(replace(WAIT_FIRST, cooldown_ms=5500))
    story.ask(1, A, now=4.1)
    assert story.fail(A, 7.3) == [Refuse(one(1), cooling(6))]


def test_a_failed_load_s_refusal_that_names_a_time_keeps_it() -> None:
    story = Story()
    story.ask(1, A, now=0)
    assert story.fail(A, 5, cooling(3)) == [Refuse(one(1), cooling(3))]


def test_a_failed_load_refuses_aliases_that_resolved_to_it() -> None:
    """A loading model counts as loaded, and a failure never tries another model."""
    story = Story()
    story.ask(1, B, now=0)
    story.ask(2, A, B, now=1)
    assert Refuse(one(2), LOAD_FAILED) in story.fail(B, 5)


def test_a_refused_lease_has_left() -> None:
    story = Story()
    story.ask(1, A, now=0)
    story.fail(A, 5)
    assert story.scheduler.depths() == (0, 0)
    assert story.leave(1, 6) == []


def test_during_the_cooldown_an_asker_is_refused_at_once_with_the_seconds_left() -> None:
    story = Story()
    story.ask(1, A, now=0)
    story.fail(A, 5)
    assert story.ask(2, A, now=5) == [Refuse(one(2), cooling(10))]
    assert story.ask(3, A, now=12.5) == [Refuse(one(3), cooling(3))]
    assert story.ask(4, A, now=14.99) == [Refuse(one(4), cooling(1))]


def test_after_the_cooldown_the_model_is_tried_again() -> None:
    story = Story()
    story.ask(1, A, now=0)
    story.fail(A, 5)
    assert story.ask(2, A, now=15) == [Admit(one(2), A, model_switch=True), Load(A)]


def test_the_cooldown_of_one_model_does_not_touch_another() -> None:
    story = Story()
    story.ask(1, A, now=0)
    story.fail(A, 5)
    assert story.ask(2, B, now=6) == [Admit(one(2), B, model_switch=True), Load(B)]


def test_a_successful_load_ends_the_cooldown() -> None:
    story = Story(NO_GRACE)
    story.ask(1, A, now=0)
    story.fail(A, 5)
    story.operator_load(A, 6)
    story.ready(A, 7)
    story.ask(2, B, now=8)
    story.ready(B, 9)
    story.leave(2, 10)
    assert story.ask(3, A, now=11) == [Admit(one(3), A, model_switch=True), Load(A)]


# The asker leaves


def test_a_load_whose_asker_left_runs_on_and_serves_the_next_asker() -> None:
    story = Story()
    story.ask(1, A, now=0)
    assert story.leave(1, 1) == []
    assert story.ask(2, A, now=2) == []
    assert story.ready(A, 5) == [Admit(one(2), A, model_switch=False)]


def test_a_load_that_nobody_wants_is_cancelled_for_another_models_ticket() -> None:
    story = Story()
    story.ask(1, A, now=0)
    story.ask(2, B, now=1)
    assert story.leave(1, 2) == [CancelLoad()]
    assert story.cancelled(A, 3) == [Admit(one(2), B, model_switch=True), Load(B)]


def test_a_ticket_for_another_model_cancels_a_load_whose_asker_left_before() -> None:
    story = Story()
    story.ask(1, A, now=0)
    story.leave(1, 1)
    assert story.ask(2, B, now=2) == [CancelLoad()]
    assert story.ask(3, C, now=3) == []


def test_a_load_that_somebody_waits_for_is_not_cancelled() -> None:
    story = Story()
    story.ask(1, A, now=0)
    story.ask(2, B, now=1)
    story.ask(3, B, A, now=1)
    assert story.leave(1, 2) == []


def test_an_unwanted_load_runs_on_when_the_only_other_ticket_cannot_be_served() -> None:
    """The alias waited on C, which is gone; its preferred model cools down."""
    story = Story()
    story.ask(1, B, now=0)
    story.fail(B, 0)
    story.serving(C, 2, 1)
    assert story.ask(3, A, now=2, tier=PRIORITY) == []
    assert story.ask(4, B, C, now=2) == []
    assert story.leave(2, 3) == [Admit(one(3), A, model_switch=True), Load(A)]
    assert story.leave(3, 4) == [Refuse(one(4), cooling(6))]
    assert story.scheduler.snapshot(4).loading == A


def test_a_ready_report_that_crosses_with_the_cancellation_is_believed() -> None:
    story = Story()
    story.ask(1, A, now=0)
    story.leave(1, 1)
    story.ask(2, B, now=2)
    assert story.ready(A, 3) == [Admit(one(2), B, model_switch=True), Load(B)]
    assert story.cancelled(A, 4) == []
    assert story.scheduler.snapshot(4).loading == B


def test_a_started_report_that_crosses_with_the_cancellation_changes_nothing() -> None:
    story = Story()
    story.ask(1, A, now=0)
    story.leave(1, 1)
    story.ask(2, B, now=2)
    story.scheduler.load_started(A, 3)
    assert story.take(3) == []
    assert story.scheduler.snapshot(3).stopping


def test_a_reported_start_of_a_decided_load_changes_nothing() -> None:
    story = Story()
    story.ask(1, A, now=0)
    story.scheduler.load_started(A, 1)
    assert story.ready(A, 5) == []
    assert story.scheduler.snapshot(5).loaded == A


def test_a_load_begun_elsewhere_counts_as_loading() -> None:
    story = Story()
    story.scheduler.load_started(A, 0)
    assert story.ask(1, A, now=1) == []
    assert story.ready(A, 5) == [Admit(one(1), A, model_switch=False)]


# Death


def test_a_dead_engine_is_started_again_without_cooldown_and_without_a_switch() -> None:
    story = Story().serving(A, 1, 0)
    story.stopped(5)
    assert story.scheduler.snapshot(5).loaded is None
    story.leave(1, 6)
    assert story.ask(2, A, now=7) == [Admit(one(2), A, model_switch=False), Load(A)]


def test_another_model_after_a_death_is_a_switch() -> None:
    story = Story().serving(A, 1, 0)
    story.stopped(5)
    story.leave(1, 5)
    assert story.ask(2, B, now=7) == [Admit(one(2), B, model_switch=True), Load(B)]


def test_nothing_is_loaded_before_the_leases_of_a_dead_engine_have_ended() -> None:
    story = Story().serving(A, 1, 0)
    story.ask(2, A, now=1)
    story.ask(3, B, now=2)
    assert story.stopped(3) == []
    assert story.leave(1, 4) == []
    assert story.leave(2, 5) == [Admit(one(3), B, model_switch=True), Load(B)]


def test_a_ticket_that_queues_again_after_its_engine_died_is_refused_once() -> None:
    """An exchange that finds nobody listening comes back with its own id, as old as before."""
    story = Story().serving(A, 5, 0)
    story.scheduler.leave(one(5), 1)
    story.stopped(1)
    story.ask(4, B, now=1)
    story.ask(5, A, now=1, arrived_s=0)
    story.scheduler.set_routing(False, 2)
    assert story.take(2) == [Refuse(one(5), Refusal(Case.ROUTING_OFF))]


def test_the_end_of_a_dead_engines_lease_starts_no_grace() -> None:
    story = Story().serving(A, 1, 0)
    story.stopped(3)
    story.leave(1, 4)
    assert story.ask(2, B, now=4) == [Admit(one(2), B, model_switch=True), Load(B)]


def test_a_stop_report_during_a_load_is_part_of_the_load() -> None:
    story = Story(NO_GRACE).serving(A, 1, 0)
    story.leave(1, 1)
    story.ask(2, B, now=2)
    story.stopped(3)
    assert story.scheduler.snapshot(3).loading == B
    story.ready(B, 9)
    assert story.scheduler.snapshot(9).loaded == B


def test_a_stop_report_without_an_engine_changes_nothing() -> None:
    story = Story()
    assert story.stopped(1) == []
    assert story.ask(1, A, now=2) == [Admit(one(1), A, model_switch=True), Load(A)]


# B02, B13: idle


def test_b02_the_idle_clock_starts_at_the_end_of_the_last_lease() -> None:
    story = Story(IDLE).serving(A, 1, 0)
    assert story.take(500) == []
    assert story.leave(1, 600) == []
    assert story.scheduler.next_deadline() == 660
    assert story.take(659.9) == []
    assert story.take(660) == [Unload()]


def test_b02_a_load_longer_than_idle_is_not_idleness() -> None:
    story = Story(IDLE)
    story.ask(1, A, now=0)
    story.leave(1, 1)
    assert story.take(100) == []
    assert story.ready(A, 200) == []
    assert story.take(259.9) == []
    assert story.take(260) == [Unload()]


def test_b13_idle_applies_to_loads_by_request_alias_and_operator() -> None:
    by_request = Story(IDLE).serving(A, 1, 0)
    by_request.leave(1, 5)
    by_alias = Story(IDLE)
    by_alias.ask(1, A, B, now=0)
    by_alias.ready(A, 1)
    by_alias.leave(1, 5)
    by_operator = Story(IDLE)
    by_operator.operator_load(A, 0)
    by_operator.ready(A, 5)
    for story in (by_request, by_alias, by_operator):
        assert story.take(64.9) == []
        assert story.take(65) == [Unload()]


def test_b13_five_models_at_once_never_have_two_loads_under_way() -> None:
    story = Story(NO_GRACE)
    for number, model in enumerate((A, B, C, A, B), start=1):
        story.ask(number, model, now=0)
    assert sum(isinstance(d, Load) for d in story.decided) == 1


def test_zero_idle_is_never() -> None:
    story = Story().serving(A, 1, 0)
    story.leave(1, 1)
    assert story.take(1e9) == []
    assert story.scheduler.next_deadline() is None


def test_idle_unloading_waits_for_the_grace() -> None:
    story = Story(replace(WAIT_FIRST, idle_ms=1000)).serving(A, 1, 0)
    story.leave(1, 10)
    assert story.scheduler.next_deadline() == 13
    assert story.take(12.9) == []
    assert story.take(13) == [Unload()]


def test_idle_unloading_never_begins_while_a_ticket_waits() -> None:
    story = Story(replace(WAIT_FIRST, idle_ms=1000, model_grace_ms=5000)).serving(A, 1, 0)
    story.leave(1, 10)
    story.ask(2, B, now=11)
    assert story.take(14.9) == []
    assert story.take(15) == [Admit(one(2), B, model_switch=True), Load(B)]


def test_a_ticket_that_arrives_during_the_unload_waits_for_its_end_and_a_new_load() -> None:
    story = Story(IDLE).serving(A, 1, 0)
    story.leave(1, 0)
    story.take(60)
    assert story.ask(2, A, now=60.5) == []
    assert story.stopped(62) == [Admit(one(2), A, model_switch=True), Load(A)]


def test_no_second_unload_is_decided_while_one_runs() -> None:
    story = Story(IDLE).serving(A, 1, 0)
    story.leave(1, 0)
    story.take(60)
    assert story.take(500) == []
    assert story.stopped(501) == []
    assert story.take(1000) == []


# Routing and shutdown


def test_routing_off_refuses_everyone_who_waits_in_order_and_leaves_leases_alone() -> None:
    story = Story().serving(A, 1, 0)
    story.ask(3, B, now=1)
    story.ask(2, B, now=1, tier=PRIORITY)
    story.scheduler.set_routing(False, 2)
    off = Refusal(Case.ROUTING_OFF)
    assert story.take(2) == [Refuse(one(2), off), Refuse(one(3), off)]
    assert story.ask(4, A, now=3) == [Refuse(one(4), off)]
    assert story.scheduler.depths() == (0, 1)


def test_routing_on_again_admits_newcomers() -> None:
    story = Story().serving(A, 1, 0)
    story.scheduler.set_routing(False, 1)
    story.scheduler.set_routing(True, 2)
    assert story.ask(2, A, now=3) == [Admit(one(2), A, model_switch=False)]


def test_refusing_all_is_for_good_and_goes_before_routing_off() -> None:
    story = Story().serving(A, 1, 0)
    story.ask(2, B, now=1)
    story.scheduler.refuse_all(Case.SHUTTING_DOWN, 2)
    down = Refusal(Case.SHUTTING_DOWN)
    assert story.take(2) == [Refuse(one(2), down)]
    story.scheduler.set_routing(False, 3)
    assert story.ask(3, A, now=3) == [Refuse(one(3), down)]
    story.scheduler.set_routing(True, 4)
    assert story.ask(4, A, now=4) == [Refuse(one(4), down)]
