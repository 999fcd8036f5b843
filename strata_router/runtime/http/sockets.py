"""Plain non-blocking sockets under trio: the socket is tried first, trio waits only when it must.

A trio SocketStream call costs about ten times the system call it makes (facts: 30 us against 2), and
the exchange makes two calls per token. The price is that a call that succeeds at once is no
checkpoint; whoever loops over these calls must yield now and then (see ``READS_PER_YIELD``).
"""

import contextlib
import socket

import trio

READ_BYTES = 65536
"""One read: under load many events share it, and with it one wake-up and one write."""

READS_PER_YIELD = 8
"""A loop that never had to wait lets other tasks run after this many reads (half a MiB)."""


class PeerGone(Exception):
    """The other side closed, reset, or takes no bytes any more."""


class PeerStalled(PeerGone):
    """The other side took no byte for the time allowed."""


def adopt(sock: socket.socket) -> socket.socket:
    """Make a connected socket ours: non-blocking, and no waiting for Nagle."""
    sock.setblocking(False)
    with contextlib.suppress(OSError):  # already disconnected: the first read will say so
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


async def receive(
    sock: socket.socket, limit_bytes: int = READ_BYTES, *, wait_first: bool = False
) -> bytes:
    """Next bytes, or b"" at the peer's EOF. Raises PeerGone on a reset.

    wait_first: the caller has just emptied the socket, so trying before waiting would be in vain; or
        it owes the others a turn.
    """
    if wait_first:
        await trio.lowlevel.wait_readable(sock)
    while True:
        try:
            return sock.recv(limit_bytes)
        except BlockingIOError:
            await trio.lowlevel.wait_readable(sock)
        except OSError as exc:
            raise PeerGone(str(exc.errno)) from exc


def receive_now(sock: socket.socket, limit_bytes: int = READ_BYTES) -> bytes | None:
    """Bytes that are already here, b"" at EOF, None when there is nothing. Raises PeerGone."""
    try:
        return sock.recv(limit_bytes)
    except BlockingIOError:
        return None
    except OSError as exc:
        raise PeerGone(str(exc.errno)) from exc


def send_now(sock: socket.socket, data: bytes | memoryview) -> int:
    """How many bytes the kernel took at once, possibly 0. Raises PeerGone."""
    try:
        return sock.send(data)
    except BlockingIOError:
        return 0
    except OSError as exc:
        raise PeerGone(str(exc.errno)) from exc


async def send_rest(sock: socket.socket, data: memoryview, stall_s: float) -> None:
    """Send all of data, waiting as often as needed.

    stall_s: longest time without the peer taking a byte (math.inf = for ever); then PeerStalled.
    """
    while data:
        with trio.move_on_after(stall_s) as scope:
            await trio.lowlevel.wait_writable(sock)
        if scope.cancelled_caught:
            raise PeerStalled
        data = data[send_now(sock, data) :]


def close(sock: socket.socket) -> None:
    """Close, waking any task that still waits on this socket (it then sees ClosedResourceError)."""
    if sock.fileno() >= 0:
        trio.lowlevel.notify_closing(sock)
        sock.close()
