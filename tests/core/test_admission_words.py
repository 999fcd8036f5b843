"""The phrase for every reason to wait, each brought about in a real scheduler.

A phrase is only worth showing if it is the scheduler's own reason, so no ``Wait`` is made by hand
here but where a scheduler cannot show the number.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest

from strata_router.core.admission import Ticket, Wait, WaitReason, in_words
from strata_router.core.vocabulary import TicketId
from tests.core.admission_story import DEFAULT, FLEX, LEGACY, PRIORITY, WAIT_FIRST, A, B, C, Story

ONE_PLACE = replace(WAIT_FIRST, max_pending=1)


def wait(story: Story, number: int, now: float) -> Wait:
    found = story.scheduler.why(TicketId(number), now)
    assert found is not None
    return found


def engine_stopping() -> Wait:
    story = Story(replace(WAIT_FIRST, idle_ms=1000)).serving(A, 1, 0)
    story.leave(1, 0)
    story.take(3)
    story.ask(2, A, now=4)
    return wait(story, 2, 4)


def operator_load() -> Wait:
    story = Story().serving(A, 1, 0)
    story.operator_load(B, 1)
    story.ask(2, A, now=2)
    return wait(story, 2, 2)


def operator_unload() -> Wait:
    story = Story().serving(A, 1, 0)
    story.operator_unload(1)
    story.ask(2, A, now=2)
    return wait(story, 2, 2)


def own_load() -> Wait:
    story = Story()
    story.ask(1, A, now=0)
    story.ask(2, B, A, now=0)
    return wait(story, 2, 1)


def other_load() -> Wait:
    story = Story()
    story.ask(1, A, now=0)
    story.ask(2, B, now=0)
    return wait(story, 2, 1)


def due_first() -> Wait:
    story = Story(replace(ONE_PLACE, max_wait_ms={FLEX: 5000})).serving(A, 1, 0)
    story.ask(2, B, now=1, tier=FLEX)
    story.ask(3, A, now=1)
    story.take(6)
    return wait(story, 3, 6)


def priority_first() -> Wait:
    story = Story(ONE_PLACE).serving(A, 1, 0)
    story.ask(2, A, now=1)
    story.ask(3, B, now=1, tier=PRIORITY)
    return wait(story, 2, 2)


def default_first() -> Wait:
    story = Story(ONE_PLACE).serving(A, 1, 0)
    story.ask(2, A, now=1, tier=FLEX)
    story.ask(3, B, now=1)
    return wait(story, 2, 2)


def one_place() -> Wait:
    story = Story(ONE_PLACE).serving(A, 1, 0)
    story.ask(2, A, now=1)
    return wait(story, 2, 2)


def two_places() -> Wait:
    story = Story(replace(WAIT_FIRST, max_pending=2)).serving(A, 1, 0)
    story.ask(2, A, now=1)
    story.ask(3, A, now=1)
    return wait(story, 3, 2)


def header_lock() -> Wait:
    story = Story(LEGACY).serving(A, 1, 0)
    story.ask(2, A, now=1)
    return wait(story, 2, 2)


def cache_lookup() -> Wait:
    cached = replace(WAIT_FIRST, cache_lookup_ms=1000, cache_max_active=1)
    story = Story(cached).serving(A, 1, 0)
    story.ask(2, A, now=1)
    story.ask(3, A, now=1)
    story.leave(1, 10)
    return wait(story, 3, 10.25)


def loaded_first() -> Wait:
    story = Story(ONE_PLACE).serving(A, 1, 0)
    story.ask(2, B, now=1)
    story.ask(3, A, now=1)
    return wait(story, 2, 2)


def earlier_first() -> Wait:
    story = Story().serving(A, 1, 0)
    story.ask(2, B, now=1)
    story.ask(3, C, now=1)
    return wait(story, 3, 2)


def one_other_lease() -> Wait:
    story = Story().serving(A, 1, 0)
    story.ask(2, B, now=1)
    return wait(story, 2, 2)


def two_other_leases() -> Wait:
    story = Story().serving(A, 1, 0)
    story.ask(2, A, now=1)
    story.ask(3, B, now=1)
    return wait(story, 3, 2)


def leases_of_a_dead_engine() -> Wait:
    story = Story().serving(A, 1, 0)
    story.stopped(1)
    story.ask(2, B, now=2)
    return wait(story, 2, 2)


def grace() -> Wait:
    story = Story().serving(A, 1, 0)
    story.ask(2, B, now=1)
    story.leave(1, 2)
    return wait(story, 2, 3.75)


def next_one() -> Wait:
    story = Story()
    story.scheduler.arrive(Ticket(TicketId(1), DEFAULT, (A,), A, 0), 0)
    return wait(story, 1, 0)


SITUATIONS: list[tuple[Callable[[], Wait], WaitReason, str]] = [
    (engine_stopping, WaitReason.ENGINE_STOPPING, "waits for the engine to stop"),
    (operator_load, WaitReason.OPERATOR, "behind the operator's load of B"),
    (operator_unload, WaitReason.OPERATOR, "behind the operator's unload"),
    (own_load, WaitReason.OWN_LOAD, "waits for A to load"),
    (other_load, WaitReason.OTHER_LOAD, "behind the load of A"),
    (due_first, WaitReason.DUE_FIRST, "behind overdue work for B"),
    (priority_first, WaitReason.HIGHER_TIER, "behind priority work"),
    (default_first, WaitReason.HIGHER_TIER, "behind default work"),
    (one_place, WaitReason.PLACES, "waits for the active answer of A"),
    (two_places, WaitReason.PLACES, "waits for one of 2 active answers of A"),
    (header_lock, WaitReason.HEADERS, "waits for A to begin another answer"),
    (cache_lookup, WaitReason.CACHE_LOOKUP, "A is asked what it holds cached, 0.8 s left"),
    (loaded_first, WaitReason.LOADED_FIRST, "behind work for A, which is loaded"),
    (earlier_first, WaitReason.EARLIER_FIRST, "behind earlier work for B"),
    (one_other_lease, WaitReason.OTHER_LEASES, "waits for 1 active answer of A"),
    (two_other_leases, WaitReason.OTHER_LEASES, "waits for 2 active answers of A"),
    (leases_of_a_dead_engine, WaitReason.OTHER_LEASES, "waits for 1 active answer of A"),
    (grace, WaitReason.GRACE, "grace for A, 1.2 s left"),
    (next_one, WaitReason.NOTHING, "is next"),
]


@pytest.mark.parametrize(
    ("situation", "reason", "phrase"), SITUATIONS, ids=lambda value: str(value)
)
def test_every_reason_has_its_phrase(
    situation: Callable[[], Wait], reason: WaitReason, phrase: str
) -> None:
    found = situation()
    assert (found.reason, in_words(found)) == (reason, phrase)


def test_no_reason_is_without_a_situation() -> None:
    assert {reason for _, reason, _ in SITUATIONS} == set(WaitReason)


def test_a_model_that_is_not_known_is_left_out() -> None:
    """An earlier alias that nothing can serve has none; it is refused when its turn comes."""
    assert in_words(replace(due_first(), behind_model=None)) == "behind overdue work"
    assert in_words(replace(earlier_first(), behind_model=None)) == "behind earlier work"


def test_a_long_hold_is_told_in_whole_seconds() -> None:
    assert in_words(replace(grace(), seconds_left=599.6)) == "grace for A, 600 s left"


def test_a_hold_of_unknown_length_is_told_without_one() -> None:
    assert in_words(replace(grace(), seconds_left=None)) == "grace for A"
