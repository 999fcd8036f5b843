"""Body bytes on their way to the socket: compressed and cut into pieces as the knobs say."""

import json
import time
import zlib
from typing import Any

from .http_wire import Reply
from .knobs import RequestKnobs

GZIP_WBITS = 31
"""zlib's way to say: with a gzip header and trailer."""


class Encoder:
    """The body of one answer."""

    def __init__(self, reply: Reply, knobs: RequestKnobs) -> None:
        self._reply = reply
        self._knobs = knobs
        self._gzip = zlib.compressobj(wbits=GZIP_WBITS) if knobs.gzip else None

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        return (("Content-Encoding", "gzip"),) if self._knobs.gzip else ()

    def write(self, data: bytes) -> None:
        """Send what can be decoded so far. Raises ClientGone."""
        if self._gzip is not None:
            data = self._gzip.compress(data) + self._gzip.flush(zlib.Z_SYNC_FLUSH)
        self._send(data)

    def finish(self) -> None:
        if self._gzip is not None:
            self._send(self._gzip.flush())

    def whole(self, status: int, data: bytes) -> None:
        """A JSON answer with its Content-Length."""
        if self._gzip is not None:
            data = self._gzip.compress(data) + self._gzip.flush()
        length = ("Content-Length", str(len(data)))
        self._reply.head(status, ("Content-Type", "application/json"), *self.headers, length)
        self._send(data)

    def _send(self, data: bytes) -> None:
        step = self._knobs.segment_bytes or max(1, len(data))
        for start in range(0, len(data), step):
            self._reply.body(data[start : start + step])
            if self._knobs.segment_gap_ms:
                time.sleep(self._knobs.segment_gap_ms / 1000)


def encode(value: Any) -> bytes:
    """Compact JSON in UTF-8; what a chat answer holds is ours, so it has no lone surrogates."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
