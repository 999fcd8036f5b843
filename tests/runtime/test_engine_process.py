"""Starting and stopping with real processes: nothing is left, nothing is killed that ends in order."""

import ctypes
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random

import pytest
import trio
import trio.testing

from strata_router.runtime import guard_link
from strata_router.runtime.engine_process import (
    Bounds,
    EngineProcess,
    EngineStuck,
    Launch,
    SpawnFailed,
    Stopped,
    ending,
    start_engine,
)
from strata_router.runtime.orphans import PR_SET_CHILD_SUBREAPER, become_subreaper
from tests.runtime.child_programs import (
    Notes,
    children_of,
    free_port,
    is_running,
    no_descriptor_left,
    parent_of,
    state_of,
    until,
)

PATIENT_MS = 20_000
"""A ``shutdown_ms`` that no test comes near."""


@pytest.fixture
def notes(tmp_path: Path) -> Iterator[Notes]:
    notes = Notes(tmp_path)
    yield notes
    left = notes.left()
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == [], "a process of the engine outlived the test"


@pytest.fixture
def subreaper() -> Iterator[None]:
    become_subreaper()
    yield
    none = ctypes.c_ulong(0)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, none, none, none, none)


def launch(notes: Notes, **settings: object) -> Launch:
    return Launch(notes.command(**settings), None, dict(os.environ), None)


@asynccontextmanager
async def engine(
    notes: Notes, bounds: Bounds | None = None, **settings: object
) -> AsyncIterator[EngineProcess]:
    """A started engine that has set itself up; killed at the end, if it is still there."""
    async with trio.open_nursery() as nursery:
        process = await start_engine(launch(notes, **settings), nursery, bounds)
        await notes.wait_for("engine")
        yield process
        nursery.cancel_scope.cancel()


# ---- start ------------------------------------------------------------------------------------------


async def test_the_pid_told_is_the_engines_own_and_its_parent_is_the_guard(notes: Notes) -> None:
    async with engine(notes) as process:
        assert process.pid == notes.pids("engine")[0]
        assert process.exit_status is None
        assert parent_of(process.pid) == process.guard_pid
        assert parent_of(process.guard_pid) == os.getpid()


async def started_with(notes: Notes, tmp_path: Path, start: Launch) -> dict[str, object]:
    """What the engine says that it was given; its command must have ``report=`` already."""
    async with trio.open_nursery() as nursery:
        await start_engine(start, nursery)
        await notes.wait_for("engine")
        nursery.cancel_scope.cancel()
    content = json.loads((tmp_path / "report").read_text())
    assert isinstance(content, dict)
    return content


async def test_b26_the_engine_inherits_exactly_three_descriptors_and_they_are_no_pipes(
    notes: Notes, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.set_inheritable(True)  # as systemd passes it
        start = launch(notes, report=tmp_path / "report")
        given = await started_with(notes, tmp_path, start)
    assert given["descriptors"] == {"0": "/dev/null", "1": "/dev/null", "2": "/dev/null"}


async def test_the_engine_leads_a_session_and_group_of_its_own(
    notes: Notes, tmp_path: Path
) -> None:
    given = await started_with(notes, tmp_path, launch(notes, report=tmp_path / "report"))
    assert given["session"] == given["pgrp"] == given["pid"]


async def test_the_engine_gets_its_arguments_folder_and_whole_environment(
    notes: Notes, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    environment = {"ONLY": "this one", "BYTES": os.fsdecode(b"\xff"), "EMPTY": ""}
    command = notes.command(report=tmp_path / "report", odd="a b\nc\udcff")
    start = Launch(command, str(tmp_path / "folder"), environment, None)
    given = await started_with(notes, tmp_path, start)
    got = given["environment"]
    assert isinstance(got, dict)
    got.pop("LC_CTYPE", None)  # the child's Python sets it for itself
    assert got == environment
    assert given["cwd"] == str(tmp_path / "folder")
    assert isinstance(given["arguments"], list)
    assert given["arguments"][-1] == "odd=a b\nc\udcff"


async def test_the_engine_starts_with_default_signals_whatever_the_daemon_has(
    notes: Notes, tmp_path: Path
) -> None:
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2, signal.SIGTERM])
    try:
        given = await started_with(notes, tmp_path, launch(notes, report=tmp_path / "report"))
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR2, signal.SIGTERM])
        signal.signal(signal.SIGUSR1, before)
    ignored = given["signals_ignored"]
    assert isinstance(ignored, int)
    by_python_itself = 1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGXFSZ - 1)
    # 32 and 33 are the C library's own; nobody can set them, and some shells start us with them ignored.
    by_nobody = 1 << 31 | 1 << 32
    assert ignored & ~by_python_itself & ~by_nobody == 0
    assert given["signals_blocked"] == 0


