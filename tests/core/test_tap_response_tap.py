"""The account of one answer: the same for every way its bytes may be cut, and the right one.

``reference`` below is an independent, slow reading of the same rules: it sees the whole stream,
uses the standard library's parser on every line, and looks up afterwards which read ended it.
"""

import json
import os
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import accumulate, pairwise
from math import isfinite
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from strata_router.core.moment import Moment
from strata_router.core.tap import Accounting, BodyKind, ResponseTap, body_kind
from strata_router.core.vocabulary import FinishReason

ROUNDS = int(os.environ.get("ROUNDS", "1"))
STAMPS_EVERY = 7 if ROUNDS == 1 else 1
"""The reference is slow: without ROUNDS it is asked about every seventh offset only."""
STREAMS = Path(__file__).parent.parent / "data" / "streams"

LLAMA_TIMINGS = Accounting(
    prompt_n=35,
    cache_n=0,
    predicted_n=12,
    prompt_ms=86.214,
    predicted_ms=96.5,
    prompt_per_second=405.96654835641544,
    predicted_per_second=113.98963730569947,
    finish_reason=FinishReason.LENGTH,
    saw_done=True,
)
STRATA_FIGURES = Accounting(
    prompt_tokens=600,
    completion_tokens=21,
    prompt_n=88,
    cache_n=512,
    predicted_n=21,
    prompt_ms=71.25,
    predicted_ms=236.5,
    prompt_per_second=1235.1,
    predicted_per_second=88.8,
    finish_reason=FinishReason.TOOL_CALLS,
    saw_done=True,
)
RECORDED = {
    "strata.sse": STRATA_FIGURES,
    "strata_error.sse": Accounting(saw_done=True, saw_error=True),
    "llama_server.sse": LLAMA_TIMINGS,
    "llama_server_usage.sse": Accounting(
        prompt_tokens=35,
        completion_tokens=12,
        prompt_n=1,
        cache_n=34,
        predicted_n=12,
        prompt_ms=6.326,
        predicted_ms=79.208,
        prompt_per_second=158.07777426493837,
        predicted_per_second=138.87486112513886,
        finish_reason=FinishReason.LENGTH,
        saw_done=True,
    ),
    "llama_server_timings_per_token.sse": Accounting(
        prompt_n=10,
        cache_n=24,
        predicted_n=6,
        prompt_ms=29.754,
        predicted_ms=68.554,
        prompt_per_second=336.089265308866,
        predicted_per_second=72.93520436444263,
        finish_reason=FinishReason.LENGTH,
        saw_done=True,
    ),
    "openai.sse": Accounting(
        prompt_tokens=9,
        completion_tokens=46,
        reasoning_tokens=40,
        cache_n=4,
        finish_reason=FinishReason.STOP,
        saw_done=True,
    ),
    "openai_inline_usage.sse": Accounting(
        prompt_tokens=14, completion_tokens=6, finish_reason=FinishReason.LENGTH, saw_done=True
    ),
}
"""What each recorded stream says, read off by eye; token stamps depend on the reads."""


def at(read: int) -> Moment:
    """The moment of the n-th read."""
    return Moment(100.0 + read, 1_796_000_000.0 + read)


def fed(reads: Iterable[bytes], kind: BodyKind = BodyKind.SSE) -> ResponseTap:
    tap = ResponseTap(kind)
    for n, chunk in enumerate(reads):
        tap.feed(chunk, at(n))
    return tap


def account(*reads: bytes) -> Accounting:
    return fed(reads).close()


def cut(stream: bytes, cuts: Iterable[int]) -> list[bytes]:
    bounds = [0, *sorted(cuts), len(stream)]
    return [stream[start:end] for start, end in pairwise(bounds)]


def without_stamps(accounting: Accounting) -> Accounting:
    return replace(accounting, first_token=None, last_token=None)


# --- the independent reading ------------------------------------------------------------------


