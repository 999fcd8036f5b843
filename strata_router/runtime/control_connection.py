"""One control client's bytes: its line in, our lines out, and whether it is still there.

Knows nothing of commands or operations. Only ``runtime.control_socket`` calls this.
"""

import contextlib
import os
import select
import socket

import trio

from strata_router.core.control import LINE_LIMIT_BYTES

OUTBOX_LIMIT_BYTES = 64 * 1024
"""What waits for a client that does not read; lines that may be left out are left out beyond it."""

FLUSH_S = 30.0
"""How long a client may take to read the last lines before the connection is closed."""

LINGER_S = 1.0
"""How long we wait, after the last line, for a client that is still sending: closing on unread
bytes would turn its end of file into a reset."""

STRAY_LIMIT_BYTES = LINE_LIMIT_BYTES
"""What a client may send after its command before we stop reading it."""

HALF_CLOSED_POLL_S = 0.1
"""How often a client that has only closed its sending side is checked for having left: epoll would
report its end of file for ever, so it cannot be waited for."""

_READ_BYTES = 4096

_GONE = (BrokenPipeError, ConnectionResetError)


async def read_line(client: trio.socket.SocketType) -> bytes | None:
    """The client's first line without its newline, or what it sent before it stopped sending.

    At most ``LINE_LIMIT_BYTES`` plus one read come back, so that ``read_command`` can say that the
    line was too long. None when the client sent nothing. It cannot reset the connection: a Unix
    socket does so only when it is closed on unread data, and nothing was sent to it yet.
    """
    received = bytearray()
    while len(received) <= LINE_LIMIT_BYTES:
        chunk = await client.recv(_READ_BYTES)
        if not chunk:
            return bytes(received) or None
        received += chunk
        line, newline, _ = received.partition(b"\n")
        if newline:
            return bytes(line)
    return bytes(received)


async def wait_until_gone(client: trio.socket.SocketType) -> None:
    """Return once the client has closed the connection. What it still sends is thrown away.

    A client that closed only its sending side (``nc -N``) is there until it closes the rest: a Unix
    socket, unlike TCP, shows the difference (POLLHUP).
    """
    try:
        stray_bytes = 0
        while stray_bytes < STRAY_LIMIT_BYTES:
            chunk = await client.recv(_READ_BYTES)
            if not chunk:
                break
            stray_bytes += len(chunk)
    except _GONE:
        return
    while not _has_hung_up(client):  # noqa: ASYNC110 - the kernel has no event for it, see the bound
        await trio.sleep(HALF_CLOSED_POLL_S)


async def say_goodbye(client: trio.socket.SocketType) -> None:
    """End our side and let the client end its own, within a bound; the caller closes."""
    with contextlib.suppress(OSError):  # it left in between: nothing to end
        client.shutdown(socket.SHUT_WR)
        with trio.move_on_after(LINGER_S):
            stray_bytes = 0
            while stray_bytes < STRAY_LIMIT_BYTES and (chunk := await client.recv(_READ_BYTES)):
                stray_bytes += len(chunk)


def _has_hung_up(client: trio.socket.SocketType) -> bool:
    poller = select.poll()
    poller.register(client.fileno(), 0)  # POLLHUP and POLLERR are reported whatever is asked for
    return bool(poller.poll(0))


class Outbox:
    """Lines for one client, sent in order by ``run``; putting one in never waits.

    One task runs ``run``; any code of the same event loop may put lines.
    """

    def __init__(self, client: trio.socket.SocketType) -> None:
        self._client = client
        self._unsent = bytearray()
        self._news = trio.Event()
        self._ended = False

    def put(self, line: bytes) -> None:
        """Add a line that must arrive."""
        self._unsent += line
        self._news.set()

    def put_if_room(self, line: bytes) -> None:
        """Add a line that may be left out for a client that does not read."""
        if len(self._unsent) + len(line) <= OUTBOX_LIMIT_BYTES:
            self.put(line)

    def end(self) -> None:
        """No further line will come."""
        self._ended = True
        self._news.set()

    async def run(self) -> None:
        """Send until ``end`` was called and nothing is left, or the client has left."""
        with contextlib.suppress(*_GONE):
            while self._unsent or not self._ended:
                if self._unsent:
                    sent_bytes = await self._client.send(bytes(self._unsent[:OUTBOX_LIMIT_BYTES]))
                    del self._unsent[:sent_bytes]
                else:
                    self._news = trio.Event()
                    await self._news.wait()

    def send_at_once(self) -> None:
        """Hand the kernel what it takes without waiting, when there is no time left to wait in."""
        with contextlib.suppress(OSError):  # its buffer is full, or the client has left
            while self._unsent:
                sent_bytes = os.write(self._client.fileno(), self._unsent)
                del self._unsent[:sent_bytes]
