"""Asking the loaded engine's cache who finds most of its prompt there, within one budget.

Source: design, "Current cache matches"; contract section 8.
"""

from dataclasses import replace

from strata_router.core.admission import Admit, Decision, LookUpCache, Ticket
from strata_router.core.admission.cache_order import LOOKUP_TICKETS
from strata_router.core.vocabulary import TicketId
from tests.core.admission_story import DEFAULT, FLEX, LEGACY, PRIORITY, WAIT_FIRST, A, B, Story

ONE_PLACE = replace(WAIT_FIRST, cache_lookup_ms=1000, cache_max_active=1)


def admit(number: int) -> Decision:
    return Admit(TicketId(number), A, model_switch=False)


def look_up(number: int, *tickets: int, budget_ms: int = 1000) -> Decision:
    return LookUpCache(number, tuple(TicketId(i) for i in tickets), budget_ms)


def competing(*numbers: int) -> Story:
    """One lease of A ends at second 10 while these tickets wait for A."""
    story = Story(ONE_PLACE).serving(A, 1, 0)
    for number in numbers:
        assert story.ask(number, A, now=1) == []
    return story


def test_the_freed_place_is_asked_about_in_arrival_order() -> None:
    story = competing(2, 3, 4)
    assert story.leave(1, 10) == [look_up(1, 2, 3, 4)]
    assert story.scheduler.next_deadline() == 11


def test_a_single_ticket_is_admitted_without_a_lookup() -> None:
    assert competing(2).leave(1, 10) == [admit(2)]


def test_the_higher_cached_fraction_goes_first() -> None:
    story = competing(2, 3, 4)
    story.leave(1, 10)
    assert story.scores(1, {2: (10, 100), 3: (5, 10), 4: (40, 100)}, 10.1) == [admit(3)]


def test_equal_fractions_keep_arrival_order() -> None:
    story = competing(2, 3, 4)
    story.leave(1, 10)
    assert story.scores(1, {4: (50, 100), 3: (1, 2), 2: (0, 7)}, 10.1) == [admit(3)]


def test_inputs_below_the_threshold_count_as_uncached() -> None:
    story = competing(2, 3, 4)
    story.scheduler.set_cache_min_tokens(2048)
    story.leave(1, 10)
    scores = {2: (0, 5000), 3: (2047, 2047), 4: (1024, 2048)}
    assert story.scores(1, scores, 10.1) == [admit(4)]


def test_tickets_without_a_score_keep_arrival_order_behind_scored_ones() -> None:
    story = competing(2, 3, 4)
    story.leave(1, 10)
    assert story.scores(1, {4: (1, 100)}, 10.1) == [admit(4)]
    assert competing(2, 3).leave(1, 10) == [look_up(1, 2, 3)]
    story = competing(2, 3)
    story.leave(1, 10)
    assert story.scores(1, {}, 10.1) == [admit(2)]


def test_a_busy_engine_falls_back_to_arrival_order() -> None:
    story = competing(2, 3)
    story.leave(1, 10)
    assert story.scores(1, None, 10.1) == [admit(2)]
    assert story.leave(2, 12) == [admit(3)]


def test_an_engine_without_the_endpoint_is_not_asked_again_until_it_changes() -> None:
    story = competing(2, 3, 4, 5)
    story.leave(1, 10)
    assert story.scores(1, None, 10.1, supported=False) == [admit(2)]
    assert story.leave(2, 12) == [admit(3)]
    story.stopped(13)
    story.leave(3, 13)
    story.ask(6, A, now=14)
    story.ready(A, 15)
    assert story.leave(4, 16) == [look_up(2, 5, 6)]


def test_unsupported_said_by_the_previous_engine_is_not_believed_of_this_one() -> None:
    story = competing(2, 3)
    story.leave(1, 10)
    story.stopped(10.1)
    story.ready(A, 11)
    assert story.scores(1, None, 11.1, supported=False) == []
    story.leave(2, 12)
    story.ask(4, A, now=12)
    story.ask(5, A, now=12)
    assert story.leave(3, 13) == [look_up(2, 4, 5)]


def test_scores_are_discarded_when_a_request_enters_the_queue() -> None:
    story = competing(2, 3)
    story.leave(1, 10)
    assert story.ask(4, A, now=10.25) == [look_up(2, 2, 3, 4, budget_ms=750)]
    assert story.scores(1, {3: (9, 9)}, 10.3) == []
    assert story.scores(2, {4: (9, 9)}, 10.4) == [admit(4)]


def test_scores_are_discarded_when_a_request_leaves_the_queue() -> None:
    story = competing(2, 3, 4)
    story.leave(1, 10)
    assert story.leave(3, 10.5) == [look_up(2, 2, 4, budget_ms=500)]


