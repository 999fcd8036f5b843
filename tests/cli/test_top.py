"""``strata-router top``: what its screen shows, and when there is none."""

import shlex
import sys
from dataclasses import replace
from typing import Any

import pytest

from strata_router.cli import top
from strata_router.cli.daemon_http import DaemonHttp
from strata_router.cli.outcome import CommandFailedError, ExitStatus
from strata_router.core.overview import Overview
from strata_router.core.vocabulary import Reason
from tests.cli.commands import run
from tests.core.metric_records import record
from tests.core.overviews import BUSY, GRACE, IDLE, LOADING

rich_console = pytest.importorskip("rich.console", reason="needs the extra top: the package rich")

from strata_router.cli.top_view import bar, screen  # noqa: E402 - it imports rich

STREAM = record(
    lease_at="2026-11-29T12:00:01.000Z",
    model_resolved="a",
    queue_wait_ms=1000,
    model_load_ms=2000,
    ttft_after_lease_ms=2500,
    generation_ms=500,
    total_ms=4000,
    completion_tokens=20,
)
PLAIN = record(
    lease_at="2026-11-29T12:00:01.000Z", queue_wait_ms=1000, ttft_after_lease_ms=None, total_ms=2000
)
LEFT = record(Reason.CLIENT_DISCONNECT, total_ms=4000)


def view(overview: Overview = BUSY, *records: Any, **log: int) -> dict[str, Any]:
    return {
        **overview.to_mapping(),
        "records": {"records": [each.to_mapping() for each in records]},
        "request_log": {"configured": True, "write_errors": 0, "write_drops": 0} | log,
    }


def lines(shown: dict[str, Any], height: int = 40, width: int = 100) -> list[str]:
    console = rich_console.Console(width=width, height=height, color_system=None)
    with console.capture() as captured:
        console.print(screen(shown, width, height, "q to leave"))
    return [line.rstrip() for line in captured.get().splitlines()]


def test_everything_is_on_one_screen() -> None:
    shown = lines(view(BUSY, STREAM))
    assert shown[:10] == [
        "a is loaded, for 61.0s",
        "up 12.0s   routing is off   draining   c cools down, 7.2s",
        "",
        "active 3, the first 2",
        "a  default    5.0s  answering, 41 events so far",
        "a  priority  400ms  asked, no answer yet",
        "",
        "waiting 7, the first 2",
        "1  b  flex           3.2s  grace for a, 1.2 s left",
        "2  -  flex, overdue  3.2s  behind priority work",
    ]
    assert shown[11] == "last requests 1"
    assert shown[12].split() == ["time", "model", "queue", "load", "ttft", "tok/s", "outcome"]
    assert shown[13].endswith("completed  " + "█" * 24)
    assert shown[-1] == "q to leave"


@pytest.mark.parametrize(
    ("overview", "headline"),
    [
        (IDLE, "no model is loaded"),
        (LOADING, "loading b, 2.3s so far"),
    ],
)
def test_the_first_line_is_the_engine(overview: Overview, headline: str) -> None:
    assert lines(view(overview))[0] == headline


def test_an_engine_that_is_being_stopped_is_told_from_none() -> None:
    shown = view(IDLE)
    shown["engine"]["state"] = "stopping"
    assert lines(shown)[0] == "the engine is stopping"


def test_lost_records_are_told() -> None:
    assert "request log: 3 lost or failed" in lines(view(IDLE, write_drops=2, write_errors=1))[1]


@pytest.mark.parametrize("height", [10, 14, 24, 60])
def test_the_screen_is_never_higher_than_the_terminal(height: int) -> None:
    many = replace(BUSY, waiting=(GRACE,) * 200, waiting_total=900, active=[*BUSY.active] * 20)
    shown = lines(view(many, *[STREAM] * 50), height)
    assert len(shown) <= height + 2  # with a queue and an answer there is always a line of each
    assert shown[0] == "a is loaded, for 61.0s"


def test_a_narrow_terminal_cuts_texts_and_no_numbers() -> None:
    narrow = lines(view(BUSY, STREAM), width=46)
    assert len(narrow) == len(lines(view(BUSY, STREAM)))
    assert narrow[4:6] == [
        "a  default    5.0s  answering, 41 events so f…",
        "a  priority  400ms  asked, no answer yet",
    ]
    assert narrow[8] == "1  b  flex           3.2s  grace for a, 1.2 s…"


def test_a_bracket_in_a_name_is_no_markup() -> None:
    shown = view(BUSY)
    shown["waiting"]["tickets"][0]["words"] = "[bold]x[/nope]"
    assert any("[bold]x[/nope]" in line for line in lines(shown))


def test_a_bar_is_as_long_as_its_request_and_split_by_its_times() -> None:
    spans = [(span.end - span.start, span.style) for span in bar(STREAM.to_mapping(), 8000).spans]
    assert spans == [(3, "bright_black"), (6, "yellow"), (1, "blue"), (2, "green")]
    assert bar(PLAIN.to_mapping(), 4000).plain == "█" * 12
    assert [span.style for span in bar(LEFT.to_mapping(), 4000).spans] == ["bright_black"]
    assert bar(LEFT.to_mapping(), 0).plain == ""


def test_without_a_terminal_it_says_what_to_use() -> None:
    ran = run("top", "--url", "http://127.0.0.1:1")
    assert ran.returncode == ExitStatus.FAILED
    assert ran.stderr.splitlines() == [
        "strata-router top: needs a terminal; 'strata-router status' also writes into a pipe"
    ]


def test_without_rich_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    for module in [name for name in sys.modules if name.partition(".")[0] == "rich"]:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(CommandFailedError) as failure:
        top.run(DaemonHttp("http://127.0.0.1:1"))
    assert f"{shlex.quote(sys.executable)} -m pip install 'rich>=13'" in str(failure.value)
    assert failure.value.status is ExitStatus.FAILED


def test_an_answer_of_another_version_is_told() -> None:
    class Old(DaemonHttp):
        def get_json(self, path: str, query: str = "") -> Any:
            return {"records": []}

    with pytest.raises(CommandFailedError, match="not a view of the queue"):
        top.read(Old("http://127.0.0.1:1"))
