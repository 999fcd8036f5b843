"""The request log of a real daemon: what is in the files, who may write them, and a disk that fails.

How single lines meet single failures is ``tests/runtime/test_record_*``'s; here serving goes on, and
lines and counted drops add up to the records. Source: design, "Per-request accounting"; contract 9.
"""

import json
import os
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.runtime.http.raw import post
from tests.system.harness import CHAT, DaemonUnderTest, daemon, rounds, until
from tests.system.record_rules import expect_each_once

NAME = "requests.jsonl"


def logging_to(path: Path, **config: Any) -> dict[str, Any]:
    return {"request_log_path": str(path), **config}


async def leave_records(it: DaemonUnderTest, count: int) -> None:
    """Requests without a model leave records, and need no engine."""
    client = await it.connect()
    for _ in range(count):
        await client.send(post(CHAT, body=b"{}"))
        assert (await client.reply()).status == 400


def lines_of(*files: Path) -> list[dict[str, Any]]:
    """Every line of these files; each must be whole. A file that is not there has none."""
    found = []
    for file in files:
        content = file.read_bytes() if file.exists() else b""
        assert content == b"" or content.endswith(b"\n")
        found += [json.loads(line) for line in content.splitlines()]
    return found


def count_of(file: Path) -> int:
    """Whole lines of a file that may be in the middle of a write."""
    return file.read_bytes().count(b"\n") if file.exists() else 0


def files_of(log: Path) -> list[Path]:
    """The log's files, oldest first."""
    backups = [file for file in log.parent.glob(f"{NAME}.*") if file.suffix[1:].isdigit()]
    return [*sorted(backups, key=lambda file: -int(file.suffix[1:])), log]


async def log_figures(it: DaemonUnderTest) -> dict[str, Any]:
    figures: dict[str, Any] = (await it.metrics())["request_log"]
    return figures


async def until_all_accounted(it: DaemonUnderTest, log: Path) -> list[dict[str, Any]]:
    """The lines of the active file, once lines and drops add up to the records so far."""
    made = (await log_figures(it))["next_seq"] - 1
    with trio.fail_after(10):
        while count_of(log) + (await log_figures(it))["write_drops"] < made:
            await trio.sleep(0.02)
    return lines_of(log)


async def until_there(log: Path, lines: int) -> list[dict[str, Any]]:
    """The lines of the active file, once there are so many."""
    await until(lambda: count_of(log) >= lines)
    return lines_of(log)


async def until_changed(log: Path) -> None:
    before = count_of(log)
    await until(lambda: count_of(log) != before)


async def until_dropped(it: DaemonUnderTest, at_least: int) -> None:
    with trio.fail_after(10):
        while (await log_figures(it))["write_drops"] < at_least:
            await trio.sleep(0.02)


async def test_the_lines_are_the_records_in_a_private_file(tmp_path: Path) -> None:
    log = tmp_path / NAME
    async with daemon(tmp_path, {"a": {}}, logging_to(log)) as it:
        for stream in (True, False):
            await it.chat("a", stream=stream)
        await it.chat("no-such-model")
        assert await until_all_accounted(it, log) == await it.records()
        assert log.stat().st_mode & 0o777 == 0o600
        figures = await log_figures(it)
        assert figures["path"] == str(log)
        assert (figures["write_errors"], figures["write_drops"]) == (0, 0)
        log_before = lines_of(log)
        await it.stop()
        await it.start()
        await leave_records(it, 1)
        appended = await until_there(log, 4)
        assert appended[:3] == log_before
        assert appended[3]["seq"] == 1


async def test_without_a_path_no_file_is_made_and_the_ring_is_there(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {}}) as it:
        before = os.listdir(tmp_path)
        await leave_records(it, 3)
        assert os.listdir(tmp_path) == before
        figures = await log_figures(it)
        assert (figures["path"], figures["records_in_ring"]) == (None, 3)
        assert (figures["max_bytes"], figures["rotate_files"]) == (16 * 1024 * 1024, 3)


