"""One client's connection: requests in, responses out, every wait with its bound.

Knows HTTP framing on a socket and nothing of routes, tickets or engines. One task (the connection's)
reads and writes; timers may add bytes between its writes through ``interject``.

    idle --bytes--> head --complete--> [body] --> response --> idle      (keep-alive)
                     |                   |            |
                     +-- HeadFault       +-- BodyFault, PeerGone          -> closed
"""

import math
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass, replace

import trio

from strata_router.core.http.framing import LAST_CHUNK, BodyReader, FramingFault, chunk
from strata_router.core.http.request_head import (
    HeadFault,
    HeadParser,
    RequestHead,
    check_beginning,
    head_end,
)
from strata_router.core.http.response_head import Headers, render_head
from strata_router.core.refusal import Case, Refusal
from strata_router.runtime.http import sockets
from strata_router.runtime.http.sockets import PeerGone

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

WITHOUT_BODY = (204, 304)
"""Statuses whose responses end with their head; framing headers there confuse strict clients."""

LINGER_S = 5.0
LINGER_BYTES = 64 * 1024 * 1024
"""After an early refusal the rest of the body is read over, within these bounds, so that the refusal
reaches the client instead of a reset (facts/cliproxyapi.md section 3)."""


class BodyFault(Exception):
    """The request's body cannot be used; ``refusal`` says what to answer before closing."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.case.value)
        self.refusal = refusal


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds a client may take. math.inf = for ever.

    idle_s: between requests. head_s: from a head's first byte to its end. body_s: longest pause inside
    a body. write_stall_s: longest time without taking a byte of the answer.
    """

    idle_s: float
    head_s: float
    body_s: float
    write_stall_s: float