async def test_an_environment_larger_than_the_channel_takes_at_once_arrives(notes: Notes) -> None:
    environment = {f"BIG_{number}": "x" * 100_000 for number in range(10)}
    async with trio.open_nursery() as nursery:
        process = await start_engine(Launch(notes.command(), None, environment, None), nursery)
        content = Path(f"/proc/{process.pid}/environ").read_bytes()
        nursery.cancel_scope.cancel()
    assert content.count(b"x") >= 1_000_000


async def test_output_goes_to_the_end_of_the_private_log(notes: Notes, tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    script = "import os; os.write(1, b'out '); os.write(2, b'err ')"
    command = (sys.executable, "-I", "-S", "-c", script)
    for _ in range(2):
        async with trio.open_nursery() as nursery:
            process = await start_engine(Launch(command, None, {}, str(log)), nursery)
            assert process.log_problem is None
    assert log.read_text() == "out err out err "
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


@pytest.mark.parametrize("kind", ["symlink", "pipe", "folder", "nowhere"])
async def test_a_log_that_cannot_be_had_is_told_and_the_engine_starts(
    notes: Notes, tmp_path: Path, kind: str
) -> None:
    log = tmp_path / "engine.log"
    match kind:
        case "symlink":
            log.symlink_to(tmp_path / "target")
        case "pipe":
            os.mkfifo(log)
        case "folder":
            log.mkdir()
        case _:
            log = tmp_path / "nowhere" / "engine.log"
    start = Launch(notes.command(report=tmp_path / "report"), None, {}, str(log))
    async with trio.open_nursery() as nursery:
        process = await start_engine(start, nursery)
        assert process.log_problem is not None
        assert "the log cannot be opened" in process.log_problem
        assert "engine.log" not in process.log_problem
        await notes.wait_for("engine")
        nursery.cancel_scope.cancel()
    assert "/dev/null" in (tmp_path / "report").read_text()
    assert not (tmp_path / "target").exists()


# ---- failing to start -------------------------------------------------------------------------------


async def refusal(start: Launch) -> str:
    """The reason for which it is not started; nothing may be left of the attempt."""
    descriptors, children = os.listdir("/proc/self/fd"), children_of(os.getpid())
    reason = await reason_not_started(start)
    assert os.listdir("/proc/self/fd") == descriptors
    assert children_of(os.getpid()) == children
    assert reason is not None
    return reason


async def test_a_missing_program_is_refused_without_its_name(tmp_path: Path) -> None:
    reason = await refusal(Launch((str(tmp_path / "missing"),), None, {}, None))
    assert reason == "the engine's program cannot be executed (no such file or directory)"


async def test_a_program_without_permission_is_refused(tmp_path: Path) -> None:
    (tmp_path / "program").write_text("#!/bin/sh\n")
    reason = await refusal(Launch((str(tmp_path / "program"),), None, {}, None))
    assert reason == "the engine's program cannot be executed (permission denied)"


async def test_a_folder_in_place_of_the_program_is_refused(tmp_path: Path) -> None:
    reason = await refusal(Launch((str(tmp_path),), None, {}, None))
    assert reason == "the engine's program cannot be executed (permission denied)"


async def test_a_file_that_is_no_program_is_refused(tmp_path: Path) -> None:
    (tmp_path / "program").write_text("no shebang")
    (tmp_path / "program").chmod(0o700)
    reason = await refusal(Launch((str(tmp_path / "program"),), None, {}, None))
    assert reason == "the engine's program cannot be executed (exec format error)"


async def test_an_argument_too_long_for_the_kernel_is_refused() -> None:
    reason = await refusal(Launch((sys.executable, "x" * 200_000), None, {}, None))
    assert reason == "the engine's program cannot be executed (argument list too long)"


async def test_a_missing_working_directory_is_refused(tmp_path: Path) -> None:
    reason = await refusal(Launch((sys.executable,), str(tmp_path / "missing"), {}, None))
    assert reason == "the engine's working directory cannot be entered (no such file or directory)"


async def test_text_that_no_program_can_be_given_is_refused() -> None:
    reason = await refusal(Launch((sys.executable, "a\0b"), None, {}, None))
    assert "hold a character that no program can be given" in reason


async def test_a_guard_that_cannot_start_is_a_failed_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "missing"))
    reason = await refusal(Launch(("/bin/true",), None, {}, None))
    assert reason == "the guard process cannot be started (no such file or directory)"


