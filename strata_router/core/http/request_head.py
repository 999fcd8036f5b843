"""The head of a client's request: found in the buffer, bounded, parsed by h11, its framing settled.

Raises HeadFault with the refusal to send; a head that never parses leaves no record (contract 5).
"""

import re
import string
from dataclasses import dataclass, replace

import h11

from strata_router.core.http.framing import BodyReader, ChunkedBody, CountedBody
from strata_router.core.refusal import Case, Refusal

HEAD_LIMIT_BYTES = 64 * 1024
"""Longest request line plus headers. h11 alone would apply its 16 KiB only to heads that arrive in
pieces, so the same head could pass or fail by how it was split (reports.md B16)."""

CONTENT_LENGTH_DIGITS = 18
"""More digits than any length that could be meant; keeps int() cheap."""

REMEMBERED_BYTES = 4096
"""Longest head that a connection keeps for comparison; clients' own are a tenth of that."""

_TLS_HANDSHAKE = 0x16

_TOKEN = frozenset(b"!#$%&'*+-.^_`|~" + string.digits.encode() + string.ascii_letters.encode())
"""What a method may consist of (RFC 9110 5.6.2)."""

_CONTENT_LENGTH = re.compile(
    rb"\r\n[Cc]ontent-[Ll]ength: ([0-9]{1,%d})\r\n" % CONTENT_LENGTH_DIGITS
)

_HEAD_END = re.compile(rb"\n\r?\n")

_QUOTED_BYTES = re.compile(r"[: ]*(bytearray\()?b['\"]")
"""Where h11 begins to quote the client's bytes in its message; nothing of ours looks like that."""


class HeadFault(Exception):
    """The head cannot be served; ``refusal`` says what to answer before closing."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.case.value)
        self.refusal = refusal


@dataclass(frozen=True, slots=True)
class RequestHead:
    """One parsed request head.

    path: percent-encoded as sent, without query; ``*`` for ``OPTIONS *``. query: raw, without ``?``.
    headers: lower-case names, in order. version: "1.0" or "1.1".
    content_length: None when chunked or when there is no body.
    wants_close: the connection cannot be used again after this exchange.
    """

    method: str
    path: str
    query: bytes
    version: str
    headers: tuple[tuple[bytes, bytes], ...]
    content_length: int | None
    chunked: bool
    expects_continue: bool
    wants_close: bool

    def header(self, name: bytes) -> bytes | None:
        """First value of a header (lower-case name), or None."""
        for key, value in self.headers:
            if key == name:
                return value
        return None

    def header_list(self, name: bytes) -> list[bytes]:
        """All values of a header, one item per line that carried it."""
        return [value for key, value in self.headers if key == name]

    @property
    def has_body(self) -> bool:
        return self.chunked or bool(self.content_length)

    def body_reader(self) -> BodyReader:
        return ChunkedBody() if self.chunked else CountedBody(self.content_length or 0)


def head_end(buffer: bytes | bytearray, scanned_bytes: int) -> int:
    """Offset just behind the blank line that ends the head, or -1 while it is incomplete.

    scanned_bytes: how much of the buffer an earlier call has already looked at.
    Raises HeadFault when the head is, or is bound to become, longer than HEAD_LIMIT_BYTES.
    """
    match = _HEAD_END.search(buffer, max(0, scanned_bytes - 3))
    end = match.end() if match else -1
    if end > HEAD_LIMIT_BYTES or (end < 0 and len(buffer) > HEAD_LIMIT_BYTES):
        raise HeadFault(
            Refusal(
                Case.HEADERS_TOO_LARGE,
                f"The request's headers are larger than {HEAD_LIMIT_BYTES} bytes.",
            )
        )
    return end


def check_beginning(first: int) -> None:
    """Refuse at its first byte what can become no head, instead of waiting for a blank line that will
    not come: who meant https would see a connection that hangs. Raises HeadFault."""
    if first == _TLS_HANDSHAKE:
        raise HeadFault(
            Refusal(Case.BAD_REQUEST, "This port speaks plain HTTP, not TLS; use http://.")
        )
    if first not in _TOKEN:
        raise _malformed("it does not begin with a method")


def parse_head(raw: bytes) -> RequestHead:
    """Parse exactly one complete head, as ``head_end`` cut it. Raises HeadFault."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_LIMIT_BYTES + 1)
    try:
        connection.receive_data(raw)
        request = connection.next_event()
    except h11.RemoteProtocolError as exc:
        raise _malformed(str(exc)) from exc
    if not isinstance(request, h11.Request):
        raise _malformed("no request line")
    version = request.http_version.decode("ascii")
    if version not in ("1.0", "1.1"):
        raise _malformed("only HTTP/1.0 and HTTP/1.1 are spoken here")
    headers = tuple(request.headers)
    content_length, chunked = _framing(headers, version)
    path, _, query = _origin_form(request.target).partition(b"?")
    connection_tokens = _tokens(headers, b"connection")
    return RequestHead(
        method=request.method.decode("ascii"),
        path=path.decode("ascii"),
        query=query,
        version=version,
        headers=headers,
        content_length=content_length,
        chunked=chunked,
        expects_continue=version == "1.1" and b"100-continue" in _tokens(headers, b"expect"),
        wants_close=version == "1.0" or b"close" in connection_tokens,
    )


