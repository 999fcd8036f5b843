"""A client that behaves as CLIProxyAPI behaves towards an OpenAI-compatible upstream.

Made from what is documented and measured of version 7.2.140: what it sends, how its line scanner reads a
stream, which status it takes an error for, when it keeps a connection. What its own clients would see
is the ``Outcome``. It has no time limits, as the original has none.
"""

import gzip
import json
import select
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from tests.runtime.http.raw import RawClient, Reply
from tests.system.harness import CHAT
from tests.system.wire import next_piece

IDLE_CONNECTIONS = 2
IDLE_S = 90.0

ERROR_NAMES = frozenset({"error", "response.error", "response.failed"})


@dataclass
class Outcome:
    """What one chat client of CLIProxyAPI gets.

    status: HTTP status towards that client. frames: JSON that was forwarded, in order. error: the body
    of an error reply, or of the error frame after frames. done: ``[DONE]`` was forwarded; invented: it
    was CLIProxyAPI's own, as the stream ended without. comments: how many were swallowed. headers: the
    router's. reused: the request went out on a kept connection.
    """

    status: int
    headers: dict[str, list[str]]
    reused: bool
    frames: list[Any] = field(default_factory=list)
    error: Any = None
    done: bool = False
    invented: bool = False
    comments: int = 0

    @property
    def text(self) -> str:
        """The generated text of the forwarded chunks."""
        choices = [choice for frame in self.frames for choice in frame["choices"]]
        return "".join(choice["delta"].get("content") or "" for choice in choices)


class UpstreamFailed(Exception):
    """The upstream's stream is a failure. status: which HTTP status that counts as."""

    def __init__(self, status: int, body: Any) -> None:
        super().__init__(status)
        self.status = status
        self.body = body


class FrameReader:
    """Puts lines together to frames. Raises UpstreamFailed for what is taken for an error."""

    def __init__(self) -> None:
        self.comments = 0
        self._name = ""
        self._data: list[str] = []

    def feed(self, line: str) -> str | None:
        """One line without its end; the data of the frame that it completes, if any."""
        if not line:
            return self._frame()
        if line.startswith(("{", "[")):
            raise UpstreamFailed(502, line)
        name, _, value = line.partition(":")
        match name:
            case "":
                self.comments += 1
            case "event":
                self._name = value.strip()
            case "data":
                self._data.append(value.removeprefix(" "))
        return None

    def _frame(self) -> str | None:
        name, data = self._name, "\n".join(self._data)
        self._name, self._data = "", []
        if not data:
            if name in ERROR_NAMES:
                raise UpstreamFailed(502, "an error event without data")
            return None
        if data == "[DONE]":
            return data
        try:
            document = json.loads(data, parse_constant=_refuse)
        except ValueError as broken:
            raise UpstreamFailed(502, data) from broken
        if name in ERROR_NAMES or _is_error(document):
            raise UpstreamFailed(_status_in(document), document)
        return data


def _refuse(constant: str) -> None:
    raise ValueError(f"not JSON: {constant}")


def _is_error(document: Any) -> bool:
    return isinstance(document, dict) and (
        document.get("error") is not None
        or document.get("type") in ERROR_NAMES
        or {"code", "message"} <= document.keys()
    )


def _status_in(document: Any) -> int:
    """The status an error frame names; 502 for none. ``error.code`` is not looked at."""
    holders = [document.get("error"), document] if isinstance(document, dict) else []
    for holder in holders:
        for key in ("status", "status_code"):
            if isinstance(holder, dict) and isinstance(holder.get(key), int):
                return int(holder[key])
    return 502


