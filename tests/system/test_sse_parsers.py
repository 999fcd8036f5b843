"""The form of our own bytes in a stream suits a strict reader of events and a careless one alike."""

from collections.abc import Iterator

import pytest

from strata_router.core.refusal import Case, Refusal
from strata_router.core.tap.in_band import KEEPALIVE, error_event, keepalive_with_place
from tests.system.sse_parsers import by_split, by_the_book

CHUNK = b'data: {"text": "caf\xc3\xa9"}\n\n'
DONE = b"data: [DONE]\n\n"


def cut(stream: bytes, size: int) -> Iterator[bytes]:
    for start in range(0, len(stream), size):
        yield stream[start : start + size]


@pytest.mark.parametrize("keepalive", [KEEPALIVE, keepalive_with_place(3, 7)])
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_keepalive_is_seen_by_neither_parser(keepalive: bytes, size: int) -> None:
    stream = keepalive * 2 + CHUNK + keepalive + CHUNK + DONE
    chunk = ("message", '{"text": "café"}')
    assert list(by_the_book(cut(stream, size))) == [chunk, chunk, ("message", "[DONE]")]
    assert list(by_split(cut(stream, size))) == [{"text": "café"}] * 2


def test_an_error_event_is_read_by_both_parsers() -> None:
    refusal = Refusal(Case.UPSTREAM_ERROR)
    stream = KEEPALIVE + CHUNK + error_event(refusal)
    (_, (name, data)) = by_the_book([stream])
    assert name == "error"
    assert data.encode() == refusal.json_body()
    assert list(by_split([stream]))[-1]["error"]["status"] == 502


def test_the_parsers_are_no_more_lenient_than_their_likes() -> None:
    assert list(by_the_book([b"data: a\r\n\r", b"\ndata:b\r\rdata: unfinished"])) == [
        ("message", "a"),
        ("message", "b"),
    ]
    with pytest.raises(IndexError):
        list(by_split([b"retry: 5\n\n"]))
