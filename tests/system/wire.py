"""What a client notices on the wire: when each piece came, and how one leaves.

Works on ``RawClient``.
"""

import json
import re
import socket
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tests.runtime.http.raw import RawClient, Reply, post
from tests.system.harness import CHAT, DaemonUnderTest, chat_body

KEEPALIVE = b": keepalive\n\n"

BLACKOUT_PHRASES = re.compile(
    r"model_not_supported|unsupported model|model unavailable|model (is )?not supported"
    r"|requested model is (not supported|unsupported|unavailable)"
    r"|not available for your (plan|account)|invalid_grant|cloudflare",
    re.IGNORECASE,
)
"""What makes CLIProxyAPI take a model out for twelve hours, whatever its settings say."""


class Leaving(StrEnum):
    """How a client goes away."""

    FIN = "fin"
    RST = "rst"
    HALF_CLOSE = "half_close"


def leave(client: RawClient, how: Leaving) -> None:
    """Go away. After a half-close the reply can still be read."""
    match how:
        case Leaving.FIN:
            client.stream.socket.close()
        case Leaving.RST:
            client.reset()
        case Leaving.HALF_CLOSE:
            client.stream.socket.shutdown(socket.SHUT_WR)


@dataclass(frozen=True)
class Piece:
    """One chunk of a chunked body. at_s: monotonic. is_last: the body's end was in the same read."""

    at_s: float
    data: bytes
    is_last: bool = False


async def next_piece(client: RawClient) -> Piece:
    """The next chunk of a chunked body, b"" for its end. Raises EOFError when it is cut."""
    size = int((await client.until(b"\r\n")).split(b";")[0], 16)
    data = await client.exactly(size)
    assert await client.exactly(2) == b"\r\n"
    return Piece(time.monotonic(), data, client.buffer == b"0\r\n\r\n")


async def all_pieces(client: RawClient) -> list[Piece]:
    """The chunks of a body up to and with its end. Raises EOFError when it is cut."""
    found = [await next_piece(client)]
    while found[-1].data:
        found.append(await next_piece(client))
    return found


@dataclass(frozen=True)
class Event:
    """One SSE event. name: of its ``event:`` line, or None."""

    name: str | None
    data: str

    @property
    def error(self) -> dict[str, Any]:
        """The ``error`` object of an error event."""
        error: dict[str, Any] = json.loads(self.data)["error"]
        return error


def events(body: bytes) -> list[Event]:
    """Every event with data. Strict: a whole number of events, no ``id:``, ``retry:`` or empty data."""
    assert not body or body.endswith(b"\n\n"), body[-200:]
    found = []
    for block in body.decode().split("\n\n"):
        fields: dict[str, list[str]] = {}
        for line in block.split("\n"):
            if line and not line.startswith(":"):
                name, _, value = line.partition(":")
                fields.setdefault(name, []).append(value.removeprefix(" "))
        assert set(fields) <= {"data", "event"}, block
        if fields:
            data = "\n".join(fields["data"])
            assert data, block
            found.append(Event(fields["event"][0] if "event" in fields else None, data))
    return found


def without_keepalives(body: bytes) -> bytes:
    """The engine's bytes: ours are whole events, so they can be taken out."""
    return body.replace(KEEPALIVE, b"")


def error_of(reply: Reply) -> dict[str, Any]:
    """The error object of a refusal's JSON body."""
    assert reply.headers["content-type"] == ["application/json"]
    document = json.loads(reply.body)
    assert list(document) == ["error"]
    error: dict[str, Any] = document["error"]
    return error


def chunked(body: bytes, size: int, extension: bytes = b"") -> bytes:
    """The body in chunks of this size, and its end."""
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    parts = [b"%x%b\r\n%b\r\n" % (len(piece), extension, piece) for piece in pieces]
    return b"".join((*parts, b"0\r\n\r\n"))


CHUNKED_HEAD = post(CHAT, "Transfer-Encoding: chunked", body=None)


async def send_unread(it: DaemonUnderTest, text: str, *, stream: bool = True) -> RawClient:
    """A request whose client takes next to nothing of the answer."""
    client = await it.connect()
    client.stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await client.send(post(CHAT, body=chat_body("a", text, stream=stream)))
    return client