def reference(reads: list[bytes]) -> Accounting:
    stream = b"".join(reads)
    read_ends = list(accumulate(len(read) for read in reads))
    said: dict[str, Any] = {}
    offset = 0
    for line in re.split(rb"(?<=\n)", stream):
        offset += len(line)
        name, colon, value = line.partition(b":")
        # The first read that reaches the line's last byte; an unended line belongs to the last.
        read = bisect_left(read_ends, offset) if line.endswith(b"\n") else len(reads) - 1
        if (name == b"error" and colon) or (name == b"event" and value.strip() == b"error"):
            said["saw_error"] = True
        if name != b"data" or len(line.rstrip(b"\r\n")) > 262_144:
            continue
        if value.strip() == b"[DONE]":
            said["saw_done"] = True
            continue
        try:
            frame = json.loads(value.decode("utf-8"))
        except ValueError:
            continue
        if isinstance(frame, dict):
            said |= reference_facts(frame)
            if reference_generates(frame):
                said.setdefault("first_token", at(read))
                said["last_token"] = at(read)
    return Accounting(**said)


def reference_facts(frame: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def copy(field: str, *path: str, whole: bool) -> None:
        value: Any = frame
        for step in path:
            value = value.get(step) if isinstance(value, dict) else None
        if value is None or isinstance(value, (bool, str, list, dict)):
            return
        if whole and isinstance(value, float):
            return
        if value >= 0 and (isinstance(value, int) or isfinite(value)) and value < 2**63:
            found[field] = value

    copy("prompt_tokens", "usage", "prompt_tokens", whole=True)
    copy("completion_tokens", "usage", "completion_tokens", whole=True)
    copy("reasoning_tokens", "usage", "completion_tokens_details", "reasoning_tokens", whole=True)
    copy("cache_n", "usage", "prompt_tokens_details", "cached_tokens", whole=True)
    for field in ("prompt_n", "cache_n", "predicted_n"):
        copy(field, "timings", field, whole=True)
    for field in ("prompt_ms", "predicted_ms", "prompt_per_second", "predicted_per_second"):
        copy(field, "timings", field, whole=False)
    for choice in reference_choices(frame):
        word = choice.get("finish_reason")
        if isinstance(word, str) and word != "":
            known = word in ("stop", "length", "tool_calls", "function_call", "content_filter")
            found["finish_reason"] = FinishReason(word if known else "other")
    error = frame.get("error")
    if error is not None and error is not False and error not in ("", 0):
        found["saw_error"] = True
        if isinstance(error, dict):
            for field in ("code", "status"):
                number = error.get(field)
                if isinstance(number, int) and not isinstance(number, bool) and 400 <= number < 600:
                    found["error_status"] = number
    return found


def reference_choices(frame: dict[str, Any]) -> Iterator[dict[str, Any]]:
    choices = frame.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict):
            yield choice


def reference_generates(frame: dict[str, Any]) -> bool:
    outputs = {
        "content",
        "reasoning_content",
        "reasoning",
        "tool_calls",
        "function_call",
        "refusal",
    }
    return any(
        isinstance(value, (str, list, dict)) and len(value) > 0
        for choice in reference_choices(frame)
        if isinstance(choice.get("delta"), dict)
        for name, value in choice["delta"].items()
        if name in outputs
    )


# --- recorded streams -------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_stream_is_accounted_for(name: str) -> None:
    stream = (STREAMS / name).read_bytes()
    assert without_stamps(account(stream)) == RECORDED[name]
    assert without_stamps(reference([stream])) == RECORDED[name]


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("name", RECORDED)
def test_b22_every_split_offset_gives_the_same_account(name: str, line_end: bytes) -> None:
    stream = (STREAMS / name).read_bytes().replace(b"\n", line_end)
    for offset in range(len(stream) + 1):
        reads = [stream[:offset], stream[offset:]]
        accounting = account(*reads)
        assert without_stamps(accounting) == RECORDED[name]
        if offset % STAMPS_EVERY == 0:
            assert accounting == reference(reads)


@pytest.mark.parametrize("name", RECORDED)
def test_one_byte_per_read_gives_the_same_account(name: str) -> None:
    stream = (STREAMS / name).read_bytes()
    reads = [bytes([byte]) for byte in stream]
    assert account(*reads) == reference(reads)


@pytest.mark.parametrize("name", RECORDED)
def test_b23_a_stream_cut_anywhere_keeps_what_it_said_until_then(name: str) -> None:
    stream = (STREAMS / name).read_bytes()
    for end in range(0, len(stream), STAMPS_EVERY):
        assert account(stream[:end]) == reference([stream[:end]])