def test_scores_are_discarded_when_a_generation_ends() -> None:
    story = Story(replace(ONE_PLACE, cache_max_active=2)).serving(A, 1, 0)
    story.ask(2, A, now=0)
    story.ask(3, A, now=1)
    story.ask(4, A, now=1)
    assert story.leave(1, 10) == [look_up(1, 3, 4)]
    assert story.leave(2, 10.5) == [look_up(2, 3, 4, budget_ms=500)]


def test_when_competition_ends_the_last_ticket_is_admitted_at_once() -> None:
    story = competing(2, 3)
    story.leave(1, 10)
    assert story.leave(2, 10.5) == [admit(3)]


def test_steady_arrivals_cannot_keep_an_idle_engine_waiting() -> None:
    """One budget for the freed place in total, then arrival order."""
    story = competing(2, 3)
    story.leave(1, 10)
    for step in range(1, 10):
        story.ask(3 + step, A, now=10 + step / 10)
    assert story.scheduler.next_deadline() == 11
    assert story.take(11) == [admit(2)]


def test_the_next_freed_place_has_a_whole_budget_again() -> None:
    story = competing(2, 3, 4)
    story.leave(1, 10)
    story.take(11)
    assert story.leave(2, 20) == [look_up(2, 3, 4)]


def test_a_late_answer_is_ignored() -> None:
    story = competing(2, 3, 4)
    story.leave(1, 10)
    story.take(11)
    assert story.scores(1, {4: (9, 9)}, 11.1) == []
    assert story.leave(2, 20) == [look_up(2, 3, 4)]


def test_several_free_places_are_filled_from_one_answer() -> None:
    story = Story(replace(ONE_PLACE, cache_max_active=2)).serving(A, 1, 0)
    for number in (2, 3, 4, 5):
        story.ask(number, A, now=1)
    story.scheduler.leave(TicketId(1), 10)
    story.scheduler.leave(TicketId(2), 10)
    assert story.take(10) == [look_up(1, 3, 4, 5)]
    assert story.scores(1, {5: (9, 9), 4: (1, 9)}, 10.2) == [admit(5), admit(4)]


def test_several_free_places_are_filled_when_the_budget_is_over() -> None:
    story = Story(replace(ONE_PLACE, cache_max_active=2)).serving(A, 1, 0)
    for number in (2, 3, 4, 5):
        story.ask(number, A, now=1)
    story.scheduler.leave(TicketId(1), 10)
    story.scheduler.leave(TicketId(2), 10)
    story.take(10)
    assert story.take(11) == [admit(3), admit(4)]


def test_an_answer_matters_until_it_is_there() -> None:
    story = competing(2, 3)
    matters = [story.scheduler.awaits_scores]
    story.leave(1, 10)
    matters.append(story.scheduler.awaits_scores)
    story.scores(1, {3: (9, 9)}, 10.1)
    matters.append(story.scheduler.awaits_scores)
    assert matters == [False, True, False]


def test_an_answer_for_a_place_that_is_taken_or_that_nobody_wants_does_not_matter() -> None:
    story = competing(2, 3)
    story.leave(1, 10)
    story.ask(4, A, now=10.2, tier=PRIORITY)
    assert not story.scheduler.awaits_scores
    story = competing(2, 3)
    story.leave(1, 10)
    story.take(11)  # the budget is over
    assert not story.scheduler.awaits_scores
    story = competing(2, 3)
    story.leave(1, 10)
    story.scheduler.leave(TicketId(2), 10.5)
    story.leave(3, 10.5)
    assert not story.scheduler.awaits_scores


def test_cache_reuse_never_promotes_above_the_tier() -> None:
    story = competing(2, 3)
    story.ask(4, A, now=2, tier=FLEX)
    assert story.leave(1, 10) == [look_up(1, 2, 3)]
    assert story.scores(1, {4: (9, 9), 3: (1, 9)}, 10.1) == [admit(3)]


def test_only_the_highest_waiting_tier_competes() -> None:
    story = competing(2, 3)
    story.ask(4, A, now=2, tier=PRIORITY)
    assert story.leave(1, 10) == [admit(4)]


def test_only_tickets_for_the_loaded_model_compete() -> None:
    story = competing(2)
    story.ask(3, B, now=2)
    story.ask(4, B, A, now=2)
    assert story.leave(1, 10) == [look_up(1, 2, 4)]


def test_a_higher_tier_for_another_model_ends_the_competition() -> None:
    story = competing(2, 3)
    story.leave(1, 10)
    decisions = story.ask(4, B, now=10.2, tier=PRIORITY)
    assert decisions[0] == Admit(TicketId(4), B, model_switch=True)


