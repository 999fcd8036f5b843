"""Writes the event file and holds the life lock that proves "never two engines at once".

Every stamp is one JSON object on one line, appended by one write, so that several processes may
share the file. Times are CLOCK_MONOTONIC seconds, comparable between processes of one machine.

The life lock is an open-file-description lock on ``EVENT_FILE.lock``. The server takes it first
thing, and hands the descriptor to every process it starts: the lock is free only when the whole
engine, however its parts were killed, is gone. A server that finds it held stamps ``overlap`` and
waits for it in a thread, so that the engine after it is judged too. Strata has none of this.
"""

import contextlib
import fcntl
import json
import os
import struct
import sys
import threading
import time
from typing import Any

_FLOCK = "hhqqi4x"
"""C's struct flock on Linux: type, whence, start, length, pid, padding."""

FIRST_KEPT_FD = 3
"""The inherited descriptors stay out of the way of 0, 1 and 2, which a child gets anew."""


class Stamps:
    """The event file of one process; with ``path`` None nothing is written and nothing is locked."""

    def __init__(self, path: str | None, model: str) -> None:
        self.model = model
        self.path = path
        self.event_fd = -1
        self.lock_fd = -1
        self.is_alone = True
        if path is not None:
            descriptors = _descriptors()
            flags = os.O_APPEND | os.O_CREAT | os.O_WRONLY
            self.event_fd = _kept(os.open(path, flags, 0o600))
            self.lock_fd = _kept(os.open(path + ".lock", os.O_RDWR | os.O_CREAT, 0o600))
            self.is_alone = self._take_lock()
            self._start(descriptors)

    def stamp(self, event: str, **facts: Any) -> None:
        """Append one line. Never raises: an event file that went away is the test's affair."""
        if self.event_fd < 0:
            return
        record = {"event": event, "at": time.monotonic(), "pid": os.getpid(), "model": self.model}
        line = json.dumps({**record, **facts}).encode() + b"\n"
        with contextlib.suppress(OSError):
            os.write(self.event_fd, line)

    def _start(self, descriptors: dict[str, str]) -> None:
        """Stamp ``start`` with all that the starter handed over, and ``overlap`` when not alone."""
        self.stamp(
            "start",
            alone=self.is_alone,
            spawned_at=_spawned_at(),
            argv=sys.orig_argv,
            cwd=os.getcwd(),
            ppid=os.getppid(),
            pgid=os.getpgid(0),
            sid=os.getsid(0),
            environment=sorted(os.environ),
            descriptors=descriptors,
        )
        if not self.is_alone:
            self.stamp("overlap", holder=_lock_holder(self.lock_fd))
            threading.Thread(target=self._wait_for_lock, daemon=True).start()

    def _take_lock(self) -> bool:
        try:
            fcntl.fcntl(self.lock_fd, fcntl.F_OFD_SETLK, _request(fcntl.F_WRLCK))
        except (BlockingIOError, PermissionError):
            return False
        _write_holder(self.lock_fd)
        return True

    def _wait_for_lock(self) -> None:
        fcntl.fcntl(self.lock_fd, fcntl.F_OFD_SETLKW, _request(fcntl.F_WRLCK))
        _write_holder(self.lock_fd)


def stamps_for(arguments: list[str]) -> Stamps:
    """The stamps of the profile that a command line names; silent ones if it cannot be read.

    What is wrong with the profile is said later, by the code that reads all of it.
    """
    try:
        with open(arguments[arguments.index("--config") + 1], encoding="utf-8-sig") as file:
            profile = json.load(file)
        path = profile.get("simulated", {}).get("event_file")
        return Stamps(path, str(profile.get("model_name", "strata")))
    except (ValueError, IndexError, AttributeError, OSError):
        return Stamps(None, "strata")


def _request(kind: int) -> bytes:
    return struct.pack(_FLOCK, kind, os.SEEK_SET, 0, 0, 0)


def _write_holder(fd: int) -> None:
    os.pwrite(fd, b"%-20d" % os.getpid(), 0)


def _lock_holder(fd: int) -> int:
    return int(os.pread(fd, 20, 0) or 0)


def _kept(fd: int) -> int:
    """A copy of ``fd`` that every child inherits: F_DUPFD leaves close-on-exec off."""
    kept = fcntl.fcntl(fd, fcntl.F_DUPFD, FIRST_KEPT_FD)
    os.close(fd)
    return kept


def _descriptors() -> dict[str, str]:
    """What the starter left open, by number; to be called before anything of ours is opened."""
    found: dict[str, str] = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # The listing's own descriptor is closed again.
            found[name] = os.readlink(f"/proc/self/fd/{name}")
    return found


def _spawned_at() -> float:
    """When this process was made, on the monotonic clock, to the kernel's 10 ms."""
    with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    since_boot_s = ticks / os.sysconf("SC_CLK_TCK")
    return since_boot_s - (time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic())