async def test_a_guard_that_cannot_be_watched_is_ended_and_the_start_fails(
    notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_descriptor(_: int) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", no_descriptor)
    reason = await refusal(launch(notes))
    assert reason == "the guard process cannot be started (too many open files)"


async def test_a_guard_that_ends_too_early_is_a_failed_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "guard.py").write_text("")
    monkeypatch.setattr(guard_link, "GUARD", tmp_path / "guard.py")
    reason = await refusal(Launch(("/bin/true",), None, {}, None))
    assert reason == "the guard process ended before the engine was started"


async def test_without_a_free_descriptor_the_start_fails_and_none_is_lost(notes: Notes) -> None:
    before = set(os.listdir("/proc/self/fd"))
    reasons = set()
    with no_descriptor_left() as hoard:
        for _ in range(12):  # runs out at a later call each time
            reasons.add(await reason_not_started(launch(notes)))
            os.close(hoard.pop())
    assert reasons == {None, "the guard process cannot be started (too many open files)"}
    assert set(os.listdir("/proc/self/fd")) == before


async def reason_not_started(start: Launch) -> str | None:
    """None when it was started; it is killed then."""
    async with trio.open_nursery() as nursery:
        try:
            await start_engine(start, nursery)
        except SpawnFailed as failure:
            return failure.reason
        nursery.cancel_scope.cancel()
    return None


async def test_a_cancelled_start_leaves_nothing_whenever_it_is_cancelled(notes: Notes) -> None:
    children = children_of(os.getpid())
    delays = Random(4).sample(range(40), 15)
    async with trio.open_nursery() as nursery:
        for delay_ms in delays:
            with trio.move_on_after(delay_ms / 1000) as scope:
                process = await start_engine(launch(notes), nursery)
            if scope.cancelled_caught:
                assert notes.left() == []
            else:
                await process.force_stop()
    assert children_of(os.getpid()) == children


# ---- the end ----------------------------------------------------------------------------------------


async def test_an_engine_that_ends_by_itself_is_noticed_at_once_by_everyone(notes: Notes) -> None:
    seen = []

    async def wait(process: EngineProcess) -> None:
        seen.append((await process.wait_exited(), trio.current_time()))

    async with engine(notes, on_term="end", status=7) as process:
        async with trio.open_nursery() as waiters:
            for _ in range(3):
                waiters.start_soon(wait, process)
            await trio.testing.wait_all_tasks_blocked()
            began = trio.current_time()
            os.kill(process.pid, signal.SIGTERM)
        await process.wait_gone()
    assert [status for status, _ in seen] == [7, 7, 7]
    assert max(at for _, at in seen) - began < 0.5
    assert process.exit_status == 7
    assert await process.wait_exited() == 7, "later askers are told too"


async def test_an_engine_killed_from_outside_is_told_with_its_signal(notes: Notes) -> None:
    async with engine(notes) as process:
        os.kill(process.pid, signal.SIGKILL)
        assert await process.wait_exited() == -signal.SIGKILL
        assert await process.stop(PATIENT_MS) == Stopped(-signal.SIGKILL, False, 0)


