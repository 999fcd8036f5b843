"""The record is the design document's table: its fields, their order, their types."""

import json
from pathlib import Path
from typing import Any

import orjson
import pytest

from strata_router.core.record.schema import (
    FIELD_NAMES,
    LINE_START,
    UNSEQUENCED,
    Record,
    UnsequencedRecord,
)
from strata_router.core.vocabulary import (
    CHAT_PATH,
    DisconnectPhase,
    FinishReason,
    ModelId,
    Reason,
    RequestId,
)
from tests.generate_docs import record_fields
from tests.record_table import field_table

PAGE = Path(__file__).parents[2] / "docs" / "record.md"

DOCUMENT_ORDER = [
    "schema_version",
    "seq",
    "arrival_seq",
    "request_id",
    "endpoint",
    "stream",
    "model_requested",
    "model_resolved",
    "upstream_model",
    "arrived_at",
    "completed_at",
    "lease_at",
    "first_token_at",
    "last_token_at",
    "queue_depth_at_arrival",
    "in_flight_at_arrival",
    "queue_wait_ms",
    "model_switch",
    "model_load_ms",
    "upstream_headers_ms",
    "ttft_ms",
    "ttft_after_lease_ms",
    "generation_ms",
    "total_ms",
    "prompt_tokens",
    "completion_tokens",
    "reasoning_tokens",
    "prompt_n",
    "cache_n",
    "predicted_n",
    "prompt_ms",
    "predicted_ms",
    "prompt_per_second",
    "predicted_per_second",
    "finish_reason",
    "status",
    "upstream_status",
    "success",
    "reason",
    "response_bytes",
    "disconnect_phase",
]
"""Names in the order of the design document's table, typed from it."""

NULLABLE = {
    "model_requested",
    "model_resolved",
    "upstream_model",
    "lease_at",
    "first_token_at",
    "last_token_at",
    "queue_wait_ms",
    "model_load_ms",
    "upstream_headers_ms",
    "ttft_ms",
    "ttft_after_lease_ms",
    "generation_ms",
    "prompt_tokens",
    "completion_tokens",
    "reasoning_tokens",
    "prompt_n",
    "cache_n",
    "predicted_n",
    "prompt_ms",
    "predicted_ms",
    "prompt_per_second",
    "predicted_per_second",
    "finish_reason",
    "status",
    "upstream_status",
    "disconnect_phase",
}

FULL: dict[str, Any] = {
    "seq": 3,
    "arrival_seq": 4,
    "request_id": RequestId("19a-7-4"),
    "endpoint": CHAT_PATH,
    "stream": True,
    "model_requested": "family-a",
    "model_resolved": ModelId("family-a-q2"),
    "upstream_model": "Family A",
    "arrived_at": "2026-11-29T12:00:00.000Z",
    "completed_at": "2026-11-29T12:00:09.250Z",
    "lease_at": "2026-11-29T12:00:01.000Z",
    "first_token_at": "2026-11-29T12:00:02.000Z",
    "last_token_at": "2026-11-29T12:00:09.000Z",
    "queue_depth_at_arrival": 2,
    "in_flight_at_arrival": 1,
    "queue_wait_ms": 1000,
    "model_switch": True,
    "model_load_ms": 400,
    "upstream_headers_ms": 1500,
    "ttft_ms": 2000,
    "ttft_after_lease_ms": 1000,
    "generation_ms": 7000,
    "total_ms": 9250,
    "prompt_tokens": 10,
    "completion_tokens": 20,
    "reasoning_tokens": 5,
    "prompt_n": 8,
    "cache_n": 2,
    "predicted_n": 20,
    "prompt_ms": 83.125,
    "predicted_ms": 640,
    "prompt_per_second": 96.5,
    "predicted_per_second": 31.25,
    "finish_reason": FinishReason.STOP,
    "status": 200,
    "upstream_status": 200,
    "success": True,
    "reason": Reason.COMPLETED,
    "response_bytes": 12345,
    "disconnect_phase": None,
}


def test_the_fields_are_those_of_the_design_document_in_its_order() -> None:
    assert list(FIELD_NAMES) == DOCUMENT_ORDER


def test_the_json_line_has_exactly_these_keys_in_this_order() -> None:
    line = Record(**FULL).to_json_line()
    assert line.startswith(LINE_START)
    assert line.endswith(b"}\n")
    assert line.count(b"\n") == 1
    pairs = json.loads(line, object_pairs_hook=list)
    assert [key for key, _ in pairs] == DOCUMENT_ORDER
    assert dict(pairs) == {"schema_version": 1, **FULL}


def test_the_mapping_is_the_json_line_s() -> None:
    record = Record(**FULL)
    assert list(record.to_mapping()) == DOCUMENT_ORDER
    assert orjson.dumps(record.to_mapping()) + b"\n" == record.to_json_line()


def test_closed_sets_are_written_as_their_words() -> None:
    record = Record(
        **FULL
        | {
            "reason": Reason.CLIENT_DISCONNECT,
            "disconnect_phase": DisconnectPhase.LOADING,
            "finish_reason": FinishReason.OTHER,
        }
    )
    said = json.loads(record.to_json_line())
    assert (said["reason"], said["disconnect_phase"]) == ("client_disconnect", "loading")
    assert said["finish_reason"] == "other"


def test_what_is_unknown_is_null_and_present() -> None:
    record = Record(**FULL | dict.fromkeys(NULLABLE))
    said = json.loads(record.to_json_line())
    assert {key for key, value in said.items() if value is None} == NULLABLE


def test_a_record_cannot_be_changed() -> None:
    record = Record(**FULL)
    with pytest.raises(AttributeError):
        record.seq = 5  # type: ignore[misc] # that it is frozen is what is tested


def test_a_sequence_number_is_all_that_an_unsequenced_record_lacks() -> None:
    unsequenced = UnsequencedRecord(Record(**FULL | {"seq": UNSEQUENCED}))
    assert unsequenced.sequenced(3) == Record(**FULL)


def test_the_page_shows_the_current_fields() -> None:
    """``make docs`` writes the table."""
    page = PAGE.read_text(encoding="utf-8")
    assert record_fields(page) == page


def test_the_page_says_of_each_field_whether_it_can_be_null() -> None:
    rows = [row.split(" | ") for row in field_table().splitlines()[2:]]
    assert [row[0] for row in rows] == [f"| `{name}`" for name in DOCUMENT_ORDER]
    assert {row[0].strip("|` ") for row in rows if row[2] == "yes"} == NULLABLE