def test_a_place_that_nobody_wants_any_more_has_a_whole_budget_later() -> None:
    story = competing(2, 3)
    story.leave(1, 10)
    story.scheduler.leave(TicketId(2), 10.5)
    story.leave(3, 10.5)
    story.scheduler.arrive(Ticket(TicketId(4), DEFAULT, (A,), A, 50), 50)
    assert story.ask(5, A, now=50) == [look_up(2, 4, 5)]


def test_a_due_ticket_takes_its_place_without_a_lookup() -> None:
    due = replace(ONE_PLACE, max_wait_ms={FLEX: 5000})
    story = Story(due).serving(A, 1, 0)
    story.ask(2, A, now=1)
    story.ask(3, A, now=1)
    story.ask(4, A, now=1, tier=FLEX)
    assert story.leave(1, 10) == [admit(4)]


def test_a_ticket_that_becomes_due_during_the_lookup_takes_the_place() -> None:
    due = replace(ONE_PLACE, max_wait_ms={FLEX: 9500})
    story = Story(due).serving(A, 1, 0)
    story.ask(2, A, now=1)
    story.ask(3, A, now=1)
    story.ask(4, A, now=1, tier=FLEX)
    story.leave(1, 10)
    assert story.scheduler.next_deadline() == 10.5
    assert story.take(10.5) == [admit(4)]


def test_a_place_beside_a_due_tickets_is_asked_about_on_the_same_budget() -> None:
    due = replace(ONE_PLACE, cache_max_active=2, max_wait_ms={FLEX: 9500})
    story = Story(due).serving(A, 1, 0)
    story.ask(2, A, now=0)
    for number in (3, 4):
        story.ask(number, A, now=1)
    story.ask(5, A, now=1, tier=FLEX)
    story.scheduler.leave(TicketId(1), 10)
    story.scheduler.leave(TicketId(2), 10)
    assert story.take(10) == [look_up(1, 3, 4)]
    assert story.take(10.5) == [admit(5), look_up(2, 3, 4, budget_ms=500)]
    assert story.take(11) == [admit(3)]


def test_a_due_ticket_in_the_answer_is_not_admitted_twice() -> None:
    due = replace(ONE_PLACE, cache_max_active=2, max_wait_ms={DEFAULT: 9500})
    story = Story(due).serving(A, 1, 0)
    story.ask(2, A, now=0, tier=PRIORITY)
    story.ask(3, A, now=0.9)
    story.ask(4, A, now=1.5)
    story.ask(5, A, now=1.5)
    story.scheduler.leave(TicketId(1), 10)
    story.scheduler.leave(TicketId(2), 10)
    assert story.take(10) == [look_up(1, 3, 4, 5)]
    answer = {3: (9, 9), 5: (8, 9)}
    assert story.scores(1, answer, 10.5) == [admit(3), admit(5)]


def test_legacy_queue_deadlines_apply_during_the_lookup() -> None:
    story = Story(replace(LEGACY, queue_ms=9500, cache_lookup_ms=1000, cache_max_active=1))
    story.serving(A, 1, 0)
    for number in (2, 3):
        story.ask(number, A, now=1)
    assert story.leave(1, 10) == [look_up(1, 2, 3)]
    assert story.scheduler.next_deadline() == 10.5
    assert story.take(10.5) != []
    assert story.scheduler.depths() == (0, 0)


def test_zero_lookup_time_disables_the_lookup_and_lifts_the_active_limit() -> None:
    story = Story(replace(ONE_PLACE, cache_lookup_ms=0)).serving(A, 1, 0)
    assert story.ask(2, A, now=1) == [admit(2)]
    assert story.ask(3, A, now=1) == [admit(3)]


def test_an_unlimited_engine_is_asked_when_several_become_admissible_together() -> None:
    story = Story(replace(ONE_PLACE, cache_max_active=0))
    story.ask(1, A, now=0)
    story.ask(2, A, now=0)
    story.ask(3, A, now=0)
    assert story.ready(A, 5) == [look_up(1, 2, 3)]
    assert story.scores(1, {3: (1, 2)}, 5.1) == [admit(3), admit(2)]


def test_one_lookup_asks_about_a_bounded_number_of_tickets() -> None:
    story = competing(*range(2, 2 + LOOKUP_TICKETS + 50))
    (decision,) = story.leave(1, 10)
    assert isinstance(decision, LookUpCache)
    assert decision.tickets == tuple(TicketId(i) for i in range(2, 2 + LOOKUP_TICKETS))