async def test_an_engine_that_ends_within_its_first_instants_is_reported_in_order(
    notes: Notes,
) -> None:
    for status in range(10):
        async with trio.open_nursery() as nursery:
            command = ("/bin/sh", "-c", f"exit {status}")
            process = await start_engine(Launch(command, None, {}, None), nursery)
            assert await process.wait_exited() == status


async def test_b12_what_an_engine_leaves_when_killed_from_outside_is_ended_before_gone(
    notes: Notes,
) -> None:
    async with engine(notes, Bounds(survivors_ms=200), worker_s=1000, escaped=1) as process:
        await notes.wait_for("worker")
        await notes.wait_for("escaped")
        os.kill(process.pid, signal.SIGKILL)
        assert await process.wait_exited() == -signal.SIGKILL
        assert not process.is_gone
        await process.wait_gone()
        assert notes.left() == []
        assert (await process.stop(PATIENT_MS)).survivors_killed == 2


async def test_the_end_of_the_nursery_is_the_end_of_the_engine(notes: Notes) -> None:
    async with trio.open_nursery() as nursery:
        await start_engine(launch(notes, on_term="ignore", escaped=1), nursery)
        await notes.wait_for("escaped")
        nursery.cancel_scope.cancel()
    assert notes.left() == []


# ---- stop -------------------------------------------------------------------------------------------


async def test_a_stop_ends_by_sigterm_and_tells_its_steps(notes: Notes) -> None:
    steps: list[str] = []
    async with engine(notes) as process:
        began = trio.current_time()
        assert await process.stop(PATIENT_MS, steps.append) == Stopped(-signal.SIGTERM, False, 0)
        assert trio.current_time() - began < 1
    assert process.is_gone
    assert steps == [f"stopping backend pid {process.pid}"]


async def test_b04_a_slow_but_orderly_end_is_not_cut_short(notes: Notes) -> None:
    async with engine(notes, on_term="end", end_s=0.8, status=3) as process:
        began = trio.current_time()
        assert await process.stop(PATIENT_MS) == Stopped(3, False, 0)
        assert 0.8 <= trio.current_time() - began < 2
    assert notes.pids("ended") == [process.pid]


async def test_b04_an_engine_deaf_to_sigterm_is_dead_at_about_shutdown_ms(notes: Notes) -> None:
    steps: list[str] = []
    async with engine(notes, on_term="ignore") as process:
        began = trio.current_time()
        assert await process.stop(500, steps.append) == Stopped(-signal.SIGKILL, True, 0)
        assert 0.5 <= trio.current_time() - began < 0.9
    assert steps[-1] == f"killing backend pid {process.pid}"


async def test_b04_an_engine_that_is_still_starting_is_stopped_like_any_other(notes: Notes) -> None:
    async with trio.open_nursery() as nursery:
        process = await start_engine(launch(notes, on_term="ignore"), nursery)
        assert (await process.stop(PATIENT_MS)).exit_status == -signal.SIGTERM


async def test_no_second_sigterm_is_ever_sent(notes: Notes) -> None:
    async with engine(notes, on_term="end", end_s=0.5) as process:
        process.terminate()
        process.terminate()
        await notes.wait_for("sigterm-1")
        process.terminate()
        assert await process.stop(PATIENT_MS) == Stopped(0, False, 0)
    assert notes.pids("sigterm-2") == []


async def test_the_sigterm_goes_to_the_engine_alone(notes: Notes) -> None:
    """Strata ends its native engine in order; a signal to the whole group would break that."""
    async with engine(notes, on_term="end", end_s=0.3, deep=1) as process:
        deep = await notes.wait_for("deep")
        process.terminate()
        await notes.wait_for("sigterm-1")
        assert is_running(deep)
        await process.wait_exited()
        assert is_running(deep)


