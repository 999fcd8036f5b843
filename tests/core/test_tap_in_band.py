"""Our own bytes inside an SSE answer."""

import orjson
import pytest

from strata_router.core.refusal import TABLE, Case, Refusal
from strata_router.core.tap.in_band import (
    KEEPALIVE,
    UPSTREAM_ERROR_LIMIT_BYTES,
    error_event,
    keepalive_with_place,
    upstream_error_event,
)

GENERIC = error_event(Refusal(Case.UPSTREAM_ERROR))


def error_in(event: bytes) -> dict[str, object]:
    """Check the framing of one event and return its error object."""
    assert event.count(b"\n") == 3
    first, second, rest = event.split(b"\n", 2)
    assert (first, rest) == (b"event: error", b"\n")
    assert second.startswith(b"data: ")
    body = orjson.loads(second[len(b"data: ") :])
    assert list(body) == ["error"]
    assert isinstance(body["error"], dict)
    return body["error"]


def test_the_keepalive_is_one_comment_and_a_blank_line() -> None:
    assert KEEPALIVE == b": keepalive\n\n"


def test_the_keepalive_can_tell_a_place_and_stays_one_comment() -> None:
    assert keepalive_with_place(3, 7) == b": keepalive queued 3 of 7\n\n"


@pytest.mark.parametrize("case", list(Case))
def test_b21_every_refusal_becomes_one_event_with_a_numeric_status(case: Case) -> None:
    error = error_in(error_event(Refusal(case)))
    assert error == {
        "message": TABLE[case].message,
        "type": TABLE[case].type,
        "code": case.value,
        "status": TABLE[case].status,
    }


def test_a_message_with_line_ends_stays_on_one_line() -> None:
    error = error_in(error_event(Refusal(Case.INVALID_VALUE, "a\nb\r\nc\u2028d")))
    assert error["message"] == "a\nb\r\nc\u2028d"


def test_an_upstream_error_keeps_its_members_and_gains_the_status() -> None:
    body = b'{"error": {"type": "invalid_request_error",\n "message": "too long", "param": null}}'
    assert error_in(upstream_error_event(body, 400)) == {
        "type": "invalid_request_error",
        "message": "too long",
        "param": None,
        "status": 400,
    }


def test_a_status_of_the_upstream_s_own_is_replaced_by_the_numeric_one() -> None:
    event = upstream_error_event(b'{"error":{"status":"UNAVAILABLE"},"more":1}', 503)
    assert error_in(event) == {"status": 503}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>Bad Gateway</html>",
        b'{"error": "Too many requests"}',
        b'{"error": {}}',
        b'{"error": null}',
        b'{"message": "no error member"}',
        b'["error"]',
        b'{"error": {"message": NaN}}',
        b'{"error": {"message": "cut',
        b'{"error": {"message": "\xff"}}',
    ],
)
def test_anything_else_becomes_the_generic_upstream_error(body: bytes) -> None:
    assert upstream_error_event(body, 500) == GENERIC
    assert error_in(GENERIC)["status"] == 502


def test_an_upstream_error_over_the_limit_is_not_passed_on() -> None:
    frame = b'{"error":{"message":"%s"}}'
    room = UPSTREAM_ERROR_LIMIT_BYTES - len(frame) + 2
    assert len(error_in(upstream_error_event(frame % (b"x" * room), 500))) == 2
    assert upstream_error_event(frame % (b"x" * (room + 1)), 500) == GENERIC
