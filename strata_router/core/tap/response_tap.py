"""Listens to one answer's body on its way to the client and keeps what it says about itself.

Fed with the bytes of every upstream read and the Moment of that read; changes, delays and stores
none of them. Says where the exchange may add bytes of its own and which bytes it may hold back, and
at the end gives an ``Accounting``. Used by the exchange that owns the answer, by nobody else.
Source: design, "Per-request accounting"; contract 6.4 and section 9.
"""

from dataclasses import dataclass
from enum import StrEnum

from strata_router.core.moment import Moment
from strata_router.core.tap.facts import (
    Figures,
    error_status_of,
    figures_of,
    finish_reason_of,
    has_generated_delta,
    is_error,
    parse_frame,
)
from strata_router.core.tap.plain_frames import PlainShape, is_text
from strata_router.core.tap.sse_lines import SseLines
from strata_router.core.vocabulary import FinishReason

BODY_LIMIT_BYTES = 256 * 1024
"""Largest JSON body kept for inspection; a larger one passes unaccounted."""

_SHAPES_TO_LEARN = 16
"""Learning costs three parses; a stream whose frames never repeat must not pay that each time."""


class BodyKind(StrEnum):
    """How an answer's body can be read; OPAQUE (encoded, or neither of the two) leaves only nulls."""

    SSE = "sse"
    JSON = "json"
    OPAQUE = "opaque"


def body_kind(content_type: bytes, content_encoding: bytes) -> BodyKind:
    """Return how a body with these header values is read; b"" stands for an absent header."""
    if content_encoding.strip().lower() not in (b"", b"identity"):
        return BodyKind.OPAQUE
    media_type = content_type.split(b";", 1)[0].strip().lower()
    if media_type == b"text/event-stream":
        return BodyKind.SSE
    if media_type == b"application/json" or media_type.endswith(b"+json"):
        return BodyKind.JSON
    return BodyKind.OPAQUE


@dataclass(frozen=True, slots=True)
class Accounting:
    """What an answer said of itself; every figure is the engine's latest, None where it said none.

    *_tokens and *_n: whole tokens. *_ms: milliseconds. *_per_second: tokens per second.
    first_token, last_token: reads that held the first and last generated delta; None for a body
        that is not SSE.
    saw_done: the ``[DONE]`` event passed. saw_error: an error frame (or error body) passed, in
        which case no success may be recorded. error_status: the HTTP status that error named.
    """

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    prompt_n: int | None = None
    cache_n: int | None = None
    predicted_n: int | None = None
    prompt_ms: float | None = None
    predicted_ms: float | None = None
    prompt_per_second: float | None = None
    predicted_per_second: float | None = None
    finish_reason: FinishReason | None = None
    first_token: Moment | None = None
    last_token: Moment | None = None
    saw_done: bool = False
    saw_error: bool = False
    error_status: int | None = None


