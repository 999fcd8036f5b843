"""The account of one request, version 1: every field, its order, unit and when it is null.

A record holds recognised model names, fixed words, times and numbers, never anything a client or an
engine could have put there. The ring, ``GET /requests`` and the log file all hold exactly this;
``docs/record.md`` is drawn from it. Source: design, "Record schema, version 1".
"""

from dataclasses import dataclass, fields, replace
from typing import Annotated, NamedTuple

import orjson

from strata_router.core.vocabulary import (
    DisconnectPhase,
    FinishReason,
    ModelId,
    Reason,
    RequestId,
)

SCHEMA_VERSION = 1


class Note(NamedTuple):
    """What a field's name and type cannot say. unit: "" where the field counts nothing."""

    meaning: str
    unit: str = ""


_RFC3339 = "RFC 3339, UTC, ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One finished request. Fields are in the order in which they are written."""

    schema_version: Annotated[int, Note("Version of this table.")] = SCHEMA_VERSION
    seq: Annotated[int, Note("Order of completion within one daemon instance, from 1.")]
    arrival_seq: Annotated[int, Note("Order of arrival within one daemon instance, from 1.")]
    request_id: Annotated[
        RequestId,
        Note("The answer's `x-strata-request-id`: instance id and `arrival_seq`."),
    ]
    endpoint: Annotated[str, Note("Path of the request, never with a query string.")]
    stream: Annotated[bool, Note("Whether streaming was asked for; false for an unreadable body.")]
    model_requested: Annotated[
        str | None,
        Note("Configured id or alias that was asked for; null for any other name, or none."),
    ]
    model_resolved: Annotated[
        ModelId | None, Note("Concrete model that was to answer; null before that was known.")
    ]
    upstream_model: Annotated[
        str | None, Note("The engine's name for that model; null before it was known.")
    ]
    arrived_at: Annotated[str, Note("Request head complete, body not yet read.", _RFC3339)]
    completed_at: Annotated[
        str, Note("End of the answer's body, or of the request by cancellation.", _RFC3339)
    ]
    lease_at: Annotated[
        str | None, Note("Admission, before any load; null if never admitted.", _RFC3339)
    ]
    first_token_at: Annotated[
        str | None,
        Note(
            "First read with a generated delta: text, reasoning or a tool call. "
            "Null without one, and for answers that are not SSE.",
            _RFC3339,
        ),
    ]
    last_token_at: Annotated[str | None, Note("Last such read; null likewise.", _RFC3339)]
    queue_depth_at_arrival: Annotated[int, Note("Tickets waiting when it arrived.", "tickets")]
    in_flight_at_arrival: Annotated[int, Note("Leases active when it arrived.", "leases")]
    queue_wait_ms: Annotated[
        int | None,
        Note("Arrival to admission, body upload included, load not; null if never admitted.", "ms"),
    ]
    model_switch: Annotated[
        bool,
        Note("Admission found another model, or none, loaded; false if never admitted."),
    ]
    model_load_ms: Annotated[
        int | None,
        Note("Stop, start and proof of the engine, failed or not; null if no load ran.", "ms"),
    ]
    upstream_headers_ms: Annotated[
        int | None, Note("Arrival to the engine's response head; null if none came.", "ms")
    ]
    ttft_ms: Annotated[
        int | None, Note("Arrival to the first generated delta; null without one.", "ms")
    ]
    ttft_after_lease_ms: Annotated[
        int | None, Note("Admission to the first generated delta; null without one.", "ms")
    ]
    generation_ms: Annotated[
        int | None, Note("First to last generated delta; 0 for one, null without.", "ms")
    ]
    total_ms: Annotated[int, Note("Arrival to `completed_at`.", "ms")]
    prompt_tokens: Annotated[int | None, Note("`usage` of the engine, copied.", "tokens")]
    completion_tokens: Annotated[int | None, Note("`usage` of the engine, copied.", "tokens")]
    reasoning_tokens: Annotated[
        int | None, Note("`usage.completion_tokens_details` of the engine, copied.", "tokens")
    ]
    prompt_n: Annotated[
        int | None, Note("`timings` of the engine: prompt tokens worked on afresh.", "tokens")
    ]
    cache_n: Annotated[
        int | None,
        Note("Prompt tokens reused: `timings`, else `usage.prompt_tokens_details`.", "tokens"),
    ]
    predicted_n: Annotated[int | None, Note("`timings` of the engine: tokens generated.", "tokens")]
    prompt_ms: Annotated[float | None, Note("`timings` of the engine: time for the prompt.", "ms")]
    predicted_ms: Annotated[
        float | None, Note("`timings` of the engine: time for the generation.", "ms")
    ]
    prompt_per_second: Annotated[float | None, Note("`timings` of the engine, copied.", "tokens/s")]
    predicted_per_second: Annotated[
        float | None, Note("`timings` of the engine, copied.", "tokens/s")
    ]
    finish_reason: Annotated[
        FinishReason | None,
        Note("Why generation ended; an unknown word is `other`, null if none came."),
    ]
    status: Annotated[
        int | None, Note("Status the client got; null if it left before one was known.", "HTTP")
    ]
    upstream_status: Annotated[int | None, Note("Status of the engine's reply.", "HTTP")]
    success: Annotated[bool, Note("`completed`, with a 2xx `status` and no failure seen anywhere.")]
    reason: Annotated[Reason, Note("How the request ended.")]
    response_bytes: Annotated[
        int, Note("Body bytes handed to the client's connection, ours included.", "bytes")
    ]
    disconnect_phase: Annotated[
        DisconnectPhase | None,
        Note("Where a `client_disconnect` happened; null for every other reason."),
    ]

    def to_json_line(self) -> bytes:
        """Return one line of strict JSON, all keys in order, with its LF."""
        # Not OPT_APPEND_NEWLINE: what orjson returns keeps the room that it wrote in, 16 KiB for a line of
        # one, and thousands of lines may wait for a slow disk. The sum is a copy of the right size.
        return orjson.dumps(self) + b"\n"

    def to_mapping(self) -> dict[str, str | int | float | bool | None]:
        """Return the same as a mapping, for a larger JSON value to hold."""
        return {name: getattr(self, name) for name in FIELD_NAMES}


FIELD_NAMES = tuple(field.name for field in fields(Record))

LINE_START = b'{"schema_version":'
"""How every line of a log begins, whatever the version; tells a log from another file."""

UNSEQUENCED = 0
"""``seq`` of a record that has none yet; real ones start at 1."""


@dataclass(frozen=True, slots=True)
class UnsequencedRecord:
    """A complete account that only lacks its place in the order of completion, the ring's to give.

    record: everything else; its ``seq`` means nothing.
    """

    record: Record

    def sequenced(self, seq: int) -> Record:
        return replace(self.record, seq=seq)
