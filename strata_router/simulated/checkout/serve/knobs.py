"""Every fault and every number of the simulated engine that a profile or a prompt can set.

A profile's ``simulated`` object may name any field of ``EngineKnobs`` and ``RequestKnobs``; a
marker ``FX:name=value`` in the last user message may name any field of ``RequestKnobs``, for that
request alone. Unknown names and values of the wrong kind are errors: a fault that is silently not
injected makes a test that proves nothing. docs/simulated-engine.md is checked against this module.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

JsonObject = dict[str, Any]


class BadKnob(Exception):
    """A knob that does not exist, or a value it cannot take."""


def knob(default: Any, doc: str, *choices: str) -> Any:
    """A dataclass field with the line that documents it and, for words, the closed set."""
    return field(default=default, metadata={"doc": doc, "choices": choices})


@dataclass(frozen=True, slots=True)
class EngineKnobs:
    """What holds for one engine process, from its start to its end."""

    # What is written down.
    event_file: str | None = knob(
        None, "file that stamps are appended to; none are written without"
    )
    record_bodies: bool = knob(False, "`request` stamps carry the body as text (up to 64 KiB)")
    hash_responses: bool = knob(False, "`done` stamps carry the SHA-256 of the body bytes sent")

    # Loading.
    load_s: float = knob(0.0, "seconds from start to READY")
    reload_s: float | None = knob(
        None, "the same for a load that a request causes; as load_s if unset"
    )
    hang_load: bool = knob(False, "never becomes ready")
    fail_load: int | None = knob(
        None, "the load fails and the server ends with this status (negative: by that signal)"
    )
    fail_first_load: int = knob(0, "so many first starts fail; counted in PROFILE.simulated-state")
    fail_load_exit: int = knob(1, "the status for fail_first_load")
    fail_reload: bool = knob(False, "a load that a request causes fails at every try")
    restart_pause_s: float = knob(15.0, "pause between the three tries of such a load")
    early_listener: bool = knob(False, "listens while loading: GET 503, POST 529, as one fork does")
    needs_alone: bool = knob(
        False, "the load fails (status 1) while any process of another engine lives"
    )

    # Readiness and identity.
    wrong_model: str | None = knob(None, "the model name reported everywhere instead of model_name")
    health: Mapping[str, Any] | None = knob(None, "keys that replace those of the /health answer")
    health_raw: str | None = knob(None, "the /health body, whatever it is")
    health_status: int = knob(200, "HTTP status of /health")
    health_delay_s: float = knob(0.0, "seconds before /health answers")
    ready_file: str = knob(
        "right",
        "what --ready-file gets",
        "right", "wrong_pid", "wrong_model", "garbage", "not_object", "never", "before_load",
    )  # fmt: skip
    ready_file_delay_s: float = knob(0.0, "seconds from listening to the readiness file")
    no_reuseaddr: bool = knob(False, "binds without SO_REUSEADDR")

    # Dying and stopping.
    die_loading_after_s: float | None = knob(
        None, "the server kills itself so long after its start"
    )
    die_idle_after_s: float | None = knob(
        None, "the server kills itself after so long without a request"
    )
    engine_dies_idle_after_s: float | None = knob(None, "the same, for the native engine alone")
    ignore_sigterm: bool = knob(False, "the server ignores SIGTERM")
    exit_s: float = knob(0.0, "seconds the native engine takes to quit")
    engine_ignores_quit: bool = knob(False, "the native engine ends by signals only")
    engine_ignores_sigterm: bool = knob(False, "the native engine ends by SIGKILL (or QUIT) only")
    ladder_s: float = knob(
        20.0, "each of the three waits of the stop: after QUIT, SIGTERM, SIGKILL"
    )

    # Processes beside the native engine.
    workers: int = knob(0, "helper processes, forked at the start; each shares the life lock")
    worker_setsid: bool = knob(False, "helpers leave the process group")
    worker_linger_s: float = knob(0.0, "seconds a helper outlives the server; negative: for ever")
    worker_stopped: bool = knob(False, "helpers stop themselves (SIGSTOP)")
    worker_ignores_sigterm: bool = knob(False, "helpers ignore SIGTERM")

    # Answering.
    disconnect_poll_s: float = knob(0.5, "interval of the disconnect watcher")
    keepalive_s: float = knob(10.0, "engine silence after which a comment is sent")
    cache_slots: int = knob(1, "conversations remembered; with 0 nothing is ever reused")

    # The cache lookup extension, which public Strata lacks.
    cache_lookup: bool = knob(False, "POST /v1/cache/lookup exists")
    cache_lookup_delay_s: float = knob(0.0, "seconds before it answers")
    cache_lookup_status: int = knob(200, "any other status is sent as a JSON error")
    cache_lookup_reply: str = knob(
        "right",
        "what it answers",
        "right", "short", "negative", "over", "garbage", "not_object", "null_results", "floats",
    )  # fmt: skip
    cache_lookup_busy: bool = knob(True, "it answers 409 while a request runs or waits")


@dataclass(frozen=True, slots=True)
class RequestKnobs:
    """What holds for one chat request: the profile's values, then its own markers."""

    # Length and pace.
    answer_tokens: int | None = knob(None, "text tokens of an answer; a few sentences if unset")
    force_tokens: int | None = knob(None, "the same, whatever max_tokens says")
    reasoning_tokens: int = knob(0, "reasoning tokens in front of the text")
    tool_calls: int = knob(1, "calls made when tools are asked for by tool_choice")
    chunk_every_ms: float = knob(0.0, "pause between two tokens")
    chunk_bytes: int = knob(0, "bytes of text per token; words if 0")
    long_line_bytes: int = knob(0, "size of the first text token")
    header_delay_s: float = knob(0.0, "seconds before the response head")
    prefill_s: float = knob(0.0, "seconds of prompt reading before the first token")
    prompt_chunk_s: float = knob(
        0.0, "prompt reading is cut into chunks of this; STOP waits for one"
    )

    # Accounting and the shape of the answer.
    usage: str = knob(
        "final",
        "where usage is: with finish_reason, with the last text, with every text, in a chunk"
        " without choices, in such a chunk when stream_options ask for it, nowhere",
        "final", "last_content", "inline", "separate", "asked", "none",
    )  # fmt: skip
    timings: bool = knob(True, "timings are reported")
    reasoning_usage: bool = knob(False, "usage counts reasoning tokens, as other engines do")
    usage_values: Mapping[str, Any] | None = knob(None, "the usage object, verbatim")
    timings_values: Mapping[str, Any] | None = knob(None, "the timings object, verbatim")
    finish: bool = knob(True, "the last chunk has a finish_reason")
    finish_as: str | None = knob(None, "the finish_reason reported")
    done: bool = knob(True, "data: [DONE] is sent")
    neginf: str = knob(
        "",
        "logprobs of minus infinity: as -9999.0, or as the bytes -Infinity",
        "",
        "strict",
        "literal",
    )
    cached: str | None = knob(None, "`K/N`: what a lookup says of this body")

    # Bytes on the wire.
    newline: str = knob("lf", "line ends of events", "lf", "crlf")
    segment_bytes: int = knob(0, "every write is cut into pieces of this size")
    segment_gap_ms: float = knob(0.0, "pause between such pieces")
    events_per_segment: int = knob(1, "events that are gathered into one write")
    gzip: bool = knob(False, "the answer has Content-Encoding: gzip")
    close_delay_s: float = knob(0.0, "seconds from the last byte to the close")

    # Faults.
    answer: str = knob(
        "normal",
        "what is answered, before any work, instead of a chat completion",
        "normal", "html500", "json500", "json400", "busy", "empty200", "headers_only", "broken_head",
        "broken_chunk", "short_body", "nothing",
    )  # fmt: skip
    error_after_chunks: int | None = knob(None, "the engine reports ERR after so many tokens")
    hang_after_chunks: int | None = knob(
        None, "silence after so many tokens, until the client leaves"
    )
    cut_after_chunks: int | None = knob(None, "the connection ends after so many text chunks")
    cut: str = knob("close", "how: FIN, RST, FIN inside an event", "close", "reset", "mid_event")
    die_at: str = knob(
        "",
        "the server is gone: before any byte, after the first chunk, after the last, after [DONE]",
        "", "headers", "role", "final", "done",
    )  # fmt: skip
    die_after_chunks: int | None = knob(None, "the server is gone after so many text chunks")
    die_exit: int = knob(-9, "how: exit status, or minus a signal")
    engine_dies_after_chunks: int | None = knob(
        None, "the native engine is gone after so many tokens"
    )


