"""HTTP as llama-server speaks it: keep-alive, JSON answers, chunked streams, and the routes."""

import hashlib
import socket
import time
from typing import Any, BinaryIO

from strata_router.simulated.checkout.serve.chat_request import BadRequest, parse_chat, parse_object
from strata_router.simulated.checkout.serve.encoder import encode
from strata_router.simulated.checkout.serve.http_wire import (
    REASONS,
    RequestHead,
    read_body,
    read_head,
)
from strata_router.simulated.checkout.serve.knobs import BadKnob, with_markers
from strata_router.simulated.llama.generation import CONTEXT_TOKENS, Generation
from strata_router.simulated.llama.state import Server

MAX_BODY_BYTES = 256 * 1024 * 1024


class Connection:
    """One keep-alive connection: reads requests until one of the two sides closes."""

    def __init__(self, server: Server, connection: socket.socket) -> None:
        self._server = server
        self._socket = connection
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def run(self, reader: BinaryIO) -> None:
        """Raises OSError when the peer is gone."""
        while (head := read_head(reader)) is not None:
            body = read_body(head, reader, MAX_BODY_BYTES)
            if not self._answer(head, body):
                return

    def _answer(self, head: RequestHead, body: bytes) -> bool:
        """Answer one request; whether the connection stays open."""
        server = self._server
        if head.path in ("/health", "/v1/health"):
            server.stamps.stamp("control", method=head.method, path=head.path, query=head.query)
        if not server.is_loaded:
            return self._error(503, "Loading model", "unavailable_error")
        match (head.method, head.path):
            case ("GET" | "HEAD", "/health" | "/v1/health"):
                return self._json(200, {"status": "ok"}, send_body=head.method == "GET")
            case ("GET", "/v1/models" | "/models"):
                return self._json(200, _models(server.alias))
            case ("POST", "/v1/chat/completions" | "/chat/completions"):
                return self._chat(head, body)
        return self._error(404, "File Not Found", "not_found_error")

    def _json(
        self, status: int, value: Any, *, send_body: bool = True, close: bool = False
    ) -> bool:
        data = encode(value)
        last = "Connection: close" if close else "Keep-Alive: timeout=5, max=100"
        self._head(status, "application/json; charset=utf-8", f"Content-Length: {len(data)}", last)
        if send_body:
            self._socket.sendall(data)
        return not close

    def _error(self, status: int, message: str, kind: str) -> bool:
        error = {"message": message, "type": kind, "code": status}
        return self._json(status, {"error": error}, close=True)

    def _head(self, status: int, content_type: str, *more: str) -> None:
        lines = [
            f"HTTP/1.1 {status} {REASONS[status]}",
            "Server: llama.cpp",
            "Access-Control-Allow-Origin: ",
            f"Content-Type: {content_type}",
            *more,
        ]
        self._socket.sendall("\r\n".join(lines).encode() + b"\r\n\r\n")

    def _chat(self, head: RequestHead, body: bytes) -> bool:
        server = self._server
        sequence = next(server.sequence)
        server.stamps.stamp(
            "request",
            seq=sequence,
            path=head.path,
            query=head.query,
            headers=head.headers,
            body_bytes=len(body),
            body_sha256=hashlib.sha256(body).hexdigest(),
            peer=":".join(map(str, self._socket.getpeername()[:2])),
        )
        try:
            request = parse_chat(parse_object(body))
            knobs = with_markers(server.request, request.last_user_text)
        except (BadRequest, BadKnob) as error:
            return self._error(400, str(error), "invalid_request_error")
        if knobs.answer != "normal":
            return self._error(500, "the simulated engine was told to fail", "server_error")
        with server.lock:
            server.streams += 1
        try:
            return Generation(server, self._socket, request, knobs, sequence).run(self)
        finally:
            with server.lock:
                server.streams -= 1

    def open_stream(self) -> None:
        more = ("X-Accel-Buffering: no", "Transfer-Encoding: chunked")
        self._head(200, "text/event-stream", *more, "Keep-Alive: timeout=5, max=100")

    def send_events(self, *events: bytes) -> None:
        """One chunk of the stream, made of whole events."""
        data = b"".join(b"data: " + event + b"\n\n" for event in events)
        self._socket.sendall(b"%x\r\n%s\r\n" % (len(data), data))

    def send_end(self) -> None:
        self._socket.sendall(b"0\r\n\r\n")

    def send_answer(self, value: Any) -> bool:
        return self._json(200, value)


def _models(alias: str) -> dict[str, Any]:
    entry = {
        "id": alias,
        "aliases": [alias],
        "tags": [],
        "object": "model",
        "created": int(time.time()),
        "owned_by": "llamacpp",
        "meta": {"n_ctx": CONTEXT_TOKENS},
    }
    return {"models": [{"name": alias, "model": alias}], "object": "list", "data": [entry]}
