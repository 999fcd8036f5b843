"""The ring of recent records against the plainest model of it: a list of everything."""

import os
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_router.core.moment import Moment
from strata_router.core.record.builder import RecordBuilder
from strata_router.core.record.ring import (
    DEFAULT_LIMIT,
    MAX_LIMIT,
    Page,
    RecordRing,
    new_instance_id,
    new_request_id,
)
from strata_router.core.record.schema import UnsequencedRecord
from strata_router.core.vocabulary import CHAT_PATH, Reason, RequestId

ROUNDS = int(os.environ.get("ROUNDS", "1"))
START = Moment(0.0, 1_796_000_000.0)


def unsequenced(arrival_seq: int) -> UnsequencedRecord:
    request = RecordBuilder(arrival_seq, RequestId(f"i-{arrival_seq}"), CHAT_PATH, START, 0, 0)
    return request.finish(START, Reason.COMPLETED)


def ring_of(records: int, capacity: int = 100) -> RecordRing:
    ring = RecordRing(capacity, "i")
    for n in range(records):
        ring.append(unsequenced(1000 + n))
    return ring


def seqs(page: Page) -> list[int]:
    return [record.seq for record in page.records]


def test_an_empty_ring_has_nothing_and_next_seq_zero() -> None:
    ring = RecordRing(5, "i")
    assert ring.page(None, 100) == Page((), next_seq=0, dropped=0, oldest_seq=None, instance_id="i")
    assert ring.page(0, 100) == Page((), next_seq=0, dropped=0, oldest_seq=None, instance_id="i")
    assert ring.page(9, 100).next_seq == 9
    assert (ring.records_in_ring, ring.evicted, ring.next_seq_to_allocate) == (0, 0, 1)
    assert (ring.capacity, ring.instance_id) == (5, "i")


def test_sequences_start_at_one_and_follow_completion_not_arrival() -> None:
    ring = RecordRing(5, "i")
    appended = [ring.append(unsequenced(arrival_seq)) for arrival_seq in (3, 1, 2)]
    assert [(record.seq, record.arrival_seq) for record in appended] == [(1, 3), (2, 1), (3, 2)]
    assert list(ring.page(0).records) == appended


def test_the_cursor_is_exclusive_and_next_seq_continues_it() -> None:
    ring = ring_of(5)
    page = ring.page(2, 2)
    assert (seqs(page), page.next_seq, page.dropped, page.oldest_seq) == ([3, 4], 4, 0, 1)
    page = ring.page(page.next_seq, 2)
    assert (seqs(page), page.next_seq) == ([5], 5)
    page = ring.page(page.next_seq, 2)
    assert (seqs(page), page.next_seq) == ([], 5)


def test_reading_takes_nothing_out() -> None:
    ring = ring_of(5)
    assert ring.page(0) == ring.page(0)


def test_a_cursor_beyond_the_end_is_given_back() -> None:
    page = ring_of(5).page(77)
    assert (seqs(page), page.next_seq, page.dropped, page.oldest_seq) == ([], 77, 0, 1)


def test_without_a_cursor_the_newest_come_and_nothing_counts_as_dropped() -> None:
    ring = ring_of(8, capacity=5)
    page = ring.page(None, 2)
    assert (seqs(page), page.next_seq, page.dropped, page.oldest_seq) == ([7, 8], 8, 0, 4)
    assert seqs(ring.page(None, 1000)) == [4, 5, 6, 7, 8]


def test_dropped_counts_the_evicted_after_the_cursor_whatever_the_limit() -> None:
    ring = ring_of(8, capacity=5)
    for after, dropped in ((0, 3), (1, 2), (2, 1), (3, 0), (4, 0), (8, 0), (9, 0)):
        for limit in (1, 1000):
            assert ring.page(after, limit).dropped == dropped
    assert (seqs(ring.page(0, 1)), ring.page(0, 1).next_seq) == ([4], 4)
    assert (ring.evicted, ring.records_in_ring, ring.next_seq_to_allocate) == (3, 5, 9)


