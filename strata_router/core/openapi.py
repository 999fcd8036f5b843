"""The OpenAPI 3.1 description of our own surface, derived from the tables that the program runs on.

Describes what is ours: the four fields we read of a chat body, our errors, discovery and figures.
What an engine answers passes through untouched and is described as open. Served at
``/openapi.json``; a test holds it against the running daemon. Source: contract 5; docs/api.md.
"""

from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from strata_router.core.record.schema import Note, Record
from strata_router.core.refusal import TABLE, Case
from strata_router.core.vocabulary import CHAT_PATH

_JSON_TYPES = {int: "integer", float: "number", str: "string", bool: "boolean"}


def openapi_document(version: str) -> dict[str, Any]:
    """The whole description. version: the daemon's own."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "strata-router",
            "version": version,
            "summary": "One LLM engine, lent out fairly, over the OpenAI chat API.",
            "license": {"name": "MPL-2.0", "identifier": "MPL-2.0"},
        },
        "paths": {
            CHAT_PATH: {"post": _chat()},
            "/v1/models": {"get": _read("List what may be asked for.", _ref("ModelList"))},
            "/v1/models/{id}": {"get": _model()},
            "/health": {"get": _health()},
            "/metrics": {"get": _metrics()},
            "/requests": {"get": _requests()},
        },
        "components": {
            "schemas": {
                "Error": _error_schema(),
                "Model": _model_schema(),
                "ModelList": {
                    "type": "object",
                    "required": ["object", "data"],
                    "properties": {
                        "object": {"const": "list"},
                        "data": {"type": "array", "items": _ref("Model")},
                    },
                },
                "Record": _record_schema(),
                "ChatRequest": _chat_schema(),
            }
        },
    }


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _json(schema: dict[str, Any], description: str) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _errors(*cases: Case) -> dict[str, Any]:
    """One response per status, naming the codes that it may carry."""
    by_status: dict[int, list[Case]] = {}
    for case in cases:
        by_status.setdefault(TABLE[case].status, []).append(case)
    return {
        str(status): _json(_ref("Error"), ", ".join(sorted(found)))
        for status, found in sorted(by_status.items())
    }


_ANYWHERE = (Case.BAD_REQUEST, Case.FORBIDDEN_HOST, Case.HEADERS_TOO_LARGE, Case.REQUEST_TIMEOUT)
_UNKNOWN_TO_A_CHAT = (Case.NOT_FOUND, Case.METHOD_NOT_ALLOWED)


def _read(summary: str, schema: dict[str, Any], *cases: Case) -> dict[str, Any]:
    responses = {"200": _json(schema, "As asked."), **_errors(*_ANYWHERE, *cases)}
    return {"summary": summary, "responses": responses}


def _chat() -> dict[str, Any]:
    answered = {
        "description": "The engine's answer, or (while a stream waits) ours until it comes.",
        "headers": {
            "x-strata-request-id": {"schema": {"type": "string"}},
            "x-strata-concrete-model": {"schema": {"type": "string"}},
            "x-strata-service-tier": {"schema": {"enum": ["priority", "default", "flex"]}},
        },
        "content": {
            "application/json": {"schema": {"type": "object"}},
            "text/event-stream": {"schema": {"type": "string"}},
        },
    }
    cases = [case for case in Case if case not in _UNKNOWN_TO_A_CHAT]
    return {
        "summary": "One exchange with a model.",
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": _ref("ChatRequest")}},
        },
        "responses": {"200": answered, **_errors(*cases)},
    }


def _chat_schema() -> dict[str, Any]:
    nullable_text = {"type": ["string", "null"]}
    return {
        "type": "object",
        "required": ["model"],
        "description": "Every other member is the engine's business and reaches it as sent.",
        "properties": {
            "model": {"type": "string", "description": "A concrete id or an alias."},
            "stream": {"type": ["boolean", "null"]},
            "service_tier": {
                **nullable_text,
                "enum": ["priority", "default", "auto", "flex", None],
            },
            "speed": {**nullable_text, "enum": ["fast", "standard", None]},
        },
        "additionalProperties": True,
    }


def _model() -> dict[str, Any]:
    operation = _read("One model or alias.", _ref("Model"), Case.MODEL_NOT_FOUND)
    parameter = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
    return {**operation, "parameters": [parameter]}


def _model_schema() -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["id", "object", "created", "owned_by", "kind", "family", "status"],
        "properties": {
            "id": {"type": "string"},
            "object": {"const": "model"},
            "created": {"type": "integer"},
            "owned_by": {"type": "string"},
            "kind": {"enum": ["concrete", "alias"]},
            "family": {"type": "string"},
            "status": {"type": "string"},
            "allowed_models": {"type": "array", "items": {"type": "string"}},
        },
    }


def _health() -> dict[str, Any]:
    schema = {
        "type": "object",
        "required": ["status", "routing", "draining", "loaded_model"],
        "properties": {
            "status": {"enum": ["ok", "draining"]},
            "routing": {"type": "boolean"},
            "draining": {"type": "boolean"},
            "loaded_model": {"type": ["string", "null"]},
        },
    }
    operation = _read("Does the daemon serve?", schema)
    operation["responses"]["503"] = _json(schema, "It drains.")
    return operation


def _metrics() -> dict[str, Any]:
    operation = _read("Figures.", {"type": "object"}, Case.INVALID_VALUE)
    operation["responses"]["200"]["content"]["text/plain"] = {"schema": {"type": "string"}}
    form = {"type": "string", "enum": ["json", "prometheus"]}
    operation["parameters"] = [{"name": "format", "in": "query", "schema": form}]
    return operation


def _requests() -> dict[str, Any]:
    count = {"type": "integer", "minimum": 0}
    page = {
        "type": "object",
        "required": ["records", "next_seq", "dropped", "oldest_seq", "instance_id"],
        "properties": {
            "records": {"type": "array", "items": _ref("Record")},
            "next_seq": count,
            "dropped": count,
            "oldest_seq": {"type": ["integer", "null"]},
            "instance_id": {"type": "string"},
        },
    }
    operation = _read("Records of recent requests, oldest first.", page, Case.INVALID_VALUE)
    operation["parameters"] = [
        {"name": "after", "in": "query", "schema": {**count, "maximum": 10**18 - 1}},
        {"name": "limit", "in": "query", "schema": {"type": "integer"}},
    ]
    return operation


def _error_schema() -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["message", "type", "code", "status"],
                "properties": {
                    "message": {"type": "string"},
                    "type": {"enum": sorted({row.type for row in TABLE.values()})},
                    "code": {"enum": sorted(case.value for case in Case)},
                    "status": {"enum": sorted({row.status for row in TABLE.values()})},
                },
            }
        },
    }


def _record_schema() -> dict[str, Any]:
    """Drawn from the Record's own fields and their notes."""
    properties: dict[str, Any] = {}
    for name, annotated in get_type_hints(Record, include_extras=True).items():
        kind, note = annotated, None
        if get_origin(annotated) is Annotated:
            kind, note = get_args(annotated)[:2]
        properties[name] = {"type": _json_type(kind)}
        if isinstance(note, Note):
            properties[name]["description"] = note.meaning
    return {"type": "object", "required": list(properties), "properties": properties}


def _json_type(kind: Any) -> str | list[str]:
    """The JSON name(s) of a field's type; ids and enums are strings."""
    # A NewType in the union makes it typing's Union instead of the language's own.
    if get_origin(kind) in (Union, UnionType):
        return [_plain_name(part) for part in get_args(kind)]
    return _plain_name(kind)


def _plain_name(kind: Any) -> str:
    if kind is type(None):
        return "null"
    return _JSON_TYPES.get(kind, "string")
