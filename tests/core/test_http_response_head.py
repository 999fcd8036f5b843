"""core.http.response_head: heads rendered and the engine's heads cleaned."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_router.core.http.framing import ChunkedBody, CloseDelimitedBody, CountedBody
from strata_router.core.http.response_head import (
    ResponseFault,
    UpstreamHead,
    parse_upstream_head,
    render_head,
)


def parse(*lines: str, status: str = "HTTP/1.1 200 OK") -> UpstreamHead:
    head = parse_upstream_head("\r\n".join((status, *lines, "", "")).encode("latin-1"))
    assert head is not None
    return head


def test_end_to_end_headers_pass_and_the_rest_stays() -> None:
    head = parse(
        "Content-Type: application/json",
        "X-Kept: 1",
        "Connection: keep-alive, X-Named",
        "X-Named: gone",
        "X-Strata-Request-Id: the engine's own",
        "Keep-Alive: timeout=5",
        "Transfer-Encoding: chunked",
        "Access-Control-Allow-Origin: *",
        "Set-Cookie: a=b",
        "Server: BaseHTTP/0.6",
        "Date: now",
        "Upgrade: h2c",
    )
    assert head.headers == ((b"content-type", b"application/json"), (b"x-kept", b"1"))
    assert head.status == 200
    assert not head.is_event_stream
    assert isinstance(head.body_reader(), ChunkedBody)


def test_stratas_stream_lasts_until_the_close() -> None:
    head = parse("Content-Type: Text/Event-Stream; charset=utf-8", status="HTTP/1.0 200 OK")
    assert head.is_event_stream
    assert isinstance(head.body_reader(), CloseDelimitedBody)


def test_a_counted_body() -> None:
    head = parse("Content-Length: 12", "Content-Encoding: gzip")
    assert head.content_length == 12
    assert head.encoded
    assert (b"content-encoding", b"gzip") in head.headers
    assert isinstance(head.body_reader(), CountedBody)


def test_identity_is_no_encoding() -> None:
    assert not parse("Content-Encoding: identity").encoded


def test_no_content_has_no_body_whatever_it_says() -> None:
    head = parse("Content-Length: 12", status="HTTP/1.1 204 No Content")
    assert head.body_reader().done


def test_an_interim_response_is_not_the_response() -> None:
    assert parse_upstream_head(b"HTTP/1.1 100 Continue\r\n\r\n") is None


@pytest.mark.parametrize(
    "raw",
    [b"HTTP/1.1 OK\r\n\r\n", b"junk\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"],
)
def test_a_malformed_head_is_a_fault(raw: bytes) -> None:
    with pytest.raises(ResponseFault):
        parse_upstream_head(raw)


def test_an_incomplete_head_is_a_fault() -> None:
    with pytest.raises(ResponseFault):
        parse_upstream_head(b"HTTP/1.1 200 OK\r\n")


def test_rendering() -> None:
    assert (
        render_head(200, [(b"a", b"b"), (b"c", b"d")]) == b"HTTP/1.1 200 OK\r\na: b\r\nc: d\r\n\r\n"
    )
    assert render_head(799, []) == b"HTTP/1.1 799 Status\r\n\r\n"


@given(st.binary(max_size=120))
def test_arbitrary_heads_raise_nothing_but_a_response_fault(raw: bytes) -> None:
    with contextlib.suppress(ResponseFault):
        parse_upstream_head(raw + b"\r\n\r\n")
