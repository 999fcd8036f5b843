"""Where generated tokens go: frame by frame into a stream, or into one JSON answer at the end.

Both have the same steps, so the exchange does not ask which it has. Any step may raise ClientGone.
"""

from typing import Any, Protocol

from .answers import Piece, json_text
from .chat_request import ChatRequest
from .encoder import Encoder, encode
from .event_stream import EventStream
from .frames import Frames, Work, logprobs
from .http_wire import Reply
from .knobs import RequestKnobs


class EngineFailed(Exception):
    """The engine's part of a request failed.

    status, kind: of the answer that is not streamed. A stream is at 200 already, and says
    server_error.
    """

    def __init__(self, message: str, status: int = 503, kind: str = "server_error") -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind


class Sink(Protocol):
    """The client's side of one exchange."""

    def begin(self) -> None:
        """Before the request has its turn."""

    def silence(self) -> None:
        """The engine said nothing for a while, or the request still waits for its turn."""

    def progress(self, read_tokens: int, work: Work, reading_s: float) -> None:
        """The engine has read so much of the prompt."""

    def tick(self) -> None:
        """About once a second while the engine works."""

    def piece(self, piece: Piece, work: Work, *, is_last: bool) -> None: ...

    def half_piece(self, piece: Piece) -> None:
        """Begin to write what will not be finished."""

    def flush(self) -> None: ...

    def final(self, finish: str, work: Work) -> None:
        """The answer is complete, but for the mark of its end."""

    def done(self) -> None: ...

    def fail(self, error: EngineFailed) -> None: ...


class StreamingSink:
    """Server-sent events, as ``"stream": true`` asks for."""

    def __init__(
        self, reply: Reply, frames: Frames, request: ChatRequest, knobs: RequestKnobs
    ) -> None:
        self._stream = EventStream(reply, knobs)
        self._frames = frames
        self._request = request
        self._knobs = knobs
        self._buffered: list[Piece] = []

    def begin(self) -> None:
        self._stream.open()
        self._stream.chunk(self._frames.role())

    def silence(self) -> None:
        self._stream.comment()
        self._stream.flush()

    def progress(self, read_tokens: int, work: Work, reading_s: float) -> None:
        """A comment; where ``return_progress`` asks for it, a chunk with an empty delta too."""
        self.silence()
        if self._request.wants_progress:
            chunk = self._frames.chunk({})
            chunk["prompt_progress"] = work.progress(read_tokens, reading_s)
            self._stream.chunk(chunk)

    def tick(self) -> None:
        if self._request.wants_json:
            self.silence()

    def piece(self, piece: Piece, work: Work, *, is_last: bool) -> None:
        if self._request.wants_json:
            self._buffered.append(piece)
            return
        chunk = self._chunk(piece)
        if self._knobs.usage == "inline" or (self._knobs.usage == "last_content" and is_last):
            chunk["usage"] = work.usage(self._knobs)
        self._stream.chunk(chunk)

    def half_piece(self, piece: Piece) -> None:
        self._stream.half_chunk(self._chunk(piece))

    def flush(self) -> None:
        self._stream.flush()

    def final(self, finish: str, work: Work) -> None:
        if self._request.wants_json:
            self._stream.chunk(self._frames.chunk({"content": json_text(iter(self._buffered))}))
        knobs = self._knobs
        chunk = self._frames.chunk({}, finish if knobs.finish else None)
        if knobs.usage == "final":
            chunk["usage"] = work.usage(knobs)
        if knobs.timings:
            chunk["timings"] = work.timings(knobs)
        self._stream.chunk(chunk)
        if knobs.usage == "separate" or (knobs.usage == "asked" and self._request.wants_usage):
            self._stream.chunk({**self._frames.without_choices(), "usage": work.usage(knobs)})
        self._stream.flush()

    def done(self) -> None:
        if self._knobs.done:
            self._stream.done()
        self._stream.close()

    def fail(self, error: EngineFailed) -> None:
        self._stream.error("server_error", str(error))
        self.done()

    def _chunk(self, piece: Piece) -> dict[str, Any]:
        chunk = self._frames.chunk(piece.delta)
        if self._request.wants_logprobs and self._knobs.neginf and piece.content:
            chunk["choices"][0]["logprobs"] = logprobs(piece.content, self._knobs.neginf)
        return chunk


class CollectingSink:
    """One JSON body; not a byte before it is complete."""

    def __init__(
        self, reply: Reply, frames: Frames, request: ChatRequest, knobs: RequestKnobs
    ) -> None:
        self._reply = reply
        self._frames = frames
        self._request = request
        self._knobs = knobs
        self._pieces: list[Piece] = []
        self._answer: dict[str, Any] = {}

    def begin(self) -> None:
        pass

    silence = tick = flush = begin

    def progress(self, read_tokens: int, work: Work, reading_s: float) -> None:
        pass

    def piece(self, piece: Piece, work: Work, *, is_last: bool) -> None:
        self._pieces.append(piece)

    def half_piece(self, piece: Piece) -> None:
        self._reply.head(200, ("Content-Type", "application/json"), ("Content-Length", "1000"))
        self._reply.body(b'{"choices":')

    def final(self, finish: str, work: Work) -> None:
        knobs = self._knobs
        answer = self._frames.completion(self._message(), finish if knobs.finish else None)
        if self._request.wants_logprobs and knobs.neginf:
            answer["choices"][0]["logprobs"] = logprobs("simulated", knobs.neginf)
        if knobs.usage != "none":
            answer["usage"] = work.usage(knobs)
        if knobs.timings:
            answer["timings"] = work.timings(knobs)
        self._answer = answer

    def done(self) -> None:
        Encoder(self._reply, self._knobs).whole(200, encode(self._answer))

    def fail(self, error: EngineFailed) -> None:
        self._reply.error(error.status, str(error), error.kind)

    def _message(self) -> dict[str, Any]:
        """``content`` is null when empty; the other parts are absent when empty."""
        text = "".join(piece.content or "" for piece in self._pieces)
        if self._request.wants_json:
            text = json_text(iter(self._pieces))
        message: dict[str, Any] = {"role": "assistant", "content": text or None}
        if thoughts := "".join(piece.reasoning or "" for piece in self._pieces):
            message["reasoning_content"] = thoughts
        if calls := _joined_calls(self._pieces):
            message["tool_calls"] = calls
        return message


def _joined_calls(pieces: list[Piece]) -> list[dict[str, Any]]:
    calls: dict[int, dict[str, Any]] = {}
    for piece in pieces:
        if (part := piece.tool_call) is None:
            continue
        if "id" in part:
            function = dict(part["function"])
            calls[part["index"]] = {"id": part["id"], "type": "function", "function": function}
        else:
            calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]
    return list(calls.values())


def sink_for(request: ChatRequest, reply: Reply, frames: Frames, knobs: RequestKnobs) -> Sink:
    kind = StreamingSink if request.stream else CollectingSink
    return kind(reply, frames, request, knobs)
