"""The machine fails a real daemon: its log's disk hangs, is slow or read-only; no descriptor is left.

A full disk and a removed directory are in ``test_request_log``, signals in ``test_daemon_death``.
Source: reliability.md, "Faults to survive", Host.
"""

import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from strata_router.runtime.record_log import BATCH_LINES, QUEUE_LINES
from tests.runtime.http.raw import post
from tests.system.failing_disk import DiskUnavailable, FailingDisk, failing_disk
from tests.system.harness import CHAT, DaemonUnderTest, daemon, sse_events, until
from tests.system.record_rules import expect_each_once

NAME = "requests.jsonl"


@asynccontextmanager
async def on_a_failing_disk(
    directory: Path, **config: Any
) -> AsyncIterator[tuple[DaemonUnderTest, FailingDisk]]:
    """A daemon that serves model a and logs to a disk that is well until told otherwise."""
    try:
        async with failing_disk(directory) as disk:
            config = {"request_log_path": str(disk.seen / NAME), **config}
            async with daemon(directory, {"a": {}}, config, start=False) as it:
                it.launch(*disk.through)
                await it.wait_serving()
                try:
                    yield it, disk
                finally:
                    disk.close()  # a process that waits for a hung disk might not even be killed
    except DiskUnavailable as why:
        pytest.skip(str(why))


async def leave_records(it: DaemonUnderTest, count: int) -> None:
    """Requests without a model leave records, and need no engine. Pipelined, for there are thousands."""
    client = await it.connect()
    for start in range(0, count, 50):
        burst = min(50, count - start)
        await client.send(post(CHAT, body=b"{}") * burst)
        for _ in range(burst):
            assert (await client.reply()).status == 400


def lines_on(disk: FailingDisk) -> list[int]:
    """The sequence numbers of the lines so far; a line is whole or not there."""
    log = disk.folder / NAME
    content = log.read_bytes() if log.exists() else b""
    return [json.loads(line)["seq"] for line in content.split(b"\n")[:-1]]


async def log_figures(it: DaemonUnderTest) -> dict[str, Any]:
    figures: dict[str, Any] = (await it.metrics())["request_log"]
    return figures


async def until_accounted(it: DaemonUnderTest, disk: FailingDisk) -> dict[str, Any]:
    """The log's figures, once lines on disk and drops add up to the records."""
    with trio.fail_after(30):
        while True:
            figures = await log_figures(it)
            if len(lines_on(disk)) + figures["write_drops"] == figures["next_seq"] - 1:
                return figures
            await trio.sleep(0.05)


async def test_a_hung_log_disk_stops_nothing_and_what_its_queue_cannot_hold_is_counted(
    tmp_path: Path,
) -> None:
    async with on_a_failing_disk(tmp_path, request_log_capacity=10_000) as (it, disk):
        await leave_records(it, 3)
        await until(lambda: lines_on(disk) == [1, 2, 3])
        await disk.becomes("hung")
        await leave_records(it, 1)
        await disk.holds_a_request()
        await leave_records(it, QUEUE_LINES + BATCH_LINES + 200)
        reply = await it.chat("a", stream=True)
        assert sse_events(reply.body)[-1] == "[DONE]"
        assert (await it.get_json("/health"))["status"] == "ok"
        assert (await it.off())["ok"]
        assert (await it.on("a"))["ok"]
        assert (await it.status())["loaded"] == "a"
        unwritten = 1 + QUEUE_LINES + BATCH_LINES + 200 + 1
        figures = await log_figures(it)
        assert figures["next_seq"] - 1 == 3 + unwritten
        in_the_thread = unwritten - QUEUE_LINES - figures["write_drops"]
        assert 0 <= in_the_thread <= BATCH_LINES
        await disk.becomes("well")
        figures = await until_accounted(it, disk)
        assert figures["write_errors"] == 0
        written = 3 + unwritten - figures["write_drops"]
        assert lines_on(disk) == list(range(1, written + 1))
        await leave_records(it, 1)
        await until(lambda: lines_on(disk)[-1] == 3 + unwritten + 1)


