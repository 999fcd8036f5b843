"""A service manager's part without a service manager: holds the listener, passes it on, hears the daemon.

The listener outlives every daemon process, as systemd's does; each process gets a copy as descriptor 3,
inheritable and blocking, and a NOTIFY_SOCKET.
"""

import socket
import struct
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from tests.system.harness import START_S, DaemonUnderTest, daemon

BACKLOG = 1024

PASS_ON = """
import os, sys
fd = int(sys.argv[1])
if fd != 3:
    os.dup2(fd, 3)
    os.close(fd)
os.set_inheritable(3, True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1", LISTEN_FDNAMES="http")
os.execv(sys.argv[2], sys.argv[2:])
"""
"""LISTEN_PID must be the daemon's own number, which a process only knows of itself."""


def backlog_of(listener: socket.socket) -> int:
    """The accept queue's limit: tcpi_sacked of a listening socket."""
    return int(
        struct.unpack_from("8B7I", listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104))[
            13
        ]
    )


def waiting_in(listener: socket.socket) -> int:
    """Connections that nobody has accepted yet: tcpi_unacked of a listening socket."""
    return int(
        struct.unpack_from("8B7I", listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104))[
            12
        ]
    )


@dataclass
class RetainedListener:
    """listener: ours, never closed while a daemon is exchanged. heard: what the daemons have said."""

    listener: socket.socket
    notifications: socket.socket
    daemon: DaemonUnderTest
    heard: list[str] = field(default_factory=list)

    def launch(self) -> None:
        """Start a daemon process with a copy of the listener; does not wait."""
        fd = self.listener.fileno()
        self.daemon.launch(sys.executable, "-I", "-S", "-c", PASS_ON, str(fd), pass_fds=(fd,))

    async def start(self) -> None:
        """Start one and wait until it says that it is ready."""
        self.listen()
        self.heard.clear()
        self.launch()
        await self.hear("READY=1", START_S)

    async def replace(self, within_s: float = 30.0) -> int:
        """End the running one and start the next, as ``systemctl restart`` does; the old exit status."""
        status = await self.daemon.stop(within_s)
        await self.start()
        return status

    def listen(self) -> None:
        with suppress(BlockingIOError):
            while True:
                self.heard += self.notifications.recv(4096).decode().split("\n")

    async def hear(self, line: str, within_s: float = 5.0) -> None:
        """Wait until the daemon has said so."""
        process = self.daemon.process
        assert process is not None
        with trio.move_on_after(within_s):
            while line not in self.heard:
                assert process.poll() is None, self.daemon.log
                await trio.sleep(0.005)
                self.listen()
        assert line in self.heard, self.heard


@asynccontextmanager
async def retained_listener(
    directory: Path,
    models: Mapping[str, Mapping[str, Any]],
    config: Mapping[str, Any] | None = None,
    *,
    start: bool = True,
) -> AsyncIterator[RetainedListener]:
    """A listener and, with ``start``, a ready daemon on it."""
    with (
        socket.socket() as listener,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as notifications,
    ):
        listener.bind(("127.0.0.1", 0))
        listener.listen(BACKLOG)
        notifications.bind(str(directory / "notify"))
        keys = {
            "listen": f"127.0.0.1:{listener.getsockname()[1]}",
            "require_socket_activation": True,
            **(config or {}),
        }
        async with daemon(directory, models, keys, start=False) as under_test:
            under_test.environment["NOTIFY_SOCKET"] = str(directory / "notify")
            it = RetainedListener(listener, notifications, under_test)
            if start:
                await it.start()
            yield it
