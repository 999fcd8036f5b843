"""Whole SSE lines out of arbitrary reads, bounded."""

import os
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from strata_router.core.tap.sse_lines import LINE_LIMIT_BYTES, OVERSIZE_STAND_IN, SseLines

ROUNDS = int(os.environ.get("ROUNDS", "1"))


def test_a_read_of_whole_lines_comes_back_as_it_is() -> None:
    lines = SseLines()
    assert lines.feed(b"data: 1\n\ndata: 2\n\n") == b"data: 1\n\ndata: 2\n\n"
    assert lines.unfinished == b""


def test_an_unfinished_line_waits_for_its_end() -> None:
    lines = SseLines()
    assert lines.feed(b"one\ntw") == b"one\n"
    assert lines.unfinished == b"tw"
    assert lines.feed(b"o") == b""
    assert lines.feed(b"\nthree\nfo") == b"two\nthree\n"
    assert lines.drain() == b"fo"
    assert lines.drain() == b""


def test_a_line_that_was_drained_is_no_blank_line() -> None:
    lines = SseLines()
    lines.feed(b"data: 1\n\ndata: 2")
    assert not lines.at_blank_line
    lines.drain()
    assert not lines.at_blank_line


def test_carriage_returns_are_left_in_and_a_lone_one_ends_nothing() -> None:
    lines = SseLines()
    assert lines.feed(b"a\r\n\r\nb\rc\n") == b"a\r\n\r\nb\rc\n"
    assert lines.feed(b"d\r") == b""
    assert not lines.at_blank_line
    assert lines.feed(b"\n") == b"d\r\n"


def test_only_the_end_of_a_blank_line_is_an_event_boundary() -> None:
    lines = SseLines()
    assert lines.at_blank_line
    for chunk, at_blank_line in (
        (b"\n", True),
        (b"\r", False),
        (b"\n", True),
        (b"data: x", False),
        (b"\n", False),
        (b"\n", True),
        (b"data: x\r\n", False),
        (b"\r", False),
        (b"\n", True),
        (b"data: x\n\r\n", True),
        (b"data: x\n\n: half", False),
        (b" a comment\n", False),
    ):
        lines.feed(chunk)
        assert lines.at_blank_line is at_blank_line, chunk


def test_a_cr_that_may_begin_a_line_end_is_not_text() -> None:
    lines = SseLines()
    assert not lines.has_unfinished_text
    lines.feed(b"\r")
    assert not lines.has_unfinished_text
    lines.feed(b"x")
    assert lines.has_unfinished_text


def test_b22_a_line_over_the_limit_becomes_a_comment_in_one_read_and_in_many() -> None:
    long = b"data: " + b"x" * (300 * 1024)
    whole = SseLines()
    assert whole.feed(b"a\n" + long + b"\r\nb\n") == b"a\n" + OVERSIZE_STAND_IN + b"b\n"

    pieces = SseLines()
    for start in range(0, len(long), 50_000):
        assert pieces.feed(long[start : start + 50_000]) == b""
    assert pieces.has_unfinished_text
    assert pieces.unfinished == b""
    assert not pieces.at_blank_line
    assert pieces.feed(b"xx\n") == OVERSIZE_STAND_IN
    assert not pieces.at_blank_line
    assert pieces.feed(b"\nb\n") == b"\nb\n"


def test_a_line_as_long_as_the_limit_is_kept_with_either_line_end() -> None:
    longest = b"x" * LINE_LIMIT_BYTES
    for end in (b"\n", b"\r\n"):
        for first in (1, LINE_LIMIT_BYTES, LINE_LIMIT_BYTES + 1):
            lines = SseLines()
            stream = longest + end
            assert lines.feed(stream[:first]) + lines.feed(stream[first:]) == stream
            over = SseLines()
            stream = b"x" + longest + end
            block = over.feed(stream[:first]) + over.feed(stream[first:])
            assert block == OVERSIZE_STAND_IN


def test_an_oversize_line_without_an_end_is_not_drained() -> None:
    lines = SseLines()
    lines.feed(b"x" * (LINE_LIMIT_BYTES + 1))
    assert lines.drain() == b""
    lines = SseLines()
    lines.feed(b"x" * LINE_LIMIT_BYTES + b"\r")
    assert len(lines.drain()) == LINE_LIMIT_BYTES + 1


def test_memory_stays_bounded_while_an_endless_line_passes() -> None:
    lines = SseLines()
    for _ in range(50):
        lines.feed(b"x" * 65_536)
        assert len(lines.unfinished) <= LINE_LIMIT_BYTES + 1


@settings(max_examples=200 * ROUNDS, deadline=None)
@given(
    stream=st.lists(st.sampled_from([b"a", b"data: x", b"\n", b"\r\n", b"\r"])).map(b"".join),
    cuts=st.lists(st.integers(0, 60)),
)
def test_blocks_are_the_stream_up_to_its_last_lf_however_it_is_cut(
    stream: bytes, cuts: list[int]
) -> None:
    lines = SseLines()
    bounds = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    blocks = b""
    for start, end in pairwise(bounds):
        block = lines.feed(stream[start:end])
        assert block == b"" or block.endswith(b"\n")
        blocks += block
        seen = stream[:end]
        assert lines.at_blank_line is (
            seen in (b"", b"\n", b"\r\n") or seen.endswith((b"\n\n", b"\n\r\n"))
        )
    whole, lf, rest = stream.rpartition(b"\n")
    assert blocks == whole + lf
    assert lines.unfinished == rest