async def test_a_mount_that_is_gone_stops_no_request(tmp_path: Path) -> None:
    """Not even the log's name can be looked up, and nothing comes back with an error."""
    async with on_a_failing_disk(tmp_path) as (it, disk):
        assert (await it.chat("a")).status == 200
        await until(lambda: lines_on(disk) == [1])
        await disk.becomes("gone")
        await leave_records(it, 100)
        await disk.holds_a_request()
        assert (await it.chat("a", stream=True)).status == 200
        assert (await it.status())["loaded"] == "a"
        await disk.becomes("well")
        figures = await until_accounted(it, disk)
        assert (figures["write_errors"], figures["write_drops"]) == (0, 0)


async def test_a_stop_over_a_hung_log_disk_ends_the_engine_and_frees_port_and_socket(
    tmp_path: Path,
) -> None:
    """Two seconds are the log's; then the daemon goes, as far as the kernel lets a process go whose
    thread waits for a disk."""
    async with on_a_failing_disk(tmp_path) as (it, disk):
        assert (await it.chat("a")).status == 200
        await until(lambda: lines_on(disk) == [1])
        await disk.becomes("hung")
        await leave_records(it, 5)
        await disk.holds_a_request()
        it.signal(signal.SIGTERM)
        await until(lambda: "has ended" in it.log)
        assert not it.control_socket.exists()
        assert not it.engine_pids()
        with pytest.raises(OSError, match="connect"):
            await it.connect()
        await disk.becomes("well")
        assert await it.wait_ended() == 0


async def test_a_slow_log_disk_makes_no_request_wait(tmp_path: Path) -> None:
    """By what comes first, not by a clock: every answer is there while most lines are not."""
    async with on_a_failing_disk(tmp_path) as (it, disk):
        await disk.becomes("slow 0.1")
        await leave_records(it, 15)
        assert len(lines_on(disk)) < 15
        assert (await it.chat("a", stream=True)).status == 200
        figures = await until_accounted(it, disk)
        assert (figures["write_errors"], figures["write_drops"]) == (0, 0)
        assert lines_on(disk) == list(range(1, 17))


async def test_a_disk_that_turned_read_only_costs_counted_lines_and_heals(tmp_path: Path) -> None:
    async with on_a_failing_disk(tmp_path) as (it, disk):
        await leave_records(it, 2)
        await until(lambda: lines_on(disk) == [1, 2])
        await disk.becomes("read-only")
        await leave_records(it, 3)
        assert (await it.chat("a")).status == 200
        figures = await until_accounted(it, disk)
        assert figures["write_drops"] == 4
        await until(lambda: "cannot be written: Read-only file system" in it.log)
        await disk.becomes("well")
        await leave_records(it, 1)
        await until(lambda: lines_on(disk) == [1, 2, 7])
        await until(lambda: "is written again; 4 records were dropped" in it.log)
        expect_each_once(await it.records(), 7)


async def test_a_short_write_before_the_disk_is_full_leaves_no_torn_line(tmp_path: Path) -> None:
    """What `test_request_log` shows at a real file system's bound, here at any byte of a line."""
    async with on_a_failing_disk(tmp_path) as (it, disk):
        await leave_records(it, 1)
        await until(lambda: lines_on(disk) == [1])
        whole = (disk.folder / NAME).read_bytes()
        for room_bytes in (1, len(whole) // 2, len(whole) - 1):
            await disk.becomes(f"full {room_bytes}")
            await leave_records(it, 1)
            await until_accounted(it, disk)
            assert (disk.folder / NAME).read_bytes() == whole
        await disk.becomes("well")
        await leave_records(it, 1)
        await until(lambda: lines_on(disk) == [1, 5])
