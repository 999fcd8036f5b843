"""Processes of the bench: compiled, started on their core, looked at through /proc, and ended.

Two cores: the router under test has ROUTER_CPU, the upstream double and the load client LOAD_CPU. On
a machine with one core both are that one, and the report says so.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_CPUS = sorted(os.sched_getaffinity(0))
ROUTER_CPU = _CPUS[0]
LOAD_CPU = _CPUS[-1]

NATIVE = Path(__file__).parent / "native"

STOP_S = 10.0


class Missing(Exception):
    """Something that is not on this machine; the text says what and how it would get here."""


@dataclass(frozen=True, slots=True)
class Programs:
    """The bench's own two programs, compiled."""

    double: Path
    load: Path


def compile_programs(directory: Path) -> Programs:
    """Compile both into ``directory``. Raises Missing without a C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise Missing("no C compiler (cc or gcc): the load client and the upstream double are C")
    for name in ("double", "load"):
        command = [compiler, "-O2", "-Wall", "-Wextra", "-o", str(directory / name)]
        subprocess.run([*command, str(NATIVE / f"{name}.c")], check=True)
    return Programs(directory / "double", directory / "load")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def start(
    argv: Sequence[str | Path],
    cpu: int,
    log: Path,
    *,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a process that never runs on another core than ``cpu``, in a group of its own."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})  # inherited, also by threads that it starts at once
    try:
        with log.open("ab") as out:
            return subprocess.Popen(
                [str(word) for word in argv],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=cwd,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )
    finally:
        os.sched_setaffinity(0, before)


def stop(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, and SIGKILL to its whole group when that is not enough."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGCONT)
        process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def descendants(pid: int) -> list[int]:
    """The process and everything below it, as it is now."""
    found = [pid]
    for each in found:
        for task in _listed(f"/proc/{each}/task"):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{each}/task/{task}/children").read_text().split()
                found.extend(int(word) for word in words)
    return found


def _listed(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def cpu_s(pids: Iterable[int]) -> float:
    """Processor seconds of all threads so far, to the nanosecond (the usual figure ticks at 10 ms)."""
    total_ns = 0
    for pid in pids:
        for task in _listed(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                text = Path(f"/proc/{pid}/task/{task}/schedstat").read_text()
                total_ns += int(text.split()[0])
    return total_ns / 1e9


def pss_mb(pids: Iterable[int]) -> float:
    """Proportional set size: memory in RAM, pages shared with others counted by their share."""
    total_kb = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total_kb += int(line.split()[1])
    return total_kb / 1024


def wait_until(holds: Callable[[], bool], within_s: float, what: str) -> None:
    """Poll a condition. Raises Missing when it does not come to hold in time."""
    give_up = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > give_up:
            raise Missing(f"{what} not within {within_s:.0f} s")
        time.sleep(0.05)
