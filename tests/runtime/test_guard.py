"""The guard alone, spoken to by its protocol: what it answers, and what is left when it ends."""

import marshal
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from strata_router.runtime import guard
from tests.runtime.child_programs import BOUND_S, Notes, is_running, parent_of, wait_until

GUARD = (sys.executable, "-I", "-S", guard.__file__)


class Spoken:
    """One guard process and the daemon's end of its channel."""

    def __init__(self, *program: str) -> None:
        self.channel, theirs = socket.socketpair()
        self.channel.settimeout(BOUND_S)
        with theirs:
            self.process = subprocess.Popen(program or GUARD, stdin=theirs.fileno())
        self.reports = self.channel.makefile("r")

    def launch(self, *argv: str, survivors_ms: int = 2000, cwd: str | None = None) -> None:
        self.channel.sendall(encoded(*argv, survivors_ms=survivors_ms, cwd=cwd))

    def next(self) -> list[str]:
        """The next report, in words; empty when there is none any more."""
        return self.reports.readline().split()

    def started(self) -> int:
        word, pid, _ = self.next()
        assert word == "started"
        return int(pid)

    def rest(self) -> list[list[str]]:
        """Everything up to the end of the guard."""
        lines = [line.split() for line in self.reports]
        assert self.process.wait(BOUND_S) == 0
        return lines

    def close(self) -> None:
        self.reports.close()
        self.channel.close()


def on_another_kernel(patch: str) -> Spoken:
    """A guard for which some call behaves as the Python statements say."""
    run = f"import runpy; runpy.run_path({guard.__file__!r}, run_name='__main__')"
    return Spoken(*GUARD[:-1], "-c", f"import builtins, os\n{patch}\n{run}")


def encoded(*argv: str, survivors_ms: int = 2000, cwd: str | None = None) -> bytes:
    folder = None if cwd is None else os.fsencode(cwd)
    command = [os.fsencode(argument) for argument in argv]
    spec = marshal.dumps((command, folder, dict(os.environb), None, survivors_ms))
    return len(spec).to_bytes(8, "little") + spec


@pytest.fixture
def spoken(notes: Notes) -> Iterator[Spoken]:
    """Set up after, and so ended before, the notes, which then look for what is left."""
    spoken = Spoken()
    yield spoken
    spoken.close()
    assert spoken.process.wait(BOUND_S) == 0


@pytest.fixture
def notes(tmp_path: Path) -> Iterator[Notes]:
    notes = Notes(tmp_path)
    yield notes
    assert notes.left() == []