class HeadParser:
    """``parse_head`` for one connection, which remembers the last head.

    A client sends the same head with every request but for the number in Content-Length, and h11 takes
    longer over it than the exchange takes to be admitted (RESEARCH.md, "The hot path"). Only what was
    parsed once, and has exactly one Content-Length line, is ever repeated.
    """

    __slots__ = ("_parsed", "_shape")

    def __init__(self) -> None:
        self._shape: tuple[bytes, bytes] | None = None
        self._parsed: RequestHead | None = None

    def parse(self, raw: bytes) -> RequestHead:
        """The same as ``parse_head(raw)``. Raises HeadFault."""
        counted = _CONTENT_LENGTH.search(raw)
        if counted is None:
            return parse_head(raw)
        shape = (raw[: counted.start(1)], raw[counted.end(1) :])
        if self._parsed is not None and shape == self._shape:
            return _with_length(self._parsed, counted[1])
        parsed = parse_head(raw)
        # Of two lengths one could change and the other not.
        alone = len(raw) <= REMEMBERED_BYTES and raw.lower().count(b"content-length") == 1
        self._shape, self._parsed = (shape, parsed) if alone else (None, None)
        return parsed


def _with_length(head: RequestHead, length: bytes) -> RequestHead:
    headers = tuple(
        (name, length) if name == b"content-length" else (name, value)
        for name, value in head.headers
    )
    return replace(head, headers=headers, content_length=int(length))


def _malformed(detail: str) -> HeadFault:
    # What h11 says about the kind of mistake helps whoever debugs a client; what was sent is not repeated.
    kind = _QUOTED_BYTES.split(detail, maxsplit=1)[0]
    return HeadFault(Refusal(Case.BAD_REQUEST, f"The request is not well-formed HTTP: {kind}."))


def _tokens(headers: tuple[tuple[bytes, bytes], ...], name: bytes) -> set[bytes]:
    return {
        token.strip().lower()
        for key, value in headers
        if key == name
        for token in value.split(b",")
    }


def _framing(headers: tuple[tuple[bytes, bytes], ...], version: str) -> tuple[int | None, bool]:
    """(content length, chunked); both at once, or anything ambiguous, is a fault (contract 5)."""
    lengths = [value for key, value in headers if key == b"content-length"]
    if any(key == b"transfer-encoding" for key, _ in headers):
        if lengths:
            raise _malformed("Content-Length and Transfer-Encoding are both present")
        if version == "1.0":
            raise _malformed("Transfer-Encoding is not part of HTTP/1.0")
        # h11 has refused every Transfer-Encoding but one "chunked".
        return None, True
    if not lengths:
        return None, False
    # h11 has merged equal lengths and refused unequal ones and non-digits.
    if len(lengths[0]) > CONTENT_LENGTH_DIGITS:
        raise HeadFault(Refusal(Case.REQUEST_TOO_LARGE))
    return int(lengths[0]), False


def _origin_form(target: bytes) -> bytes:
    """``/path?query`` out of any form a client may send; proxies' absolute form is accepted."""
    if target.startswith(b"/") or target == b"*":
        return target
    for scheme in (b"http://", b"https://"):
        if target[: len(scheme)].lower() == scheme:
            _, slash, rest = target[len(scheme) :].partition(b"/")
            return slash + rest if slash else b"/"
    raise _malformed("the request target is neither a path nor an http URL")