MARKER_SHORTHANDS: Mapping[str, JsonObject] = {
    "die": {"die_after_chunks": 3},
    "busy": {"answer": "busy"},
    "slow": {"chunk_every_ms": 50, "force_tokens": 200},
    "neginf": {"neginf": "strict"},
    "nofinish": {"finish": False},
    "error-before": {"error_after_chunks": 0},
    "gzip": {"gzip": True},
    "crlf": {"newline": "crlf"},
}
"""Bare words; the first six are those that the client cases use."""

MARKER_SYNONYMS: Mapping[str, str] = {"prefill": "prefill_s", "tokens": "answer_tokens"}

_MARKER = re.compile(r"FX:([A-Za-z0-9_-]+)(?:=(\S+))?")

Table = TypeVar("Table", EngineKnobs, RequestKnobs)


def from_profile(simulated: Mapping[str, Any]) -> tuple[EngineKnobs, RequestKnobs]:
    """Both tables from a profile's ``simulated`` object. Raises BadKnob."""
    request_names = {entry.name for entry in fields(RequestKnobs)}
    engine = {name: value for name, value in simulated.items() if name not in request_names}
    request = {name: value for name, value in simulated.items() if name in request_names}
    return _changed(EngineKnobs(), engine), _changed(RequestKnobs(), request)


