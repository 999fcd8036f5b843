"""The writer between serving and the disk: never in the way, and every lost line is counted."""

import errno
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from strata_router.runtime import record_log
from strata_router.runtime.record_file import DiskCalls
from strata_router.runtime.record_log import (
    BATCH_LINES,
    QUEUE_LINES,
    RecordLog,
    RecordLogRefused,
)
from tests.runtime.record_lines import files_of_log, line, numbers_in, numbers_of_log

ROOT = Path(__file__).parents[2]
MIB = 1024 * 1024


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "requests.jsonl"


def log_at(path: Path, disk: DiskCalls | None = None, max_bytes: int = MIB) -> RecordLog:
    log = RecordLog(str(path), max_bytes, 3, disk=disk)
    log.open()
    return log


@asynccontextmanager
async def running(log: RecordLog, close_s: float = 20.0) -> AsyncIterator[RecordLog]:
    """A log with its writer, closed at the end with far more time than it needs."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.run)
        yield log
        await log.close(close_s)


def whole_lines_in(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def replace_by_link(path: Path, moved: Path) -> None:
    path.rename(moved)
    path.symlink_to(moved)


async def until_written(path: Path, lines: int) -> None:
    """Wait until the active file holds so many whole lines."""
    with trio.fail_after(20):
        while whole_lines_in(path) < lines:
            await trio.sleep(0.005)


class HungDisk:
    """Hangs in every sync until released, like a disk that does not answer."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.hangs = threading.Event()
        self.calls = DiskCalls(sync=self.sync)

    def sync(self, fd: int) -> None:
        self.hangs.set()
        self.released.wait(60)
        os.fdatasync(fd)

    async def until_it_hangs(self) -> None:
        with trio.fail_after(20):
            while not self.hangs.is_set():
                await trio.sleep(0.005)


# --- ordinary life ----------------------------------------------------------------------------


async def test_what_is_put_is_in_the_file_in_order_after_the_close(path: Path) -> None:
    async with running(log_at(path)) as log:
        for number in range(300):
            log.put(line(number))
    assert numbers_in(path) == list(range(300))
    assert (log.write_errors, log.write_drops) == (0, 0)
    assert log.problem is None


async def test_lines_are_written_as_they_come_not_at_the_end(path: Path) -> None:
    async with running(log_at(path)) as log:
        for number in range(3):
            log.put(line(number))
            await until_written(path, number + 1)


