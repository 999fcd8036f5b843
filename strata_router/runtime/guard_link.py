"""The daemon's end of one guard: starts it, carries lines to and from it, sees it end.

Knows the process and the channel, not what the lines mean: that is ``runtime.engine_process``, the only
caller, and ``runtime.guard``, whose docstring defines them.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import trio

from strata_router.runtime.procfs import read_process

GUARD = Path(__file__).with_name("guard.py")


class GuardLink:
    """One guard process and the socket to it; every method but ``close`` is for its one overseer task,
    except ``order``, ``hang_up`` and ``kill``, which any task may call at any time."""

    def __init__(
        self, guard: subprocess.Popen[bytes], channel: socket.socket, pidfd: int, start_ticks: int
    ) -> None:
        self._guard = guard
        self._channel = channel
        self._pidfd = pidfd
        self.guard_start_ticks = start_ticks
        self._unread = b""

    @classmethod
    def start(cls) -> "GuardLink":
        """Start a guard that waits for ``send``. Blocks for about a millisecond; raises OSError.

        No thread may do this for us: nothing here depends on the thread today, but trio's would end
        after 10 s idle and take with it whatever is tied to it (reports.md B25).
        """
        ours, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as undo:
            undo.callback(ours.close)
            ours.setblocking(False)
            guard = subprocess.Popen(
                # -I -S: nothing from the environment, the current folder or site-packages; and fast.
                [sys.executable, "-I", "-S", os.fspath(GUARD)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                # A group of its own keeps Ctrl-C from it. It stays in our session on purpose: that is
                # how ``runtime.orphans`` tells our own children from those of a dead guard's engine.
                process_group=0,
            )
            undo.callback(guard.wait)
            undo.callback(guard.kill)
            as_process = read_process(guard.pid)
            assert as_process is not None  # if only as a zombie: nobody else reaps it
            pidfd = os.pidfd_open(guard.pid)
            undo.pop_all()
        return cls(guard, ours, pidfd, as_process.start_ticks)

    @property
    def guard_pid(self) -> int:
        return self._guard.pid

    async def send(self, content: bytes) -> None:
        """Send all of it, however much the kernel takes at a time; returns early if the guard is dead."""
        rest = memoryview(content)
        while rest:
            try:
                rest = rest[self._channel.send(rest) :]
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self._channel)
            except ConnectionError:
                return

    def order(self, line: str) -> None:
        """Send one command, without waiting: the guard answers each with ``heard``.

        What a dead guard, or one that has not read for thousands of commands, does not take is dropped;
        the overseer notices either by the missing answer.
        """
        with contextlib.suppress(OSError):
            self._channel.send(line.encode() + b"\n")

    async def next_line(self) -> bytes | None:
        """The guard's next report, or None once it is dead and all its reports have been read."""
        while b"\n" not in self._unread:
            await trio.lowlevel.wait_readable(self._channel)
            try:
                piece = self._channel.recv(4096)
            except BlockingIOError:
                continue
            except ConnectionError:
                piece = b""
            if not piece:
                return None
            self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def hang_up(self) -> None:
        """Close our side, by which the guard kills everything; its reports can still be read."""
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_WR)

    def kill(self) -> None:
        """SIGKILL to the guard itself, and so, by the kernel, to the engine; idempotent."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    async def wait_dead(self) -> None:
        """Return when the guard has ended and is reaped."""
        await trio.lowlevel.wait_readable(self._pidfd)
        self._guard.wait()

    def close(self) -> None:
        """Give the descriptors back; a guard that still runs sees its daemon gone by this."""
        self._channel.close()
        os.close(self._pidfd)
