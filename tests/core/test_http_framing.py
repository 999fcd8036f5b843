"""core.http.framing: every split of a body gives the same payload; broken framing is refused."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_router.core.http.framing import (
    CHUNK_LINE_LIMIT_BYTES,
    LAST_CHUNK,
    TRAILER_LIMIT_BYTES,
    BodyReader,
    ChunkedBody,
    CloseDelimitedBody,
    CountedBody,
    FramingFault,
    chunk,
)


def feed_in_pieces(body: BodyReader, data: bytes, cuts: list[int]) -> bytes:
    payload = b""
    edges = [0, *sorted(cuts), len(data)]
    for start, end in itertools.pairwise(edges):
        payload += body.feed(data[start:end])
    return payload


@st.composite
def split_bytes(draw: st.DrawFn, data: bytes) -> list[int]:
    return draw(st.lists(st.integers(0, len(data)), max_size=8))


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=5), st.binary(max_size=9), st.data())
def test_a_chunked_body_is_the_same_however_it_is_split(
    pieces: list[bytes], surplus: bytes, data: st.DataObject
) -> None:
    wire = b"".join(chunk(piece) for piece in pieces) + LAST_CHUNK + surplus
    body = ChunkedBody()
    assert feed_in_pieces(body, wire, data.draw(split_bytes(wire))) == b"".join(pieces)
    assert body.done
    assert body.surplus == surplus
    assert body.eof()


@given(st.integers(0, 40), st.binary(max_size=60), st.data())
def test_a_counted_body_takes_its_bytes_and_leaves_the_rest(
    length: int, wire: bytes, data: st.DataObject
) -> None:
    body = CountedBody(length)
    assert feed_in_pieces(body, wire, data.draw(split_bytes(wire))) == wire[:length]
    assert body.done == (len(wire) >= length)
    assert body.eof() == body.done
    assert body.surplus == wire[length:]


def test_a_close_delimited_body_ends_only_at_the_close() -> None:
    body = CloseDelimitedBody()
    assert body.feed(b"anything") == b"anything"
    assert not body.done
    assert body.eof()
    assert body.done


def test_extensions_trailers_and_any_case_of_hex_are_read_over() -> None:
    body = ChunkedBody()
    wire = b'a;name="x;y" ;z\r\n0123456789\r\n0A \r\n0123456789\r\n0;last\r\nX-Sum: 1\r\nY: 2\r\n\r\nGET'
    assert body.feed(wire) == b"0123456789" * 2
    assert body.done
    assert body.surplus == b"GET"


@pytest.mark.parametrize(
    "wire",
    [
        b"x\r\n",
        b"\r\n",
        b"-1\r\n",
        b"+1\r\na\r\n",
        b"1_0\r\n",
        b"0x1\r\n",
        b" 1\r\na\r\n",
        b"1\na\r\n0\r\n\r\n",
        b"1\r\nab\r\n",
        b"1\r\na\n\r",
        b"1\r\na\r\r",
        b"1111111111111111\r\n",
        b"1 x\r\n",
        b"1" + b";" * (CHUNK_LINE_LIMIT_BYTES + 1),
        b"1;" + b"x" * CHUNK_LINE_LIMIT_BYTES + b"\r\n",
        b"0\r\n" + b"x" * (TRAILER_LIMIT_BYTES + 1),
        b"0\r\n" + b"x: y\r\n" * (TRAILER_LIMIT_BYTES // 6 + 2),
    ],
)
def test_broken_chunks_are_refused(wire: bytes) -> None:
    with pytest.raises(FramingFault):
        ChunkedBody().feed(wire)


def test_a_chunked_body_cut_short_is_not_done() -> None:
    body = ChunkedBody()
    body.feed(b"5\r\nab")
    assert not body.eof()


@given(st.binary(max_size=80))
def test_arbitrary_bytes_never_raise_anything_but_a_framing_fault(wire: bytes) -> None:
    body = ChunkedBody()
    try:
        for position in range(len(wire)):
            body.feed(wire[position : position + 1])
    except FramingFault:
        pass