async def test_after_a_trip_to_the_disk_the_writer_rests(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line that comes alone is written at once; what follows waits for the end of the rest."""
    monkeypatch.setattr(record_log, "REST_S", 0.5)
    async with running(log_at(path)) as log:
        log.put(line(1))
        await until_written(path, 1)
        log.put(line(2))
        log.put(line(3))
        await trio.testing.wait_all_tasks_blocked(0.02)
        assert whole_lines_in(path) == 1
        await until_written(path, 3)


async def test_a_whole_batch_and_the_end_cut_the_rest_short(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_log, "REST_S", 600.0)
    async with running(log_at(path)) as log:
        log.put(line(1))
        await until_written(path, 1)
        for number in range(2, BATCH_LINES + 2):
            log.put(line(number))
        await until_written(path, BATCH_LINES + 1)
        log.put(line(BATCH_LINES + 2))
    assert numbers_in(path) == list(range(1, BATCH_LINES + 3))


async def test_a_batch_that_came_during_a_trip_is_not_rested_over(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_log, "REST_S", 600.0)
    disk = HungDisk()
    async with running(log_at(path, disk.calls)) as log:
        log.put(line(1))
        await disk.until_it_hangs()
        for number in range(2, BATCH_LINES + 2):
            log.put(line(number))
        disk.released.set()
        await until_written(path, BATCH_LINES + 1)


async def test_a_close_during_a_trip_is_not_rested_over(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_log, "REST_S", 600.0)
    disk = HungDisk()
    log = log_at(path, disk.calls)
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(log.run)
            log.put(line(1))
            await disk.until_it_hangs()
            nursery.start_soon(log.close, 60.0)
            await trio.testing.wait_all_tasks_blocked()
            disk.released.set()
    assert numbers_in(path) == [1]


async def test_what_was_put_before_the_writer_ran_is_written(path: Path) -> None:
    log = log_at(path)
    log.put(line(1))
    async with running(log):
        pass
    assert numbers_in(path) == [1]


async def test_the_log_rotates_and_drops_what_fits_no_file(path: Path) -> None:
    async with running(log_at(path, max_bytes=130)) as log:
        for number in range(6):
            log.put(line(number))
        log.put(line(6, length=131))
    assert [numbers_in(file) for file in files_of_log(path)] == [[0, 1], [2, 3], [4, 5]]
    assert (log.write_errors, log.write_drops) == (0, 1)


async def test_the_path_can_be_claimed_again_after_the_close(path: Path) -> None:
    async with running(log_at(path)) as log:
        log.put(line(1))
        with pytest.raises(RecordLogRefused, match="written by another process"):
            log_at(path)
    async with running(log_at(path)) as log:
        log.put(line(2))
    assert numbers_in(path) == [1, 2]


async def test_a_line_put_after_the_close_is_a_drop(path: Path) -> None:
    async with running(log_at(path)) as log:
        pass
    log.put(line(1))
    assert log.write_drops == 1
    assert numbers_in(path) == []


async def test_a_log_whose_writer_never_ran_closes_at_once_or_counts_what_waits(path: Path) -> None:
    log = log_at(path)
    with trio.fail_after(1):
        await log.close(1000)
    assert log.write_drops == 0
    log = log_at(path)
    log.put(line(1))
    with trio.fail_after(1):
        await log.close(0.1)
        await log.close(1000)
    assert log.write_drops == 1
    log_at(path)


# --- opening ----------------------------------------------------------------------------------


def test_a_path_that_must_not_be_written_is_refused_with_the_reason(
    path: Path, tmp_path: Path
) -> None:
    path.symlink_to(tmp_path / "target")
    with pytest.raises(RecordLogRefused, match=r"requests\.jsonl is a symbolic link"):
        log_at(path)


async def test_a_missing_directory_is_counted_and_the_log_begins_when_it_is_there(
    tmp_path: Path,
) -> None:
    path = tmp_path / "sub" / "requests.jsonl"
    log = log_at(path)
    assert (log.write_errors, log.write_drops) == (1, 0)
    assert log.problem == "No such file or directory"
    async with running(log):
        log.put(line(1))
        with trio.fail_after(20):
            while log.write_drops == 0:
                await trio.sleep(0.005)
        assert (log.write_errors, log.write_drops) == (2, 1)
        path.parent.mkdir()
        log.put(line(2))
        await until_written(path, 1)
    assert numbers_in(path) == [2]
    assert (log.write_errors, log.write_drops) == (2, 1)
    assert log.problem is None


# --- a disk that fails ------------------------------------------------------------------------


async def test_a_full_disk_costs_its_lines_and_nothing_else(path: Path) -> None:
    room = [200]

    def write(fd: int, data: bytes) -> int:
        if room[0] == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = os.write(fd, data[: room[0]])
        room[0] -= written
        return written

    async with running(log_at(path, DiskCalls(write=write))) as log:
        for number in range(5):
            log.put(line(number))
        with trio.fail_after(20):
            while log.write_errors < 2:
                await trio.sleep(0.005)
        assert log.problem == "No space left on device"
        room[0] = 1000
        log.put(line(5))
    assert numbers_in(path) == [0, 1, 2, 5]
    assert (log.write_errors, log.write_drops) == (2, 2)
    assert log.problem is None


async def test_a_failure_is_no_problem_any_more_once_the_next_line_went_well(path: Path) -> None:
    failures = [OSError(errno.EIO, os.strerror(errno.EIO))]

    def sync(fd: int) -> None:
        if failures:
            raise failures.pop()

    log = log_at(path, DiskCalls(sync=sync))
    log.put(line(1))
    log.put(line(2))
    async with running(log):
        pass
    assert numbers_in(path) == [2]
    assert (log.write_errors, log.write_drops, log.problem) == (1, 1, None)


async def test_the_daemon_s_log_tells_once_that_a_problem_began_and_once_that_it_ended(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    is_full = [True]

    def write(fd: int, data: bytes) -> int:
        if is_full[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os.write(fd, data)

    async with running(log_at(path, DiskCalls(write=write))) as log:
        for number in range(3):
            log.put(line(number))
            with trio.fail_after(20):
                while log.write_drops <= number:
                    await trio.sleep(0.005)
        is_full[0] = False
        for number in range(3, 6):
            log.put(line(number))
            await until_written(path, number - 2)
    assert [(entry.levelname, entry.getMessage()) for entry in caplog.records] == [
        ("WARNING", f"the request log {path} cannot be written: No space left on device"),
        ("INFO", "the request log is written again; 3 records were dropped"),
    ]


async def test_a_symbolic_link_that_appears_later_costs_the_lines_put_meanwhile(
    path: Path, tmp_path: Path
) -> None:
    async with running(log_at(path)) as log:
        log.put(line(1))
        await until_written(path, 1)
        replace_by_link(path, tmp_path / "moved")
        log.put(line(2))
        with trio.fail_after(20):
            while log.write_drops == 0:
                await trio.sleep(0.005)
        assert log.problem is not None
        assert "symbolic link" in log.problem
        os.unlink(path)
        log.put(line(3))
    assert numbers_in(tmp_path / "moved") == [1]
    assert numbers_in(path) == [3]
    assert (log.write_errors, log.write_drops) == (1, 1)


async def test_a_removed_directory_costs_its_lines_until_it_is_back(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "requests.jsonl"
    path.parent.mkdir()
    async with running(log_at(path)) as log:
        log.put(line(1))
        await until_written(path, 1)
        for file in path.parent.iterdir():
            file.unlink()
        path.parent.rmdir()
        log.put(line(2))
        with trio.fail_after(20):
            while log.write_drops == 0:
                await trio.sleep(0.005)
        path.parent.mkdir()
        log.put(line(3))
    assert numbers_in(path) == [3]
    assert (log.write_errors, log.write_drops) == (1, 1)


# --- a disk that hangs ------------------------------------------------------------------------


async def test_a_hung_disk_fills_the_queue_and_serving_notices_nothing(path: Path) -> None:
    disk = HungDisk()
    async with running(log_at(path, disk.calls)) as log:
        log.put(line(0))
        await disk.until_it_hangs()
        started = time.perf_counter()
        for number in range(1, QUEUE_LINES + 500):
            log.put(line(number))
        assert time.perf_counter() - started < 1
        assert log.write_drops == 499
        slowest_s = 0.0
        for _ in range(20):
            before = trio.current_time()
            await trio.sleep(0.001)
            slowest_s = max(slowest_s, trio.current_time() - before)
        assert slowest_s < 1
        disk.released.set()
    assert numbers_of_log(path) == list(range(QUEUE_LINES + 1))
    assert (log.write_errors, log.write_drops) == (0, 499)


async def test_closing_over_a_hung_disk_takes_its_timeout_and_counts_what_is_left(
    path: Path,
) -> None:
    disk = HungDisk()
    log = log_at(path, disk.calls)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.run)
        for number in range(100):
            log.put(line(number))
        await disk.until_it_hangs()
        before = trio.current_time()
        await log.close(0.2)
        assert 0.2 <= trio.current_time() - before < 1.5
    assert log.write_drops == 100
    disk.released.set()


async def test_the_close_waits_two_seconds_unless_told_otherwise(path: Path) -> None:
    disk = HungDisk()
    log = log_at(path, disk.calls)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.run)
        log.put(line(1))
        await disk.until_it_hangs()
        before = trio.current_time()
        await log.close()
        assert 2.0 <= trio.current_time() - before < 3.5
    disk.released.set()


async def test_a_cancelled_writer_leaves_the_rest_counted_and_the_close_does_not_wait(
    path: Path,
) -> None:
    disk = HungDisk()
    log = log_at(path, disk.calls)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.run)
        log.put(line(1))
        await disk.until_it_hangs()
        log.put(line(2))
        nursery.cancel_scope.cancel()
    assert log.write_drops == 2
    with trio.fail_after(1):
        await log.close(1000)
    log.put(line(3))
    assert log.write_drops == 3
    disk.released.set()


async def test_a_cancelled_close_ends_the_writer_at_once(path: Path) -> None:
    disk = HungDisk()
    log = log_at(path, disk.calls)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.run)
        log.put(line(1))
        await disk.until_it_hangs()
        with trio.move_on_after(0.05):
            await log.close(1000)
    assert log.write_drops == 1
    disk.released.set()


END_OVER_A_HUNG_DISK = """
import os, sys, threading, trio
from strata_router.runtime import record_log
from strata_router.runtime.record_file import DiskCalls
from strata_router.runtime.record_log import RecordLog

hangs = threading.Event()

def sync(fd):
    hangs.set()
    threading.Event().wait()

async def main():
    log = RecordLog(sys.argv[1], 1 << 20, 3, disk=DiskCalls(sync=sync))
    log.open()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.run)
        log.put(b'{"schema_version":1}\\n')
        while not hangs.is_set():
            await trio.sleep(0.01)
        await log.close(0.1)
    print(log.write_drops)

