"""Everything a client can be told instead of an answer: one table from case to HTTP, code and record.

Pure values. Who decides that a case holds lives elsewhere; how its bytes are framed (JSON body or
in-band SSE event) is ``core.tap.in_band``'s and the HTTP layer's business.
Source: contract section 5.
"""

from dataclasses import dataclass
from enum import StrEnum

import orjson

from strata_router.core.vocabulary import Reason


class Case(StrEnum):
    """Why a request is not answered; the value is the public ``error.code``."""

    INVALID_JSON = "invalid_json"
    INVALID_VALUE = "invalid_value"
    MISSING_MODEL = "missing_required_parameter"
    REQUEST_TOO_LARGE = "request_too_large"
    UNSUPPORTED_ENCODING = "unsupported_encoding"
    REQUEST_TIMEOUT = "request_timeout"
    BAD_REQUEST = "bad_request"
    HEADERS_TOO_LARGE = "headers_too_large"
    FORBIDDEN_HOST = "forbidden_host"
    FORBIDDEN_ORIGIN = "forbidden_origin"
    NOT_FOUND = "not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    MODEL_NOT_FOUND = "model_not_found"
    MODEL_NOT_PREPARED = "model_not_prepared"
    ROUTING_OFF = "routing_off"
    SHUTTING_DOWN = "shutting_down"
    MODEL_LOAD_FAILED = "model_load_failed"
    QUEUE_FULL = "queue_full"
    QUEUE_TIMEOUT = "queue_timeout"
    UPSTREAM_TIMEOUT = "upstream_timeout"
    UPSTREAM_ERROR = "upstream_error"
    INTERNAL_ERROR = "internal_error"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the contract's table.

    status: HTTP status. type: OpenAI-shaped ``error.type``. reason: what the record says.
    message: the public text when the place that refuses has nothing more precise to say.
    """

    status: int
    type: str
    reason: Reason
    message: str


_CLIENT = "invalid_request_error"
_BUSY = "service_unavailable"

TABLE: dict[Case, Row] = {
    Case.INVALID_JSON: Row(
        400, _CLIENT, Reason.INVALID_REQUEST, "The request body is not strict JSON."
    ),
    Case.INVALID_VALUE: Row(
        400,
        _CLIENT,
        Reason.INVALID_REQUEST,
        "A field of the request has a value of the wrong kind.",
    ),
    Case.MISSING_MODEL: Row(
        400, _CLIENT, Reason.INVALID_REQUEST, "The request names no model; set the field 'model'."
    ),
    Case.REQUEST_TOO_LARGE: Row(
        413, _CLIENT, Reason.INVALID_REQUEST, "The request body is larger than this server accepts."
    ),
    Case.UNSUPPORTED_ENCODING: Row(
        415,
        _CLIENT,
        Reason.INVALID_REQUEST,
        "Content-Encoding is not accepted; send the JSON body uncompressed.",
    ),
    Case.REQUEST_TIMEOUT: Row(
        408, _CLIENT, Reason.INVALID_REQUEST, "The request did not arrive in time."
    ),
    Case.BAD_REQUEST: Row(
        400, _CLIENT, Reason.INVALID_REQUEST, "The request is not well-formed HTTP."
    ),
    Case.HEADERS_TOO_LARGE: Row(
        431, _CLIENT, Reason.INVALID_REQUEST, "The request's headers are too large."
    ),
    Case.FORBIDDEN_HOST: Row(
        403,
        _CLIENT,
        Reason.INVALID_REQUEST,
        "The Host header names neither this machine nor a name in allowed_hosts.",
    ),
    Case.FORBIDDEN_ORIGIN: Row(
        403,
        _CLIENT,
        Reason.INVALID_REQUEST,
        "Requests from this web origin are not allowed; see allowed_origins.",
    ),
    Case.NOT_FOUND: Row(404, _CLIENT, Reason.INVALID_REQUEST, "There is no such path."),
    Case.METHOD_NOT_ALLOWED: Row(
        405, _CLIENT, Reason.INVALID_REQUEST, "This path does not take that method."
    ),
    Case.MODEL_NOT_FOUND: Row(
        404, _CLIENT, Reason.INVALID_REQUEST, "No model of that name is offered; see /v1/models."
    ),
    Case.MODEL_NOT_PREPARED: Row(
        404,
        _CLIENT,
        Reason.MODEL_NOT_PREPARED,
        "This model is registered here but not prepared; the operator can run 'strata-router check'.",
    ),
    Case.ROUTING_OFF: Row(
        503, _BUSY, Reason.ROUTING_OFF, "The operator has switched this server off."
    ),
    Case.SHUTTING_DOWN: Row(503, _BUSY, Reason.SHUTDOWN, "The server is shutting down."),
    Case.MODEL_LOAD_FAILED: Row(
        503, _BUSY, Reason.MODEL_LOAD_ERROR, "The model failed to load; try again later."
    ),
    Case.QUEUE_FULL: Row(
        429,
        "rate_limit_error",
        Reason.QUEUE_FULL,
        "Too many requests are waiting; try again later.",
    ),
    Case.QUEUE_TIMEOUT: Row(
        504, "timeout", Reason.QUEUE_TIMEOUT, "The request waited too long for its turn."
    ),
    Case.UPSTREAM_TIMEOUT: Row(
        504, "timeout", Reason.TIMEOUT, "The engine did not answer in the time allowed."
    ),
    Case.UPSTREAM_ERROR: Row(
        502, "upstream_error", Reason.UPSTREAM_ERROR, "The engine failed while answering."
    ),
    Case.INTERNAL_ERROR: Row(
        500,
        "internal_error",
        Reason.UPSTREAM_ERROR,
        "The server made a mistake; the request is lost.",
    ),
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """One refused request: its case, and what this instance adds to the table's row.

    message: public text, or None for the row's own. Never holds request content, paths or names
    that are not in the configuration.
    retry_after_s: whole seconds for a Retry-After header, or None for no such header.
    """

    case: Case
    message: str | None = None
    retry_after_s: int | None = None

    @property
    def row(self) -> Row:
        return TABLE[self.case]

    def error_object(self) -> dict[str, str | int]:
        """The OpenAI-shaped ``error`` value; ``status`` is numeric (CLIProxyAPI reads it)."""
        row = self.row
        return {
            "message": self.message or row.message,
            "type": row.type,
            "code": self.case.value,
            "status": row.status,
        }

    def json_body(self) -> bytes:
        """The whole response body: ``{"error": {...}}``."""
        return orjson.dumps({"error": self.error_object()})
