"""HTTP as Strata's server speaks it: one request per connection, answers in HTTP/1.0.

Reads a request with Python's buffered reader, so bytes that come together with the body are
swallowed and bytes that come later stay in the socket, where they blind the disconnect watcher.
JSON answers carry Content-Length; event streams carry none and end with the connection.
Not decided here: who may ask (``serve.access``) and what is answered (``serve.routes``).
"""

import json
import socket
import sys
import time
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol

MAX_LINE_BYTES = 65_536
MAX_HEADERS = 100

REASONS = {
    200: "OK",
    204: "No Content",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    409: "Conflict",
    413: "Request Entity Too Large",
    414: "Request-URI Too Long",
    415: "Unsupported Media Type",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    501: "Not Implemented",
    502: "Bad Gateway",
    503: "Service Unavailable",
    529: "Overloaded",
}

Headers = tuple[tuple[str, str], ...]


class ClientGone(Exception):
    """The other side closed or reset the connection."""


class BadRequestHead(Exception):
    """The head is not HTTP; ``status`` is what Python's server answers, as an HTML page."""

    def __init__(self, status: int) -> None:
        super().__init__(REASONS[status])
        self.status = status


class BadRequestBody(Exception):
    """The body is too large (413), short or badly chunked (400)."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Digest(Protocol):
    """The part of a hashlib object that is used here."""

    def update(self, data: bytes, /) -> None: ...
    def hexdigest(self) -> str: ...


@dataclass(frozen=True, slots=True)
class RequestHead:
    """The request line and headers, names as they came. path: without query and trailing slash."""

    method: str
    path: str
    query: str
    headers: Headers

    def header(self, name: str) -> str | None:
        """The first value of ``name`` in any case; None if absent."""
        return next((value for key, value in self.headers if key.lower() == name), None)


def read_head(reader: BinaryIO) -> RequestHead | None:
    """None when the client closed without a request. Raises BadRequestHead."""
    line = _line(reader, 414)
    words = line.decode("latin-1").split()
    if not words:
        return None
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise BadRequestHead(400)
    headers: list[tuple[str, str]] = []
    while line := _line(reader, 431):
        name, colon, value = line.decode("latin-1").partition(":")
        if not colon or len(headers) == MAX_HEADERS:
            raise BadRequestHead(431 if colon else 400)
        headers.append((name, value.strip()))
    path, _, query = words[1].partition("?")
    return RequestHead(words[0], path.rstrip("/") or "/", query, tuple(headers))


def _line(reader: BinaryIO, too_long: int) -> bytes:
    line = reader.readline(MAX_LINE_BYTES + 1)
    if len(line) > MAX_LINE_BYTES:
        raise BadRequestHead(too_long)
    return line.rstrip(b"\r\n")


def read_body(head: RequestHead, reader: BinaryIO, limit_bytes: int) -> bytes:
    """The whole body; chunked framing wins over Content-Length. Raises BadRequestBody."""
    if (head.header("transfer-encoding") or "").lower() == "chunked":
        return _chunked_body(reader, limit_bytes)
    try:
        length = int(head.header("content-length") or 0)
    except ValueError as error:
        raise BadRequestBody(400, "Content-Length is not a number") from error
    if length > limit_bytes:
        raise _too_large(limit_bytes)
    body = reader.read(length)
    if len(body) < length:
        raise BadRequestBody(400, "the body is shorter than Content-Length")
    return body


def _chunked_body(reader: BinaryIO, limit_bytes: int) -> bytes:
    parts: list[bytes] = []
    total = 0
    while True:
        try:
            size = int(reader.readline(MAX_LINE_BYTES).split(b";")[0], 16)
        except ValueError as error:
            raise BadRequestBody(400, "the chunked body is malformed") from error
        total += size
        if size < 0 or total > limit_bytes:
            raise _too_large(limit_bytes)
        if size == 0:
            while reader.readline(MAX_LINE_BYTES).strip():
                pass
            return b"".join(parts)
        part = reader.read(size)
        if len(part) < size or reader.readline(3) not in (b"\r\n", b"\n"):
            raise BadRequestBody(400, "the chunked body is malformed")
        parts.append(part)


def _too_large(limit_bytes: int) -> BadRequestBody:
    return BadRequestBody(413, f"the body is larger than {limit_bytes} bytes")


class Reply:
    """The one answer of a connection: its head, its body's bytes, and what was really sent."""

    def __init__(self, connection: socket.socket, digest: Digest | None) -> None:
        self._connection = connection
        self._digest = digest
        self.status: int | None = None
        self.body_bytes = 0

    @property
    def body_sha256(self) -> str | None:
        """Of the body bytes that the kernel took; None unless it was asked for."""
        return None if self._digest is None else self._digest.hexdigest()

    def head(self, status: int, *headers: tuple[str, str], version: str = "HTTP/1.0") -> None:
        python = sys.version.split()[0]
        lines = [
            f"{version} {status} {REASONS.get(status, 'Simulated')}",
            f"Server: BaseHTTP/0.6 Python/{python}",
            time.strftime("Date: %a, %d %b %Y %H:%M:%S GMT", time.gmtime()),
            *(f"{name}: {value}" for name, value in headers),
            "Connection: close",
        ]
        self.status = status
        self.raw("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n")

    def json(self, status: int, value: Any) -> None:
        data = json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
        self.whole(status, "application/json", data)

    def error(self, status: int, message: str, kind: str | None = None) -> None:
        """Strata's error object; some of its errors have no ``type``."""
        error = {"message": message} if kind is None else {"type": kind, "message": message}
        self.json(status, {"error": error})

    def page(self, status: int, *, send_body: bool = True) -> None:
        """Python's HTML error page; a HEAD request gets its head alone."""
        text = (
            '<!DOCTYPE HTML>\n<html lang="en">\n<head><title>Error response</title></head>\n'
            f"<body><h1>Error response</h1><p>Error code: {status}</p>"
            f"<p>Message: {REASONS.get(status, 'Simulated')}.</p></body>\n</html>\n"
        )
        self.whole(status, "text/html;charset=utf-8", text.encode(), send_body=send_body)

    def whole(
        self,
        status: int,
        content_type: str,
        data: bytes,
        *more: tuple[str, str],
        send_body: bool = True,
    ) -> None:
        length = ("Content-Length", str(len(data)))
        self.head(status, ("Content-Type", content_type), *more, length)
        if send_body:
            self.body(data)

    def body(self, data: bytes) -> None:
        self.raw(data)
        self.body_bytes += len(data)
        if self._digest is not None:
            self._digest.update(data)

    def raw(self, data: bytes) -> None:
        """Send bytes that are not counted as body. Raises ClientGone."""
        try:
            self._connection.sendall(data)
        except OSError as error:
            raise ClientGone from error
