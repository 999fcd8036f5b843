"""Accepts connections on one listener and runs each to its end; drains when told to.

Every connection is one task. What a request means is the handler's business.
Source: contract 1, 5, 11; reports.md B16, B26.
"""

import errno
import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress

import trio

from strata_router.core.http.request_head import HeadFault, RequestHead
from strata_router.core.http.response_head import Headers
from strata_router.core.refusal import Refusal
from strata_router.runtime.http import sockets
from strata_router.runtime.http.connection import BodyFault, ClientConnection, Limits
from strata_router.runtime.http.sockets import PeerGone

log = logging.getLogger(__name__)

IDLE_S = 130.0
"""Between requests. CLIProxyAPI's pool keeps connections for 90 s and does not repeat a POST on a dying
one, so the server must be the more patient side (contract 5)."""

DRAIN_IDLE_S = 1.0
"""How long an idle connection may still bring a request while draining (contract 11)."""

ACCEPT_PAUSE_S = 0.1
"""After running out of descriptors or memory; trying at once would be a busy loop."""

_NO_ROOM = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))

Handler = Callable[[ClientConnection, RequestHead], Awaitable[None]]


class Server:
    """One listener, any number of connections up to max_connections; beyond that accepting pauses."""

    def __init__(
        self, listener: socket.socket, handler: Handler, limits: Limits, max_connections: int
    ) -> None:
        self._listener = listener
        self._handler = handler
        self._limits = limits
        self._slots = trio.Semaphore(max_connections)
        self._connections: set[ClientConnection] = set()
        self._accepting = trio.CancelScope()
        self._nursery: trio.Nursery | None = None
        self._lacks_room = False  # said in the log
        self.draining = False

    @property
    def connections(self) -> int:
        return len(self._connections)

    async def run(self) -> None:
        """Accept and serve; returns when draining and the last connection is over."""
        async with trio.open_nursery() as self._nursery:
            with self._accepting:
                await self._accept_forever()

    def cancel(self) -> None:
        """End every connection at once; ``run`` then returns."""
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()

    async def _accept_forever(self) -> None:
        while True:
            await self._slots.acquire()
            sock = None
            try:
                sock = await self._accept()
            finally:
                if sock is None:
                    self._slots.release()
            self._start(sock, self._limits)

    async def _accept(self) -> socket.socket:
        while True:
            try:
                sock = self._listener.accept()[0]
            except BlockingIOError:
                self._found_room()
                await trio.lowlevel.wait_readable(self._listener)
            except OSError as exc:
                if exc.errno in _NO_ROOM:
                    if not self._lacks_room:
                        self._lacks_room = True
                        log.warning("cannot accept connections: %s", errno.errorcode[exc.errno])
                    await trio.sleep(ACCEPT_PAUSE_S)
                else:
                    # The connection died between its arrival and our accept, and nothing is lost; or
                    # the listener was closed before we came to see that we are cancelled.
                    await trio.lowlevel.checkpoint()
            else:
                self._found_room()
                return sock

    def _found_room(self) -> None:
        if self._lacks_room:
            self._lacks_room = False
            log.info("connections are accepted again")

    def _start(self, sock: socket.socket, limits: Limits) -> None:
        assert self._nursery is not None
        connection = ClientConnection(sockets.adopt(sock), limits)
        connection.must_close = self.draining
        self._connections.add(connection)
        self._nursery.start_soon(self.serve, connection)

    def stop_accepting(self, *, take_waiting: bool) -> None:
        """First act of a drain: close the listener; idle connections get DRAIN_IDLE_S.

        take_waiting: this process owns the listener alone, so connections in its backlog would be
        reset; they are taken in and served. An adopted listener's backlog belongs to the successor.
        """
        self.draining = True
        self._accepting.cancel()
        while take_waiting:
            try:
                sock = self._listener.accept()[0]
            except OSError:
                break
            self._start(sock, self._limits)
        sockets.close(self._listener)
        for connection in self._connections:
            connection.must_close = True
            connection.limit_idle(DRAIN_IDLE_S)

    async def serve(self, connection: ClientConnection) -> None:
        """One connection to its end; closes it."""
        try:
            with suppress(PeerGone):
                await self._serve_requests(connection)
        finally:
            connection.close()
            self._connections.discard(connection)
            self._slots.release()

    async def _serve_requests(self, connection: ClientConnection) -> None:
        while True:
            try:
                head = await connection.next_head()
                if head is None:
                    return
                await self._handler(connection, head)
            except (HeadFault, BodyFault) as fault:
                if not connection.response_started:
                    connection.must_close = True
                    await refuse(connection, fault.refusal)
            if not connection.response_ended:
                return
            # must_close alone is not enough: a client that was not told may be sending its next request.
            if connection.said_close:
                await connection.linger()
                return


async def refuse(
    connection: ClientConnection, refusal: Refusal, extra: Headers | None = None
) -> None:
    """Answer with the refusal's JSON. Raises PeerGone."""
    headers: Headers = [(b"content-type", b"application/json"), *(extra or [])]
    await connection.respond(refusal.row.status, headers, refusal.json_body())
