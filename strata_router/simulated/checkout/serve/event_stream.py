"""The events of one ``text/event-stream`` answer.

Every event leaves in one write unless a knob gathers or cuts them. Not decided here: which events
there are, and when.
"""

import json
from typing import Any

from .encoder import Encoder, encode
from .http_wire import Reply
from .knobs import RequestKnobs

SSE_HEADERS = (
    ("Content-Type", "text/event-stream"),
    ("Cache-Control", "no-cache"),
    ("X-Accel-Buffering", "no"),
)


class EventStream:
    """Frames in, body bytes out. Every method may raise ClientGone."""

    def __init__(self, reply: Reply, knobs: RequestKnobs) -> None:
        self._reply = reply
        self._encoder = Encoder(reply, knobs)
        self._gathered: list[bytes] = []
        self._events_per_write = knobs.events_per_segment
        self._newline = b"\r\n" if knobs.newline == "crlf" else b"\n"

    def open(self) -> None:
        self._reply.head(200, *SSE_HEADERS, *self._encoder.headers)

    def chunk(self, value: Any) -> None:
        """One ``data:`` event, in the compact JSON of Strata's chunks."""
        self._event(b"data: " + encode(value))

    def error(self, kind: str, message: str) -> None:
        """An error frame, spaced as Strata's are."""
        value = {"error": {"type": kind, "message": message}}
        self._event(b"data: " + json.dumps(value, ensure_ascii=False).encode())

    def comment(self) -> None:
        self._event(b": keep-alive")

    def done(self) -> None:
        self._event(b"data: [DONE]")

    def half_chunk(self, value: Any) -> None:
        """The first half of an event, for a stream that is cut inside it."""
        line = b"data: " + encode(value)
        self.flush()
        self._encoder.write(line[: len(line) // 2])

    def flush(self) -> None:
        if self._gathered:
            data = b"".join(self._gathered)
            self._gathered.clear()
            self._encoder.write(data)

    def close(self) -> None:
        """Everything gathered, and the end of the compression; the connection's end is not ours."""
        self.flush()
        self._encoder.finish()

    def _event(self, line: bytes) -> None:
        self._gathered.append(line + self._newline * 2)
        if len(self._gathered) >= self._events_per_write:
            self.flush()
