"""The order in which the queue is shown is the order in which it is then served.

The property lets the real scheduler serve a frozen queue to its end, with every load and answer taking
no time, and compares what happened with what had been shown.
"""

import os
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_router.core.admission import Admit, Refuse, SchedulerSettings, Ticket
from strata_router.core.vocabulary import ModelId, TicketId, Tier
from tests.core.admission_story import DEFAULT, FLEX, LEGACY, PRIORITY, WAIT_FIRST, A, B, C, Story
from tests.core.test_admission_cost import lines_of

ROUNDS = int(os.environ.get("ROUNDS", "1"))
ONE_PLACE = replace(WAIT_FIRST, max_pending=1, model_grace_ms=0)


def shown(story: Story, now: float, limit: int = 100) -> list[int]:
    return [wait.ticket for wait in story.scheduler.queue(now, limit)]


def test_tiers_come_before_groups_and_groups_before_arrival() -> None:
    story = Story(ONE_PLACE).serving(A, 1, 0)
    story.ask(2, B, now=1)
    story.ask(3, A, now=1)
    story.ask(4, C, now=1)
    story.ask(5, B, now=1)
    story.ask(6, B, now=1, tier=FLEX)
    story.ask(7, C, now=1, tier=FLEX)
    assert shown(story, 2) == [3, 2, 5, 4, 7, 6]
    story.ask(8, B, now=2, tier=PRIORITY)
    assert shown(story, 2) == [8, 2, 5, 3, 4, 7, 6]


def test_due_tickets_come_first_oldest_first_and_decide_what_is_loaded_then() -> None:
    story = Story(replace(ONE_PLACE, max_wait_ms={FLEX: 5000})).serving(A, 1, 0)
    story.ask(2, B, now=1, tier=FLEX)
    story.ask(3, A, now=2)
    story.ask(4, B, now=2)
    story.ask(5, A, now=2, tier=FLEX)
    assert shown(story, 3) == [3, 4, 2, 5]
    story.take(6)
    assert shown(story, 6) == [2, 4, 3, 5]


def test_a_due_ticket_of_the_loaded_model_changes_nothing_for_the_others() -> None:
    story = Story(replace(ONE_PLACE, max_wait_ms={FLEX: 5000})).serving(A, 1, 0)
    story.ask(2, B, now=1)
    story.ask(3, B, A, now=1, tier=FLEX)
    story.ask(4, A, now=1)
    story.take(6)
    assert shown(story, 6) == [3, 4, 2]


def test_a_running_load_counts_as_loaded() -> None:
    story = Story(ONE_PLACE)
    story.ask(1, A, now=0)
    story.ask(2, B, now=0)
    story.ask(3, A, now=0)
    assert shown(story, 1) == [3, 2]


def test_the_operators_wish_decides_what_is_loaded_then() -> None:
    story = Story(ONE_PLACE).serving(A, 1, 0)
    story.operator_load(B, 1)
    story.ask(2, A, now=2)
    story.ask(3, B, now=2)
    assert shown(story, 3) == [3, 2]
    story.operator_unload(4)
    assert shown(story, 4) == [2, 3]


def test_an_alias_goes_with_whatever_is_loaded_by_then() -> None:
    story = Story(ONE_PLACE).serving(A, 1, 0)
    story.ask(2, C, now=1)
    story.ask(3, B, C, now=1)
    story.ask(4, B, now=1)
    assert shown(story, 2) == [2, 3, 4]


def test_a_ticket_that_nothing_can_serve_keeps_its_turn() -> None:
    """It is refused then, and loads nothing: B stays the earliest group."""
    story = Story(ONE_PLACE).serving(A, 1, 0)
    story.ask(2, C, A, now=1, prepared=False)
    story.ask(3, B, now=1)
    story.operator_unload(2)
    assert shown(story, 2) == [2, 3]


def test_due_and_unprepared_loads_nothing_either() -> None:
    story = Story(replace(ONE_PLACE, max_wait_ms={FLEX: 1000})).serving(A, 1, 0)
    story.ask(2, C, A, now=1, tier=FLEX, prepared=False)
    story.operator_load(B, 2)
    story.take(3)
    story.ask(3, A, now=3)
    story.ask(4, B, now=3)
    assert shown(story, 3) == [2, 4, 3]


