"""What is left of an engine whose guard was killed, and how to end it.

While its guard lives, nothing escapes it (``runtime.guard``). If the guard is killed from outside, the
kernel kills the engine itself, and the processes below it come to the next subreaper: this daemon, once
``become_subreaper`` was called. Called by ``runtime.engine_process``, which repeats kill and reap until
nothing is left.
"""

import ctypes
import os
import signal
from contextlib import suppress
from dataclasses import dataclass

from strata_router.runtime.procfs import Process, ProcessTable, descendants_in, read_process

PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class Identity:
    """One process for ever: a pid alone may come to mean another one."""

    pid: int
    start_ticks: int


def become_subreaper() -> None:
    """Make this process the one that orphans below it come to; the daemon calls this first thing.

    Without it only the engine's own group and session can be found after its guard was killed.
    Raises OSError when the kernel refuses, which no kernel since 3.4 does.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    none = ctypes.c_ulong(0)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1), none, none, none) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def left_behind(
    table: ProcessTable, *, daemon: int, leader: Identity | None, since_ticks: int
) -> dict[int, Process]:
    """Everything in the table that the engine of a dead guard left, zombies included.

    leader: None when the guard died before it named the engine.
    since_ticks: start of the guard; nothing of the engine is older.

    Two ways to know them, both by what the kernel guarantees: a session is only ever left for a new
    one, never joined. So (1) who is in the session of the engine is its descendant, unless the engine's
    number has come to mean another process; and (2) a child of ours that is not in our session and came
    after the guard is an engine's orphan, because the daemon starts nothing in a session of its own
    (guards stay in ours, see ``GuardLink.start``).
    """
    own_session = table[daemon].session
    roots = {
        process.pid: process
        for process in table.values()
        if process.ppid == daemon
        and process.session != own_session
        and process.start_ticks >= since_ticks
    }
    if leader is not None and _may_lead(table.get(leader.pid), leader):
        roots |= {p.pid: p for p in table.values() if leader.pid in (p.pid, p.session)}
    return roots | descendants_in(table, roots)


def _may_lead(now: Process | None, leader: Identity) -> bool:
    """While a session exists, its number is given to nobody else, so an absent leader is no doubt."""
    return now is None or now.start_ticks == leader.start_ticks


def kill(process: Process) -> None:
    """SIGKILL to exactly this process; nothing happens when it is gone or not ours to kill."""
    with suppress(OSError):
        pidfd = os.pidfd_open(process.pid)
        try:
            now = read_process(process.pid)
            if now is not None and now.start_ticks == process.start_ticks:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        finally:
            os.close(pidfd)


def reap(process: Process) -> int | None:
    """Collect the process if it is an ended child of ours: exit code, or minus the signal; else None."""
    try:
        pid, status = os.waitpid(process.pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return os.waitstatus_to_exitcode(status) if pid else None