async def test_rotated_files_are_bounded_in_size_and_number(tmp_path: Path) -> None:
    log = tmp_path / NAME
    config = logging_to(log, request_log_max_bytes=4096, request_log_rotate_files=2)
    async with daemon(tmp_path, {"a": {}}, config) as it:
        await leave_records(it, 40)
        assert (await it.stop()) == 0
        files = files_of(log)
        assert [file.name for file in files] == [f"{NAME}.2", f"{NAME}.1", NAME]
        assert all(0 < file.stat().st_size <= 4096 for file in files)
        seqs = [line["seq"] for line in lines_of(*files)]
        assert seqs == list(range(41 - len(seqs), 41))


async def test_zero_backups_empty_the_file_at_rotation(tmp_path: Path) -> None:
    log = tmp_path / NAME
    config = logging_to(log, request_log_max_bytes=4096, request_log_rotate_files=0)
    async with daemon(tmp_path, {"a": {}}, config) as it:
        await leave_records(it, 10)
        await it.stop()
        assert files_of(log) == [log]
        seqs = [line["seq"] for line in lines_of(log)]
        assert seqs[-1] == 10
        assert len(seqs) <= 4


async def test_a_second_daemon_on_the_same_path_is_refused_and_the_first_goes_on(
    tmp_path: Path,
) -> None:
    log = tmp_path / NAME
    first_dir, second_dir = tmp_path / "first", tmp_path / "second"
    first_dir.mkdir()
    second_dir.mkdir()
    async with (
        daemon(first_dir, {"a": {}}, logging_to(log)) as it,
        daemon(second_dir, {"a": {}}, logging_to(log), start=False) as other,
    ):
        await leave_records(it, 1)
        other.launch()
        assert await other.wait_ended() == 1
        (said,) = other.log.splitlines()
        assert " ERROR " in said
        assert f"request_log_path: {log} is written by another process" in said
        assert not other.control_socket.exists()
        await leave_records(it, 1)
        assert [line["seq"] for line in await until_all_accounted(it, log)] == [1, 2]
        await it.stop()
        other.launch()
        await other.wait_serving()
        await leave_records(other, 1)
        assert len(await until_there(log, 3)) == 3


@pytest.mark.parametrize("what", ["link", "directory", "fifo", "another file"])
async def test_a_path_that_is_not_ours_to_write_is_refused_at_start(
    tmp_path: Path, what: str
) -> None:
    log, target = tmp_path / NAME, tmp_path / "target"
    match what:
        case "link":
            target.write_text("")
            log.symlink_to(target)
        case "directory":
            log.mkdir()
        case "fifo":
            os.mkfifo(log)
        case _:
            log.write_text("precious\n")
    async with daemon(tmp_path, {"a": {}}, logging_to(log), start=False) as it:
        it.launch()
        assert await it.wait_ended() == 1
        assert f"request_log_path: {log} " in it.log
        if what == "another file":
            assert log.read_text() == "precious\n"


async def test_a_removed_directory_costs_lines_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    log = folder / NAME
    async with daemon(tmp_path, {"a": {}}, logging_to(log)) as it:
        await leave_records(it, 2)
        await until_all_accounted(it, log)
        shutil.rmtree(folder)
        assert (await it.chat("a", stream=True)).status == 200
        await until_dropped(it, 1)
        await until(lambda: f"the request log {log} cannot be written: No such file" in it.log)
        folder.mkdir()
        assert (await it.chat("a")).status == 200
        lines = await until_there(log, 1)
        assert [line["seq"] for line in lines] == [4]
        assert [record["seq"] for record in await it.records()] == [1, 2, 3, 4]
        await until(lambda: "is written again; 1 records were dropped" in it.log)
        assert await it.stop() == 0