async def test_b05_a_worker_that_outlives_the_engine_a_little_is_waited_for(notes: Notes) -> None:
    steps: list[str] = []
    async with engine(notes, worker_s=0.5) as process:
        await notes.wait_for("worker")
        assert await process.stop(PATIENT_MS, steps.append) == Stopped(-signal.SIGTERM, False, 0)
        assert notes.pids("worker-ended") != []
        assert notes.left() == []
    assert steps[1:] == [f"backend pid {process.pid} exited, waiting for what it left (1)"]


async def test_b05_a_worker_that_outlives_the_engine_for_longer_is_killed_after_two_seconds(
    notes: Notes,
) -> None:
    steps: list[str] = []
    async with engine(notes, worker_s=1000) as process:
        await notes.wait_for("worker")
        began = trio.current_time()
        assert await process.stop(PATIENT_MS, steps.append) == Stopped(-signal.SIGTERM, False, 1)
        assert 2.0 <= trio.current_time() - began < 2.6
        assert notes.left() == []
    assert steps[-1] == f"killing what backend pid {process.pid} left"


async def test_b11_a_deaf_engine_with_a_stopped_helper_is_gone_after_shutdown_ms(
    notes: Notes,
) -> None:
    async with engine(notes, on_term="ignore", stopped=1) as process:
        helper = await notes.wait_for("stopped")
        await until(lambda: state_of(helper) == "T")
        began = trio.current_time()
        assert await process.stop(300) == Stopped(-signal.SIGKILL, True, 1)
        assert trio.current_time() - began < 1
        assert notes.left() == []


async def test_zombies_are_not_waited_for(notes: Notes) -> None:
    async with engine(notes, zombie=1) as process:
        zombie = await notes.wait_for("zombie")
        await until(lambda: state_of(zombie) == "Z")
        began = trio.current_time()
        assert await process.stop(PATIENT_MS) == Stopped(-signal.SIGTERM, False, 0)
        assert trio.current_time() - began < 1
        assert state_of(zombie) is None


@pytest.mark.parametrize("forker", ["group", "session"])
async def test_what_does_nothing_but_fork_is_ended_too(notes: Notes, forker: str) -> None:
    async with engine(notes, forker=forker) as process:
        await notes.wait_for("forker")
        with trio.fail_after(5):
            await process.force_stop()
        assert notes.left() == []


async def test_a_crowd_and_a_deep_tree_are_ended_together(notes: Notes) -> None:
    async with engine(notes, crowd=50, deep=20, escaped=1, worker_s=1000) as process:
        await notes.wait_for("crowd", 50)
        await notes.wait_for("deep", 20)
        await notes.wait_for("escaped")
        stopped = await process.force_stop()
        assert stopped.exit_status == -signal.SIGKILL
        assert stopped.killed
        assert stopped.survivors_killed == 72
        assert notes.left() == []


async def test_kill_does_not_wait_and_leaves_nothing(notes: Notes) -> None:
    async with engine(notes, on_term="ignore", worker_s=1000) as process:
        process.kill()
        process.kill()
        assert not process.is_gone
        await process.wait_gone()
        assert process.exit_status == -signal.SIGKILL
        process.kill()
        process.terminate()


async def test_a_cancelled_stop_still_ends_everything(notes: Notes) -> None:
    async with engine(notes, Bounds(survivors_ms=200), on_term="ignore", worker_s=1000) as process:
        await notes.wait_for("worker")
        with trio.move_on_after(0.1) as scope:
            await process.stop(400)
        assert scope.cancelled_caught
        assert is_running(process.pid)
        with trio.fail_after(2):
            await process.wait_gone()
        assert notes.left() == []


async def test_of_overlapping_stops_the_earliest_deadline_holds(notes: Notes) -> None:
    results: list[Stopped] = []

    async def stop(process: EngineProcess, shutdown_ms: int) -> None:
        results.append(await process.stop(shutdown_ms))

    async with engine(notes, on_term="ignore") as process:
        began = trio.current_time()
        async with trio.open_nursery() as stops:
            stops.start_soon(stop, process, PATIENT_MS)
            stops.start_soon(stop, process, 300)
            stops.start_soon(stop, process, 10_000)
        assert trio.current_time() - began < 1
    assert results == [Stopped(-signal.SIGKILL, True, 0)] * 3


