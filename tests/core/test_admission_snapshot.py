"""What the scheduler shows: counts, the engine's model, and why each ticket waits."""

from dataclasses import replace

from strata_router.core.admission import Ticket, WaitReason
from strata_router.core.vocabulary import TicketId
from tests.core.admission_story import DEFAULT, FLEX, LEGACY, PRIORITY, WAIT_FIRST, A, B, C, Story

ONE_PLACE = replace(WAIT_FIRST, max_pending=1)


def reason(story: Story, number: int, now: float) -> WaitReason | None:
    wait = story.scheduler.why(TicketId(number), now)
    return None if wait is None else wait.reason


def test_the_snapshot_counts_tickets_by_tier_and_leases() -> None:
    story = Story(ONE_PLACE).serving(A, 1, 0)
    story.ask(2, A, now=1)
    story.ask(3, B, now=1, tier=FLEX)
    story.ask(4, B, now=1, tier=FLEX)
    snapshot = story.scheduler.snapshot(2)
    assert (snapshot.queue_depth, snapshot.in_flight) == (3, 1)
    assert snapshot.queue_depth_by_tier == {PRIORITY: 0, DEFAULT: 1, FLEX: 2}
    assert (snapshot.loaded, snapshot.loading, snapshot.stopping) == (A, None, False)


def test_the_snapshot_tells_a_load_and_a_stop() -> None:
    story = Story()
    story.ask(1, A, now=0)
    assert story.scheduler.snapshot(0).loading == A
    story.leave(1, 1)
    story.ask(2, B, now=2)
    snapshot = story.scheduler.snapshot(2)
    assert (snapshot.loading, snapshot.stopping) == (None, True)


def test_the_snapshot_lists_only_models_that_still_cool_down() -> None:
    story = Story()
    story.ask(1, A, now=0)
    story.fail(A, 5)
    assert story.scheduler.snapshot(8).cooling_s == {A: 7}
    assert story.scheduler.snapshot(15).cooling_s == {}


def test_who_does_not_wait_has_no_reason() -> None:
    story = Story().serving(A, 1, 0)
    assert story.scheduler.why(TicketId(1), 1) is None
    assert story.scheduler.why(TicketId(9), 1) is None


def test_a_wait_tells_model_age_and_leases() -> None:
    story = Story(replace(ONE_PLACE, max_wait_ms={FLEX: 5000})).serving(A, 1, 0)
    story.ask(2, B, A, now=1, tier=FLEX)
    wait = story.scheduler.why(TicketId(2), 4)
    assert wait is not None
    assert (wait.tier, wait.model, wait.waited_s, wait.due, wait.leases) == (FLEX, A, 3, False, 1)
    story.take(6)
    assert [each.due for each in story.scheduler.waits(6)] == [True]


def test_waiting_for_the_own_load_or_another_models() -> None:
    story = Story()
    story.ask(1, A, now=0)
    story.ask(2, A, now=0)
    story.ask(3, B, now=0)
    assert reason(story, 2, 1) is WaitReason.OWN_LOAD
    assert reason(story, 3, 1) is WaitReason.OTHER_LOAD


def test_waiting_for_the_engine_to_stop() -> None:
    story = Story(replace(WAIT_FIRST, idle_ms=1000)).serving(A, 1, 0)
    story.leave(1, 0)
    story.take(3)
    story.ask(2, A, now=4)
    assert reason(story, 2, 4) is WaitReason.ENGINE_STOPPING


def test_waiting_for_the_operator() -> None:
    story = Story().serving(A, 1, 0)
    story.operator_load(B, 1)
    story.ask(2, A, now=2)
    assert reason(story, 2, 2) is WaitReason.OPERATOR


def test_waiting_behind_a_due_ticket_or_a_higher_tier() -> None:
    story = Story(replace(ONE_PLACE, max_wait_ms={FLEX: 5000})).serving(A, 1, 0)
    story.ask(2, A, now=1, tier=FLEX)
    story.ask(3, A, now=1)
    assert reason(story, 2, 2) is WaitReason.HIGHER_TIER
    story.take(6)
    assert reason(story, 2, 6) is WaitReason.PLACES
    assert reason(story, 3, 6) is WaitReason.DUE_FIRST


def test_waiting_for_a_place_or_for_the_cache_lookup() -> None:
    cached = replace(WAIT_FIRST, cache_lookup_ms=1000, cache_max_active=1)
    story = Story(cached).serving(A, 1, 0)
    story.ask(2, A, now=1)
    story.ask(3, A, now=1)
    assert reason(story, 2, 2) is WaitReason.PLACES
    story.leave(1, 10)
    wait = story.scheduler.why(TicketId(3), 10.25)
    assert wait is not None
    assert (wait.reason, wait.seconds_left) == (WaitReason.CACHE_LOOKUP, 0.75)


def test_waiting_for_the_header_lock_is_not_waiting_for_an_answers_end() -> None:
    story = Story(replace(LEGACY, cache_lookup_ms=1000, cache_max_active=1)).serving(A, 1, 0)
    story.ask(2, A, now=1)
    assert reason(story, 2, 1) is WaitReason.HEADERS
    story.headers(1, 2)
    assert reason(story, 2, 2) is WaitReason.PLACES


def test_waiting_behind_the_loaded_models_group_then_leases_then_grace() -> None:
    story = Story(ONE_PLACE).serving(A, 1, 0)
    story.ask(2, B, now=1)
    assert reason(story, 2, 1) is WaitReason.OTHER_LEASES
    story.ask(3, A, now=1)
    assert reason(story, 2, 1) is WaitReason.LOADED_FIRST
    story.leave(1, 2)
    story.leave(3, 4)
    wait = story.scheduler.why(TicketId(2), 5)
    assert wait is not None
    assert (wait.reason, wait.seconds_left) == (WaitReason.GRACE, 2)


def test_waiting_behind_an_earlier_group() -> None:
    story = Story().serving(A, 1, 0)
    story.ask(2, B, now=1)
    story.ask(3, C, now=1)
    story.ask(4, B, now=1)
    assert reason(story, 3, 1) is WaitReason.EARLIER_FIRST
    assert reason(story, 4, 1) is WaitReason.OTHER_LEASES


def test_priority_and_due_tickets_wait_for_leases_not_for_grace() -> None:
    story = Story(replace(ONE_PLACE, max_wait_ms={DEFAULT: 1000})).serving(A, 1, 0)
    story.ask(2, B, now=1)
    story.take(3)
    assert reason(story, 2, 3) is WaitReason.OTHER_LEASES
    story = Story(ONE_PLACE).serving(A, 1, 0)
    story.ask(2, B, now=1, tier=PRIORITY)
    assert reason(story, 2, 3) is WaitReason.OTHER_LEASES


def test_between_an_input_and_the_decisions_nothing_may_be_waited_for() -> None:
    story = Story()
    story.scheduler.arrive(Ticket(TicketId(1), DEFAULT, (A,), A, 0), 0)
    assert reason(story, 1, 0) is WaitReason.NOTHING
    story.serving(A, 2, 0)
    story.scheduler.arrive(Ticket(TicketId(3), DEFAULT, (A,), A, 0), 0)
    assert reason(story, 3, 0) is WaitReason.NOTHING
