"""``strata-router requests``: the cursor, the table, and the command against a real HTTP server."""

import io
import json
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import pytest

from strata_router.cli import requests_command
from strata_router.cli.arguments import DEFAULT_URL
from strata_router.cli.console import Console
from strata_router.cli.daemon_http import UnreachableError
from strata_router.cli.main import main
from strata_router.cli.outcome import CommandFailedError, ExitStatus
from strata_router.cli.requests_command import JsonView, TableView, follow
from strata_router.cli.requests_feed import Cursor, Page, RequestsSource
from strata_router.cli.requests_table import RequestsTable, cells, duration
from tests.cli.commands import run, running
from tests.cli.records import Ring, http_daemon, record
from tests.fakes.scripted_operator import ScriptedOperator, control_daemon

COLUMNS = ["time", "model", "tier", "queue", "load", "ttft", "tokens", "tok/s", "outcome"]


class RingSource(RequestsSource):
    """Reads a ring without HTTP; ``is_gone`` makes it unreachable."""

    def __init__(self, ring: Ring) -> None:
        super().__init__("http://127.0.0.1:8088")
        self.ring = ring
        self.is_gone = False

    def page(self, after: int | None, limit: int) -> Page:
        if self.is_gone:
            raise UnreachableError("nobody answers")
        page = self.ring.page(after, limit)
        return Page(page["records"], page["next_seq"], page["dropped"], page["instance_id"])


def seqs(records: list[dict[str, Any]]) -> list[int]:
    return [record["seq"] for record in records]


def ring_of(*sequence: int) -> Ring:
    ring = Ring()
    ring.add(*(record(seq) for seq in sequence))
    return ring


# --- the cursor ---


def test_the_first_reading_brings_the_newest() -> None:
    source = RingSource(ring_of(1, 2, 3))
    news = Cursor(newest=2).read(source)
    assert (seqs(news.records), news.notices, news.has_more) == ([2, 3], [], False)
    assert source.ring.asked == [(None, 2)]


def test_later_readings_bring_what_came_since() -> None:
    source = RingSource(ring_of(1, 2))
    cursor = Cursor(newest=10)
    cursor.read(source)
    assert cursor.read(source).records == []
    source.ring.add(record(3))
    assert seqs(cursor.read(source).records) == [3]
    assert cursor.read(source).records == []
    assert source.ring.asked[1:] == [(2, 1000), (2, 1000), (3, 1000)]


def test_an_empty_ring_is_followed_from_its_start() -> None:
    source = RingSource(Ring())
    cursor = Cursor(newest=10)
    assert cursor.read(source).records == []
    source.ring.add(record(1))
    assert seqs(cursor.read(source).records) == [1]


def test_after_a_restart_all_records_of_the_new_process_come() -> None:
    """Its numbers begin at 1 again, below the cursor."""
    source = RingSource(ring_of(1, 2, 3))
    cursor = Cursor(newest=1)
    cursor.read(source)
    source.ring.restart("two")
    source.ring.add(*(record(seq) for seq in range(1, 6)))
    news = cursor.read(source)
    assert (news.records, news.has_more) == ([], True)
    assert news.notices == ["the daemon was restarted, its records start anew"]
    news = cursor.read(source)
    assert (seqs(news.records), news.notices) == ([1, 2, 3, 4, 5], [])


def test_a_gap_is_told_with_its_size() -> None:
    source = RingSource(ring_of(1))
    cursor = Cursor(newest=1)
    cursor.read(source)
    source.ring.add(*(record(seq) for seq in range(2, 9)))
    source.ring.evict(5)
    news = cursor.read(source)
    assert news.notices == ["4 records are missing, the daemon no longer has them"]
    assert seqs(news.records) == [6, 7, 8]


def test_a_full_page_is_followed_by_another_at_once() -> None:
    source = RingSource(ring_of(1))
    cursor = Cursor(newest=1)
    cursor.read(source)
    source.ring.add(*(record(seq) for seq in range(2, 1502)))
    first, second = cursor.read(source), cursor.read(source)
    assert (len(first.records), first.has_more) == (1000, True)
    assert (len(second.records), second.has_more) == (500, False)