def small_disk(folder: Path, size: str) -> tuple[str, ...]:
    """A command that runs the rest of its words with a small file system of their own in ``folder``;
    skips where that is not allowed."""
    script = f'mount -t tmpfs -o size={size},mode=700 strata-test "{folder}" && exec "$@"'
    as_root = () if os.geteuid() == 0 else ("--map-root-user",)
    words = ("unshare", *as_root, "--mount", "sh", "-c", script, "sh")
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed (Debian package util-linux)")
    tried = subprocess.run([*words, "true"], capture_output=True, check=False)
    if tried.returncode:
        pytest.skip("this machine allows no mount in a namespace of its own")
    return words


async def test_a_full_disk_costs_lines_that_are_counted_and_heals_by_itself(tmp_path: Path) -> None:
    """ENOSPC comes after a short write; no torn line may stay."""
    folder = tmp_path / "disk"
    folder.mkdir()
    log = folder / NAME
    through = small_disk(folder, "32k")
    async with daemon(tmp_path, {"a": {}}, logging_to(log), start=False) as it:
        it.launch(*through)
        await it.wait_serving()
        seen = Path(f"/proc/{it.pid}/root{folder}")  # the folder as the daemon sees it
        (seen / "filler").write_bytes(b"x" * 20_000)
        await leave_records(it, 40)
        assert (await it.chat("a", stream=True)).status == 200
        await until_dropped(it, 1)
        lines = await until_all_accounted(it, seen / NAME)
        figures = await log_figures(it)
        assert len(lines) + figures["write_drops"] == 41
        assert figures["write_errors"] >= figures["write_drops"] > 0
        assert [line["seq"] for line in lines] == list(range(1, len(lines) + 1))
        await until(lambda: "cannot be written: No space left on device" in it.log)
        (seen / "filler").unlink()
        await leave_records(it, 2)
        healed = await until_there(seen / NAME, len(lines) + 2)
        assert [line["seq"] for line in healed[len(lines) :]] == [42, 43]
        assert (await log_figures(it))["write_drops"] == figures["write_drops"]
        await until(lambda: "the request log is written again" in it.log)
        expect_each_once(await it.records(), 43)
        assert await it.stop() == 0


async def test_a_disk_that_is_full_from_the_start_keeps_nobody_from_being_served(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    through = small_disk(folder, "4k,nr_inodes=1")
    async with daemon(tmp_path, {"a": {}}, logging_to(folder / NAME), start=False) as it:
        it.launch(*through)
        await it.wait_serving()
        assert (await it.chat("a")).status == 200
        await until_dropped(it, 1)
        assert (await log_figures(it))["write_errors"] == 2
        assert it.log.count("cannot be written: No space left on device") == 1, it.log
        assert await it.stop() == 0


async def test_a_killed_daemon_leaves_whole_lines_to_the_next_one(tmp_path: Path) -> None:
    log = tmp_path / NAME
    config = logging_to(log, request_log_max_bytes=65_536, request_log_rotate_files=100)
    async with daemon(tmp_path, {"a": {}}, config) as it:
        kills = rounds(3, 30)
        for _ in range(kills):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(leave_records_until_it_is_gone, it)
                await until_changed(log)
                await trio.sleep(0.05)
                it.signal(signal.SIGKILL)
                await it.wait_ended()
            it.control_socket.unlink()
            await it.start()
        await leave_records(it, 1)
        await it.stop()
        seqs: dict[str, list[int]] = {}
        for line in lines_of(*files_of(log)):
            seqs.setdefault(line["request_id"].rpartition("-")[0], []).append(line["seq"])
        assert len(seqs) == kills + 1
        for each in seqs.values():
            assert each == list(range(1, len(each) + 1))


async def leave_records_until_it_is_gone(it: DaemonUnderTest) -> None:
    with suppress(EOFError, trio.BrokenResourceError):
        await leave_records(it, 100_000)


async def test_a_stop_writes_what_was_waiting_to_be_written(tmp_path: Path) -> None:
    log = tmp_path / NAME
    async with daemon(tmp_path, {"a": {}}, logging_to(log)) as it:
        await leave_records(it, 60)
        assert await it.stop() == 0
        expect_each_once(lines_of(log), 60)