def test_b23_usage_seen_before_the_client_left_is_kept() -> None:
    events = (STREAMS / "openai_inline_usage.sse").read_bytes().split(b"\n\n")
    accounting = account(*(event + b"\n\n" for event in events[:6]))
    assert (accounting.prompt_tokens, accounting.completion_tokens) == (14, 5)
    assert (accounting.first_token, accounting.last_token) == (at(1), at(5))
    assert not accounting.saw_done
    assert accounting.finish_reason is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("strata.json", replace(STRATA_FIGURES, completion_tokens=32)),
        (
            "llama_server.json",
            Accounting(
                prompt_tokens=35,
                completion_tokens=12,
                prompt_n=1,
                cache_n=34,
                predicted_n=12,
                prompt_ms=5.803,
                predicted_ms=126.146,
                prompt_per_second=172.32465965879717,
                predicted_per_second=87.20054539977487,
                finish_reason=FinishReason.LENGTH,
            ),
        ),
    ],
)
def test_a_json_answer_is_accounted_for_at_every_split_without_token_times(
    name: str, expected: Accounting
) -> None:
    if name == "strata.json":
        expected = replace(expected, finish_reason=FinishReason.STOP, saw_done=False)
    body = (STREAMS / name).read_bytes()
    for offset in range(len(body) + 1):
        assert fed([body[:offset], body[offset:]], BodyKind.JSON).close() == expected


# --- random streams ---------------------------------------------------------------------------

VALUES = st.sampled_from([None, True, False, 0, 7, -1, 2.5, -0.5, "9", "", [], [1], {}, {"x": 1}])
TEXTS = st.sampled_from(
    [
        "",
        "a",
        " b",
        "\n",
        '"q"',
        "\\",
        "\u00e9",
        "\U0001f600",
        '"usage":{"x":1}',
        "data: [DONE]",
        "}]",
    ]
)


