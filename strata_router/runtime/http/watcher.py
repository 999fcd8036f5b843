"""Notices clients that leave while their exchange is not reading from them.

One epoll instance for all exchanges, itself watched through trio: no task, no wake-up and no read per
exchange. EPOLLRDHUP reports a FIN although unread (pipelined) bytes lie in front of it, which a read
would have to remove first (facts/http-stack.md, B3); a reset is reported as well. A half-close
cannot be told from a close and counts as one (contract 6.5).
"""

import select
import socket
from collections.abc import Callable

import trio


class DisconnectWatcher:
    """Calls back, once, when a watched client's side of the connection is closed.

    Callbacks run in the watcher's task, or in the one that calls ``look``; they must not block and must
    not raise.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[], None]] = {}

    def watch(self, sock: socket.socket, gone: Callable[[], None]) -> None:
        """Start watching; a socket that is already closed by its peer is reported soon after."""
        self._callbacks[sock.fileno()] = gone
        self._epoll.register(sock.fileno(), select.EPOLLRDHUP | select.EPOLLONESHOT)

    def forget(self, sock: socket.socket) -> None:
        """Stop watching, before the socket is closed or read by somebody else. Idempotent.

        Also after ``run`` has ended: at the daemon's end exchanges may outlive it by a moment.
        """
        watched = self._callbacks.pop(sock.fileno(), None) is not None
        if watched and not self._epoll.closed:
            self._epoll.unregister(sock.fileno())

    def look(self) -> None:
        """Report who has left by now, without a turn of the loop; after ``run`` has ended, nobody."""
        if self._epoll.closed:
            return
        for fd, _ in self._epoll.poll(0):
            callback = self._callbacks.get(fd)
            if callback is not None:
                callback()

    async def run(self) -> None:
        """Report departures until cancelled; one task per daemon runs this."""
        try:
            while True:
                await trio.lowlevel.wait_readable(self._epoll.fileno())
                self.look()
        finally:
            self._epoll.close()

    @property
    def watched(self) -> int:
        """How many sockets are watched now."""
        return len(self._callbacks)