def with_markers(knobs: RequestKnobs, last_user_text: str) -> RequestKnobs:
    """``knobs`` as changed by the FX markers in a message. Raises BadKnob."""
    changes: JsonObject = {}
    for name, value in _MARKER.findall(last_user_text):
        if not value and name in MARKER_SHORTHANDS:
            changes.update(MARKER_SHORTHANDS[name])
        else:
            changes[MARKER_SYNONYMS.get(name, name)] = _marker_value(value)
    return _changed(knobs, changes)


def _marker_value(text: str) -> Any:
    if not text:
        return True
    try:
        return json.loads(text)
    except ValueError:
        return text


def _changed(table: Table, changes: Mapping[str, Any]) -> Table:
    known = {entry.name: entry for entry in fields(table)}
    for name, value in changes.items():
        if name not in known:
            raise BadKnob(
                f"the simulated engine has no knob {name!r}; see docs/simulated-engine.md"
            )
        _check(name, value, known[name].type, known[name].metadata["choices"])
    return replace(table, **changes)


def _check(name: str, value: Any, declared: Any, choices: tuple[str, ...]) -> None:
    if choices:
        if value not in choices:
            raise BadKnob(f"simulated.{name} must be one of {', '.join(map(repr, choices))}")
        return
    for kind in getattr(declared, "__args__", None) or (declared,):
        origin = getattr(kind, "__origin__", kind)
        if origin is float and isinstance(value, int | float) and not isinstance(value, bool):
            return
        if isinstance(value, origin) and not (origin is int and isinstance(value, bool)):
            return
    raise BadKnob(f"simulated.{name} cannot be {value!r}")
