"""A page costs what it holds, however many records are kept and wherever it lies: counted, not timed."""

import sys
import tracemalloc
from types import FrameType
from typing import Any

import pytest

from strata_router.core.moment import Moment
from strata_router.core.record.builder import RecordBuilder
from strata_router.core.record.ring import RecordRing
from strata_router.core.vocabulary import CHAT_PATH, Reason, RequestId

MOST = 100_000
PAGE = 100


def ring_of(size: int) -> RecordRing:
    """Full, and gone round once by half a page, so that a page may lie across the seam."""
    at = Moment(0.0, 0.0)
    finished = RecordBuilder(1, RequestId("i-1"), CHAT_PATH, at, 0, 0).finish(at, Reason.COMPLETED)
    ring = RecordRing(size, "i")
    for _ in range(size + PAGE // 2):
        ring.append(finished)
    return ring


def cost(ring: RecordRing, after: int | None) -> tuple[int, int]:
    """(calls, peak bytes) of one page."""
    calls = 0

    def note(frame: FrameType, what: str, argument: Any) -> None:
        nonlocal calls
        calls += what in ("call", "c_call")

    tracemalloc.start()
    sys.setprofile(note)
    try:
        page = ring.page(after, PAGE)
    finally:
        sys.setprofile(None)
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert len(page.records) == PAGE
    return calls, peak_bytes


@pytest.fixture(scope="module")
def most() -> RecordRing:
    return ring_of(MOST)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.999])
def test_a_page_of_a_hundred_thousand_records_costs_what_one_of_a_thousand_does(
    most: RecordRing, share: float
) -> None:
    few = ring_of(1000)
    few_calls, few_bytes = cost(few, 200)
    most_calls, most_bytes = cost(most, PAGE // 2 + int(share * (MOST - PAGE)))
    assert most_calls <= few_calls
    # Sequence numbers above 256 are objects; a copy of the ring would be 800,000 bytes.
    assert most_bytes <= few_bytes + 64 * PAGE


def test_the_newest_page_costs_the_same(most: RecordRing) -> None:
    few = ring_of(1000)
    assert cost(most, None)[0] <= cost(few, None)[0]
