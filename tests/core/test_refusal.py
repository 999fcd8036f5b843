"""core.refusal: the contract's error table, row by row, and what no text of ours may contain."""

import json

import pytest

from strata_router.core.refusal import TABLE, Case, Refusal
from strata_router.core.vocabulary import Reason

CONTRACT = [
    # code, status, type, record reason (contract section 5)
    ("invalid_json", 400, "invalid_request_error", "invalid_request"),
    ("invalid_value", 400, "invalid_request_error", "invalid_request"),
    ("request_too_large", 413, "invalid_request_error", "invalid_request"),
    ("unsupported_encoding", 415, "invalid_request_error", "invalid_request"),
    ("request_timeout", 408, "invalid_request_error", "invalid_request"),
    ("forbidden_host", 403, "invalid_request_error", "invalid_request"),
    ("forbidden_origin", 403, "invalid_request_error", "invalid_request"),
    ("not_found", 404, "invalid_request_error", "invalid_request"),
    ("method_not_allowed", 405, "invalid_request_error", "invalid_request"),
    ("model_not_found", 404, "invalid_request_error", "invalid_request"),
    ("model_not_prepared", 404, "invalid_request_error", "model_not_prepared"),
    ("routing_off", 503, "service_unavailable", "routing_off"),
    ("shutting_down", 503, "service_unavailable", "shutdown"),
    ("model_load_failed", 503, "service_unavailable", "model_load_error"),
    ("queue_full", 429, "rate_limit_error", "queue_full"),
    ("queue_timeout", 504, "timeout", "queue_timeout"),
    ("upstream_timeout", 504, "timeout", "timeout"),
    ("upstream_error", 502, "upstream_error", "upstream_error"),
    ("internal_error", 500, "internal_error", "upstream_error"),
]

ROUTE_KILLERS = (
    # facts/cliproxyapi.md section 5: phrases that take a model out for twelve hours
    "model_not_supported",
    "model is not supported",
    "model not supported",
    "unsupported model",
    "requested model is",
    "model unavailable",
    "not available for your",
    "invalid_grant",
    "cloudflare",
)


@pytest.mark.parametrize(("code", "status", "type_", "reason"), CONTRACT)
def test_a_row_of_the_contracts_table(code: str, status: int, type_: str, reason: str) -> None:
    refusal = Refusal(Case(code))
    row = refusal.row
    assert (row.status, row.type, row.reason) == (status, type_, Reason(reason))
    error = json.loads(refusal.json_body())["error"]
    assert error == {"message": row.message, "type": type_, "code": code, "status": status}


@pytest.mark.parametrize("case", Case)
def test_every_case_has_a_row_whose_text_is_a_sentence(case: Case) -> None:
    message = TABLE[case].message
    assert message.endswith(".")
    assert not any(phrase in message.lower() for phrase in ROUTE_KILLERS)


@pytest.mark.parametrize("case", Case)
def test_client_faults_are_the_clients_and_nothing_else_is(case: Case) -> None:
    row = TABLE[case]
    is_client_fault = 400 <= row.status < 500 and row.status != 429
    assert (row.type == "invalid_request_error") is is_client_fault


def test_a_precise_message_replaces_the_rows_own() -> None:
    refusal = Refusal(Case.INVALID_VALUE, "The field 'x' must be a string.")
    assert refusal.error_object()["message"] == "The field 'x' must be a string."