class CLIProxyAPIDouble:
    """Sends chat requests to one router and keeps connections as Go's default transport does."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.opened = 0
        self._idle: list[tuple[float, RawClient]] = []

    @property
    def idle(self) -> int:
        """Connections that are kept."""
        return len(self._idle)

    async def chat(self, body: bytes) -> Outcome:
        """One exchange; a body that asks for a stream gets one. Raises OSError, EOFError."""
        wants_stream = bool(json.loads(body).get("stream"))
        client, reused = await self._connection()
        keep = False
        try:
            await client.send(self._head(body, stream=wants_stream), body)
            reply = await client.head()
            outcome = Outcome(reply.status, reply.headers, reused)
            if wants_stream and reply.status < 300:
                keep = await self._read_stream(client, outcome)
            else:
                await self._read_whole(client, reply, outcome)
                keep = True
        finally:
            if keep and len(self._idle) < IDLE_CONNECTIONS:
                self._idle.append((time.monotonic(), client))
            else:
                client.stream.socket.close()
        return outcome

    def close(self) -> None:
        """Close what is kept."""
        for _, client in self._idle:
            client.stream.socket.close()
        self._idle.clear()

    # ---- the parts of an exchange --------------------------------------------------------------

    async def _connection(self) -> tuple[RawClient, bool]:
        """The connection that was used last and still is one, else a new one; whether it was kept."""
        while self._idle:
            since, client = self._idle.pop()
            if time.monotonic() - since < IDLE_S and not _has_ended(client):
                return client, True
            client.stream.socket.close()
        self.opened += 1
        return await RawClient.connect(self.port), False

    def _head(self, body: bytes, *, stream: bool) -> bytes:
        lines = [
            f"POST {CHAT} HTTP/1.1",
            f"Host: 127.0.0.1:{self.port}",
            "User-Agent: cli-proxy-openai-compat",
            f"Content-Length: {len(body)}",
        ]
        if stream:
            lines.append("Accept: text/event-stream")
        lines.append("Authorization: Bearer example-key")
        if stream:
            lines.append("Cache-Control: no-cache")
        lines += ["Content-Type: application/json", "Accept-Encoding: gzip", "", ""]
        return "\r\n".join(lines).encode()

    async def _read_whole(self, client: RawClient, reply: Reply, outcome: Outcome) -> None:
        """A reply that is no stream passes as it is, an error with its status."""
        if "content-length" in reply.headers:
            body = await client.exactly(int(reply.headers["content-length"][0]))
        else:
            body = b""
            while piece := (await next_piece(client)).data:
                body += piece
        if reply.headers.get("content-encoding") == ["gzip"]:
            body = gzip.decompress(body)
        document = json.loads(body)
        if reply.status < 300:
            outcome.frames.append(document)
        else:
            outcome.error = document

    async def _read_stream(self, client: RawClient, outcome: Outcome) -> bool:
        """Fill the outcome; whether the connection can be kept."""
        reader = FrameReader()
        try:
            async with aclosing(_lines(client)) as lines:
                async for line, ended in lines:
                    frame = reader.feed(line)
                    if frame == "[DONE]":
                        outcome.done = True
                        return _take_end(client, ended)
                    if frame is not None:
                        outcome.frames.append(json.loads(frame))
        except UpstreamFailed as failed:
            _fail(outcome, failed)
            return _take_end(client, client.buffer == b"0\r\n\r\n")
        except EOFError:
            _fail(outcome, UpstreamFailed(500, "unexpected EOF"))
            return False
        finally:
            outcome.comments = reader.comments
        if outcome.frames:
            outcome.done = outcome.invented = True
        else:
            _fail(outcome, UpstreamFailed(500, "empty_stream"))
        return True


async def _lines(client: RawClient) -> AsyncGenerator[tuple[str, bool], None]:
    """The lines of a chunked body, and whether its last chunk has been read along with them."""
    rest = b""
    while (piece := await next_piece(client)).data:
        *lines, rest = (rest + piece.data).split(b"\n")
        for line in lines:
            yield line.removesuffix(b"\r").decode(), piece.is_last
    if rest:
        yield rest.decode(), True


def _take_end(client: RawClient, ended: bool) -> bool:
    """Closing a body that is not at its end closes the connection; one at its end is kept."""
    if ended:
        client.buffer = b""
    return ended


def _fail(outcome: Outcome, failed: UpstreamFailed) -> None:
    """Before the first frame a failure is an HTTP status, after it an error frame without [DONE]."""
    if not outcome.frames:
        outcome.status = failed.status
    outcome.error = failed.body


def _has_ended(client: RawClient) -> bool:
    """The router has closed it, or sent what nobody asked for."""
    readable, _, _ = select.select([client.stream.socket], [], [], 0)
    return bool(readable)
