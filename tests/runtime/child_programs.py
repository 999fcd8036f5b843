"""How the process tests look at the stand-in engines of ``tests/fakes/child_*.py``.

Whether anything of an engine is left is asked of /proc by the notes file in the command line, which every
process of a stand-in carries; not of the modules under test.
"""

import os
import resource
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import trio

FAKES = Path(__file__).parent.parent / "fakes"
ENGINE = FAKES / "child_engine.py"
DAEMON = FAKES / "child_daemon.py"


BOUND_S = 10.0
"""No test waits for another process longer than this."""


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait for a condition, in a test without trio."""
    end = time.monotonic() + BOUND_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.001)


async def until(holds: Callable[[], bool], within_s: float = BOUND_S) -> float:
    """Wait for a condition outside of trio; returns the seconds that took."""
    began = trio.current_time()
    with trio.fail_after(within_s):
        while not holds():
            await trio.sleep(0.001)
    return trio.current_time() - began


def state_of(pid: int) -> str | None:
    """The letter of /proc/PID/stat, or None."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None


def is_running(pid: int) -> bool:
    return state_of(pid) not in (None, "Z", "X")


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def children_of(pid: int) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and state_of(int(entry)) is not None:
            try:
                if parent_of(int(entry)) == pid:
                    found.append(int(entry))
            except OSError:
                continue
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    assert isinstance(port, int)
    return port


@contextmanager
def no_descriptor_left() -> Iterator[list[int]]:
    """Yields a hoard of descriptors; each one closed and taken from it lets the process open one file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    hoard: list[int] = []
    try:
        with suppress(OSError):
            while True:
                hoard.append(os.open(os.devnull, os.O_RDONLY))
        yield hoard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for descriptor in hoard:
            os.close(descriptor)


class Notes:
    """The notes file of one stand-in, and the processes that carry its name."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "notes"

    def command(self, **settings: object) -> tuple[str, ...]:
        return self._command(ENGINE, settings, "-I", "-S")

    def daemon_command(self, **settings: object) -> tuple[str, ...]:
        return self._command(DAEMON, settings)

    def _command(
        self, program: Path, settings: dict[str, object], *options: str
    ) -> tuple[str, ...]:
        pairs = [f"{key}={value}" for key, value in settings.items()]
        return (sys.executable, *options, str(program), str(self.path), *pairs)

    def pids(self, role: str) -> list[int]:
        """Who has noted this role, in order; empty before the first."""
        try:
            lines = self.path.read_text().splitlines()
        except FileNotFoundError:
            return []
        return [int(line.split()[1]) for line in lines if line.split()[0] == role]

    async def wait_for(self, role: str, count: int = 1) -> int:
        """Wait until as many have noted the role; returns the pid of the last one."""
        await until(lambda: len(self.pids(role)) >= count)
        return self.pids(role)[-1]

    def left(self) -> list[int]:
        """Every process with the notes file in its command line; a zombie has none."""
        found = []
        for entry in os.listdir("/proc"):
            try:
                if (
                    entry.isdigit()
                    and os.fsencode(self.path) in Path(f"/proc/{entry}/cmdline").read_bytes()
                ):
                    found.append(int(entry))
            except OSError:
                continue
        return found
