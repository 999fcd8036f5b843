"""A raw HTTP client on real sockets, and a server of ours to talk to."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio

from strata_router.runtime.http.connection import Limits
from strata_router.runtime.http.server import Handler, Server

GENEROUS = Limits(idle_s=30, head_s=30, body_s=30, write_stall_s=30)


@dataclass
class Reply:
    """One parsed response. cut: the connection ended before the body's own end."""

    status: int
    headers: dict[str, list[str]]
    body: bytes = b""
    cut: bool = False
    pieces: list[bytes] = field(default_factory=list)


class RawClient:
    """Sends bytes as given and parses responses strictly by their framing."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.buffer = b""

    @classmethod
    async def connect(cls, port: int) -> "RawClient":
        return cls(await trio.open_tcp_stream("127.0.0.1", port))

    async def send(self, *parts: bytes) -> None:
        await self.stream.send_all(b"".join(parts))

    async def _more(self) -> bool:
        data = await self.stream.receive_some(65536)
        self.buffer += data
        return bool(data)

    async def until(self, mark: bytes) -> bytes:
        while mark not in self.buffer:
            if not await self._more():
                raise EOFError
        before, _, self.buffer = self.buffer.partition(mark)
        return before

    async def exactly(self, size: int) -> bytes:
        while len(self.buffer) < size:
            if not await self._more():
                raise EOFError
        data, self.buffer = self.buffer[:size], self.buffer[size:]
        return data

    async def head(self) -> Reply:
        lines = (await self.until(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers: dict[str, list[str]] = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers.setdefault(name.lower(), []).append(value.strip())
        return Reply(int(lines[0].split()[1]), headers)

    async def reply(self, *, no_body: bool = False) -> Reply:
        """The next final response, whole; interim ones are skipped."""
        reply = await self.head()
        while reply.status < 200:
            reply = await self.head()
        framing = [n for n in ("content-length", "transfer-encoding") if n in reply.headers]
        assert len(framing) <= 1, "more than one framing header"
        if no_body or reply.status in (204, 304):
            return reply
        try:
            await self._body(reply)
        except EOFError:
            reply.cut = True
        return reply

    async def _body(self, reply: Reply) -> None:
        if "content-length" in reply.headers:
            reply.body = await self.exactly(int(reply.headers["content-length"][0]))
        elif "transfer-encoding" in reply.headers:
            while size := int((await self.until(b"\r\n")).split(b";")[0], 16):
                piece = await self.exactly(size)
                reply.pieces.append(piece)
                reply.body += piece
                assert await self.exactly(2) == b"\r\n"
            assert await self.until(b"\r\n") == b""
        else:
            while await self._more():
                pass
            reply.body, self.buffer = self.buffer, b""

    async def at_eof(self) -> bool:
        """The server has closed, in order, and sent nothing more."""
        return not self.buffer and not await self.stream.receive_some(1)

    def reset(self) -> None:
        """Close with a reset instead of a FIN."""
        self.stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.stream.socket.close()


def post(path: str = "/", *headers: str, body: bytes | None = b"", version: str = "1.1") -> bytes:
    """A POST; body None: no framing header is added."""
    lines = [f"POST {path} HTTP/{version}", "Host: localhost", *headers]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join((*lines, "", "")).encode("latin-1") + (body or b"")


def get(path: str = "/", *headers: str, method: str = "GET", version: str = "1.1") -> bytes:
    lines = [f"{method} {path} HTTP/{version}", "Host: localhost", *headers]
    return "\r\n".join((*lines, "", "")).encode("latin-1")


@dataclass
class Serving:
    """A running server. done: its ``run`` has returned."""

    server: Server
    port: int
    done: trio.Event
    clients: list[RawClient] = field(default_factory=list)

    async def connect(self) -> RawClient:
        """A client that is closed with the server at the latest."""
        client = await RawClient.connect(self.port)
        self.clients.append(client)
        return client


@asynccontextmanager
async def serving(
    handler: Handler, limits: Limits = GENEROUS, max_connections: int = 100
) -> AsyncIterator[Serving]:
    """A Server on a free port of loopback, ended with the block."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(64)
    listener.setblocking(False)
    server = Server(listener, handler, limits, max_connections)
    done = trio.Event()

    async def run() -> None:
        await server.run()
        done.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        serving_ = Serving(server, listener.getsockname()[1], done)
        try:
            yield serving_
        finally:
            for client in serving_.clients:
                client.stream.socket.close()
            listener.close()
            nursery.cancel_scope.cancel()
