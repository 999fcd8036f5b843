"""The engine's side of one exchange: one connection, one request, its response as it comes.

Owned by the exchange's scope and closed with it; no pool (httpcore's leaks slots under cancellation,
reports.md B24, and a connection to the previous engine must never see a request, B07). Nothing is ever
sent after the body and the write side is never half-closed: Strata takes either for a hang-up or goes
blind to one (facts/strata-server.md section 5).
"""

import errno
import math
import socket
import struct
from collections.abc import Callable, Sequence

import trio

from strata_router.core.http.framing import BodyReader, FramingFault
from strata_router.core.http.response_head import (
    UPSTREAM_HEAD_LIMIT_BYTES,
    ResponseFault,
    UpstreamHead,
    parse_upstream_head,
)
from strata_router.runtime.http import sockets
from strata_router.runtime.http.sockets import PeerGone

HOST = "127.0.0.1"

CONNECT_RETRY_S = 1.0
CONNECT_RETRY_PAUSE_S = 0.02
"""An engine that just became ready may refuse for an instant (contract 6.2)."""


CLOSE_BY_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: on, zero seconds. The engine ends its answers by closing first, which would leave its port in
TIME_WAIT for a minute; an engine that binds without SO_REUSEADDR could not follow on it (reports.md B07).
Our reset takes that state away. Nothing is lost by it: we close when we have read all or want no more."""


class UpstreamBroken(Exception):
    """The engine refused, reset, died, or its reply cannot be understood. The text is ours."""


class EngineGone(UpstreamBroken):
    """Nobody listens, and the engine is known to be no more. Nothing was sent."""


LARGE_PART_BYTES = 64 * 1024
"""A part of this size is sent from where it is; copying 50 MB would hold the event loop for 0.1 s."""


def request_pieces(
    path: str, port: int, accept: bytes | None, body: Sequence[bytes | memoryview]
) -> list[bytes | memoryview]:
    """The request, head and body, for as few writes as can be: one, but for large parts of the body."""
    lines = [
        b"POST %b HTTP/1.1" % path.encode("ascii"),
        b"Host: %b:%d" % (HOST.encode("ascii"), port),
        b"Content-Type: application/json",
        b"Content-Length: %d" % sum(map(len, body)),
    ]
    if accept is not None:
        lines.append(b"Accept: %b" % accept)
    pieces: list[bytes | memoryview] = []
    small: list[bytes | memoryview] = [b"\r\n".join((*lines, b"", b""))]
    for part in body:
        if len(part) < LARGE_PART_BYTES:
            small.append(part)
        else:
            pieces += (b"".join(small), part)
            small = []
    pieces.append(b"".join(small))
    return pieces


class UpstreamExchange:
    """One request to the engine. Made by ``connect``; ``close`` is synchronous and idempotent."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._body: BodyReader | None = None
        self._early = b""  # body bytes that came with the head
        self.emptied = False  # the last read took all that the socket had

    @classmethod
    async def connect(cls, port: int, is_there: Callable[[], bool]) -> "UpstreamExchange":
        """Dial the engine, again within CONNECT_RETRY_S if it refuses.

        is_there: whether the engine is still thought to run. Raises EngineGone, UpstreamBroken.
        """
        give_up_at = trio.current_time() + CONNECT_RETRY_S
        while True:
            try:
                return cls(await _connected(port))
            except ConnectionRefusedError as exc:
                if not is_there():
                    raise EngineGone("the engine has ended") from exc
                if trio.current_time() >= give_up_at:
                    raise UpstreamBroken("the engine does not accept connections") from exc
            except OSError as exc:  # no descriptor is left for us, say
                raise UpstreamBroken("the engine cannot be reached") from exc
            await trio.sleep(CONNECT_RETRY_PAUSE_S)

    async def send(self, request: Sequence[bytes | memoryview]) -> None:
        """Send the pieces of a request. Raises UpstreamBroken when the engine does not take it."""
        try:
            for piece in request:
                sent = sockets.send_now(self.sock, piece)
                if sent < len(piece):
                    # No stall limit of its own: a busy engine may read late; response_ms bounds the whole.
                    await sockets.send_rest(self.sock, memoryview(piece)[sent:], math.inf)
        except PeerGone as exc:
            # It may have answered and closed before reading all (413): the answer is still there.
            if not await self._has_answer():
                raise UpstreamBroken("the engine closed while the request was sent") from exc

    async def _has_answer(self) -> bool:
        try:
            data = sockets.receive_now(self.sock)
        except PeerGone:
            return False
        self._early = data or b""
        return bool(data)

    async def response_head(self) -> UpstreamHead:
        """Wait, without a bound of its own, for the response's head. Raises UpstreamBroken."""
        buffer = bytearray(self._early)
        self._early = b""
        while True:
            end = buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(buffer) > UPSTREAM_HEAD_LIMIT_BYTES:
                    raise UpstreamBroken("the engine's response head is too long")
                buffer += await self._receive("the engine closed without an answer")
                continue
            try:
                head = parse_upstream_head(bytes(buffer[: end + 4]))
            except ResponseFault as exc:
                raise UpstreamBroken(str(exc)) from exc
            del buffer[: end + 4]
            if head is not None:
                self._body = head.body_reader()
                self._early = bytes(buffer)
                return head

    async def _receive(self, at_eof: str) -> bytes:
        try:
            data = await sockets.receive(self.sock)
        except PeerGone as exc:
            raise UpstreamBroken("the engine's connection was reset") from exc
        if not data:
            raise UpstreamBroken(at_eof)
        return data

    async def read(self) -> bytes:
        """The body's next bytes as soon as there are any, b"" at its end. Raises UpstreamBroken.

        For a body that is wanted whole; a stream's bytes pass by ``read_now``.
        """
        while True:
            if not self.at_hand:
                await trio.lowlevel.wait_readable(self.sock)
            data = self.read_now()
            if data is not None:
                return data

    def read_now(self) -> bytes | None:
        """The body's bytes that are here, b"" at its end, None when there are none yet.

        Raises UpstreamBroken.
        """
        body = self._body
        assert body is not None, "the head comes first"
        if self._early:
            data, self._early = self._early, b""
        elif body.done:
            return b""
        else:
            try:
                received = sockets.receive_now(self.sock)
            except PeerGone as exc:
                raise UpstreamBroken("the engine's connection was reset") from exc
            # At a token's pace each read takes all there is, and trying again at once is a system
            # call per token for nothing; under load reads come full and there is more to take.
            self.emptied = received is None or len(received) < sockets.READ_BYTES
            if received is None:
                return None
            if not received:
                if body.eof():
                    return b""
                raise UpstreamBroken("the engine closed before the end of its answer")
            data = received
        try:
            payload = body.feed(data)
        except FramingFault as exc:
            raise UpstreamBroken(f"the engine's answer is broken: {exc}") from exc
        return payload if payload or body.done else None

    @property
    def at_hand(self) -> bool:
        """``read`` will return without waiting."""
        return bool(self._early) or self.ended

    @property
    def ended(self) -> bool:
        """The body is known to be complete without another read (counted or chunked)."""
        return self._body is not None and self._body.done

    def close(self) -> None:
        """Close the connection: to the engine this is the client hanging up. Idempotent."""
        sockets.close(self.sock)


async def _connected(port: int) -> socket.socket:
    """A connected socket. Raises OSError."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sockets.adopt(sock)
        error = sock.connect_ex((HOST, port))
        if error == errno.EINPROGRESS:
            # On loopback the handshake is over by the time the call returns, but only a second one says
            # so; waiting to be told would cost a turn of the event loop.
            error = sock.connect_ex((HOST, port))
        if error == errno.EALREADY:
            await trio.lowlevel.wait_writable(sock)
            error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, "connect")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, CLOSE_BY_RESET)
    except BaseException:
        sockets.close(sock)
        raise
    return sock