def test_no_more_than_the_limit_is_shown_and_the_rest_is_not_looked_at() -> None:
    story = Story(ONE_PLACE).serving(A, 1, 0)
    for number in range(2, 12):
        story.ask(number, A, now=1)
    assert shown(story, 2, limit=3) == [2, 3, 4]
    assert story.scheduler.order() == list(range(2, 12))


def test_showing_the_front_of_ten_thousand_costs_what_it_costs_of_two_hundred() -> None:
    def cost(waiting: int) -> int:
        story = Story(ONE_PLACE).serving(A, 1, 0)
        for number in range(2, waiting + 2):
            model = (A, B, C)[number % 3]
            story.scheduler.arrive(Ticket(TicketId(number), DEFAULT, (model,), model, 0), 0)
        story.take(0)
        return lines_of(lambda: assert_shown(story, 100))

    assert cost(10_000) <= 1.05 * cost(200)


def assert_shown(story: Story, limit: int) -> None:
    assert len(shown(story, 1, limit)) == limit


def test_the_leases_are_given_in_the_order_of_admission() -> None:
    story = Story().serving(A, 2, 0)
    story.ask(5, A, now=1)
    story.ask(3, A, now=1, arrived_s=0)
    assert story.scheduler.active() == [2, 5, 3]


# --- the property ---

KINDS: tuple[tuple[tuple[ModelId, ...], bool], ...] = (
    ((A,), True),
    ((B,), True),
    ((C,), True),
    ((A, B), True),
    ((C, B), True),
    ((B, C), False),
)


@dataclass(frozen=True)
class Asker:
    kind: int
    tier: Tier
    is_old: bool
    is_pinned: bool
    leaves: bool


ASKERS = st.builds(
    Asker,
    st.integers(0, len(KINDS) - 1),
    st.sampled_from(list(Tier)),
    st.booleans(),
    st.integers(0, 7).map(lambda n: n == 0),
    st.integers(0, 7).map(lambda n: n == 0),
)
BEGINNINGS = ("ready", "loading", "empty", "unloading", "operator")


def prepare(story: Story, beginning: str) -> None:
    """Bring the engine where it is to be while nobody but ticket 1 has asked."""
    match beginning:
        case "ready":
            story.serving(B, 1, 0)
        case "loading":
            story.ask(1, B, now=0)
        case "unloading":
            story.serving(A, 1, 0)
            story.operator_unload(0)
            story.leave(1, 0)
        case "operator":
            story.serving(A, 1, 0)
            story.operator_load(C, 0)


def serve_to_the_end(story: Story, now: float) -> list[int]:
    """Let every load, stop and answer take no time; the tickets in the order in which they left."""
    begun = len(story.decided)
    while story.scheduler.depths()[0]:
        snapshot, active = story.scheduler.snapshot(now), story.scheduler.active()
        if snapshot.loading is not None:
            story.ready(snapshot.loading, now)
        elif snapshot.stopping:
            story.stopped(now)
        else:
            assert active, "stuck"
            story.leave(active[0], now)
    ends = (each for each in story.decided[begun:] if isinstance(each, Admit | Refuse))
    return [end.ticket for end in ends]


@pytest.mark.parametrize(
    "mode", [ONE_PLACE, replace(LEGACY, max_pending=1000)], ids=["wait", "legacy"]
)
@pytest.mark.parametrize("beginning", BEGINNINGS)
@settings(max_examples=40 * ROUNDS, deadline=None)
@given(askers=st.lists(ASKERS, max_size=14))
def test_the_queue_is_served_as_it_was_shown(
    mode: SchedulerSettings, beginning: str, askers: list[Asker]
) -> None:
    now = 100.0
    story = Story(replace(mode, max_wait_ms={DEFAULT: 50_000, FLEX: 50_000}))
    prepare(story, beginning)
    for number, asker in enumerate(askers, start=2):
        accepts, prepared = KINDS[asker.kind]
        arrived_s = now - 60 if asker.is_old else now - 1
        preferred = accepts[0] if prepared else None
        ticket = Ticket(TicketId(number), asker.tier, accepts, preferred, arrived_s)
        story.scheduler.arrive(ticket, now)
        if story.scheduler.why(ticket.id, now) is None:
            continue  # refused already
        if asker.is_pinned:
            story.scheduler.pin(ticket.id, now)
        if asker.leaves:
            story.scheduler.leave(ticket.id, now)
    story.take(now)
    order = [wait.ticket for wait in story.scheduler.queue(now, 1000)]
    assert sorted(order) == [wait.ticket for wait in story.scheduler.waits(now)]
    assert serve_to_the_end(story, now) == order
