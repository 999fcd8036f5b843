"""The status table for a terminal."""

import pytest

from strata_router.cli.status_table import status_table

IDLE = {
    "version": "1.2.3",
    "pid": 4711,
    "child_pid": None,
    "loaded": None,
    "loading": None,
    "engine_state": "stopped",
    "last_startup_error": None,
    "routing": True,
    "draining": False,
    "busy": False,
    "in_flight": 0,
    "queue_depth": 0,
    "queue_depth_by_tier": {"priority": 0, "default": 0, "flex": 0},
    "operation": None,
}


def test_an_idle_daemon_without_a_model() -> None:
    assert status_table(IDLE) == [
        "daemon            pid 4711, version 1.2.3",
        "routing           on",
        "draining          no",
        "model             none loaded",
        "engine            not running",
        "busy              no",
        "requests          0 active, 0 waiting",
        "last start error  none",
    ]


def test_a_busy_daemon_that_is_switched_off_and_drains() -> None:
    status = {"busy": True, "operation": "off", "routing": False, "draining": True}
    work = {"in_flight": 2, "queue_depth": 1, "queue_depth_by_tier": {"priority": 0, "flex": 1}}
    engine = {"loaded": "model-a", "child_pid": 4713, "last_startup_error": "port 8089 is held"}
    assert status_table(IDLE | status | work | engine) == [
        "daemon            pid 4711, version 1.2.3",
        "routing           off, chat requests get 503",
        "draining          yes, ends after accepted work",
        "model             model-a",
        "engine            pid 4713",
        "busy              yes, 'off' is running",
        "requests          2 active, 1 waiting (priority 0, flex 1)",
        "last start error  port 8089 is held",
    ]


def test_a_model_that_is_loading_is_named() -> None:
    status = {"loading": "model-b", "child_pid": 4714}
    assert "model             loading model-b" in status_table(IDLE | status)


def test_busy_without_an_operation_is_just_busy() -> None:
    assert "busy              yes" in status_table(IDLE | {"busy": True})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "yes"),
        (3, "3"),
        ("127.0.0.1:8088", "127.0.0.1:8088"),
        ([], "-"),
        (["a", False, None], "a, no, -"),
        ({}, "-"),
        ({"a": 1, "b": {"c": 0}}, "a 1, b c 0"),
    ],
)
def test_whatever_else_the_daemon_says_is_shown_as_it_is(value: object, text: str) -> None:
    assert status_table(IDLE | {"some_fact": value})[-1] == f"some fact         {text}"


def test_what_else_is_null_is_left_out() -> None:
    assert status_table(IDLE | {"some_fact": None}) == status_table(IDLE)


def test_an_answer_that_lacks_facts_shows_dashes() -> None:
    """A busy daemon may leave out what only an idle one knows."""
    assert [line.split()[-1] for line in status_table({})] == ["-"] * 8
