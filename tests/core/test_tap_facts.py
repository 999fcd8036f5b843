"""What one frame says, in the shapes of the engines we know; wrong values are as good as absent."""

import json
from typing import Any

import pytest

from strata_router.core.tap.facts import (
    Frame,
    error_status_of,
    figures_of,
    finish_reason_of,
    has_generated_delta,
    is_error,
    parse_frame,
)
from strata_router.core.vocabulary import FinishReason

USAGE_FIELDS = ("prompt_tokens", "completion_tokens")
TIMINGS_COUNTS = ("prompt_n", "cache_n", "predicted_n")
TIMINGS_NUMBERS = ("prompt_ms", "predicted_ms", "prompt_per_second", "predicted_per_second")


def delta(value: object) -> Frame:
    return {"choices": [{"index": 0, "delta": value, "finish_reason": None}]}


def finish(word: object) -> Frame:
    return {"choices": [{"index": 0, "delta": {}, "finish_reason": word}]}


def test_usage_and_timings_are_copied() -> None:
    frame = {
        "usage": {
            "prompt_tokens": 1200,
            "completion_tokens": 57,
            "total_tokens": 1257,
            "completion_tokens_details": {"reasoning_tokens": 11},
        },
        "timings": {
            "cache_n": 1100,
            "prompt_n": 100,
            "prompt_ms": 83.1,
            "prompt_per_second": 1203.4,
            "predicted_n": 57,
            "predicted_ms": 640,
            "predicted_per_second": 89.1,
        },
    }
    assert figures_of(frame) == {
        "prompt_tokens": 1200,
        "completion_tokens": 57,
        "reasoning_tokens": 11,
        "prompt_n": 100,
        "cache_n": 1100,
        "predicted_n": 57,
        "prompt_ms": 83.1,
        "predicted_ms": 640,
        "prompt_per_second": 1203.4,
        "predicted_per_second": 89.1,
    }


def test_cache_n_is_the_timings_one_where_a_frame_has_both() -> None:
    usage = {"prompt_tokens_details": {"cached_tokens": 7}}
    assert figures_of({"usage": usage}) == {"cache_n": 7}
    assert figures_of({"usage": usage, "timings": {"cache_n": 9}}) == {"cache_n": 9}
    assert figures_of({"timings": {"cache_n": 0}, "usage": usage}) == {"cache_n": 0}
    assert figures_of({"usage": usage, "timings": {"cache_n": "9"}}) == {"cache_n": 7}


@pytest.mark.parametrize(
    "wrong", [None, True, False, -1, 2.0, 1.5, "5", [5], {"n": 5}, 2**63, float("nan")]
)
def test_b22_a_count_of_the_wrong_kind_is_absent(wrong: object) -> None:
    for field in USAGE_FIELDS:
        assert figures_of({"usage": {field: wrong}}) == {}
    for field in TIMINGS_COUNTS:
        assert figures_of({"timings": {field: wrong}}) == {}
    for outer, inner in (
        ("prompt_tokens_details", "cached_tokens"),
        ("completion_tokens_details", "reasoning_tokens"),
    ):
        assert figures_of({"usage": {outer: {inner: wrong}}}) == {}
        assert figures_of({"usage": {outer: wrong}}) == {}


@pytest.mark.parametrize(
    "wrong",
    [None, True, -1, -0.5, "5", [5], {"n": 5}, 2**63, float("nan"), float("inf"), -float("inf")],
)
def test_b22_a_number_of_the_wrong_kind_is_absent(wrong: object) -> None:
    for field in TIMINGS_NUMBERS:
        assert figures_of({"timings": {field: wrong}}) == {}


def test_zero_is_a_figure_where_the_engine_said_zero() -> None:
    assert figures_of({"usage": {"completion_tokens": 0}}) == {"completion_tokens": 0}
    assert figures_of({"timings": {"prompt_ms": 0.0}}) == {"prompt_ms": 0.0}


@pytest.mark.parametrize("nothing", [None, [], 5, "usage", True])
def test_usage_and_timings_that_are_no_objects_say_nothing(nothing: object) -> None:
    assert figures_of({"usage": nothing, "timings": nothing}) == {}


@pytest.mark.parametrize(
    "word", ["stop", "length", "tool_calls", "function_call", "content_filter"]
)
def test_known_finish_reasons_are_kept(word: str) -> None:
    assert finish_reason_of(finish(word)) == word


def test_an_unknown_finish_reason_is_other() -> None:
    assert finish_reason_of(finish("a secret of the engine")) is FinishReason.OTHER


@pytest.mark.parametrize("nothing", [None, "", 5, True, ["stop"], {"stop": 1}])
def test_what_is_no_word_is_no_finish_reason(nothing: object) -> None:
    assert finish_reason_of(finish(nothing)) is None