async def test_force_stop_cuts_a_running_stop_short(notes: Notes) -> None:
    async with engine(notes, on_term="ignore") as process, trio.open_nursery() as stops:
        stops.start_soon(process.stop, PATIENT_MS)
        await trio.testing.wait_all_tasks_blocked()
        with trio.fail_after(1):
            await process.force_stop()


async def test_a_stop_of_what_is_gone_returns_how_it_ended(notes: Notes) -> None:
    async with engine(notes, on_term="end", status=4) as process:
        first = await process.stop(PATIENT_MS)
        assert await process.stop(PATIENT_MS) == first == Stopped(4, False, 0)
        assert await process.force_stop() == first


async def test_many_starts_and_stops_leak_nothing(notes: Notes) -> None:
    async def cycle(number: int) -> None:
        async with trio.open_nursery() as nursery:
            process = await start_engine(launch(notes), nursery)
            if number % 2:
                await process.force_stop()
            else:
                await process.stop(PATIENT_MS)

    await cycle(0)
    children = children_of(os.getpid())
    descriptors, threads = os.listdir("/proc/self/fd"), threading.active_count()
    for number in range(50):
        await cycle(number)
    assert os.listdir("/proc/self/fd") == descriptors
    assert threading.active_count() <= threads, "one of an earlier test may end meanwhile"
    assert children_of(os.getpid()) == children


@pytest.mark.bound_s(30)
async def test_b25_an_idle_engine_lives_on_after_trios_threads_have_ended(notes: Notes) -> None:
    """The thread that would have carried its parent-death signal ends after 10 s idle."""
    async with engine(notes) as process:
        await trio.to_thread.run_sync(lambda: None)
        await trio.sleep(12)
        assert is_running(process.pid)
        assert process.exit_status is None


# ---- SIGKILL without effect -------------------------------------------------------------------------

FREEZER = Path("/sys/fs/cgroup/freezer")


@pytest.fixture
def freezer(request: pytest.FixtureRequest) -> Iterator[Path]:
    """A cgroup whose members can be frozen so that SIGKILL has no effect before they are thawed."""
    group = FREEZER / f"strata-router-test-{os.getpid()}"
    if not (FREEZER / "cgroup.procs").exists():
        pytest.skip("needs the version 1 cgroup freezer (version 2 lets SIGKILL through)")
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"needs permission to make a freezer cgroup ({error.strerror})")
    yield group
    (group / "freezer.state").write_text("THAWED")
    while (group / "cgroup.procs").read_text():
        os.sched_yield()
    group.rmdir()


async def test_b11_sigkill_without_effect_fails_naming_the_pid_and_the_end_is_told_later(
    notes: Notes, freezer: Path
) -> None:
    async with engine(notes, Bounds(stuck_ms=1500), on_term="ignore", worker_s=1000) as process:
        worker = await notes.wait_for("worker")
        (freezer / "cgroup.procs").write_text(str(process.pid))
        (freezer / "cgroup.procs").write_text(str(worker))
        (freezer / "freezer.state").write_text("FROZEN")
        await until(lambda: (freezer / "freezer.state").read_text() == "FROZEN\n")
        began = trio.current_time()
        with pytest.raises(EngineStuck) as stuck:
            await process.stop(200)
        assert 1.7 <= trio.current_time() - began < 2.5
        assert stuck.value.pid == process.pid

        began = trio.current_time()
        with pytest.raises(EngineStuck):
            await process.force_stop()
        assert trio.current_time() - began < 0.5, "it has been waited for already"
        assert not process.is_gone

        (freezer / "freezer.state").write_text("THAWED")
        with trio.fail_after(2):
            await process.wait_gone()
        assert await process.stop(PATIENT_MS) == Stopped(-signal.SIGKILL, True, 1)


