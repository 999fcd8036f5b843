"""Runs the daemon as its program does, and shows what /proc cannot: its tasks.

``python -m tests.system.watched_daemon daemon CONFIG ...``; the harness starts every daemon so. The daemon
knows nothing of it: trio tells an Instrument. At SIGUSR1 the names of the tasks go into the file that
STRATA_TEST_FIGURES names, with ``.tasks`` behind it.

With STRATA_TEST_HEARTBEAT set there is one task more, which measures how long the event loop is not to be
had, and writes that into the file itself, for ``read_longest_step_s``. It counts CPU time of the whole
process (a thread that holds the interpreter is in the way, too): another process on the same core must not
look like a busy daemon.
"""

import mmap
import os
import signal
import struct
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType
from typing import Any

import trio
from trio._core import _thread_cache

from strata_router.cli.main import main

FIGURES = "STRATA_TEST_FIGURES"
HEARTBEAT = "STRATA_TEST_HEARTBEAT"
BEAT_S = 0.005

THREAD_IDLE_S = 1
"""trio keeps a worker thread for ten seconds without work. Here the number of threads shall say how many
are at work, and whatever wrongly hangs on the thread that did it (reports.md B25) shall show at once."""

_STEP_NS = struct.Struct("<Q")


def read_longest_step_s(path: Path) -> float:
    """CPU seconds of the longest time between two beats of the daemon started with this path."""
    (step_ns,) = _STEP_NS.unpack(path.read_bytes())
    return float(step_ns / 1e9)


class Watch(trio.abc.Instrument):
    """Knows the tasks of one run."""

    def __init__(self, path: Path) -> None:
        self._names = path.with_suffix(".tasks")
        self._alive: set[trio.lowlevel.Task] = set()
        path.write_bytes(bytes(_STEP_NS.size))
        with path.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), _STEP_NS.size)

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        self._alive.add(task)

    def task_exited(self, task: trio.lowlevel.Task) -> None:
        self._alive.discard(task)

    def name_tasks(self, _number: int, _frame: FrameType | None) -> None:
        """For SIGUSR1: a line per task, trio's own and ours left out; the file is there when whole."""
        others = ("<", f"{__name__}.")
        names = sorted(task.name for task in self._alive if not task.name.startswith(others))
        new = self._names.with_suffix(".new")
        new.write_text("".join(f"{name}\n" for name in names))
        new.rename(self._names)

    async def beat(self) -> None:
        """Measure the CPU time from one turn of the loop to the next, its own sleep included."""
        longest_ns, before_ns = 0, time.process_time_ns()
        while True:
            await trio.sleep(BEAT_S)
            now_ns = time.process_time_ns()
            longest_ns = max(longest_ns, now_ns - before_ns)
            before_ns = now_ns
            _STEP_NS.pack_into(self._shared, 0, longest_ns)


def run_watched(watch: Watch, run: Callable[..., Any]) -> Callable[..., Any]:
    """``trio.run`` with the watch; the heartbeat, where wanted, begins and ends with the program."""

    async def beating(program: Callable[..., Awaitable[Any]], *arguments: object) -> Any:
        trio.lowlevel.spawn_system_task(watch.beat)
        return await program(*arguments)

    def run_(program: Callable[..., Awaitable[Any]], *arguments: object) -> Any:
        if HEARTBEAT in os.environ:
            return run(beating, program, *arguments, instruments=[watch])
        return run(program, *arguments, instruments=[watch])

    return run_


if __name__ == "__main__":
    watch = Watch(Path(os.environ[FIGURES]))
    signal.signal(signal.SIGUSR1, watch.name_tasks)
    _thread_cache.IDLE_TIMEOUT = THREAD_IDLE_S
    trio.run = run_watched(watch, trio.run)  # type: ignore[assignment]  # its signature has type variables
    sys.exit(main(sys.argv[1:]))
