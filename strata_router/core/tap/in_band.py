"""The bytes of ours that an SSE answer may hold: the keep-alive comment and the error event.

Always whole events, one line of strict JSON each; never ``id:``, ``retry:`` or empty data, which
would change what a client does next. When they may be put in is the exchange's and
``ResponseTap.at_event_boundary``'s business. Source: contract 6.4.
"""

import orjson

from strata_router.core.refusal import Case, Refusal

KEEPALIVE = b": keepalive\n\n"

UPSTREAM_ERROR_LIMIT_BYTES = 64 * 1024
"""Longest upstream error body that is passed on; clients bound the lines they read, too."""


def keepalive_with_place(place: int, of: int) -> bytes:
    """Return the comment that also tells a waiting client its place among ``of`` tickets, from 1."""
    return b": keepalive queued %d of %d\n\n" % (place, of)


def error_event(refusal: Refusal) -> bytes:
    """Return the event that ends a committed stream with this refusal."""
    return _event(refusal.json_body())


def upstream_error_event(body: bytes, status: int) -> bytes:
    """Return the event for an upstream error reply that came after the stream was committed.

    body: the reply's whole body. status: its HTTP status. A JSON object ``error`` that is not empty
    keeps its members and gains (or has replaced) the numeric ``status``; any other body, or one over
    the limit, becomes the generic upstream error.
    """
    error = _error_object(body)
    if error is None:
        return error_event(Refusal(Case.UPSTREAM_ERROR))
    return _event(orjson.dumps({"error": {**error, "status": status}}))


def _event(json_line: bytes) -> bytes:
    return b"event: error\ndata: " + json_line + b"\n\n"


def _error_object(body: bytes) -> dict[str, object] | None:
    if len(body) > UPSTREAM_ERROR_LIMIT_BYTES:
        return None
    try:
        reply = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    error = reply.get("error") if isinstance(reply, dict) else None
    return error if isinstance(error, dict) and error else None