def test_a_first_page_of_the_largest_size_is_all_that_was_asked_for() -> None:
    source = RingSource(ring_of(*range(1, 1501)))
    news = Cursor(newest=1000).read(source)
    assert (len(news.records), news.has_more) == (1000, False)


def test_a_reading_that_fails_does_not_move_the_cursor() -> None:
    source = RingSource(ring_of(1, 2))
    cursor = Cursor(newest=1)
    cursor.read(source)
    source.ring.add(record(3))
    source.is_gone = True
    with pytest.raises(UnreachableError):
        cursor.read(source)
    source.is_gone = False
    assert seqs(cursor.read(source).records) == [3]


# --- the table ---


def test_a_row_has_a_cell_for_every_column() -> None:
    row = cells(record(1))
    assert row[1:] == ("model-a", "-", "12ms", "-", "850ms", "1200/100", "50.0", "completed")
    assert len(row[0]) == len("11-29 12:00:00")


@pytest.mark.parametrize(
    ("fields", "column", "text"),
    [
        ({"tier": "priority"}, "tier", "priority"),
        ({"model_resolved": None}, "model", "family-a"),
        ({"model_resolved": None, "model_requested": None}, "model", "-"),
        ({"model_load_ms": 9300}, "load", "9.3s"),
        ({"ttft_ms": None}, "ttft", "-"),
        ({"predicted_per_second": 41.26}, "tok/s", "41.3"),
        ({"generation_ms": 0}, "tok/s", "-"),
        ({"completion_tokens": None}, "tok/s", "-"),
        ({"completion_tokens": None}, "tokens", "1200/-"),
        ({"prompt_tokens": None}, "tokens", "-/100"),
        ({"prompt_tokens": None, "completion_tokens": None}, "tokens", "-"),
        ({"success": False, "reason": "upstream_error", "status": 502}, "outcome", "upstream_error 502"),
        (
            {
                "success": False,
                "reason": "client_disconnect",
                "status": None,
                "disconnect_phase": "queued",
            },
            "outcome",
            "client_disconnect (queued)",
        ),
        ({"reason": None}, "outcome", "-"),
        ({"completed_at": None}, "time", "-"),
        ({"completed_at": "yesterday"}, "time", "-"),
        ({"model_resolved": "\x1b[31m"}, "model", r"\u001b[31m"),
    ],
)  # fmt: skip
def test_a_cell_says_what_is_known_and_a_dash_else(
    fields: dict[str, object], column: str, text: str
) -> None:
    assert cells(record(1, **fields))[COLUMNS.index(column)] == text


def test_a_record_that_lacks_everything_is_dashes() -> None:
    assert cells({}) == ("-",) * 9


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (None, "-"),
        (True, "-"),
        (0, "0ms"),
        (999, "999ms"),
        (12_340, "12.3s"),
        (99_900, "99.9s"),
        (245_000, "4m05s"),
        (7_800_000, "2h10m"),
    ],
)
def test_durations_are_short(ms: object, text: str) -> None:
    assert duration(ms) == text


def test_rows_line_up_with_the_header_and_later_ones_with_them() -> None:
    table = RequestsTable()
    first = record(1, model_resolved="m" * 40)
    table.make_room_for([first])
    lines = [table.header(), table.row(first), table.row(record(2))]
    assert lines[0].split() == COLUMNS
    tier_at = lines[0].index("tier")
    assert [line[tier_at] for line in lines[1:]] == ["-", "-"]
    ends = [lines[0].index("queue") + len("queue"), lines[1].index("12ms") + len("12ms")]
    assert ends[0] == ends[1]


# --- views and following ---


@pytest.fixture
def streams() -> tuple[io.StringIO, io.StringIO]:
    return io.StringIO(), io.StringIO()


class EnoughError(Exception):
    """Ends an endless command."""


