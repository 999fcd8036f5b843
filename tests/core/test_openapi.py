"""core.openapi: the description follows the tables it is drawn from."""

from strata_router.core.openapi import openapi_document
from strata_router.core.record.schema import FIELD_NAMES
from strata_router.core.refusal import TABLE, Case
from tests.core.overviews import BUSY

DOCUMENT = openapi_document("1.2.3")


def test_the_record_has_every_field_in_order_with_its_nullability() -> None:
    record = DOCUMENT["components"]["schemas"]["Record"]
    assert tuple(record["properties"]) == FIELD_NAMES
    assert record["required"] == list(FIELD_NAMES)
    assert record["properties"]["seq"]["type"] == "integer"
    assert record["properties"]["prompt_ms"]["type"] == ["number", "null"]
    assert record["properties"]["success"]["type"] == "boolean"
    assert record["properties"]["reason"]["type"] == "string"
    assert record["properties"]["finish_reason"]["type"] == ["string", "null"]
    assert record["properties"]["model_resolved"]["type"] == ["string", "null"]
    assert record["properties"]["seq"]["description"]


def test_every_case_is_somewhere_among_the_errors_of_the_chat_path() -> None:
    responses = DOCUMENT["paths"]["/v1/chat/completions"]["post"]["responses"]
    for case in Case:
        if case in (Case.NOT_FOUND, Case.METHOD_NOT_ALLOWED):
            continue
        assert case.value in responses[str(TABLE[case].status)]["description"]


def test_a_waiting_ticket_and_an_answer_have_the_fields_that_the_overview_gives() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    assert schemas["WaitingTicket"]["required"] == list(BUSY.tickets()[0])
    assert schemas["ActiveAnswer"]["required"] == list(BUSY.answers()[0])


def test_the_queue_has_the_fields_that_the_overview_gives_and_optional_records() -> None:
    responses = DOCUMENT["paths"]["/queue"]["get"]["responses"]
    schema = responses["200"]["content"]["application/json"]["schema"]
    assert schema["required"] == list(BUSY.to_mapping())
    assert set(schema["properties"]) - set(schema["required"]) == {
        "records",
        "totals",
        "request_log",
    }
    assert schema["properties"]["engine"]["required"] == list(BUSY.to_mapping()["engine"])


def test_the_metrics_have_every_form_that_may_be_asked_for() -> None:
    operation = DOCUMENT["paths"]["/metrics"]["get"]
    (parameter,) = operation["parameters"]
    assert parameter["schema"]["enum"] == ["json", "prometheus", "openmetrics"]
    assert list(operation["responses"]["200"]["content"]) == [
        "application/json",
        "text/plain",
        "application/openmetrics-text",
    ]


def test_it_says_whose_version_it_describes() -> None:
    assert DOCUMENT["openapi"] == "3.1.0"
    assert DOCUMENT["info"]["version"] == "1.2.3"
