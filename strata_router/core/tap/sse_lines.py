"""Cuts a byte stream into blocks of whole SSE lines, whatever the read boundaries were.

A line ends in LF or CRLF; a lone CR ends nothing, so a stream that used it would never be seen at
an event boundary, which is the safe side. Lines are not interpreted here; ``response_tap`` does.
Source: design, "The parser handles ..."; contract 6.4.
"""

LINE_LIMIT_BYTES = 256 * 1024
"""Longest line kept for inspection, its line end not counted."""

OVERSIZE_STAND_IN = b":\n"
"""What an oversize line becomes in a block: an SSE comment, which nobody accounts."""


class SseLines:
    """Joins reads into blocks of whole lines and knows whether the last whole line was blank."""

    __slots__ = ("_last_line_is_blank", "_skipping", "_unfinished")

    def __init__(self) -> None:
        # Appended to and never re-joined: a long line in one-byte reads must not cost its square.
        self._unfinished = bytearray()
        # The unfinished line is over the limit; its bytes are no longer kept.
        self._skipping = False
        self._last_line_is_blank = True

    @property
    def at_blank_line(self) -> bool:
        """Whether everything fed ends exactly after a blank line; True before the first byte."""
        return self._last_line_is_blank and not self._unfinished and not self._skipping

    @property
    def unfinished(self) -> bytes:
        """The line that has no end yet, as far as it is kept; b"" for an oversize one."""
        return bytes(self._unfinished)

    @property
    def has_unfinished_text(self) -> bool:
        """Whether the line without an end holds more than the CR of a blank line's CRLF."""
        return self._skipping or (bool(self._unfinished) and self._unfinished != b"\r")

    def feed(self, chunk: bytes) -> bytes:
        """Return all lines that ``chunk`` finishes as one block.

        The block starts where a line starts and ends in LF, or is empty. CR before LF is left in.
        """
        end = chunk.rfind(b"\n") + 1
        if not end:
            self._keep(chunk)
            return b""
        whole = chunk if end == len(chunk) else chunk[:end]
        if self._unfinished or self._skipping:
            whole = self._joined(whole)
        if len(whole) > LINE_LIMIT_BYTES:
            whole = _without_oversize_lines(whole)
        self._last_line_is_blank = whole.endswith((b"\n\n", b"\n\r\n")) or whole in (b"\n", b"\r\n")
        if end != len(chunk):
            self._keep(chunk[end:])
        return whole

    def drain(self) -> bytes:
        """Return and forget the line that the end of the stream left without an end.

        What was fed still ends inside that line, not after a blank one.
        """
        rest = self.unfinished
        self._unfinished.clear()
        self._last_line_is_blank = self._last_line_is_blank and not rest
        return rest if _is_within_limit(rest) else b""

    def _joined(self, whole: bytes) -> bytes:
        """Put the unfinished line, or its stand-in, in front of a block that finishes it."""
        if self._skipping:
            self._skipping = False
            return OVERSIZE_STAND_IN + whole[whole.index(b"\n") + 1 :]
        start = bytes(self._unfinished)
        self._unfinished.clear()
        return start + whole

    def _keep(self, part: bytes) -> None:
        """Remember part of an unfinished line, or start skipping it once it is over the limit."""
        if self._skipping:
            return
        # One byte more than the limit: it may be the CR of a line exactly as long as allowed.
        if len(self._unfinished) + len(part) > LINE_LIMIT_BYTES + 1:
            self._skipping = True
            self._unfinished.clear()
        else:
            self._unfinished += part


def _without_oversize_lines(block: bytes) -> bytes:
    lines = block.split(b"\n")
    kept = [line if _is_within_limit(line) else OVERSIZE_STAND_IN[:-1] for line in lines]
    return b"\n".join(kept)


def _is_within_limit(line: bytes) -> bool:
    return len(line.removesuffix(b"\r")) <= LINE_LIMIT_BYTES
