"""Heads of responses: ours rendered, the engine's parsed and cleaned of what must not travel on."""

import re
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus

import h11

from strata_router.core.http.framing import (
    BodyReader,
    ChunkedBody,
    CloseDelimitedBody,
    CountedBody,
)

Headers = list[tuple[bytes, bytes]]

UPSTREAM_HEAD_LIMIT_BYTES = 64 * 1024

_NOT_FORWARDED = frozenset(
    (
        # hop by hop, and framing, which each leg has for itself
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"content-length",
        # the engine speaks for itself there, not for this server (contract 5)
        b"set-cookie",
        b"server",
        b"date",
    )
)


OWN_PREFIX = b"x-strata-"
"""Headers that only this server sets; an engine's would stand beside them and mean something else."""

_INTERIM = re.compile(rb"HTTP/1\.[01] 1[0-9][0-9][ \r]")


class ResponseFault(Exception):
    """The engine's response head cannot be understood."""


@dataclass(frozen=True, slots=True)
class UpstreamHead:
    """The engine's response head.

    headers: lower-case names, only those that go on to the client (end to end, no CORS grants).
    content_length: as promised, or None.
    """

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    content_type: bytes
    encoded: bool
    content_length: int | None
    chunked: bool

    @property
    def is_event_stream(self) -> bool:
        return self.content_type.partition(b";")[0].strip().lower() == b"text/event-stream"

    def body_reader(self) -> BodyReader:
        if self.status in (204, 304):
            return CountedBody(0)
        if self.chunked:
            return ChunkedBody()
        if self.content_length is not None:
            return CountedBody(self.content_length)
        return CloseDelimitedBody()


@lru_cache(maxsize=16)  # an engine says the same to everybody, for a second at least (Date)
def parse_upstream_head(raw: bytes) -> UpstreamHead | None:
    """Parse one complete head; None for an interim (1xx) one, which is followed by another."""
    if _INTERIM.match(raw):
        return None
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=UPSTREAM_HEAD_LIMIT_BYTES + 1)
    try:
        connection.receive_data(raw)
        event = connection.next_event()
    except h11.RemoteProtocolError as exc:
        raise ResponseFault("the engine's response head is malformed") from exc
    if not isinstance(event, h11.Response):
        raise ResponseFault("the engine's response head is malformed")
    values = dict(event.headers)
    named_hop_by_hop = {
        token.strip().lower() for token in values.get(b"connection", b"").split(b",")
    }
    length = values.get(b"content-length")
    return UpstreamHead(
        status=event.status_code,
        headers=tuple(
            (name, value)
            for name, value in event.headers
            if name not in _NOT_FORWARDED
            and name not in named_hop_by_hop
            and not name.startswith((b"access-control-", OWN_PREFIX))
        ),
        content_type=values.get(b"content-type", b""),
        encoded=values.get(b"content-encoding", b"identity").strip().lower() != b"identity",
        content_length=int(length) if length is not None else None,
        chunked=b"transfer-encoding" in values,
    )


def render_head(status: int, headers: Headers) -> bytes:
    """Status line and headers, ready to send. Header values must not come from a client."""
    lines = [b"HTTP/1.1 %d %b" % (status, _phrase(status))]
    lines.extend(b"%b: %b" % item for item in headers)
    lines.append(b"\r\n")
    return b"\r\n".join(lines)


def _phrase(status: int) -> bytes:
    try:
        return HTTPStatus(status).phrase.encode("ascii")
    except ValueError:
        return b"Status"
