"""The status table for a terminal."""

import pytest

from strata_router.cli.status_table import status_table

IDLE = {
    "pid": 4711,
    "child_pid": None,
    "loaded": None,
    "last_startup_error": None,
    "routing": True,
    "draining": False,
    "busy": False,
    "operation": None,
}


def test_an_idle_daemon_without_a_model() -> None:
    assert status_table(IDLE) == [
        "daemon            pid 4711",
        "routing           on",
        "draining          no",
        "model             none loaded",
        "engine            not running",
        "busy              no",
        "last start error  none",
    ]


def test_a_busy_daemon_that_is_switched_off_and_drains() -> None:
    status = {"busy": True, "operation": "off", "routing": False, "draining": True}
    assert status_table(IDLE | status) == [
        "daemon            pid 4711",
        "routing           off, chat requests get 503",
        "draining          yes, ends after accepted work",
        "model             none loaded",
        "engine            not running",
        "busy              yes, 'off' is running",
        "last start error  none",
    ]


def test_busy_without_an_operation_is_just_busy() -> None:
    assert "busy              yes" in status_table(IDLE | {"busy": True})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (True, "yes"),
        (3, "3"),
        ("127.0.0.1:8088", "127.0.0.1:8088"),
        ([], "-"),
        (["a", False], "a, no"),
        ({}, "-"),
        ({"default": 1, "flex": 0}, "default 1, flex 0"),
    ],
)
def test_whatever_else_the_daemon_says_is_shown_as_it_is(value: object, text: str) -> None:
    assert status_table(IDLE | {"queue_depth": value})[-1] == f"queue depth       {text}"


def test_an_answer_that_lacks_facts_shows_dashes() -> None:
    """A busy daemon may leave out what only an idle one knows."""
    assert [line.split()[-1] for line in status_table({})] == ["-"] * 7