def test_a_daemon_that_dies_before_it_has_said_what_to_start_starts_nothing(
    spoken: Spoken, notes: Notes
) -> None:
    message = encoded(*notes.command())
    spoken.channel.sendall(message[: len(message) // 2])
    spoken.channel.shutdown(socket.SHUT_WR)
    assert spoken.rest() == []
    assert not notes.path.exists()


def test_a_launch_that_arrives_byte_by_byte_is_one_launch(spoken: Spoken, notes: Notes) -> None:
    message = encoded(*notes.command())
    for at in range(0, len(message), 97):
        spoken.channel.sendall(message[at : at + 97])
    assert parent_of(spoken.started()) == spoken.process.pid


def test_the_whole_account_of_an_engine_that_ends_by_itself(spoken: Spoken) -> None:
    spoken.launch("/bin/sh", "-c", "exit 3")
    assert spoken.started() > 0
    assert spoken.rest() == [["exited", "3"], ["end", "0"]]


def test_the_start_time_told_is_the_kernels(spoken: Spoken, notes: Notes) -> None:
    spoken.launch(*notes.command())
    _, pid, start_ticks = spoken.next()
    assert Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19] == start_ticks


def test_the_whole_account_of_a_program_that_does_not_exist(spoken: Spoken, tmp_path: Path) -> None:
    spoken.launch(str(tmp_path / "missing"))
    assert spoken.rest() == [["refused", "exec", "2"], ["exited", "127"], ["end", "0"]]


def test_the_whole_account_of_a_missing_working_directory(spoken: Spoken, tmp_path: Path) -> None:
    spoken.launch("/bin/true", cwd=str(tmp_path / "missing"))
    assert spoken.rest() == [["refused", "chdir", "2"], ["exited", "127"], ["end", "0"]]


def test_each_line_is_answered_however_lines_are_cut(spoken: Spoken, notes: Notes) -> None:
    spoken.launch(*notes.command(on_term="end", end_s=0.3))
    spoken.started()
    wait_until(lambda: bool(notes.pids("engine")))
    spoken.channel.sendall(b"term\nstop 200")
    assert spoken.next() == ["heard"]
    spoken.channel.sendall(b"00\nterm\n")
    assert spoken.rest() == [["heard"], ["heard"], ["exited", "0"], ["end", "0"]]
    assert notes.pids("sigterm-2") == []


def test_a_stop_that_is_not_heeded_becomes_a_kill(spoken: Spoken, notes: Notes) -> None:
    spoken.launch(*notes.command(on_term="ignore", crowd=3))
    spoken.started()
    wait_until(lambda: len(notes.pids("crowd")) == 3 and bool(notes.pids("engine")))
    spoken.channel.sendall(b"stop 100\n")
    assert spoken.rest() == [["heard"], ["killing"], ["exited", "-9"], ["end", "3"]]


def test_the_later_of_two_deadlines_does_not_hold(spoken: Spoken, notes: Notes) -> None:
    spoken.launch(*notes.command(on_term="ignore"))
    spoken.started()
    wait_until(lambda: bool(notes.pids("engine")))
    began = time.monotonic()
    spoken.channel.sendall(b"stop 200\nstop 20000\n")
    spoken.rest()
    assert 0.2 <= time.monotonic() - began < 1


def test_survivors_are_counted_waited_for_and_then_killed(spoken: Spoken, notes: Notes) -> None:
    spoken.launch(*notes.command(escaped=1, crowd=2), survivors_ms=200)
    engine = spoken.started()
    wait_until(lambda: len(notes.pids("crowd")) == 2 and bool(notes.pids("engine")))
    wait_until(lambda: bool(notes.pids("escaped")))
    killed = time.monotonic()
    os.kill(engine, signal.SIGKILL)
    assert spoken.next() == ["exited", "-9"]
    assert spoken.rest() == [["survivors", "3"], ["killing"], ["end", "3"]]
    assert 0.2 <= time.monotonic() - killed < 1


def test_an_orphan_that_ends_while_the_engine_runs_is_reaped(spoken: Spoken, notes: Notes) -> None:
    spoken.launch(
        "/bin/sh", "-c", "(sleep 0.05 & echo $! >$0 &) ; exec sleep 1000", str(notes.path)
    )
    spoken.started()
    wait_until(lambda: notes.path.exists() and bool(notes.path.read_text().strip()))
    orphan = int(notes.path.read_text())
    wait_until(lambda: not Path(f"/proc/{orphan}").exists())


def test_the_end_of_the_daemon_is_the_end_of_everything(spoken: Spoken, notes: Notes) -> None:
    spoken.launch(*notes.command(on_term="ignore", escaped=1, deep=3))
    engine = spoken.started()
    wait_until(lambda: bool(notes.pids("escaped")) and len(notes.pids("deep")) == 3)
    spoken.close()
    assert spoken.process.wait(BOUND_S) == 0
    assert notes.left() == []
    assert not is_running(engine)


def test_a_daemon_that_only_hangs_up_can_still_read_the_account(
    spoken: Spoken, notes: Notes
) -> None:
    spoken.launch(*notes.command(on_term="ignore"))
    spoken.started()
    spoken.channel.shutdown(socket.SHUT_WR)
    assert spoken.rest() == [["killing"], ["exited", "-9"], ["end", "0"]]


def test_an_order_to_kill_that_comes_before_the_program_runs_is_kept(
    spoken: Spoken, notes: Notes
) -> None:
    spoken.channel.sendall(encoded(*notes.command()) + b"kill\n")
    words = [line[0] for line in spoken.rest()]
    assert words[-1] == "end"
    assert sorted(words) == ["end", "exited", "heard", "killing", "started"]
    assert notes.left() == []


def test_a_sigterm_before_the_program_runs_is_not_lost() -> None:
    for _ in range(10):
        spoken = Spoken()
        spoken.channel.sendall(encoded("/bin/sleep", "1000") + b"term\n")
        lines = spoken.rest()
        spoken.close()
        assert lines[-2:] == [["exited", "-15"], ["end", "0"]]


def test_signals_that_end_other_programs_do_not_end_the_guard(spoken: Spoken, notes: Notes) -> None:
    spoken.launch(*notes.command())
    engine = spoken.started()
    for name in ("INT", "QUIT", "HUP", "TERM", "USR1", "USR2", "ALRM"):
        os.kill(spoken.process.pid, getattr(signal, "SIG" + name))
    spoken.channel.sendall(b"term\n")
    assert spoken.next() == ["heard"]
    wait_until(lambda: not is_running(engine))


def test_the_guard_can_be_told_by_its_name(spoken: Spoken, notes: Notes) -> None:
    spoken.launch(*notes.command())
    spoken.started()
    assert Path(f"/proc/{spoken.process.pid}/comm").read_text() == "strata-guard\n"


def test_the_guard_has_no_descriptor_that_was_not_meant_for_it(notes: Notes) -> None:
    spoken = Spoken()
    spoken.launch(*notes.command())
    spoken.started()
    mine = {os.stat(f"/proc/self/fd/{fd}").st_ino for fd in (0, 1, 2)}
    theirs = {int(fd) for fd in os.listdir(f"/proc/{spoken.process.pid}/fd")}
    assert theirs <= set(range(6)), "three streams, the wake-up pipe, and the start pipe at most"
    assert mine
    spoken.close()
    assert spoken.process.wait(BOUND_S) == 0


def test_the_whole_account_when_no_process_can_be_made() -> None:
    spoken = on_another_kernel("def fork(): raise OSError(11, '')\nos.fork = fork")
    spoken.launch("/bin/true")
    assert spoken.rest() == [["refused", "fork", "11"], ["end", "0"]]
    spoken.close()


def test_a_closed_standard_stream_does_not_lend_its_number_to_another_file(notes: Notes) -> None:
    spoken = Spoken("/bin/sh", "-c", 'exec "$@" 1>&- 2>&-', "sh", *GUARD)
    spoken.launch(*notes.command())
    spoken.started()
    for number in (1, 2):
        assert os.readlink(f"/proc/{spoken.process.pid}/fd/{number}") == "/dev/null"
    spoken.close()
    assert spoken.process.wait(BOUND_S) == 0


def test_a_kernel_that_does_not_list_children_changes_nothing(notes: Notes) -> None:
    spoken = on_another_kernel(
        "real = open\n"
        "def fake(path, *rest):\n"
        "    if path.endswith('/children'): raise FileNotFoundError(2, '')\n"
        "    return real(path, *rest)\n"
        "builtins.open = fake"
    )
    spoken.launch(*notes.command(on_term="ignore", escaped=1, crowd=5, deep=5))
    spoken.started()
    wait_until(lambda: len(notes.pids("deep")) == 5 and bool(notes.pids("escaped")))
    spoken.channel.sendall(b"kill\n")
    assert spoken.rest()[-1] == ["end", "11"]
    spoken.close()


@pytest.mark.parametrize(
    "name", [b"sh", b"a b", b")", b") R 1 (", b"((()))", b"\n", b"a\xffb", b"", b"(Z) Z 1 1"]
)
def test_a_stat_line_is_read_whatever_the_processs_name(name: bytes) -> None:
    rest = b" S 3 4 5 " + b" ".join(b"%d" % number for number in range(7, 53))
    process = guard.Process(b"12 (" + name + b")" + rest)
    assert (process.pid, process.state, process.ppid, process.pgrp) == (12, b"S", 3, 4)
    assert process.start == 22


def test_a_process_that_does_not_exist_is_none() -> None:
    assert guard.read_process(2**22 + 1) is None


def test_what_is_below_a_process_is_found_through_all_generations(notes: Notes) -> None:
    child = subprocess.Popen(notes.command(deep=4))
    try:
        wait_until(lambda: len(notes.pids("deep")) == 4)
        below = {process.pid for process in guard.processes_below(child.pid)}
        assert below == set(notes.pids("deep"))
    finally:
        for pid in notes.left():
            os.kill(pid, signal.SIGKILL)
        child.wait()
        wait_until(lambda: notes.left() == [])