def test_the_last_choice_that_finishes_gives_the_reason() -> None:
    choices = [{"finish_reason": "length"}, {"finish_reason": "stop"}, {"finish_reason": None}]
    assert finish_reason_of({"choices": choices}) is FinishReason.STOP


@pytest.mark.parametrize("odd", [None, {}, "x", 5, [None], ["x"], [5], [[]]])
def test_choices_of_an_odd_shape_say_nothing(odd: object) -> None:
    assert finish_reason_of({"choices": odd}) is None
    assert not has_generated_delta({"choices": odd})
    assert not has_generated_delta({"choices": [{"delta": odd}]})


@pytest.mark.parametrize(
    "generated",
    [
        {"content": "x"},
        {"content": " "},
        {"role": "assistant", "content": "x"},
        {"content": [{"type": "text", "text": "x"}]},
        {"reasoning_content": "x"},
        {"content": None, "reasoning": "x"},
        {"tool_calls": [{"index": 0, "function": {"arguments": ""}}]},
        {"function_call": {"arguments": "{"}},
        {"refusal": "no"},
    ],
)
def test_output_of_any_kind_is_a_generated_delta(generated: object) -> None:
    assert has_generated_delta(delta(generated))
    assert has_generated_delta({"choices": [{"delta": {}}, {"index": 1, "delta": generated}]})


@pytest.mark.parametrize(
    "silent",
    [
        {},
        {"role": "assistant"},
        {"role": "assistant", "content": ""},
        {"content": None, "tool_calls": None, "refusal": None},
        {"content": "", "reasoning_content": "", "tool_calls": [], "function_call": {}},
        {"content": 5, "refusal": True},
    ],
)
def test_a_delta_without_output_is_not_generated(silent: object) -> None:
    assert not has_generated_delta(delta(silent))


def test_frames_of_progress_and_usage_are_not_generated() -> None:
    assert not has_generated_delta({"choices": [], "usage": {"completion_tokens": 5}})
    assert not has_generated_delta({"prompt_progress": {"processed": 5}, **delta({})})
    assert not has_generated_delta({"choices": [{"message": {"content": "not streamed"}}]})


@pytest.mark.parametrize("error", [{"message": "m"}, {}, [], ["m"], "m", True, 500])
def test_an_error_member_of_any_substance_is_an_error(error: object) -> None:
    assert is_error({"error": error})


@pytest.mark.parametrize("frame", [{}, {"error": None}, {"error": False}, {"error": ""}, delta({})])
def test_an_absent_or_empty_error_is_none(frame: Frame) -> None:
    assert not is_error(frame)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        ({"status": 503}, 503),
        ({"status": 599, "code": 400}, 599),
        ({"code": 400}, 400),
        ({"status": "503", "code": 500}, 500),
        ({"code": "model_busy"}, None),
        ({"status": 200, "code": 600}, None),
        ({"status": True}, None),
        ("503", None),
        (None, None),
    ],
)
def test_the_status_of_an_error_is_a_numeric_one_or_none(error: object, status: int | None) -> None:
    assert error_status_of({"error": error}) == status


def test_a_frame_is_a_json_object() -> None:
    assert parse_frame(b' {"a": 1}\r') == {"a": 1}
    for other in (b"", b"[]", b"5", b'"x"', b"null", b"{", b"[DONE]", b'{"a":1}{"b":2}', b"\xff"):
        assert parse_frame(other) is None


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", r'"\ud83d"', r'"\udca9 x"'])
def test_a_value_that_strict_json_refuses_does_not_hide_the_figures_beside_it(value: str) -> None:
    payload = f'{{"timings":{{"prompt_ms":{value},"prompt_n":3}}}}'.encode()
    frame = parse_frame(payload)
    assert frame is not None
    assert figures_of(frame) == {"prompt_n": 3}


def test_a_lone_surrogate_is_a_generated_delta() -> None:
    frame = parse_frame(rb'{"choices":[{"delta":{"content":"\ud83d"}}]}')
    assert frame is not None
    assert has_generated_delta(frame)


def test_nesting_without_end_is_no_frame() -> None:
    assert parse_frame(b'{"a":' * 50_000) is None
    assert parse_frame(b'{"a":' * 50_000 + b"1" + b"}" * 50_000) is None


def test_escaped_and_spaced_keys_are_read_like_plain_ones() -> None:
    for text in (r'{"us\u0061ge" : {"prompt_tokens"  :5}}', '{ "usage":{"prompt_tokens":5 } }'):
        frame = parse_frame(text.encode())
        assert frame is not None
        assert figures_of(frame) == {"prompt_tokens": 5}


def test_every_figure_that_is_read_can_be_written_again() -> None:
    biggest: dict[str, Any] = {
        "usage": {"prompt_tokens": 2**63 - 1},
        "timings": {"prompt_ms": 1e308},
    }
    assert json.loads(json.dumps(figures_of(biggest))) == {
        "prompt_tokens": 2**63 - 1,
        "prompt_ms": 1e308,
    }