trio.run(main)
"""


def test_a_hung_disk_does_not_keep_the_process_from_ending(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", END_OVER_A_HUNG_DISK, path],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=20,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("1\n", "", 0)


# --- the account of the account ---------------------------------------------------------------


async def test_lines_in_files_and_drops_add_up_to_what_was_put(path: Path) -> None:
    """A disk that fails every seventh write, half-way through, while lines come in bursts."""
    writes = [0]

    def write(fd: int, data: bytes) -> int:
        writes[0] += 1
        if writes[0] % 7 == 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return os.write(fd, data[: len(data) // 2] if writes[0] % 7 == 6 else data)

    puts = 3 * QUEUE_LINES
    log = RecordLog(str(path), 10 * MIB, 1, disk=DiskCalls(write=write, sync=lambda fd: None))
    log.open()
    async with running(log):
        for number in range(puts):
            log.put(line(number))
            if number % (QUEUE_LINES + 1000) == 0:  # a burst that the queue cannot hold
                await trio.sleep(0.01)
    found = numbers_of_log(path)
    assert found == sorted(set(found))
    assert len(found) + log.write_drops == puts
    assert log.write_errors > 0
    assert log.write_drops > log.write_errors
    for file in files_of_log(path):
        for text in file.read_bytes().splitlines():
            json.loads(text)