@pytest.mark.parametrize(
    ("limit", "records"), [(-5, 1), (0, 1), (1, 1), (1000, 1000), (9999, 1000)]
)
def test_the_limit_is_clamped(limit: int, records: int) -> None:
    ring = ring_of(1100, capacity=2000)
    assert len(ring.page(0, limit).records) == records
    assert len(ring.page(None, limit).records) == records


def test_the_limit_defaults_to_a_hundred() -> None:
    assert (DEFAULT_LIMIT, MAX_LIMIT) == (100, 1000)
    assert len(ring_of(150, capacity=200).page(0).records) == 100


def test_a_page_of_a_full_large_ring_does_not_copy_the_ring() -> None:
    ring = RecordRing(100_000, "i")
    one = unsequenced(1)
    for _ in range(110_000):
        ring.append(one)
    tracemalloc.start()
    try:
        for after in (0, 50_000, 100_000, 109_999, None):
            assert len(ring.page(after, 1).records) == 1
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 100_000


def test_the_instance_id_tells_runs_apart() -> None:
    assert new_instance_id(77, 1_796_000_000_123) == new_instance_id(77, 1_796_000_000_123)
    ids = {
        new_instance_id(pid, ms)
        for pid in (77, 78)
        for ms in (1_796_000_000_123, 1_796_000_000_124)
    }
    assert len(ids) == 4
    assert new_instance_id(1, 16) == "10-1"


def test_a_request_id_holds_the_instance_and_the_arrival() -> None:
    assert new_request_id("10-1", 5) == "10-1-5"


@settings(max_examples=300 * ROUNDS, deadline=None)
@given(
    capacity=st.integers(1, 7),
    steps=st.lists(
        st.one_of(
            st.just("append"),
            st.just("append"),
            st.tuples(st.one_of(st.none(), st.integers(0, 25)), st.integers(-1, 9)),
        ),
        max_size=40,
    ),
)
def test_every_page_is_what_a_list_of_all_records_says(
    capacity: int, steps: list[str | tuple[int | None, int]]
) -> None:
    ring = RecordRing(capacity, "i")
    everything: list[int] = []  # arrival_seq by completion; seq is the index plus one
    for step in steps:
        if isinstance(step, str):
            arrival_seq = 100 - len(everything)
            record = ring.append(unsequenced(arrival_seq))
            everything.append(arrival_seq)
            assert record.seq == len(everything)
            continue
        after, limit = step
        retained = list(enumerate(everything, start=1))[-capacity:]
        if after is None:
            expected = retained[-max(1, limit) :]
            dropped = 0
        else:
            expected = [(seq, arrival) for seq, arrival in retained if seq > after][: max(1, limit)]
            gone = [
                seq
                for seq in range(1, len(everything) + 1)
                if (seq, everything[seq - 1]) not in retained
            ]
            dropped = sum(seq > after for seq in gone)
        page = ring.page(after, limit)
        assert [(record.seq, record.arrival_seq) for record in page.records] == expected
        assert page.next_seq == (expected[-1][0] if expected else after or 0)
        assert page.dropped == dropped
        assert page.oldest_seq == (retained[0][0] if retained else None)
        assert ring.records_in_ring == len(retained)
        assert ring.evicted == len(everything) - len(retained)
        assert ring.next_seq_to_allocate == len(everything) + 1


@settings(max_examples=100 * ROUNDS, deadline=None)
@given(capacity=st.integers(1, 20), bursts=st.lists(st.integers(0, 12), max_size=12))
def test_a_reader_that_follows_next_seq_sees_every_record_or_is_told_of_it(
    capacity: int, bursts: list[int]
) -> None:
    ring = RecordRing(capacity, "i")
    cursor = seen = missed = 0
    for burst in bursts:
        for _ in range(burst):
            ring.append(unsequenced(1))
        page = ring.page(cursor, 5)
        missed += page.dropped
        seen += len(page.records)
        assert page.next_seq == seen + missed or not page.records
        cursor = page.next_seq
    while (page := ring.page(cursor, 5)).records:
        missed += page.dropped
        seen += len(page.records)
        cursor = page.next_seq
    assert seen + missed == sum(bursts)
