"""Where one message body ends: counted, chunked, or at the close. Used on both legs.

A reader takes raw bytes as they come and gives back payload. h11 could do it at several times the cost
per chunk (RESEARCH.md, "HTTP stack"), which is a lever for anybody who sends 1-byte chunks, so the body
is taken apart here and h11 only sees heads.
"""

import re
from typing import Protocol

CHUNK_LINE_LIMIT_BYTES = 4096
"""Longest chunk-size line, extensions included. No client we know sends extensions over 100 bytes."""

TRAILER_LIMIT_BYTES = 16 * 1024
"""Trailers are read and dropped; this bounds them as the head is bounded."""

_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?\Z")


class FramingFault(Exception):
    """The peer's body framing is broken; the message is ours and safe to show."""


class BodyReader(Protocol):
    """Takes one body apart.

    feed: raw bytes in, payload out (may be empty). Bytes behind the body stay in ``surplus``.
    done: the body has ended. surplus: bytes that came after its end, in order.
    eof: the peer closed; True when that is where this body may end.
    """

    done: bool
    surplus: bytes

    def feed(self, data: bytes) -> bytes: ...

    def eof(self) -> bool: ...


class CountedBody:
    """A body of ``length`` bytes, as Content-Length promised."""

    __slots__ = ("done", "left_bytes", "surplus")

    def __init__(self, length: int) -> None:
        self.left_bytes = length
        self.done = length == 0
        self.surplus = b""

    def feed(self, data: bytes) -> bytes:
        if len(data) > self.left_bytes:
            self.surplus += data[self.left_bytes :]
            data = data[: self.left_bytes]
        self.left_bytes -= len(data)
        self.done = self.left_bytes == 0
        return data

    def eof(self) -> bool:
        return self.done


class CloseDelimitedBody:
    """A response body that lasts until the peer closes (Strata's streams)."""

    __slots__ = ("done", "surplus")

    def __init__(self) -> None:
        self.done = False
        self.surplus = b""

    def feed(self, data: bytes) -> bytes:
        return data

    def eof(self) -> bool:
        self.done = True
        return True


class ChunkedBody:
    """A chunked body; extensions and trailers are read over and dropped.

    Line ends must be CRLF and sizes plain hexadecimal: a lenient reader in front of another reader is
    how requests get smuggled.
    """

    __slots__ = ("_buffer", "_in_trailers", "_left_bytes", "_trailer_bytes", "done", "surplus")

    def __init__(self) -> None:
        self.done = False
        self.surplus = b""
        self._buffer = b""
        self._left_bytes = (
            0  # payload bytes of the open chunk, plus 2 for its CRLF; 0 = at a size line
        )
        self._in_trailers = False
        self._trailer_bytes = 0

    def feed(self, data: bytes) -> bytes:
        if self.done:
            self.surplus += data
            return b""
        if self._buffer:
            data = self._buffer + data
            self._buffer = b""
        payload: list[bytes] = []
        position = 0
        size = len(data)
        left = self._left_bytes
        while position < size:
            if left > 2:
                # Inside a chunk's payload: hand out what is here.
                end = position + left - 2
                piece = data[position:end] if end < size else data[position:]
                payload.append(piece)
                position += len(piece)
                left -= len(piece)
            elif left:
                # At the CRLF that closes a chunk; ``left`` says how much of it is missing.
                if data[position] != b"\r\n"[2 - left]:
                    raise FramingFault("a chunk is longer than its size says")
                position += 1
                left -= 1
            elif self._in_trailers:
                position, self.done = self._skip_trailer(data, position)
                if self.done:
                    self.surplus = data[position:]
                    break
            else:
                line_end = data.find(b"\r\n", position)
                if line_end < 0:
                    self._keep(data, position)
                    break
                if line_end - position > CHUNK_LINE_LIMIT_BYTES:
                    raise FramingFault("a chunk-size line is too long")
                match = _CHUNK_SIZE.match(data, position, line_end)
                if match is None:
                    raise FramingFault("a chunk size is not a hexadecimal number")
                chunk_bytes = int(match[1], 16)
                position = line_end + 2
                if chunk_bytes:
                    left = chunk_bytes + 2
                else:
                    self._in_trailers = True
        self._left_bytes = left
        return payload[0] if len(payload) == 1 else b"".join(payload)

    def _keep(self, data: bytes, position: int) -> None:
        if len(data) - position > CHUNK_LINE_LIMIT_BYTES:
            raise FramingFault("a chunk-size line is too long")
        self._buffer = data[position:]

    def _skip_trailer(self, data: bytes, position: int) -> tuple[int, bool]:
        """Read over one trailer line; returns the new position and whether it was the blank one."""
        line_end = data.find(b"\r\n", position)
        if line_end < 0:
            self._buffer = data[position:]
            if self._trailer_bytes + len(self._buffer) > TRAILER_LIMIT_BYTES:
                raise FramingFault("the trailers are too long")
            return len(data), False
        self._trailer_bytes += line_end + 2 - position
        if self._trailer_bytes > TRAILER_LIMIT_BYTES:
            raise FramingFault("the trailers are too long")
        return line_end + 2, line_end == position

    def eof(self) -> bool:
        return self.done


def chunk(payload: bytes) -> bytes:
    """One chunk around payload; payload must not be empty (that would end the body)."""
    return b"%x\r\n%b\r\n" % (len(payload), payload)


LAST_CHUNK = b"0\r\n\r\n"