def follow_through(
    monkeypatch: pytest.MonkeyPatch,
    source: RingSource,
    steps: list[Callable[[], None]],
    out: TextIO,
    err: TextIO,
    as_json: bool = False,
) -> None:
    """Follow; each pause between two polls takes the next step instead, then it ends."""
    remaining = iter(steps)

    def pause(seconds: float) -> None:
        assert seconds == requests_command.POLL_S
        step = next(remaining, None)
        if step is None:
            raise EnoughError
        step()

    monkeypatch.setattr(time, "sleep", pause)
    console = Console(out, err)
    view = JsonView(console) if as_json else TableView(console)
    with pytest.raises(EnoughError):
        follow(source, 20, view, console)


def test_following_shows_each_record_once_with_notices_in_between(
    monkeypatch: pytest.MonkeyPatch, streams: tuple[io.StringIO, io.StringIO]
) -> None:
    source = RingSource(ring_of(1))

    def restart() -> None:
        source.ring.restart("two")
        source.ring.add(record(1, reason="timeout", success=False, status=504))

    def more() -> None:
        source.ring.add(record(2))

    follow_through(monkeypatch, source, [more, restart, more], *streams)
    lines = streams[0].getvalue().splitlines()
    assert lines[0].split() == COLUMNS
    assert [line.split()[-1] for line in lines[1:]] == [
        "completed",
        "completed",
        "---",
        "504",
        "completed",
    ]
    assert lines[3] == "--- the daemon was restarted, its records start anew ---"
    assert streams[1].getvalue() == ""


def test_in_json_the_notices_stay_out_of_the_records(
    monkeypatch: pytest.MonkeyPatch, streams: tuple[io.StringIO, io.StringIO]
) -> None:
    source = RingSource(ring_of(1))
    follow_through(
        monkeypatch, source, [lambda: source.ring.restart("two")], *streams, as_json=True
    )
    assert [json.loads(line) for line in streams[0].getvalue().splitlines()] == [record(1)]
    assert streams[1].getvalue() == "the daemon was restarted, its records start anew\n"


def test_following_waits_for_a_daemon_that_is_gone_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, streams: tuple[io.StringIO, io.StringIO]
) -> None:
    source = RingSource(ring_of(1))

    def leave() -> None:
        source.is_gone = True

    def stay_away() -> None:
        assert source.is_gone

    def come_back() -> None:
        source.is_gone = False
        source.ring.add(record(2))

    follow_through(monkeypatch, source, [leave, stay_away, stay_away, come_back], *streams)
    assert streams[1].getvalue().splitlines() == [
        "nobody answers; waiting for the daemon",
        "the daemon answers again at http://127.0.0.1:8088",
    ]
    assert len(streams[0].getvalue().splitlines()) == 3


# --- over HTTP ---


@pytest.mark.parametrize(
    "url",
    [
        "https://127.0.0.1:8088",
        "127.0.0.1:8088",
        "http://",
        "http://127.0.0.1:port",
        "http://127.0.0.1:99999",
        "http://127.0.0.1:8088/requests",
        "http://127.0.0.1:8088?after=1",
        "http://[::1",
        "",
    ],
)
def test_a_url_of_another_kind_is_a_usage_error(url: str) -> None:
    with pytest.raises(CommandFailedError, match="is not of the form") as failure:
        RequestsSource(url)
    assert failure.value.status is ExitStatus.USAGE


@pytest.mark.parametrize(
    ("status", "answer", "reason"),
    [
        (404, b"{}", "HTTP status 404"),
        (200, b"<html>", "not JSON"),
        (200, b"[]", "not a page of records"),
        (200, b'{"records":[1],"next_seq":1,"dropped":0,"instance_id":"a"}', "not a page"),
    ],
)
def test_an_answer_that_is_no_page_is_a_failure(status: int, answer: bytes, reason: str) -> None:
    ring = Ring()
    ring.status, ring.answer = status, answer
    with http_daemon(ring) as address:
        ran = run("requests", "--url", f"http://{address}")
    assert ran.returncode == 1
    assert "does not behave like a strata-router daemon" in ran.stderr
    assert reason in ran.stderr


