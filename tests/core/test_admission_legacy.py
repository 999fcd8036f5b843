"""Legacy bounded mode: the lock until upstream headers, 429, 504. Source: design, same title."""

from dataclasses import replace

from strata_router.core.admission import Admit, Load, Refuse
from strata_router.core.refusal import Case, Refusal
from strata_router.core.vocabulary import TicketId
from tests.core.admission_story import FLEX, LEGACY, PRIORITY, A, B, Story

FULL = Refusal(Case.QUEUE_FULL)
TOO_LONG = Refusal(Case.QUEUE_TIMEOUT)


def one(number: int) -> TicketId:
    return TicketId(number)


def test_one_request_at_a_time_loads_and_waits_for_headers() -> None:
    story = Story(LEGACY)
    story.ask(1, A, now=0)
    assert story.ask(2, A, now=0) == []
    assert story.ready(A, 5) == []
    assert story.headers(1, 6) == [Admit(one(2), A, model_switch=False)]


def test_after_headers_requests_of_the_loaded_model_overlap() -> None:
    story = Story(LEGACY).serving(A, 1, 0)
    story.headers(1, 1)
    assert story.ask(2, A, now=2) == [Admit(one(2), A, model_switch=False)]
    assert story.ask(3, A, now=2) == []
    story.headers(2, 3)
    assert story.scheduler.depths() == (0, 3)


def test_a_lease_that_ends_before_its_headers_frees_the_lock() -> None:
    story = Story(LEGACY).serving(A, 1, 0)
    assert story.ask(2, A, now=1) == []
    assert story.leave(1, 2) == [Admit(one(2), A, model_switch=False)]


def test_headers_of_a_ticket_or_a_stranger_free_no_lock() -> None:
    story = Story(LEGACY).serving(A, 1, 0)
    story.ask(2, A, now=1)
    assert story.headers(2, 2) == []
    assert story.headers(77, 2) == []


def test_headers_twice_free_the_lock_once() -> None:
    story = Story(LEGACY).serving(A, 1, 0)
    story.headers(1, 1)
    story.ask(2, A, now=2)
    assert story.headers(1, 3) == []
    assert story.ask(3, A, now=4) == []


def test_another_model_waits_until_all_active_responses_finish() -> None:
    story = Story(LEGACY).serving(A, 1, 0)
    story.headers(1, 1)
    assert story.ask(2, B, now=2) == []
    assert story.leave(1, 3) == [Admit(one(2), B, model_switch=True), Load(B)]


def test_the_limit_counts_active_and_waiting_and_excess_gets_429() -> None:
    story = Story(replace(LEGACY, max_pending=2)).serving(A, 1, 0)
    assert story.ask(2, A, now=1) == []
    assert story.ask(3, A, now=1) == [Refuse(one(3), FULL)]
    assert story.ask(4, A, now=1, tier=PRIORITY) == [Refuse(one(4), FULL)]
    story.leave(1, 2)
    assert story.ask(5, A, now=2) == []


def test_a_ticket_that_waits_too_long_gets_504_without_a_switch() -> None:
    story = Story(replace(LEGACY, queue_ms=30_000)).serving(A, 1, 0)
    story.ask(2, B, now=1)
    assert story.scheduler.next_deadline() == 31
    assert story.take(30.9) == []
    assert story.take(31) == [Refuse(one(2), TOO_LONG)]
    assert story.leave(1, 31) == []


def test_expiry_beats_a_place_that_becomes_free_at_the_same_instant() -> None:
    story = Story(replace(LEGACY, queue_ms=30_000)).serving(A, 1, 0)
    story.ask(2, A, now=1)
    assert story.leave(1, 31) == [Refuse(one(2), TOO_LONG)]


def test_the_queue_deadline_also_runs_while_the_tickets_own_model_loads() -> None:
    story = Story(replace(LEGACY, queue_ms=5_000))
    story.ask(1, A, now=0)
    story.ask(2, A, now=0)
    assert story.take(5) == [Refuse(one(2), TOO_LONG)]
    assert story.ready(A, 9) == []


def test_a_waiting_higher_tier_holds_back_lower_ones_for_the_loaded_model() -> None:
    story = Story(LEGACY).serving(A, 1, 0)
    story.headers(1, 1)
    story.ask(2, B, now=2)
    assert story.ask(3, A, now=2, tier=FLEX) == []
    assert story.ask(4, A, now=2, tier=PRIORITY) == [Admit(one(4), A, model_switch=False)]


def test_cache_max_active_limits_leases_in_legacy_mode_too() -> None:
    limited = replace(LEGACY, cache_lookup_ms=1000, cache_max_active=1)
    story = Story(limited).serving(A, 1, 0)
    story.headers(1, 1)
    assert story.ask(2, A, now=2) == []
    assert story.leave(1, 3) == [Admit(one(2), A, model_switch=False)]


def test_the_split_by_tier_includes_startup_and_header_waits() -> None:
    story = Story(LEGACY)
    story.ask(1, A, now=0, tier=PRIORITY)
    story.ask(2, A, now=0)
    snapshot = story.scheduler.snapshot(1)
    assert [snapshot.queue_depth_by_tier[tier] for tier in (PRIORITY, FLEX)] == [1, 0]
    assert (snapshot.queue_depth, snapshot.in_flight) == (1, 1)
    story.ready(A, 2)
    story.headers(1, 3)
    assert story.scheduler.snapshot(3).queue_depth_by_tier[PRIORITY] == 0
