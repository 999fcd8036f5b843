"""What must hold of any record whatever happened, written down from the design document alone."""

import re
from typing import Any

from tests.runtime.http.raw import Reply

REASONS = {
    "completed",
    "client_disconnect",
    "upstream_error",
    "timeout",
    "queue_timeout",
    "routing_off",
    "shutdown",
    "model_load_error",
    "model_not_prepared",
    "invalid_request",
    "queue_full",
}

TIME = re.compile(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d\d\dZ")

ADMITTED = ("lease_at", "queue_wait_ms")
GENERATED = ("first_token_at", "last_token_at", "ttft_ms", "ttft_after_lease_ms", "generation_ms")
OF_THE_ENGINE = ("upstream_headers_ms", "upstream_status")


def expect_consistent(record: dict[str, Any]) -> None:
    """Fields that depend on each other agree."""

    def are_known(fields: tuple[str, ...]) -> bool:
        known = {record[name] is not None for name in fields}
        assert len(known) == 1, {name: record[name] for name in fields}
        return known.pop()

    assert record["schema_version"] == 1
    assert record["endpoint"] == "/v1/chat/completions"
    assert record["reason"] in REASONS
    admitted, answered, generated = map(are_known, (ADMITTED, OF_THE_ENGINE, GENERATED))
    assert admitted or not (answered or record["model_switch"] or record["model_load_ms"])
    assert answered or not generated
    assert record["stream"] or not generated
    for name in ("arrived_at", "completed_at", "lease_at", "first_token_at", "last_token_at"):
        assert record[name] is None or TIME.fullmatch(record[name])
    spans = ["queue_wait_ms", "upstream_headers_ms", "ttft_ms", "generation_ms"]
    assert all(0 <= (record[name] or 0) <= record["total_ms"] for name in spans)
    assert record["success"] == (
        record["reason"] == "completed" and record["status"] is not None and record["status"] < 300
    )
    phase = {
        "queued": not admitted,
        "loading": admitted and not answered,
        "generating": admitted and answered,
        None: True,
    }
    assert phase[record["disconnect_phase"]]
    assert (record["disconnect_phase"] is not None) == (record["reason"] == "client_disconnect")


def expect_each_once(records: list[dict[str, Any]], posts: int) -> None:
    """Exactly one record per POST, numbered without a gap in both orders."""
    numbers = list(range(1, posts + 1))
    assert [record["seq"] for record in records] == numbers
    assert sorted(record["arrival_seq"] for record in records) == numbers
    assert len({record["request_id"] for record in records}) == posts
    for record in records:
        expect_consistent(record)


def expect_told_the_same(records: list[dict[str, Any]], replies: list[Reply]) -> None:
    """What a client got is what its record says; only whole replies can be compared."""
    by_id = {record["request_id"]: record for record in records}
    for reply in replies:
        record = by_id[reply.headers["x-strata-request-id"][0]]
        assert record["status"] == reply.status
        assert [record["model_resolved"]] == reply.headers.get("x-strata-concrete-model", [None])
        if not reply.cut:
            assert record["response_bytes"] == len(reply.body)
