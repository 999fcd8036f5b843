"""The OpenAPI 3.1 description of our own surface, derived from the tables that the program runs on.

Describes what is ours: the four fields we read of a chat body, our errors, discovery and figures.
What an engine answers passes through untouched and is described as open. Served at
``/openapi.json``; a test holds it against the running daemon. Source: contract 5; docs/api.md.
"""

from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from strata_router.core.admission.why import WaitReason
from strata_router.core.engine.lifecycle import EngineState
from strata_router.core.overview import AnswerPhase
from strata_router.core.record.schema import Record
from strata_router.core.refusal import TABLE, Case
from strata_router.core.vocabulary import CHAT_PATH, Tier

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
            "/queue": {"get": _queue()},
            "/openapi.json": {"get": _read("This description.", {"type": "object"})},
            "/": {"get": _page()},
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
                "RecordPage": _record_page(),
                "WaitingTicket": _waiting_ticket(),
                "ActiveAnswer": _active_answer(),
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
    errors = _errors(*cases)
    for response in errors.values():
        # The engine's own error before an answer began passes through with its status and body.
        response["content"]["application/json"]["schema"] = {
            "anyOf": [_ref("Error"), {"type": "object", "description": "The engine's own."}]
        }
    return {
        "summary": "One exchange with a model.",
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": _ref("ChatRequest")}},
        },
        "responses": {"200": answered, **errors},
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
    operation["responses"]["200"]["content"] |= {
        media_type: {"schema": {"type": "string"}}
        for media_type in ("text/plain", "application/openmetrics-text")
    }
    form = {"type": "string", "enum": ["json", "prometheus", "openmetrics"]}
    operation["parameters"] = [{"name": "format", "in": "query", "schema": form}]
    return operation


_COUNT = {"type": "integer", "minimum": 0}
_TEXT = {"type": "string"}
_TEXT_OR_NULL = {"type": ["string", "null"]}
_COUNT_OR_NULL = {"type": ["integer", "null"], "minimum": 0}
_CURSOR = [
    {"name": "after", "in": "query", "schema": {**_COUNT, "maximum": 10**18 - 1}},
    {"name": "limit", "in": "query", "schema": {"type": "integer"}},
]


def _requests() -> dict[str, Any]:
    summary = "Records of recent requests, oldest first."
    return {**_read(summary, _ref("RecordPage"), Case.INVALID_VALUE), "parameters": _CURSOR}


def _record_page() -> dict[str, Any]:
    return _object(
        records=_list("Record"),
        next_seq=_COUNT,
        dropped=_COUNT,
        oldest_seq={"type": ["integer", "null"]},
        instance_id=_TEXT,
    )


def _queue() -> dict[str, Any]:
    summary = "What is loaded, who waits and why, what is active; records with after or limit."
    tiers = _object(**{tier.value: _COUNT for tier in Tier})
    schema = _object(
        version=_TEXT,
        instance_id=_TEXT,
        uptime_s=_COUNT,
        routing={"type": "boolean"},
        draining={"type": "boolean"},
        engine=_object(
            state={"enum": [state.value for state in EngineState]},
            loaded=_TEXT_OR_NULL,
            loaded_ms=_COUNT_OR_NULL,
            loading=_TEXT_OR_NULL,
            loading_ms=_COUNT_OR_NULL,
            cooling={"type": "array", "items": _object(model=_TEXT, left_ms=_COUNT)},
        ),
        waiting=_object(total=_COUNT, by_tier=tiers, tickets=_list("WaitingTicket")),
        active=_object(total=_COUNT, answers=_list("ActiveAnswer")),
    )
    schema["properties"] |= {
        "records": _ref("RecordPage"),
        "totals": {
            "type": "array",
            "items": _object(model=_TEXT, outcome=_TEXT, requests=_COUNT),
        },
        "request_log": _object(
            configured={"type": "boolean"}, write_errors=_COUNT, write_drops=_COUNT
        ),
    }
    return {**_read(summary, schema, Case.INVALID_VALUE), "parameters": _CURSOR}


def _waiting_ticket() -> dict[str, Any]:
    return _object(
        position={"type": "integer", "minimum": 1},
        request_id=_TEXT,
        tier=_tier(),
        model=_TEXT_OR_NULL,
        waited_ms=_COUNT,
        overdue={"type": "boolean"},
        reason={"enum": [reason.value for reason in WaitReason]},
        behind_model=_TEXT_OR_NULL,
        behind_tier={"enum": [*_tier()["enum"], None]},
        active_answers=_COUNT,
        left_ms=_COUNT_OR_NULL,
        words=_TEXT,
    )


def _active_answer() -> dict[str, Any]:
    return _object(
        request_id=_TEXT,
        model=_TEXT,
        tier=_tier(),
        phase={"enum": [phase.value for phase in AnswerPhase]},
        active_ms=_COUNT,
        phase_ms=_COUNT,
        sse_events=_COUNT_OR_NULL,
    )


def _page() -> dict[str, Any]:
    html = {"description": "For people.", "content": {"text/html": {"schema": _TEXT}}}
    return {"summary": "The page.", "responses": {"200": html, **_errors(*_ANYWHERE)}}


def _object(**properties: Any) -> dict[str, Any]:
    """All of them required."""
    return {"type": "object", "required": list(properties), "properties": properties}


def _list(name: str) -> dict[str, Any]:
    return {"type": "array", "items": _ref(name)}


def _tier() -> dict[str, Any]:
    return {"enum": [tier.value for tier in Tier]}


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
    """Drawn from the Record's own fields, each of which has a note."""
    properties: dict[str, Any] = {}
    for name, annotated in get_type_hints(Record, include_extras=True).items():
        kind, note = get_args(annotated)
        properties[name] = {"type": _json_type(kind), "description": note.meaning}
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