async def test_a_frozen_survivor_is_the_one_named(notes: Notes, freezer: Path) -> None:
    bounds = Bounds(survivors_ms=100, stuck_ms=1500)
    async with engine(notes, bounds, worker_s=1000) as process:
        worker = await notes.wait_for("worker")
        (freezer / "cgroup.procs").write_text(str(worker))
        (freezer / "freezer.state").write_text("FROZEN")
        await until(lambda: (freezer / "freezer.state").read_text() == "FROZEN\n")
        with pytest.raises(EngineStuck) as stuck:
            await process.stop(PATIENT_MS)
        assert stuck.value.pid == worker
        (freezer / "freezer.state").write_text("THAWED")
        await process.wait_gone()


# ---- the guard and the daemon die -------------------------------------------------------------------


async def test_a_killed_guard_takes_engine_and_escaped_processes_with_it(
    notes: Notes, subreaper: None
) -> None:
    children = children_of(os.getpid())
    async with engine(
        notes, on_term="ignore", worker_s=1000, escaped=1, stopped=1, deep=5
    ) as process:
        await notes.wait_for("deep", 5)
        await notes.wait_for("escaped")
        began = trio.current_time()
        os.kill(process.guard_pid, signal.SIGKILL)
        assert await process.wait_exited() == -signal.SIGKILL
        await process.wait_gone()
        assert trio.current_time() - began < 1
        assert notes.left() == []
        assert process.guard_was_lost
        stopped = await process.stop(PATIENT_MS)
        assert stopped.exit_status == -signal.SIGKILL
        assert stopped.survivors_killed == 8
    assert children_of(os.getpid()) == children, "orphans are reaped too"


async def test_a_killed_guard_is_survived_without_a_free_descriptor(
    notes: Notes, subreaper: None
) -> None:
    async with engine(notes, escaped=1) as process:
        escaped = await notes.wait_for("escaped")
        with no_descriptor_left() as hoard:
            os.kill(process.guard_pid, signal.SIGKILL)
            for _ in range(20):
                with suppress(OSError):  # what is given back meanwhile is taken too
                    hoard.append(os.open(os.devnull, os.O_RDONLY))
                await trio.sleep(0.005)
            assert not process.is_gone
        with trio.fail_after(2):
            await process.wait_gone()
        assert not is_running(escaped)


async def test_without_a_subreaper_a_killed_guard_still_takes_the_engines_session_with_it(
    notes: Notes,
) -> None:
    async with engine(notes, on_term="ignore", worker_s=1000, stopped=1) as process:
        await notes.wait_for("worker")
        os.kill(process.guard_pid, signal.SIGKILL)
        with trio.fail_after(1):
            assert await process.wait_exited() == -signal.SIGKILL
            await process.wait_gone()
        assert notes.left() == []


async def test_after_a_killed_guard_other_children_of_the_daemon_live(
    notes: Notes, subreaper: None
) -> None:
    bystander = subprocess.Popen(["/bin/sleep", "1000"])
    try:
        async with engine(notes, escaped=1) as process:
            await notes.wait_for("escaped")
            os.kill(process.guard_pid, signal.SIGKILL)
            await process.wait_gone()
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


async def test_after_a_killed_guard_another_engine_lives(
    notes: Notes, tmp_path: Path, subreaper: None
) -> None:
    (tmp_path / "other").mkdir()
    other_notes = Notes(tmp_path / "other")
    async with engine(notes) as process, engine(other_notes) as other:
        os.kill(process.guard_pid, signal.SIGKILL)
        await process.wait_gone()
        assert await other.stop(PATIENT_MS) == Stopped(-signal.SIGTERM, False, 0)
        assert not other.guard_was_lost


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
async def test_signals_for_the_daemons_terminal_do_not_reach_past_the_guard(
    notes: Notes, number: signal.Signals
) -> None:
    async with engine(notes) as process:
        assert os.getpgid(process.guard_pid) != os.getpgrp()
        os.kill(process.guard_pid, number)
        with trio.fail_after(2):
            assert await process.stop(PATIENT_MS) == Stopped(-signal.SIGTERM, False, 0)
        assert not process.guard_was_lost


