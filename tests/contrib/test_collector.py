"""The example collector against real daemons: nothing is missing, nothing is there twice."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.runtime.http.raw import post
from tests.system.harness import CHAT, DaemonUnderTest, daemon, until

PROGRAM = Path(__file__).parents[2] / "contrib" / "collector" / "collect.py"


@dataclass
class CollectorUnderTest:
    """One database, and the process that fills it."""

    it: DaemonUnderTest
    with_log: bool = True
    database: Path = field(init=False)
    process: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.database = self.it.directory / "records.sqlite"

    @property
    def said(self) -> str:
        return (self.it.directory / "collector.log").read_text()

    def start(self) -> None:
        log = ["--log", self.it.config["request_log_path"]] if self.with_log else []
        url = ["--url", f"http://127.0.0.1:{self.it.port}", "--interval", "0.05"]
        with (self.it.directory / "collector.log").open("ab") as said:
            self.process = subprocess.Popen(
                [sys.executable, PROGRAM, self.database, *url, *log],
                stdout=said,
                stderr=said,
                # A proxy of the environment has no business on loopback.
                env={**os.environ, "http_proxy": "http://127.0.0.1:1"},
            )

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stored(self) -> list[dict[str, object]]:
        """Every stored record, in the order of instances and of completion within them."""
        if not self.database.exists():
            return []
        with sqlite3.connect(self.database) as db:
            try:
                found = db.execute("SELECT record FROM records ORDER BY instance_id, seq")
            except sqlite3.OperationalError:  # the collector is about to make the table
                return []
            return [json.loads(record) for (record,) in found]

    async def until_stored(self, count: int) -> None:
        await until(lambda: len(self.stored()) >= count)
        assert len(self.stored()) == count


@contextmanager
def collector(it: DaemonUnderTest, *, with_log: bool = True) -> Iterator[CollectorUnderTest]:
    """A started collector, ended with the block."""
    found = CollectorUnderTest(it, with_log)
    found.start()
    try:
        yield found
    finally:
        found.kill()


def small_log(directory: Path, rotate_files: int = 100) -> dict[str, object]:
    """A ring of four records, and log files of three."""
    return {
        "request_log_path": str(directory / "requests.jsonl"),
        "request_log_max_bytes": 4096,
        "request_log_rotate_files": rotate_files,
        "request_log_capacity": 4,
    }


def log_files(it: DaemonUnderTest) -> list[str]:
    return [name for name in os.listdir(it.directory) if name.startswith("requests.jsonl")]


def last_logged(it: DaemonUnderTest) -> int | None:
    """The seq of the newest line of the active file; None while it is being rotated."""
    try:
        lines = Path(str(it.config["request_log_path"])).read_text().splitlines()
    except FileNotFoundError:
        return None
    return int(json.loads(lines[-1])["seq"]) if lines else None


async def leave_records(it: DaemonUnderTest, count: int) -> None:
    """Requests that no model can answer leave records, too, and fast."""
    client = await it.connect()
    for _ in range(count):
        await client.send(post(CHAT, body=b"{}"))
        assert (await client.reply()).status == 400


def said_by(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    """How a collector ends that cannot begin."""
    command = [sys.executable, PROGRAM, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("what", ["directory", "no database"])
def test_a_database_that_cannot_be_used_is_a_line_not_a_traceback(
    tmp_path: Path, what: str
) -> None:
    database = tmp_path / "records.sqlite"
    if what == "directory":
        database.mkdir()
    else:
        database.write_text("precious, and no database at all" * 50)
    ended = said_by(database)
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert line.startswith(f"{database}: ")
    assert line.endswith("give the path of a database that can be written")


async def test_a_log_that_is_not_there_is_said_at_once_and_records_are_collected(
    tmp_path: Path,
) -> None:
    async with daemon(tmp_path, {"a": {}}, small_log(tmp_path)) as it:
        real = it.config["request_log_path"]
        it.config["request_log_path"] = str(tmp_path / "other.jsonl")
        with collector(it) as found:
            it.config["request_log_path"] = real
            await leave_records(it, 2)
            await found.until_stored(2)
            first = found.said.splitlines()[0]
            assert first.startswith(f"--log {tmp_path / 'other.jsonl'}: No such file or directory")


async def test_a_database_that_another_holds_is_tried_again(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {}}, small_log(tmp_path)) as it:
        with collector(it, with_log=False) as found:
            await leave_records(it, 1)
            await found.until_stored(1)
            with sqlite3.connect(found.database) as other:
                # Another may go on reading and writing, only not commit: the last moment of all.
                other.execute("BEGIN")
                other.execute("SELECT * FROM records").fetchone()
                await leave_records(it, 1)
                await until(lambda: "database is locked" in found.said)
                other.rollback()
            await found.until_stored(2)
            assert [record["seq"] for record in found.stored()] == [1, 2]


async def test_restarts_of_both_sides_and_rotated_files_leave_no_gap(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {}}, small_log(tmp_path)) as it:
        with collector(it) as found:
            await leave_records(it, 3)
            await found.until_stored(3)
            found.kill()
            await leave_records(it, 20)  # most of them leave the ring unseen
            await it.stop()
            await it.start()  # and the rest of them leaves with the process
            assert len(log_files(it)) > 5
            await leave_records(it, 9)
            found.start()
            await found.until_stored(32)
            await leave_records(it, 2)
            await found.until_stored(34)
            seqs = [record["seq"] for record in found.stored()]
            assert seqs == [*range(1, 24), *range(1, 12)]
            assert len({record["request_id"] for record in found.stored()}) == 34


async def test_what_left_the_ring_meanwhile_is_taken_from_the_files(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {}}, small_log(tmp_path)) as it:
        with collector(it) as found:
            await leave_records(it, 2)
            await found.until_stored(2)
            found.kill()
            await leave_records(it, 20)
            found.start()
            await found.until_stored(22)
            assert len(log_files(it)) > 5
            assert [record["seq"] for record in found.stored()] == list(range(1, 23))


async def test_a_running_collector_follows_a_restarted_daemon(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {}}, small_log(tmp_path)) as it:
        with collector(it) as found:
            await leave_records(it, 3)
            await found.until_stored(3)
            assert found.process is not None
            found.process.send_signal(signal.SIGSTOP)
            await leave_records(it, 9)
            await it.stop()
            found.process.send_signal(signal.SIGCONT)
            await until(lambda: "Connection refused" in found.said)
            await it.start()
            await leave_records(it, 2)
            await found.until_stored(14)


async def test_stored_records_are_those_of_the_daemon(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {}}, small_log(tmp_path)) as it:
        with collector(it) as found:
            await it.chat("a", stream=True)
            await leave_records(it, 1)
            await found.until_stored(2)
            assert found.stored() == await it.records()


async def test_without_log_files_a_gap_stays_and_the_rest_is_collected(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {}}, small_log(tmp_path)) as it:
        with collector(it, with_log=False) as found:
            await leave_records(it, 2)
            await found.until_stored(2)
            found.kill()
            await leave_records(it, 10)
            found.start()
            await found.until_stored(6)
            await leave_records(it, 1)
            await found.until_stored(7)
            assert [record["seq"] for record in found.stored()] == [1, 2, 9, 10, 11, 12, 13]


async def test_what_retention_took_is_given_up_and_not_looked_for_again(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {}}, small_log(tmp_path, rotate_files=1)) as it:
        with collector(it) as found:
            await leave_records(it, 1)
            await found.until_stored(1)
            found.kill()
            await leave_records(it, 30)
            # Files that still change while they are read are read again; that is another test's matter.
            await until(lambda: last_logged(it) == 31)
            found.start()
            await until(lambda: found.stored() and found.stored()[-1]["seq"] == 31)
            await until(lambda: "records missing" in found.said)
            told, stored = found.said, len(found.stored())
            assert 5 <= stored < 31
            await leave_records(it, 4)
            await found.until_stored(stored + 4)
            assert found.said == told