def objects(fields: Iterable[str], values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.dictionaries(st.sampled_from(list(fields)), values, max_size=4)


DELTAS = st.one_of(
    TEXTS.map(lambda text: {"content": text}),
    TEXTS.map(lambda text: {"content": text}),
    TEXTS.map(lambda text: {"reasoning_content": text}),
    TEXTS.map(lambda text: {"role": "assistant", "content": text}),
    objects(["content", "reasoning", "tool_calls", "function_call", "refusal", "role"], VALUES),
    VALUES,
)
CHOICES = st.builds(
    lambda delta, finish: {"index": 0, "delta": delta, "finish_reason": finish},
    DELTAS,
    st.sampled_from([None] * 12 + ["stop", "length", "weird", "", 5]),
)
USAGES = st.one_of(
    VALUES,
    st.builds(
        lambda plain, cached, thought: (
            plain
            | {
                "prompt_tokens_details": {"cached_tokens": cached},
                "completion_tokens_details": {"reasoning_tokens": thought},
            }
        ),
        objects(["prompt_tokens", "completion_tokens", "total_tokens"], VALUES),
        VALUES,
        VALUES,
    ),
)
TIMINGS = st.one_of(
    VALUES,
    objects(["prompt_n", "cache_n", "predicted_n", "prompt_ms", "predicted_per_second"], VALUES),
)
PLAIN = TEXTS.map(lambda text: {"choices": [{"delta": {"content": text}, "finish_reason": None}]})
FRAMES = st.one_of(
    *[PLAIN] * 6,
    st.fixed_dictionaries(
        {"choices": st.one_of(st.lists(CHOICES, max_size=2), VALUES)},
        optional={
            "usage": USAGES,
            "timings": TIMINGS,
            "error": st.one_of(VALUES, objects(["code", "status"], st.sampled_from([400, 503, 7]))),
        },
    ),
)


def spelled(frame: Any, spelling: int) -> bytes:
    """One JSON text of the frame: with or without spaces, escapes in values, escapes in keys."""
    text = json.dumps(
        frame,
        separators=(",", ":") if spelling & 1 else (" , ", "\t: "),
        ensure_ascii=bool(spelling & 2),
    )
    if spelling & 4:
        for key in ("usage", "timings", "finish_reason", "content", "error", "delta"):
            text = text.replace(f'"{key}"', f'"\\u{ord(key[0]):04x}{key[1:]}"')
    return text.encode()


DATA_LINES = st.builds(
    lambda name, frame, spelling: name + spelled(frame, spelling),
    st.sampled_from([b"data: "] * 6 + [b"data:", b"data:  ", b"data :", b"Data: ", b"data"]),
    FRAMES,
    st.sampled_from([1] * 8 + [0, 2, 3, 4, 5, 6, 7]),
)
OTHER_LINES = st.sampled_from(
    [
        b"",
        b": keep-alive",
        b"data: [DONE]",
        b"data:[DONE] ",
        b"data: [DONE]x",
        b"event: message",
        b"event:error",
        b"error: {}",
        b"id: 5",
        b"data:",
        b"data: {",
        b"data: []",
        b"data: \xff",
        b'data: {"choices":[{"delta":{"content":"\xff"},"finish_reason":null}]}',
        b'data: {"choices":[{"delta":{"content":"\\"},"finish_reason":null}]}',
    ]
)
LINE_ENDS = st.sampled_from([b"\n\n"] * 6 + [b"\r\n\r\n", b"\n", b"\r\n", b"\n\r\n", b"\r"])


@st.composite
def streams(draw: st.DrawFn) -> list[bytes]:
    lines = draw(st.lists(st.tuples(st.one_of(*[DATA_LINES] * 4, OTHER_LINES), LINE_ENDS)))
    stream = b"".join(line + end for line, end in lines)
    return cut(stream, draw(st.lists(st.integers(0, len(stream)), max_size=6)))


@settings(max_examples=1000 * ROUNDS, deadline=None)
@given(streams())
def test_any_stream_in_any_cut_agrees_with_the_reference(reads: list[bytes]) -> None:
    assert account(*reads) == reference(reads)


@settings(max_examples=300 * ROUNDS, deadline=None)
@given(streams())
def test_the_event_boundary_is_right_after_every_read(reads: list[bytes]) -> None:
    tap = ResponseTap(BodyKind.SSE)
    seen = b""
    assert tap.at_event_boundary
    for n, chunk in enumerate(reads):
        tap.feed(chunk, at(n))
        seen += chunk
        assert tap.at_event_boundary is bool(re.search(rb"(\A|\n)\r?\n\Z", seen) or not seen)
        assert tap.safe_to_insert is tap.at_event_boundary


@settings(max_examples=200 * ROUNDS, deadline=None)
@given(streams())
def test_every_whole_data_line_counts_as_an_event_however_it_is_cut(reads: list[bytes]) -> None:
    whole_lines = b"".join(reads).split(b"\n")[:-1]
    tap = fed(reads)
    assert tap.is_stream
    assert tap.events == sum(line.startswith(b"data:") for line in whole_lines)


def test_an_answer_that_is_no_stream_has_no_events() -> None:
    tap = fed([b'{"choices": [],\ndata: 1}\n'], BodyKind.JSON)
    assert (tap.is_stream, tap.events) == (False, 0)


@settings(max_examples=300 * ROUNDS, deadline=None)
@given(reads=streams(), end=st.sampled_from([b"", b"data: [DONE]\n\n", b"data: [DONE]\r\n\r\n"]))
@example(reads=[b"data: [DO", b"NE", b"]\n", b"\n"], end=b"")
@example(reads=[b"data: [DONE]\r", b"\n\r", b"\n", b"\r"], end=b"")
@example(reads=[b"data: [DONE]\n\n", b"\n", b": more\n\n"], end=b"data: [DONE]\n\n")
def test_what_a_pump_sends_and_holds_is_the_stream_and_only_a_done_event_is_held(
    reads: list[bytes], end: bytes
) -> None:
    tap = ResponseTap(BodyKind.SSE)
    sent = held = seen = b""
    for n, chunk in enumerate([*reads, end]):
        tap.feed(chunk, at(n))
        seen += chunk
        unsent = held + chunk
        forward, held = tap.hold_done(unsent)
        sent += forward
        assert sent + held == seen
        done = re.search(rb"(?:\A|\n)(data:[ ]*\[DONE\][ ]*\r?\n(?:\r?\n)*\r?)\Z", seen)
        assert len(held) == (min(len(unsent), len(done[1])) if done else 0)


# --- single rules -----------------------------------------------------------------------------

CONTENT = b'data: {"choices":[{"delta":{"content":"%s"},"finish_reason":null}]}\n\n'


def test_the_stamp_is_that_of_the_read_that_ended_the_frame() -> None:
    frame = CONTENT % b"x"
    accounting = account(b": ping\n\n" + frame[:30], frame[30:-2], frame[-2:-1], frame[-1:])
    assert (accounting.first_token, accounting.last_token) == (at(2), at(2))


def test_token_times_can_be_read_while_the_stream_runs() -> None:
    tap = ResponseTap(BodyKind.SSE)
    assert (tap.first_token, tap.last_token) == (None, None)
    tap.feed(b": ping\n\n", at(0))
    tap.feed(CONTENT % b"a", at(1))
    assert (tap.first_token, tap.last_token) == (at(1), at(1))
    tap.feed(CONTENT % b"b" + CONTENT % b"c", at(2))
    tap.feed(CONTENT % b"", at(3))
    tap.feed(b": ping\n\n", at(4))
    assert (tap.first_token, tap.last_token) == (at(1), at(2))


def test_heartbeats_roles_and_usage_are_no_tokens() -> None:
    accounting = account(
        b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n',
        b": keep-alive\n\n",
        b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":0}}\n\n',
    )
    assert accounting == Accounting(prompt_tokens=5, completion_tokens=0)


def test_many_plain_frames_with_one_that_says_more_among_them() -> None:
    more = CONTENT.replace(b"}\n", b',"timings":{"predicted_n":9}}\n') % b"x"
    block = (CONTENT % b"x") * 100 + more + (CONTENT % b"x") * 100
    accounting = account(CONTENT % b"x", block, CONTENT % b"x")
    assert accounting.predicted_n == 9
    assert (accounting.first_token, accounting.last_token) == (at(0), at(2))


def test_a_change_of_shape_is_followed_after_many_shapes() -> None:
    reads = [b'data: {"n":%d,"choices":[{"delta":{"content":"x"}}]}\n\n' % n for n in range(40)] + [
        CONTENT % b"x"
    ] * 3
    assert account(*reads) == reference(reads)
    assert account(*reads).last_token == at(42)


def test_a_later_frame_s_figures_replace_earlier_ones_field_by_field() -> None:
    accounting = account(
        b'data: {"usage":{"prompt_tokens":5,"completion_tokens":1},"timings":{"cache_n":3}}\n\n',
        b'data: {"usage":{"prompt_tokens":null,"completion_tokens":2}}\n\n',
        b'data: {"usage":null,"timings":{}}\n\n',
    )
    assert (accounting.prompt_tokens, accounting.completion_tokens) == (5, 2)
    assert accounting.cache_n == 3


def test_b22_an_oversize_frame_is_not_accounted_and_the_next_one_is() -> None:
    padding = b"x" * (300 * 1024)
    big = (
        b'data: {"usage":{"prompt_tokens":5},"choices":[{"delta":{"content":"%s"}}]}\n\n' % padding
    )
    stream = big + CONTENT % b"x" + b"data: [DONE]\n\n"
    reads = cut(stream, range(10_000, len(stream), 10_000))
    assert account(*reads) == reference(reads)
    assert account(stream) == Accounting(first_token=at(0), last_token=at(0), saw_done=True)


def test_a_stream_without_a_last_line_end_is_read_to_its_end() -> None:
    assert account(b"data: [DONE]").saw_done
    accounting = account(CONTENT % b"a", (CONTENT % b"b").rstrip(b"\n"))
    assert accounting.last_token == at(1)
    assert account(b'data: {"usage":{"prompt_tokens":5}}').prompt_tokens == 5


def test_close_twice_gives_the_same_account() -> None:
    tap = fed([b'data: {"usage":{"prompt_tokens":5}}\n\ndata: [DONE]'])
    assert tap.close() == tap.close()
    tap = fed([b'{"usage":{"prompt_tokens":5}}'], BodyKind.JSON)
    assert tap.close() == tap.close() == Accounting(prompt_tokens=5)


def test_an_answer_of_no_bytes_says_nothing() -> None:
    for kind in BodyKind:
        assert fed([], kind).close() == Accounting()


@pytest.mark.parametrize(
    "event",
    [
        b'data: {"error":{"message":"m"}}\n\n',
        b"event: error\ndata: anything\n\n",
        b"event:error\r\n\r\n",
        b'error: {"message":"m"}\n\n',
    ],
)
def test_b20_an_error_frame_is_seen_before_and_in_spite_of_done(event: bytes) -> None:
    tap = fed([event])
    assert tap.saw_error
    assert not tap.saw_done
    tap.feed(b"data: [DONE]\n\n", at(1))
    accounting = tap.close()
    assert accounting.saw_error
    assert accounting.saw_done


def test_the_last_status_named_by_an_error_is_kept() -> None:
    accounting = account(b'data: {"error":{"code":503}}\n\ndata: {"error":{"message":"m"}}\n\n')
    assert accounting.error_status == 503


def test_an_error_in_a_json_body_is_seen_at_the_end() -> None:
    accounting = fed([b'{"error":{"message":"m",', b'"code":500}}'], BodyKind.JSON).close()
    assert accounting == Accounting(saw_error=True, error_status=500)


@pytest.mark.parametrize("body", [b"[]", b"{", b"<html>", b"\x1f\x8b\x08"])
def test_a_json_body_that_is_no_object_says_nothing(body: bytes) -> None:
    assert fed([body], BodyKind.JSON).close() == Accounting()


def test_a_json_body_is_inspected_up_to_the_limit_and_not_beyond() -> None:
    frame = b'{"usage":{"prompt_tokens":5},"x":"%s"}'
    room = 256 * 1024 - len(frame) + 2
    fits, too_big = frame % (b"x" * room), frame % (b"x" * (room + 1))
    too_big += b" " * 100_000
    for size in (len(too_big), 10_000, 65_536):
        chunks = [fits[i : i + size] for i in range(0, len(fits), size)]
        assert fed(chunks, BodyKind.JSON).close().prompt_tokens == 5
        chunks = [too_big[i : i + size] for i in range(0, len(too_big), size)]
        assert fed(chunks, BodyKind.JSON).close() == Accounting()


def test_b19_an_encoded_body_is_left_alone_and_says_nothing() -> None:
    tap = fed([CONTENT % b"x", b"data: [DONE]\n\n"], BodyKind.OPAQUE)
    assert tap.close() == Accounting()
    assert tap.hold_done(b"data: [DONE]\n\n") == (b"data: [DONE]\n\n", b"")


def test_nothing_may_be_put_into_a_body_that_is_not_sse() -> None:
    for kind in (BodyKind.JSON, BodyKind.OPAQUE):
        assert not ResponseTap(kind).at_event_boundary
        assert not fed([b"\n\n"], kind).at_event_boundary


@pytest.mark.parametrize(
    ("content_type", "content_encoding", "kind"),
    [
        (b"text/event-stream", b"", BodyKind.SSE),
        (b"Text/Event-Stream ; charset=utf-8", b"identity", BodyKind.SSE),
        (b"application/json; charset=utf-8", b"", BodyKind.JSON),
        (b"application/problem+json", b" Identity ", BodyKind.JSON),
        (b"text/event-stream", b"gzip", BodyKind.OPAQUE),
        (b"application/json", b"identity, br", BodyKind.OPAQUE),
        (b"text/html", b"", BodyKind.OPAQUE),
        (b"", b"", BodyKind.OPAQUE),
    ],
)
def test_the_kind_of_a_body_follows_from_its_headers(
    content_type: bytes, content_encoding: bytes, kind: BodyKind
) -> None:
    assert body_kind(content_type, content_encoding) is kind


def test_the_done_event_is_held_whole_and_parts_sent_earlier_stay_sent() -> None:
    tap = fed([CONTENT % b"x" + b"data: [DO"])
    assert tap.hold_done(CONTENT % b"x" + b"data: [DO") == (CONTENT % b"x" + b"data: [DO", b"")
    tap.feed(b"NE]\n\n", at(1))
    assert tap.hold_done(b"NE]\n\n") == (b"", b"NE]\n\n")


def test_a_done_event_that_more_follows_is_not_held() -> None:
    for more in (
        b": bye\n\n",
        b": bye",
        CONTENT % b"x",
        CONTENT % b"x" * 2,
        CONTENT % b"x" + b"\n",
    ):
        tap = fed([CONTENT % b"x", b"data: [DONE]\n\n"])
        tap.feed(more, at(2))
        assert tap.hold_done(b"data: [DONE]\n\n" + more) == (b"data: [DONE]\n\n" + more, b"")
