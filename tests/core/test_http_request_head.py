"""core.http.request_head: what is found, bounded, parsed and refused."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_router.core.http.framing import ChunkedBody, CountedBody
from strata_router.core.http.request_head import (
    HEAD_LIMIT_BYTES,
    HeadFault,
    HeadParser,
    RequestHead,
    check_beginning,
    head_end,
    parse_head,
)
from strata_router.core.refusal import Case


def parse(*lines: str, request: str = "POST /v1/chat/completions HTTP/1.1") -> RequestHead:
    return parse_head("\r\n".join((request, *lines, "", "")).encode("latin-1"))


def fault(*lines: str, request: str = "POST / HTTP/1.1") -> Case:
    with pytest.raises(HeadFault) as caught:
        parse(*lines, request=request)
    return caught.value.refusal.case


def test_a_plain_request() -> None:
    head = parse("Host: x", "Content-Length: 5", "X-Two: a", "x-two: b")
    assert (head.method, head.path, head.query) == ("POST", "/v1/chat/completions", b"")
    assert head.content_length == 5
    assert head.has_body
    assert not head.wants_close
    assert isinstance(head.body_reader(), CountedBody)
    assert head.header(b"x-two") == b"a"
    assert head.header_list(b"x-two") == [b"a", b"b"]
    assert head.header(b"absent") is None


def test_a_request_without_body() -> None:
    head = parse("Host: x", request="GET /v1/models?a=b?c HTTP/1.1")
    assert (head.path, head.query) == ("/v1/models", b"a=b?c")
    assert not head.has_body
    assert head.body_reader().done


def test_chunked_and_expect() -> None:
    head = parse("Host: x", "Transfer-Encoding: Chunked", "Expect: 100-Continue")
    assert head.chunked
    assert head.has_body
    assert head.expects_continue
    assert isinstance(head.body_reader(), ChunkedBody)


@pytest.mark.parametrize(
    ("request_line", "header", "closes"),
    [
        ("GET / HTTP/1.1", "Connection: keep-alive", False),
        ("GET / HTTP/1.1", "Connection: Close", True),
        ("GET / HTTP/1.1", "Connection: x, close", True),
        ("GET / HTTP/1.0", "Connection: keep-alive", True),
    ],
)
def test_which_requests_end_their_connection(request_line: str, header: str, closes: bool) -> None:
    assert parse("Host: x", header, request=request_line).wants_close is closes


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        ("http://localhost:1/v1/models?x", "/v1/models", b"x"),
        ("HTTPS://localhost", "/", b""),
        ("*", "*", b""),
        ("//v1//models", "//v1//models", b""),
    ],
)
def test_every_form_of_target(target: str, path: str, query: bytes) -> None:
    head = parse("Host: x", request=f"OPTIONS {target} HTTP/1.1")
    assert (head.path, head.query) == (path, query)


@pytest.mark.parametrize(
    "lines",
    [
        ("Host: x", "Content-Length: 1", "Content-Length: 2"),
        ("Host: x", "Content-Length: -1"),
        ("Host: x", "Content-Length: 1", "Transfer-Encoding: chunked"),
        ("Host: x", "Transfer-Encoding: gzip"),
        ("Host: x", "Transfer-Encoding: gzip, chunked"),
        ("Host: x", "Transfer-Encoding: chunked", "Transfer-Encoding: chunked"),
        ("Content-Length: 1",),
        ("Host: x", "Host: y"),
        ("Host: x", "No colon"),
        ("Host: x", "Bad name : 1"),
        ("Host: x", "X: a\x00b"),
    ],
)
def test_ambiguous_or_broken_headers_are_a_bad_request(lines: tuple[str, ...]) -> None:
    assert fault(*lines) is Case.BAD_REQUEST


@pytest.mark.parametrize("first", range(256))
def test_what_can_begin_no_method_is_refused_at_its_first_byte(first: int) -> None:
    """As the whole head would be: h11 is the model."""
    whole = bytes([first]) + b"ET / HTTP/1.1\r\nHost: x\r\n\r\n"
    try:
        parse_head(whole)
    except HeadFault:
        with pytest.raises(HeadFault) as caught:
            check_beginning(first)
        assert caught.value.refusal.case is Case.BAD_REQUEST
    else:
        check_beginning(first)


def test_tls_is_told_which_scheme_to_use() -> None:
    with pytest.raises(HeadFault) as caught:
        check_beginning(0x16)
    assert caught.value.refusal.message == "This port speaks plain HTTP, not TLS; use http://."


@pytest.mark.parametrize(
    "request_line",
    [
        "POST v1 HTTP/1.1",
        "POST ftp://x/ HTTP/1.1",
        "POST / HTTP/2.0",
        "POST / HTTP/1.2",
        "POST /",
        "POST  / HTTP/1.1",
        "\x16\x03\x01 / HTTP/1.1",
        "PRI * HTTP/2.0",
    ],
)
def test_broken_request_lines_are_a_bad_request(request_line: str) -> None:
    assert fault("Host: x", request=request_line) is Case.BAD_REQUEST


def test_chunked_is_no_part_of_http_1_0() -> None:
    assert fault("Transfer-Encoding: chunked", request="POST / HTTP/1.0") is Case.BAD_REQUEST


def test_an_absurd_content_length_is_too_large() -> None:
    assert fault("Host: x", "Content-Length: " + "9" * 19) is Case.REQUEST_TOO_LARGE


def test_equal_content_lengths_are_one() -> None:
    assert parse("Host: x", "Content-Length: 3, 3").content_length == 3


def test_the_end_of_a_head_is_found_wherever_it_is_split() -> None:
    head = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    for size in range(len(head)):
        assert head_end(head[:size], 0) == -1
        assert head_end(head + b"rest", size) == len(head)


def test_a_bare_line_feed_ends_a_head_too() -> None:
    assert head_end(b"GET / HTTP/1.1\nHost: x\n\nrest", 0) == len(b"GET / HTTP/1.1\nHost: x\n\n")


def test_b16_a_head_over_the_limit_is_refused_the_same_whole_and_in_pieces() -> None:
    big = b"GET / HTTP/1.1\r\nX: " + b"x" * HEAD_LIMIT_BYTES + b"\r\n\r\n"
    for buffer in (big, big[: HEAD_LIMIT_BYTES + 1]):
        with pytest.raises(HeadFault) as caught:
            head_end(buffer, 0)
        assert caught.value.refusal.case is Case.HEADERS_TOO_LARGE


def test_b16_a_head_of_20_kb_passes() -> None:
    raw = b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"x" * 20_000 + b"\r\n\r\n"
    assert head_end(raw, 0) == len(raw)
    assert len(parse_head(raw).header(b"x") or b"") == 20_000


@given(st.binary(max_size=200))
def test_arbitrary_heads_raise_nothing_but_a_head_fault(raw: bytes) -> None:
    with contextlib.suppress(HeadFault):
        parse_head(raw + b"\r\n\r\n")


@pytest.mark.parametrize(
    "raw",
    [
        b"GET /s3cr3t\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        b"s3cr3t\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\ns3cr3t\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX-\xe9: s3cr3t\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX: s3cr3t'\x00\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: s3cr3t\r\n\r\n",
    ],
)
def test_nothing_that_was_sent_is_repeated_in_the_answer(raw: bytes) -> None:
    with pytest.raises(HeadFault) as caught:
        parse_head(raw)
    message = caught.value.refusal.message
    assert message is not None
    assert message.startswith("The request is not well-formed HTTP: ")
    assert "s3cr3t" not in message
    assert "b'" not in message


def test_an_incomplete_head_is_a_bad_request() -> None:
    with pytest.raises(HeadFault):
        parse_head(b"GET / HTTP/1.1\r\n")


HEAD = (
    "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %s\r\nX-Name: value\r\n\r\n"
)


@pytest.mark.parametrize(
    "head",
    [
        HEAD % "7",
        HEAD % "1234567",
        HEAD % "0",
        HEAD.replace("value", "other") % "7",
        HEAD.replace("POST", "GET") % "7",
        HEAD.replace("Content-Length", "content-length") % "7",
        "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
        HEAD % f"7\r\nX-Long: {'y' * 5000}",
    ],
)
def test_a_parser_that_remembers_says_what_one_without_memory_says(head: str) -> None:
    """Whatever came before, and twice, so that it is remembered the second time."""
    for before in (HEAD % "5", head):
        parser = HeadParser()
        parser.parse(before.encode())
        for _ in range(2):
            assert parser.parse(head.encode()) == parse_head(head.encode())


def test_of_two_lengths_none_is_remembered() -> None:
    """Only the second one differs from what was parsed before."""
    twice = HEAD % "5\r\nContent-Length: %s"
    parser = HeadParser()
    assert parser.parse((twice % "5").encode()).content_length == 5
    with pytest.raises(HeadFault):
        parser.parse((twice % "6").encode())
    other_first = HEAD.replace("5", "6") % "6\r\nContent-Length: 5"
    with pytest.raises(HeadFault):
        parser.parse(other_first.encode())


@pytest.mark.parametrize("length", ["+5", "0x5", "5,6", "9" * 19, ""])
def test_a_remembered_head_makes_no_bad_length_good(length: str) -> None:
    parser = HeadParser()
    parser.parse((HEAD % "5").encode())
    with pytest.raises(HeadFault):
        parser.parse((HEAD % length).encode())
