"""Reads what one JSON value of a chat answer says: figures, finish reason, error, generated delta.

Every figure is copied or left out: a value of the wrong type, a negative or a non-finite one is as
good as absent, and nothing is computed. Knows the shapes of Strata, llama.cpp and OpenAI; knows
nothing about lines, events or time. Called by ``response_tap``.
Source: design, "Record schema, version 1"; contract section 9.
"""

import json
from collections.abc import Iterator
from math import isfinite
from typing import Literal, TypedDict, TypeGuard

import orjson

from strata_router.core.vocabulary import FinishReason

Frame = dict[str, object]
"""One JSON object: the payload of a ``data:`` line, or a whole answer."""

LARGEST_FIGURE = 2**63 - 1
"""A larger integer is no count of tokens or milliseconds, and a record's JSON could not hold it."""


class Figures(TypedDict, total=False):
    """The engine's figures that one frame holds, by the record's field names; absent means unsaid.

    *_tokens and *_n: whole tokens. *_ms: milliseconds. *_per_second: tokens per second.
    """

    prompt_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    prompt_n: int
    cache_n: int
    predicted_n: int
    prompt_ms: float
    predicted_ms: float
    prompt_per_second: float
    predicted_per_second: float


_USAGE_COUNTS: tuple[Literal["prompt_tokens", "completion_tokens"], ...] = (
    "prompt_tokens",
    "completion_tokens",
)
_TIMINGS_COUNTS: tuple[Literal["prompt_n", "cache_n", "predicted_n"], ...] = (
    "prompt_n",
    "cache_n",
    "predicted_n",
)
_TIMINGS_NUMBERS: tuple[
    Literal["prompt_ms", "predicted_ms", "prompt_per_second", "predicted_per_second"], ...
] = ("prompt_ms", "predicted_ms", "prompt_per_second", "predicted_per_second")

_GENERATED_FIELDS = (
    "content",
    "reasoning_content",
    "reasoning",
    "tool_calls",
    "function_call",
    "refusal",
)
"""Members of a delta that hold generated output; ``role`` is not one."""

_FINISH_REASONS = {reason.value: reason for reason in FinishReason}


def parse_frame(payload: bytes | bytearray) -> Frame | None:
    """Return the JSON object in ``payload``, or None for anything else."""
    try:
        frame = orjson.loads(payload)
    except orjson.JSONDecodeError:
        # Engines written in Python or JavaScript also emit NaN and lone surrogates, which orjson
        # refuses; one such value must not lose the figures beside it.
        try:
            frame = json.loads(payload)
        except (ValueError, RecursionError):
            return None
    return frame if isinstance(frame, dict) else None


def figures_of(frame: Frame) -> Figures:
    """Return the figures in the frame's ``usage`` and ``timings``.

    ``timings.cache_n`` beats ``usage.prompt_tokens_details.cached_tokens`` of the same frame.
    """
    figures: Figures = {}
    usage = frame.get("usage")
    if isinstance(usage, dict):
        for count in _USAGE_COUNTS:
            if _is_count(value := usage.get(count)):
                figures[count] = value
        if _is_count(value := _member(usage, "completion_tokens_details", "reasoning_tokens")):
            figures["reasoning_tokens"] = value
        if _is_count(value := _member(usage, "prompt_tokens_details", "cached_tokens")):
            figures["cache_n"] = value
    timings = frame.get("timings")
    if isinstance(timings, dict):
        for work in _TIMINGS_COUNTS:
            if _is_count(value := timings.get(work)):
                figures[work] = value
        for number in _TIMINGS_NUMBERS:
            if _is_number(value := timings.get(number)):
                figures[number] = value
    return figures


def finish_reason_of(frame: Frame) -> FinishReason | None:
    """Return the last finish reason among the choices; an unknown word is ``other``."""
    finish = None
    for choice in _choices(frame):
        word = choice.get("finish_reason")
        # Some engines say "" instead of null until the answer ends.
        if isinstance(word, str) and word:
            finish = _FINISH_REASONS.get(word, FinishReason.OTHER)
    return finish


def has_generated_delta(frame: Frame) -> bool:
    """Whether some choice's ``delta`` brings output: text, reasoning, a tool call or a refusal.

    Frames with only a role, only usage or only progress do not.
    """
    for choice in _choices(frame):
        delta = choice.get("delta")
        if isinstance(delta, dict):
            for field in _GENERATED_FIELDS:
                if (value := delta.get(field)) and isinstance(value, (str, list, dict)):
                    return True
    return False


def is_error(frame: Frame) -> bool:
    """Whether the frame reports a failure; ``"error": null`` and other empty scalars do not."""
    error = frame.get("error")
    return bool(error) or isinstance(error, (dict, list))


def error_status_of(frame: Frame) -> int | None:
    """Return the HTTP status an error names in ``status`` or (llama.cpp) ``code``, 400..599."""
    for field in ("status", "code"):
        status = _member(frame, "error", field)
        if _is_count(status) and 400 <= status <= 599:
            return status
    return None


def _choices(frame: Frame) -> Iterator[Frame]:
    choices = frame.get("choices")
    if isinstance(choices, list):
        for choice in choices:
            if isinstance(choice, dict):
                yield choice


def _member(frame: Frame, outer: str, inner: str) -> object:
    """Return ``frame[outer][inner]``, or None where there is no such path."""
    value = frame.get(outer)
    return value.get(inner) if isinstance(value, dict) else None


def _is_count(value: object) -> TypeGuard[int]:
    # `type is`, not isinstance: JSON true is a bool and no number.
    return type(value) is int and 0 <= value <= LARGEST_FIGURE


def _is_number(value: object) -> TypeGuard[float]:
    return _is_count(value) or (type(value) is float and isfinite(value) and value >= 0)