class ResponseTap:
    """The account of one answer's body, kept while it passes.

    first_token, last_token, saw_done, saw_error: as in ``Accounting``, for what has passed so far.
    events: data lines of an SSE body so far, which is one per event as engines send them, ``[DONE]``
        included; a line without its end does not count yet.
    """

    __slots__ = (
        "_body",
        "_done_bytes",
        "_error_status",
        "_figures",
        "_finish_reason",
        "_kind",
        "_lines",
        "_read_at",
        "_shape",
        "_shapes_left",
        "events",
        "first_token",
        "last_token",
        "saw_done",
        "saw_error",
    )

    def __init__(self, kind: BodyKind) -> None:
        self.first_token: Moment | None = None
        self.last_token: Moment | None = None
        self.saw_done = False
        self.saw_error = False
        self.events = 0
        self._kind = kind
        self._lines = SseLines()
        # None once the body is over the limit.
        self._body: bytearray | None = bytearray()
        self._figures: Figures = {}
        self._finish_reason: FinishReason | None = None
        self._error_status: int | None = None
        self._read_at: Moment | None = None
        self._shape: PlainShape | None = None
        self._shapes_left = _SHAPES_TO_LEARN
        # Length of the stream's end from the last [DONE] line on; 0 unless only line ends follow it.
        self._done_bytes = 0

    @property
    def is_stream(self) -> bool:
        """Whether the body is read as SSE."""
        return self._kind is BodyKind.SSE

    @property
    def at_event_boundary(self) -> bool:
        """Whether a comment or an event of ours may be put after the bytes fed so far.

        True before the first byte and after a blank line of an SSE body; never in another body.
        """
        return self._kind is BodyKind.SSE and self._lines.at_blank_line

    @property
    def safe_to_insert(self) -> bool:
        """The same as ``at_event_boundary``, for the place that inserts."""
        return self.at_event_boundary

    def feed(self, chunk: bytes, now: Moment) -> None:
        """Take the bytes of one read, split anywhere; ``now`` is the moment of that read."""
        if self._kind is BodyKind.SSE:
            self._read_at = now
            block = self._lines.feed(chunk)
            if block:
                self.events += block.count(b"\ndata:") + block.startswith(b"data:")
                if self._take_block(block):
                    self._stamp(now)
        elif self._kind is BodyKind.JSON:
            self._keep_body(chunk)

    def hold_done(self, unsent: bytes) -> tuple[bytes, bytes]:
        """Split ``unsent`` into what to send now and the ``[DONE]`` event to hold back.

        unsent: everything fed but not sent yet; it must end with the bytes fed last. The second
        part is what of it belongs to a ``data: [DONE]`` line that only line ends follow, b"" if the
        stream does not end so at present. Parts of that line that were sent earlier stay sent.
        """
        if not self._done_bytes or self._lines.has_unfinished_text:
            return unsent, b""
        held_bytes = self._done_bytes + len(self._lines.unfinished)
        cut = max(0, len(unsent) - held_bytes)
        return unsent[:cut], unsent[cut:]

    def close(self) -> Accounting:
        """Account for what has no line end and return the whole; further calls return the same."""
        self._take_rest()
        return Accounting(
            **self._figures,
            finish_reason=self._finish_reason,
            first_token=self.first_token,
            last_token=self.last_token,
            saw_done=self.saw_done,
            saw_error=self.saw_error,
            error_status=self._error_status,
        )

    def _take_rest(self) -> None:
        """Take the last line of a stream that ends without a line end, or the body as a whole."""
        if self._kind is BodyKind.SSE:
            rest = self._lines.drain()
            if rest and self._take_line(rest) and self._read_at is not None:
                self._stamp(self._read_at)
        elif self._body:
            frame = parse_frame(self._body)
            self._body = None
            if frame is not None:
                self._take_facts(frame)

    def _keep_body(self, chunk: bytes) -> None:
        if self._body is not None:
            if len(self._body) + len(chunk) > BODY_LIMIT_BYTES:
                self._body = None
            else:
                self._body += chunk

    def _stamp(self, now: Moment) -> None:
        if self.first_token is None:
            self.first_token = now
        self.last_token = now

    def _take_block(self, block: bytes) -> bool:
        """Account for whole lines; return whether they hold a generated delta."""
        if self._shape is not None:
            text = self._shape.last_text_of_run(block)
            if text is not None and is_text(text):
                self._done_bytes = 0
                return True
        generated = False
        for line in block[:-1].split(b"\n"):
            if not line and not self._done_bytes:
                continue
            if self._shape is not None:
                text = self._shape.text_in(line)
                # One delta per read is enough: the stamp is the read's.
                if text is not None and (generated or is_text(text)):
                    generated = True
                    self._done_bytes = 0
                    continue
            generated = self._take_line(line) or generated
        return generated

    def _take_line(self, line: bytes) -> bool:
        """Account for one line without its LF; return whether it is a generated delta."""
        field, _, value = line.partition(b":")
        if self._done_bytes:
            ends_only = line in (b"", b"\r")
            self._done_bytes = self._done_bytes + len(line) + 1 if ends_only else 0
        if field == b"data":
            return self._take_data(line, value.strip())
        # `event: error` with any data, and the `error:` field that older llama.cpp servers send.
        if field == b"error" or (field == b"event" and value.strip() == b"error"):
            self.saw_error = True
        return False

    def _take_data(self, line: bytes, payload: bytes) -> bool:
        if payload == b"[DONE]":
            self.saw_done = True
            self._done_bytes = len(line) + 1
            return False
        frame = parse_frame(payload)
        if frame is None:
            return False
        says_more = self._take_facts(frame)
        generated = has_generated_delta(frame)
        if generated and not says_more and self._shapes_left:
            self._shapes_left -= 1
            self._shape = PlainShape.of_line(line) or self._shape
        return generated

    def _take_facts(self, frame: dict[str, object]) -> bool:
        """Merge what the frame says over what was said before; return whether it said anything."""
        figures = figures_of(frame)
        self._figures.update(figures)
        finish_reason = finish_reason_of(frame)
        if finish_reason is not None:
            self._finish_reason = finish_reason
        failed = is_error(frame)
        if failed:
            self.saw_error = True
            self._error_status = error_status_of(frame) or self._error_status
        return bool(figures) or finish_reason is not None or failed
