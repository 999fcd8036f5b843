"""core.openapi: the description follows the tables it is drawn from."""

from strata_router.core.openapi import openapi_document
from strata_router.core.record.schema import FIELD_NAMES
from strata_router.core.refusal import TABLE, Case

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


def test_it_says_whose_version_it_describes() -> None:
    assert DOCUMENT["openapi"] == "3.1.0"
    assert DOCUMENT["info"]["version"] == "1.2.3"
