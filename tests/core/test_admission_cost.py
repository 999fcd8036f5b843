"""A decision costs the same however many tickets wait: counted in executed lines, not in seconds.

``tests/bench_admission.py`` gives the same in microseconds.
"""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from strata_router.core.vocabulary import Tier
from tests.bench_admission import MODELS, FullHouse, settings

DECISIONS = 400


def lines_of(work: Callable[[], None]) -> int:
    """How many lines of ``core.admission`` a call executes."""
    count = 0

    def local(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return local

    def enter(frame: FrameType, event: str, argument: object) -> Any:
        return local if "core/admission" in frame.f_code.co_filename else None

    before = sys.gettrace()  # Coverage's, when it runs.
    sys.settrace(enter)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def lines_per_decision(house: FullHouse) -> float:

    def work() -> None:
        for _ in range(DECISIONS):
            house.arrive()
            house.end_lease()
            house.decide()
            house.scheduler.snapshot(house.now)

    return lines_of(work) / DECISIONS


@pytest.mark.parametrize("wait_when_busy", [True, False])
def test_a_decision_costs_no_more_with_ten_thousand_waiting_than_with_a_hundred(
    wait_when_busy: bool,
) -> None:
    chosen = settings(wait_when_busy=wait_when_busy)
    few, many = FullHouse(chosen, 100), FullHouse(chosen, 10_000)
    assert lines_per_decision(many) <= 1.25 * lines_per_decision(few)


def test_a_lookup_costs_no_more_than_its_bound_of_tickets_allows() -> None:
    """All compete for one model, in a queue that is longer than the bound in both cases."""

    def house(waiting: int) -> FullHouse:
        return FullHouse(settings(cache_lookup_ms=1000), waiting, [MODELS[:1]], [Tier.DEFAULT])

    assert lines_per_decision(house(10_000)) <= 1.25 * lines_per_decision(house(1_000))


def test_abandoning_a_long_queue_costs_its_length_and_no_more() -> None:
    def abandon(waiting: int) -> float:
        house = FullHouse(settings(), waiting)
        house.end_lease()
        ids = [wait.ticket for wait in house.scheduler.waits(house.now)]

        def work() -> None:
            for ticket_id in ids:
                house.scheduler.leave(ticket_id, house.now)
                house.scheduler.take_decisions(house.now)

        return lines_of(work) / waiting

    assert abandon(4_000) <= 1.25 * abandon(400)
