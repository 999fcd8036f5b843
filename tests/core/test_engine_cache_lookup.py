"""The cache lookup extension: batches, bodies, and what of a reply is believed (contract 8)."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_router.core.engine.cache_lookup import (
    BATCH_BYTES,
    BATCH_REQUESTS,
    NoScores,
    Scores,
    Unsupported,
    lookup_body,
    plan_batches,
    read_lookup_reply,
)

MIB = 1024 * 1024


def reply(*results: Any) -> bytes:
    return json.dumps({"results": results}).encode()


def score(cached: Any, total: Any) -> dict[str, Any]:
    return {"cached_tokens": cached, "input_tokens": total}


# ---- batches -----------------------------------------------------------------------------------


def test_the_bounds_of_a_batch_are_those_of_the_contract() -> None:
    assert (BATCH_REQUESTS, BATCH_BYTES) == (16, 8 * MIB)


def test_nothing_to_ask_is_no_batch() -> None:
    assert plan_batches([]) == []


def test_up_to_sixteen_small_requests_are_one_batch() -> None:
    assert plan_batches([100] * 16) == [list(range(16))]
    assert plan_batches([100] * 17) == [list(range(16)), [16]]


def test_a_batch_holds_eight_mebibytes_and_no_byte_more() -> None:
    assert plan_batches([4 * MIB, 4 * MIB, 1]) == [[0, 1], [2]]
    assert plan_batches([4 * MIB, 4 * MIB + 1]) == [[0], [1]]
    assert plan_batches([8 * MIB, 8 * MIB]) == [[0], [1]]


def test_a_request_over_eight_mebibytes_is_left_out() -> None:
    assert plan_batches([1, 8 * MIB + 1, 2]) == [[0, 2]]
    assert plan_batches([8 * MIB + 1]) == []


SIZES = st.lists(
    st.one_of(st.integers(0, 100), st.integers(0, 9 * MIB), st.just(8 * MIB)), max_size=60
)


@given(SIZES)
def test_every_request_that_fits_is_asked_about_once_in_order_within_the_bounds(
    sizes: list[int],
) -> None:
    batches = plan_batches(sizes)
    asked = [index for batch in batches for index in batch]
    assert asked == [index for index, size in enumerate(sizes) if size <= 8 * MIB]
    for batch in batches:
        assert 1 <= len(batch) <= 16
        assert sum(sizes[index] for index in batch) <= 8 * MIB
    # And no batch is begun that was not needed.
    for batch, following in pairwise(batches):
        bytes_with_next = sum(sizes[index] for index in (*batch, following[0]))
        assert len(batch) == 16 or bytes_with_next > 8 * MIB


def test_bodies_go_in_as_they_are() -> None:
    """Byte by byte: what the engine would have been sent is what it is asked about."""
    bodies = [b'{"model":"m", "x":1.0}', b'{"a":"\\ud800","big":12345678901234567890123}']
    assert lookup_body(bodies) == b'{"requests":[' + bodies[0] + b"," + bodies[1] + b"]}"
    assert lookup_body(bodies[:1]) == b'{"requests":[' + bodies[0] + b"]}"


# ---- replies -----------------------------------------------------------------------------------


def test_scores_come_in_order_with_null_for_no_answer() -> None:
    body = reply(score(3, 10), None, score(0, 0), score(5, 5))
    assert read_lookup_reply(200, body, 4) == Scores(((3, 10), None, (0, 0), (5, 5)))


def test_further_fields_do_not_harm() -> None:
    body = json.dumps({"results": [{**score(1, 2), "slot": 0}], "took_ms": 3}).encode()
    assert read_lookup_reply(200, body, 1) == Scores(((1, 2),))


@pytest.mark.parametrize("status", [404, 405, 501])
def test_an_engine_without_the_endpoint_is_unsupported(status: int) -> None:
    assert read_lookup_reply(status, reply(score(1, 2)), 1) == Unsupported()


@pytest.mark.parametrize("status", [201, 400, 409, 429, 500, 502, 503])
def test_a_busy_or_failing_engine_has_no_scores_now(status: int) -> None:
    assert read_lookup_reply(status, reply(score(1, 2)), 1) == NoScores()


@pytest.mark.parametrize(
    "bad",
    [
        score(-1, 10),
        score(1, -10),
        score(11, 10),
        score(1.0, 10),
        score(1, 10.0),
        score(True, 10),
        score(1, True),
        score("1", 10),
        score(None, 10),
        {"cached_tokens": 1},
        {"input_tokens": 10},
        {},
        [],
        7,
        "x",
    ],
)
def test_one_result_that_cannot_be_makes_the_whole_reply_invalid(bad: Any) -> None:
    assert read_lookup_reply(200, reply(score(1, 2), bad), 2) == NoScores()


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_reply_about_another_number_of_requests_is_invalid(count: int) -> None:
    assert read_lookup_reply(200, reply(*[score(1, 2)] * count), 2) == NoScores()


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b"{}", b'{"results":null}', b'{"results":{}}']
)
def test_what_is_no_reply_is_invalid(body: bytes) -> None:
    assert read_lookup_reply(200, body, 1) == NoScores()


@given(st.binary(max_size=100), st.integers(100, 599), st.integers(1, 16))
def test_no_bytes_make_scores_or_raise(body: bytes, status: int, asked: int) -> None:
    assert not isinstance(read_lookup_reply(status, body, asked), Scores)
