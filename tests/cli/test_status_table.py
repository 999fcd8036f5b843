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


def test_a_failed_start_is_told_with_its_model_and_where_to_look() -> None:
    failed = {
        "last_startup_error": "backend exited with status 3 before it was ready",
        "last_startup_model": "model-a",
        "last_startup_advice": "the engine's output is in /x/engine.log",
    }
    assert status_table(IDLE | failed)[-1] == (
        "last start error  model-a: backend exited with status 3 before it was ready; "
        "the engine's output is in /x/engine.log"
    )


def test_an_engine_that_ended_by_itself_has_a_row() -> None:
    death = {"model": "model-a", "pid": 4713, "how": "was killed by SIGSEGV", "ago_ms": 125_000}
    assert status_table(IDLE | {"last_engine_death": death})[-1] == (
        "last engine death  model-a, pid 4713, was killed by SIGSEGV, 2m05s ago"
    )


def test_lost_lines_of_the_request_log_have_a_row() -> None:
    lost = {"request_log": {"write_errors": 2, "write_drops": 5}}
    assert status_table(IDLE | lost)[-1] == (
        "request log       5 records lost, 2 file operations failed; the log says why"
    )


@pytest.mark.parametrize("log", [None, {"write_errors": 0, "write_drops": 0}])
def test_a_request_log_that_has_lost_nothing_has_no_row(log: object) -> None:
    quiet = {"last_startup_model": None, "last_startup_advice": None, "last_engine_death": None}
    assert status_table(IDLE | quiet | {"request_log": log}) == status_table(IDLE)


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


ACTIVE = {
    "request_id": "i-1",
    "model": "model-a",
    "tier": "default",
    "phase": "generating",
    "active_ms": 125_000,
    "phase_ms": 4000,
    "sse_events": 36,
}
WAITING = {
    "position": 1,
    "request_id": "i-2",
    "model": "model-b",
    "tier": "priority",
    "waited_ms": 950,
    "overdue": False,
    "words": "waits for 1 active answer of model-a",
}


def test_a_loaded_or_loading_model_is_shown_with_its_time() -> None:
    loaded = {"loaded": "model-a", "loaded_ms": 725_000}
    assert "model             model-a, for 12m05s" in status_table(IDLE | loaded)
    loading = {"loading": "model-b", "loading_ms": 2300}
    assert "model             loading model-b, 2.3s so far" in status_table(IDLE | loading)


def test_the_queue_follows_in_order_with_the_daemons_reasons() -> None:
    overdue = WAITING | {"position": 2, "tier": "flex", "overdue": True, "words": "behind it"}
    asked = ACTIVE | {"phase": "header_wait", "sse_events": None, "tier": "flex"}
    status = {"active": [ACTIVE, asked], "queue": [WAITING, overdue]}
    assert status_table(IDLE | status)[len(status_table(IDLE)) :] == [
        "",
        "active",
        "  model    tier       for  phase",
        "  model-a  default  2m05s  answering, 36 events so far",
        "  model-a  flex     2m05s  asked, no answer yet",
        "",
        "waiting",
        "     model    tier           waited  why",
        "  1  model-b  priority        950ms  waits for 1 active answer of model-a",
        "  2  model-b  flex, overdue   950ms  behind it",
    ]


def test_what_the_daemon_left_out_is_counted() -> None:
    status = {"active": [ACTIVE], "in_flight": 4, "queue": [WAITING], "queue_depth": 90}
    lines = status_table(IDLE | status)
    assert ("  and 3 more" in lines, "  and 89 more" in lines) == (True, True)


def test_rows_of_another_version_show_dashes_and_escapes() -> None:
    status = {"active": [{}], "queue": [{"words": "\x1b[31m"}, "odd"]}
    lines = status_table(status)
    assert "  -      -       -  -" in [line for line in lines if line.startswith("  - ")]
    assert lines[-1].endswith(r"\u001b[31m")
