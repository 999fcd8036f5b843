"""The engine's log file stays private and bounded, and never gets in the way of an engine."""

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
import trio
import trio.testing

from strata_router.runtime import engine_log
from strata_router.runtime.engine_log import (
    LogRefused,
    keep_bounded,
    prepare_log,
    rotate_for_start,
    rotate_if_larger,
)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "engine.log"


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def backup(log: Path, number: int) -> Path:
    return log.with_name(f"{log.name}.{number}")


async def test_a_first_start_makes_an_empty_private_file(log: Path) -> None:
    assert await prepare_log(str(log)) is None
    assert log.read_bytes() == b""
    assert mode_of(log) == 0o600


async def test_each_start_moves_the_last_output_aside_and_keeps_only_so_many(log: Path) -> None:
    for start in range(5):
        assert await prepare_log(str(log), backups=3) is None
        log.write_text(f"output of start {start}")

    assert log.read_text() == "output of start 4"
    assert backup(log, 1).read_text() == "output of start 3"
    assert backup(log, 2).read_text() == "output of start 2"
    assert backup(log, 3).read_text() == "output of start 1"
    assert not backup(log, 4).exists()


async def test_a_start_without_output_takes_no_backup_place(log: Path) -> None:
    log.write_text("the interesting one")
    for _ in range(3):
        assert await prepare_log(str(log), backups=1) is None
    assert backup(log, 1).read_text() == "the interesting one"


async def test_without_backups_the_last_output_is_dropped(log: Path) -> None:
    log.write_text("old")
    assert await prepare_log(str(log), backups=0) is None
    assert log.read_bytes() == b""
    assert not backup(log, 1).exists()


async def test_what_others_could_read_becomes_private_and_so_does_its_backup(log: Path) -> None:
    log.write_text("secret output")
    log.chmod(0o644)
    assert await prepare_log(str(log)) is None
    assert mode_of(log) == 0o600
    assert mode_of(backup(log, 1)) == 0o600


async def test_an_empty_file_that_others_could_read_becomes_private(log: Path) -> None:
    log.touch(0o644)
    assert await prepare_log(str(log)) is None
    assert mode_of(log) == 0o600


async def test_a_symlink_is_refused_and_its_target_left_alone(log: Path, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("precious")
    log.symlink_to(target)
    assert await prepare_log(str(log)) == "is not a regular file"
    assert target.read_text() == "precious"


async def test_a_dangling_symlink_is_refused_and_nothing_is_made_behind_it(log: Path) -> None:
    log.symlink_to(log.with_name("elsewhere"))
    assert await prepare_log(str(log)) == "is not a regular file"
    assert not log.with_name("elsewhere").exists()


async def test_a_pipe_is_refused_without_waiting_for_its_reader(log: Path) -> None:
    os.mkfifo(log)
    with trio.fail_after(2):
        assert await prepare_log(str(log)) == "is not a regular file"


async def test_a_missing_directory_is_told_without_its_name(log: Path) -> None:
    reason = await prepare_log(str(log.parent / "nowhere" / "engine.log"))
    assert reason == "no such file or directory"


async def test_a_directory_in_a_backups_place_is_told_and_keeps_the_output(log: Path) -> None:
    log.write_text("output")
    backup(log, 1).mkdir()
    assert await prepare_log(str(log), backups=1) == "is a directory"
    assert log.read_text() == "output"


async def test_a_disk_that_hangs_does_not_hold_up_the_start(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_log, "PREPARE_S", 0.05)
    monkeypatch.setattr(engine_log, "rotate_for_start", lambda *_: time.sleep(1))
    began = trio.current_time()
    assert "did not answer" in (await prepare_log(str(log)) or "")
    assert trio.current_time() - began < 0.9


def test_a_file_within_its_bound_is_left_alone(log: Path) -> None:
    log.write_bytes(b"x" * 100)
    assert not rotate_if_larger(str(log), max_bytes=100, backups=2)
    assert not backup(log, 1).exists()


def test_a_file_over_its_bound_is_copied_and_emptied_in_place(log: Path) -> None:
    rotate_for_start(str(log), backups=2)
    with log.open("ab", buffering=0) as writer:  # an engine: it keeps its descriptor
        writer.write(b"a" * 101)
        assert rotate_if_larger(str(log), max_bytes=100, backups=2)
        writer.write(b"b" * 101)
        assert rotate_if_larger(str(log), max_bytes=100, backups=2)
        writer.write(b"c")

    assert log.read_bytes() == b"c", "an appending writer goes on at the new end, without a hole"
    assert backup(log, 1).read_bytes() == b"b" * 101
    assert backup(log, 2).read_bytes() == b"a" * 101
    assert mode_of(backup(log, 1)) == 0o600


def test_a_single_backup_is_replaced_by_each_rotation(log: Path) -> None:
    for letter in (b"a", b"b"):
        log.write_bytes(letter * 11)
        assert rotate_if_larger(str(log), max_bytes=10, backups=1)
    assert backup(log, 1).read_bytes() == b"b" * 11


def test_without_backups_a_file_over_its_bound_is_just_emptied(log: Path) -> None:
    log.write_bytes(b"x" * 101)
    assert rotate_if_larger(str(log), max_bytes=100, backups=0)
    assert log.read_bytes() == b""
    assert list(log.parent.iterdir()) == [log]


def test_the_bound_holds_even_when_no_copy_can_be_made(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "sendfile", no_space)
    log.write_bytes(b"x" * 101)
    assert rotate_if_larger(str(log), max_bytes=100, backups=2)
    assert log.read_bytes() == b""
    assert not backup(log, 1).exists(), "half a copy is no backup"


def test_what_took_the_files_place_is_never_emptied(log: Path) -> None:
    log.mkdir()
    (log / "so that its size is not 0").touch()
    with pytest.raises((LogRefused, OSError)):
        rotate_if_larger(str(log), max_bytes=0, backups=1)


async def test_a_chatty_engine_is_kept_within_its_bound_while_it_runs(log: Path) -> None:
    """With the real thing: another process that appends through its own descriptor all the time."""
    rotate_for_start(str(log), backups=1)
    line = "x" * 99
    script = f"import time\nwhile True: print({line!r}, flush=True); time.sleep(0.0002)"
    with log.open("ab") as output:
        writer = subprocess.Popen([sys.executable, "-I", "-S", "-c", script], stdout=output)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_bounded, str(log), 20_000, 1, 0.01)
            with trio.fail_after(20):
                rotations = 0
                last_size = 0
                while rotations < 5:
                    size = log.stat().st_size
                    assert size < 500_000
                    rotations += size < last_size
                    last_size = size
                    await trio.sleep(0.002)
            nursery.cancel_scope.cancel()
    finally:
        writer.kill()
        writer.wait()
    whole_lines = backup(log, 1).read_text().split("\n")[1:-1]
    assert whole_lines
    assert set(whole_lines) == {line}, "no holes and no torn lines inside"


async def test_a_log_that_is_missing_does_not_end_the_task(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = 0

    def count(path: str, max_bytes: int, backups: int) -> bool:
        nonlocal checks
        checks += 1
        return rotate_if_larger(path, max_bytes, backups)

    monkeypatch.setattr(engine_log, "rotate_if_larger", count)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keep_bounded, str(log), 10, 1, 0.001)
        while checks < 3:
            await trio.sleep(0.001)
        log.write_bytes(b"x" * 11)
        with trio.fail_after(5):
            while log.stat().st_size > 0:
                await trio.sleep(0.001)
        nursery.cancel_scope.cancel()