def test_a_server_that_hangs_or_breaks_off_is_unreachable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("strata_router.cli.daemon_http.ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        source = RequestsSource(f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(UnreachableError, match="no answer within"):
            source.page(None, 1)
    with pytest.raises(UnreachableError, match="Connection refused"):
        source.page(None, 1)


def test_a_server_that_talks_something_else_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up() -> None:
            client, _ = listener.accept()
            with client:
                client.recv(4096)

        thread = threading.Thread(target=hang_up)
        thread.start()
        source = RequestsSource(f"http://127.0.0.1:{listener.getsockname()[1]}")
        with pytest.raises(UnreachableError, match="the connection broke"):
            source.page(None, 1)
        thread.join()


# --- the command ---


def test_the_command_shows_the_newest_records_as_a_table() -> None:
    with http_daemon(ring_of(1, 2, 3)) as address:
        ran = run("requests", "--limit", "2", "--url", f"http://{address}")
    assert (ran.returncode, ran.stderr) == (0, "")
    header, *rows = ran.stdout.splitlines()
    assert header.split() == COLUMNS
    assert [row.split()[-1] for row in rows] == ["completed"] * 2


def test_the_command_gives_whole_records_as_json_lines() -> None:
    with http_daemon(ring_of(1, 2)) as address:
        ran = run("requests", "--json", "--url", f"http://{address}")
    assert [json.loads(line) for line in ran.stdout.splitlines()] == [record(1), record(2)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    directory = tmp_path / "strata-router"
    directory.mkdir(mode=0o700)
    return directory / "control.sock"


def test_the_daemon_itself_says_where_it_listens(path: Path) -> None:
    operator = ScriptedOperator()
    with http_daemon(ring_of(1)) as address, control_daemon(path, operator):
        operator.facts["listen"] = address
        ran = run("requests", "--json", path)
        assert len(ran.stdout.splitlines()) == 1
        ran = run("requests", "--json", XDG_RUNTIME_DIR=path.parent.parent)
        assert len(ran.stdout.splitlines()) == 1


def test_a_socket_that_was_named_must_answer(path: Path) -> None:
    for ran in (run("requests", path), run("requests", STRATA_ROUTER_SOCKET=path)):
        assert ran.returncode == 3
        assert f"there is no control socket {path}" in ran.stderr


def test_without_a_daemon_to_ask_the_default_address_is_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Records are for every local user, also for one who may not ask the daemon."""
    monkeypatch.delenv("STRATA_ROUTER_SOCKET", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/nowhere")
    assert DEFAULT_URL == "http://127.0.0.1:8088"
    with http_daemon(ring_of(1)) as address:
        monkeypatch.setattr("strata_router.cli.main.DEFAULT_URL", f"http://{address}")
        assert main(["requests", "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == record(1)
    assert main(["requests", "--json"]) == 3
    assert f"nobody answers at http://{address}: Connection refused" in capsys.readouterr().err


def test_following_survives_the_daemons_absence_and_restart_until_ctrl_c() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ring = ring_of(1)
    with running("requests", "--follow", "--json", "--url", f"http://127.0.0.1:{port}") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert "waiting for the daemon" in process.stderr.readline()
        with http_daemon(ring, port):
            assert "answers again" in process.stderr.readline()
            assert json.loads(process.stdout.readline()) == record(1)
        assert "waiting for the daemon" in process.stderr.readline()
        ring.restart("two")
        ring.add(record(1, reason="timeout"))
        with http_daemon(ring, port):
            assert "answers again" in process.stderr.readline()
            assert "restarted" in process.stderr.readline()
            assert json.loads(process.stdout.readline()) == record(1, reason="timeout")
            process.send_signal(signal.SIGINT)
            assert process.communicate() == ("", "requests: interrupted\n")
        assert process.returncode == 130


def test_a_reader_that_has_enough_ends_the_command_quietly() -> None:
    with (
        http_daemon(ring_of(*range(1, 501))) as address,
        running("requests", "--limit", "1000", "--json", "--url", f"http://{address}") as some,
    ):
        assert some.stdout is not None
        assert some.stderr is not None
        some.stdout.readline()
        some.stdout.close()
        assert some.stderr.read() == ""
        assert some.wait() == 1