class ClientConnection:
    """A connection to one client. Not shared between tasks except where a method says so."""

    def __init__(self, sock: socket.socket, limits: Limits) -> None:
        self.sock = sock
        self._limits = limits
        self._buffer = bytearray()  # received, not yet consumed: the next request, or part of it
        self._idle_scope: trio.CancelScope | None = None
        self._parser = HeadParser()
        self._requests = 0
        self._body: BodyReader | None = None
        self._head: RequestHead | None = None
        self._continue_due = False
        # The response in progress
        self._unsent_head = b""
        self._chunked = False
        self._end_is_the_close = False
        self._left_bytes: int | None = None  # of a counted response body
        self._suppress_body = False
        self._writing = False  # the owner task is inside a send
        self._backlog = b""  # framed bytes that the kernel did not take
        self.must_close = False  # the next response to begin is the connection's last
        self.said_close = False  # the client was told so
        self.torn = False  # a write was cut in the middle: only closing is left
        self.response_started = False
        self.response_ended = False

    # ---- requests ------------------------------------------------------------------------------

    async def next_head(self) -> RequestHead | None:
        """The next request's head, or None when the client is done (or idle for too long).

        Raises HeadFault (answer it, then close) and PeerGone.
        """
        self._head = self._body = None
        self.response_started = self.response_ended = False
        if not await self._first_byte():
            return None
        # A head nearly always comes in one piece, and a cancel scope costs more than to look for its end.
        end = head_end(self._buffer, 0)
        if end < 0 and (end := await self._rest_of_head()) < 0:
            return None  # a head that never came; nothing to answer to
        raw = bytes(self._buffer[:end])
        del self._buffer[:end]
        head = self._parser.parse(raw)
        self._head = head
        self._requests += 1
        self._body = head.body_reader()
        self._continue_due = head.expects_continue and head.has_body
        self.must_close = self.must_close or head.wants_close
        self._suppress_body = head.method == "HEAD"
        return head

    async def _rest_of_head(self) -> int:
        """Where the head ends in the buffer, once it is there; -1 when the client ended before."""
        check_beginning(self._buffer[0])
        end = -1
        with trio.move_on_after(self._limits.head_s) as scope:
            while end < 0:
                scanned_bytes = len(self._buffer)
                data = await sockets.receive(self.sock)
                if not data:
                    return -1
                self._buffer += data
                end = head_end(self._buffer, scanned_bytes)
        if scope.cancelled_caught:
            raise HeadFault(Refusal(Case.REQUEST_TIMEOUT, "The request's headers came too slowly."))
        return end

    async def _first_byte(self) -> bool:
        """Wait, idle, for a request to begin; blank lines before it are dropped (RFC 9112 2.2).

        Others get their turn before every request but the first: with an engine that answers at once
        nothing else in an exchange need ever wait, and a quick client would have the loop to itself.
        """
        if self._buffer:
            await trio.lowlevel.checkpoint()
        while True:
            while self._buffer.startswith((b"\r", b"\n")):
                del self._buffer[:1]
            if self._buffer:
                return True
            with trio.move_on_after(self._limits.idle_s) as self._idle_scope:
                data: bytes | None = await sockets.receive(self.sock, wait_first=self._requests > 0)
            if self._idle_scope.cancelled_caught:
                # What arrived at the very last moment is still served.
                data = sockets.receive_now(self.sock)
            self._idle_scope = None
            if not data:
                return False
            self._buffer += data

    def limit_idle(self, seconds: float) -> None:
        """From another task: idle, now or later, the connection is closed after this long (drain)."""
        self._limits = replace(self._limits, idle_s=min(self._limits.idle_s, seconds))
        scope = self._idle_scope
        if scope is not None:
            scope.deadline = min(scope.deadline, trio.current_time() + seconds)

    @property
    def body_ended(self) -> bool:
        """The current request's body has been read whole."""
        return self._body is None or self._body.done

    async def read_body_piece(self) -> bytes:
        """The next bytes of the request's body, b"" at its end.

        Sends 100-continue first where the client waits for it. Raises BodyFault, PeerGone.
        """
        body = self._body
        assert body is not None, "no request is being read"
        while not self.body_ended:
            if self._buffer:
                data = bytes(self._buffer)
                self._buffer.clear()
            else:
                data = await self._receive_body()
            try:
                piece = body.feed(data)
            except FramingFault as exc:
                raise BodyFault(
                    Refusal(Case.BAD_REQUEST, f"The request body's framing is broken: {exc}.")
                ) from exc
            if body.done:
                self._buffer += body.surplus
                body.surplus = b""
            if piece:
                return piece
        return b""

    async def _receive_body(self) -> bytes:
        if self._continue_due:
            self._continue_due = False
            await self._send(CONTINUE)
        with trio.move_on_after(self._limits.body_s) as scope:
            data = await sockets.receive(self.sock)
        if scope.cancelled_caught:
            raise BodyFault(Refusal(Case.REQUEST_TIMEOUT, "The request body stopped coming."))
        if not data:
            raise PeerGone("the client left while sending its request")
        return data

    # ---- responses -----------------------------------------------------------------------------

    def begin_response(self, status: int, headers: Headers, length: int | None) -> None:
        """Set the response's head; it leaves with the first bytes of the body.

        length: of the body, or None when only its end will tell: chunked for HTTP/1.1, else by close;
        without meaning for a status that has no body.
        Adds the framing header and ``Connection: close`` where the connection ends with this response.
        """
        assert not self.response_started, "one response per request"
        self.response_started = True
        head = self._head
        headers = list(headers)
        self._chunked = False
        self._left_bytes = length
        if status in WITHOUT_BODY:
            self._left_bytes = 0
        elif length is not None:
            headers.append((b"content-length", b"%d" % length))
        elif head is not None and head.version == "1.1":
            self._chunked = True
            headers.append((b"transfer-encoding", b"chunked"))
        else:
            self.must_close = self._end_is_the_close = True
        if not self.body_ended:
            self.must_close = True
        if self.must_close:
            self.said_close = True
            headers.append((b"connection", b"close"))
        self._unsent_head = render_head(status, headers)

    async def send_body(self, payload: bytes) -> None:
        """Send a piece of the response's body; empty pieces are nothing. Raises PeerGone."""
        await self._send(self._framed(payload))

    def send_body_now(self, payload: bytes) -> bool:
        """The same, without waiting. False: the client does not take all of it now, ``flush`` the rest.

        By the owner, though not necessarily in its task.
        """
        return self._send_now(self._framed(payload))

    @property
    def has_unsent(self) -> bool:
        """Bytes wait here that the kernel did not take."""
        return bool(self._backlog)

    async def flush(self) -> None:
        """Wait until the client has taken what ``send_body_now`` could not send. Raises PeerGone."""
        data, self._backlog = self._backlog, b""
        self._writing = True
        try:
            await sockets.send_rest(self.sock, memoryview(data), self._limits.write_stall_s)
        except BaseException:
            self.torn = True
            raise
        finally:
            self._writing = False

    async def end_response(self, payload: bytes = b"") -> None:
        """Send the last piece and the end of the body in one write. Raises PeerGone."""
        data = self._framed(payload)
        assert not self._left_bytes or self._suppress_body, "a counted body was not sent whole"
        if self._chunked and not self._suppress_body:
            data += LAST_CHUNK
        await self._send(data)
        self.response_ended = True

    def interject(self, payload: bytes) -> bool:
        """From any task, without waiting: add body bytes between the owner's writes.

        False, and nothing sent, when the owner is in the middle of a write or the kernel's buffer is
        full: such a client has bytes to read and needs no keep-alive. Raises PeerGone.
        """
        # What waits is tried first: with a silent engine there may be nobody but us to send it.
        if self._writing or not self._send_now(b""):
            return False
        self._send_now(self._framed(payload))
        return True

    def _framed(self, payload: bytes) -> bytes:
        head, self._unsent_head = self._unsent_head, b""
        if not payload or self._suppress_body:
            return head
        if self._chunked:
            return head + chunk(payload)
        if self._left_bytes is not None:
            self._left_bytes -= len(payload)
            assert self._left_bytes >= 0, "the response's body is longer than it promised"
        return head + payload

    def _send_now(self, data: bytes) -> bool:
        """Send what waits, then ``data``; False when some of it has to wait. Raises PeerGone."""
        if self._backlog:
            data = self._backlog + data
        sent = sockets.send_now(self.sock, data) if data else 0
        self._backlog = data[sent:]
        return not self._backlog

    async def _send(self, data: bytes) -> None:
        if not self._send_now(data):
            await self.flush()

    async def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """A whole response in one write. Raises PeerGone."""
        self.begin_response(status, headers, len(body))
        await self.end_response(body)

    # ---- the end -------------------------------------------------------------------------------

    async def linger(self) -> None:
        """Before closing after a response: half-close, and read over what still comes, within bounds.

        Closing at once with unread bytes would reset the connection and take the response with it.
        """
        if self.body_ended and not self._buffer and sockets.receive_now(self.sock) is None:
            return  # nothing unread: a plain close delivers everything
        try:
            self.sock.shutdown(socket.SHUT_WR)
            budget_bytes = LINGER_BYTES
            with trio.move_on_after(LINGER_S):
                while budget_bytes > 0:
                    data = await sockets.receive(self.sock)
                    if not data:
                        return
                    budget_bytes -= len(data)
                    await trio.lowlevel.checkpoint()
        except (OSError, PeerGone):
            pass  # the client has gone first

    def close(self) -> None:
        """Close the socket. A response without its end is thereby visibly cut. Idempotent."""
        if self._end_is_the_close and not self.response_ended and self.sock.fileno() >= 0:
            # To an HTTP/1.0 client a plain close would look like the end of the body: reset instead.
            with suppress(OSError):
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sockets.close(self.sock)


def limits(*, idle_s: float, header_ms: int, body_ms: int, write_stall_ms: int) -> Limits:
    """Limits from configured milliseconds; 0 for write_stall_ms means never."""
    return Limits(
        idle_s=idle_s,
        head_s=header_ms / 1000,
        body_s=body_ms / 1000,
        write_stall_s=write_stall_ms / 1000 if write_stall_ms else math.inf,
    )
