"""One chat request of the simulated llama-server, from its first token to its last."""

import os
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any, Protocol

from strata_router.simulated.checkout.serve.answers import Answer, plan
from strata_router.simulated.checkout.serve.cache import prompt_tokens
from strata_router.simulated.checkout.serve.chat_request import ChatRequest
from strata_router.simulated.checkout.serve.encoder import encode
from strata_router.simulated.checkout.serve.frames import Work
from strata_router.simulated.checkout.serve.knobs import RequestKnobs
from strata_router.simulated.checkout.serve.native import die
from strata_router.simulated.checkout.serve.watcher import DisconnectWatcher
from strata_router.simulated.llama.state import Server

CONTEXT_TOKENS = 8192
WATCH_S = 0.05
FINGERPRINT = "b0-simulated"


class Answering(Protocol):
    """The connection's side of an answer. Everything may raise OSError."""

    def open_stream(self) -> None: ...

    def send_events(self, *events: bytes) -> None:
        """One chunk of the stream, made of whole events."""

    def send_end(self) -> None: ...

    def send_answer(self, value: Any) -> bool: ...


class Generation:
    """Makes the answer at its pace; ``run`` is called once, by the connection's thread."""

    def __init__(
        self,
        server: Server,
        connection: socket.socket,
        request: ChatRequest,
        knobs: RequestKnobs,
        sequence: int,
    ) -> None:
        self._server = server
        self._request = request
        self._knobs = knobs
        self._sequence = sequence
        self._gone = threading.Event()
        self._watcher = DisconnectWatcher(connection, WATCH_S, self._gone.set)
        limit = CONTEXT_TOKENS if request.max_tokens is None else request.max_tokens
        self._answer: Answer = plan(request, knobs, server.alias, limit)
        self._work = Work(prompt_tokens(request.prompt))
        self._base = {
            "created": int(time.time()),
            "id": f"chatcmpl-{os.urandom(16).hex()}",
            "model": server.alias,
            "system_fingerprint": FINGERPRINT,
        }

    def run(self, connection: Answering) -> bool:
        """Answer; whether the connection stays open. Raises OSError."""
        finish = "error"
        self._watcher.start()
        try:
            finish = self._stream(connection) if self._request.stream else self._collect(connection)
            return not self._request.stream and finish != "disconnect"
        finally:
            self._watcher.stop()
            if finish in ("disconnect", "error"):
                left = {"how": "eof", "chunks": self._work.generated}
                self._server.stamps.stamp("disconnect", seq=self._sequence, **left)
            facts = {"finish": finish, "chunks": self._work.generated}
            self._server.stamps.stamp("finish", seq=self._sequence, **facts)
            done = {"status": 200, "response_bytes": None, "response_sha256": None}
            self._server.stamps.stamp("done", seq=self._sequence, **done)

    def _stream(self, connection: Answering) -> str:
        self._gone.wait(self._knobs.header_delay_s)
        connection.open_stream()
        role = encode(self._chunk({"role": "assistant", "content": None}))
        for number, delta in enumerate(self._deltas()):
            events = (encode(self._chunk(delta)),)
            connection.send_events(*((role, *events) if number == 0 else events))
            if number == 0:
                self._server.stamps.stamp("first_chunk", seq=self._sequence)
        if self._gone.is_set():
            return "disconnect"
        connection.send_events(*self._last_events())
        if self._knobs.done:
            connection.send_events(b"[DONE]")
        connection.send_end()
        return self._answer.finish

    def _last_events(self) -> list[bytes]:
        """The chunk with finish_reason; with a usage chunk behind it, that one has the timings."""
        last = self._chunk({}, self._answer.finish)
        usage = self._chunk({})
        usage["choices"] = []
        wants_usage = self._knobs.usage == "separate" or self._request.wants_usage
        sends_usage = wants_usage and self._knobs.usage != "none"
        if self._knobs.timings:
            (usage if sends_usage else last)["timings"] = self._work.timings(self._knobs)
        usage["usage"] = self._work.usage(self._knobs)
        return [encode(last), encode(usage)] if sends_usage else [encode(last)]

    def _collect(self, connection: Answering) -> str:
        text = "".join(delta.get("content") or "" for delta in self._deltas())
        if self._gone.is_set():
            return "disconnect"
        message = {"role": "assistant", "content": text}
        choice = {"finish_reason": self._answer.finish, "index": 0, "message": message}
        answer = {"choices": [choice], **self._base, "object": "chat.completion"}
        answer["usage"] = self._work.usage(self._knobs)
        answer["timings"] = self._work.timings(self._knobs)
        connection.send_answer(answer)
        return self._answer.finish

    def _deltas(self) -> Iterator[dict[str, Any]]:
        """Deltas at their pace until the answer is over or the client left; SIGTERM stalls them."""
        knobs = self._knobs
        started = time.monotonic()
        self._gone.wait(knobs.prefill_s)
        began = time.monotonic()
        self._work.prompt_s = began - started
        for number, piece in enumerate(self._answer.pieces):
            if knobs.die_after_chunks == number:
                self._server.stamps.stamp("dies", where=f"after {number} chunks")
                die(knobs.die_exit)
            hangs = knobs.hang_after_chunks == number or self._server.is_stopping.is_set()
            if self._gone.wait(10**6 if hangs else knobs.chunk_every_ms / 1000):
                return
            self._work.generated += 1
            yield piece.delta
        self._work.generated = self._answer.tokens
        self._work.decode_s = time.monotonic() - began

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"finish_reason": finish, "index": 0, "delta": delta}
        return {"choices": [choice], **self._base, "object": "chat.completion.chunk"}