async def test_a_guard_that_does_not_answer_is_replaced(notes: Notes, subreaper: None) -> None:
    async with engine(notes, Bounds(deaf_ms=300), on_term="ignore", escaped=1) as process:
        await notes.wait_for("escaped")
        os.kill(process.guard_pid, signal.SIGSTOP)
        began = trio.current_time()
        stopped = await process.stop(PATIENT_MS)
        assert trio.current_time() - began < 1.5
        assert stopped == Stopped(-signal.SIGKILL, True, 1)
        assert process.guard_was_lost
        assert notes.left() == []


async def test_a_guard_that_answers_is_left_in_peace_however_long_the_stop_takes(
    notes: Notes,
) -> None:
    async with engine(notes, Bounds(deaf_ms=200), on_term="end", end_s=0.8) as process:
        assert await process.stop(PATIENT_MS) == Stopped(0, False, 0)
        assert not process.guard_was_lost


async def test_an_engine_that_ends_under_a_deaf_guard_is_noticed(
    notes: Notes, subreaper: None
) -> None:
    async with engine(notes, Bounds(deaf_ms=300), on_term="end", status=5) as process:
        os.kill(process.guard_pid, signal.SIGSTOP)
        os.kill(process.pid, signal.SIGTERM)
        with trio.fail_after(2):
            assert await process.wait_exited() == 5, "its status comes with the zombie"
            await process.wait_gone()


async def test_a_nursery_that_ends_does_not_hang_on_a_deaf_guard(notes: Notes) -> None:
    with trio.fail_after(5):
        async with engine(notes) as process:
            os.kill(process.guard_pid, signal.SIGSTOP)
    await until(lambda: notes.left() == [])


@pytest.mark.parametrize("signal_to_daemon", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
async def test_b03_nothing_outlives_a_daemon_that_dies_in_whatever_way(
    notes: Notes, signal_to_daemon: signal.Signals
) -> None:
    port = free_port()
    settings = {"on_term": "ignore", "escaped": 1, "worker_s": 1000, "stopped": 1, "port": port}
    daemon = subprocess.Popen(notes.daemon_command(**settings))
    try:
        await notes.wait_for("guard")
        await notes.wait_for("escaped")
        await notes.wait_for("engine")
        guard = notes.pids("guard")[0]
        assert len(notes.left()) == 5
    finally:
        daemon.send_signal(signal_to_daemon)
        daemon.wait()
    took_s = await until(lambda: notes.left() == [] and not is_running(guard), within_s=1)
    socket.create_server(("127.0.0.1", port)).close()
    print(f"everything gone {1000 * took_s:.0f} ms after the daemon")


async def test_b03_a_daemon_killed_at_any_instant_of_a_start_leaves_nothing(notes: Notes) -> None:
    for delay_ms in Random(5).sample(range(60), 8):
        daemon = subprocess.Popen(notes.daemon_command(escaped=1))
        await until(lambda: bool(children_of(daemon.pid)))  # noqa: B023 - awaited within the loop
        await trio.sleep(delay_ms / 1000)
        daemon.kill()
        daemon.wait()
        await until(lambda: notes.left() == [], within_s=1)


async def test_a_daemon_without_standard_streams_can_start_an_engine(
    notes: Notes, tmp_path: Path
) -> None:
    command = notes.daemon_command(report=tmp_path / "report")
    daemon = subprocess.Popen(["/bin/sh", "-c", 'exec "$@" 0<&- 1>&- 2>&-', "sh", *command])
    try:
        await notes.wait_for("engine")
        await notes.wait_for("guard")
    finally:
        daemon.kill()
        daemon.wait()
    await until(lambda: notes.left() == [])
    given = json.loads((tmp_path / "report").read_text())
    assert given["descriptors"] == {"0": "/dev/null", "1": "/dev/null", "2": "/dev/null"}


@pytest.mark.parametrize(
    ("exit_status", "told"),
    [
        (0, "ended by itself with status 0"),
        (3, "ended by itself with status 3"),
        (-11, "was killed by SIGSEGV"),
        (-9, "was killed by SIGKILL (out of memory? see dmesg)"),
        (-40, "was killed by signal 40"),
    ],
)
def test_an_end_that_nobody_asked_for_is_told_in_words(exit_status: int, told: str) -> None:
    assert ending(exit_status) == told
