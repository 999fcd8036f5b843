"""One connection, one request: reads it, checks who asks, finds the route, stamps, closes.

Runs in a thread of its own. What it cannot answer it closes without a response, as Strata does.
"""

import contextlib
import hashlib
import socket
import struct
import threading
import time
from typing import Any

from .access import denial
from .chat import answer_chat
from .chat_request import BadRequest
from .faults import ConnectionCut
from .http_wire import (
    BadRequestBody,
    BadRequestHead,
    ClientGone,
    Reply,
    RequestHead,
    read_body,
    read_head,
)
from .native import LoadFailed
from .routes import GETS, POSTS
from .service import Service

CHAT_PATHS = ("/v1/chat/completions", "/chat/completions")
MAX_RECORDED_BODY_BYTES = 65_536


def serve_in_thread(service: Service, connection: socket.socket) -> None:
    threading.Thread(target=_serve, args=(service, connection), daemon=True).start()


def _serve(service: Service, connection: socket.socket) -> None:
    hashes = service.profile.engine.hash_responses
    # Small writes must leave at once: Nagle's algorithm would hold them for the peer's ACK.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    reply = Reply(connection, hashlib.sha256() if hashes else None)
    by_reset = False
    try:
        with connection.makefile("rb") as reader:
            _answer(service, connection, reader, reply)
    except ConnectionCut as cut:
        by_reset = cut.by_reset
    except (ClientGone, LoadFailed, OSError):
        # LoadFailed and a dead standard output (OSError): the peer sees a close and nothing else.
        pass
    finally:
        _close(connection, by_reset=by_reset)


def _close(connection: socket.socket, *, by_reset: bool) -> None:
    if by_reset:
        linger = struct.pack("ii", 1, 0)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    else:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_WR)
    connection.close()


def _answer(service: Service, connection: socket.socket, reader: Any, reply: Reply) -> None:
    try:
        head = read_head(reader)
    except BadRequestHead as error:
        reply.page(error.status)
        return
    if head is None:
        return
    if head.method not in ("GET", "POST", "OPTIONS"):
        reply.page(501, send_body=head.method != "HEAD")
        return
    refused = denial(head, service.profile)
    if refused is not None:
        reply.error(refused.status, refused.message, refused.kind)
        return
    if service.is_starting:
        _answer_while_loading(head, reply)
        return
    try:
        body = read_body(head, reader, service.profile.max_body_bytes)
        if head.method == "POST" and head.path in CHAT_PATHS:
            _chat(service, connection, head, body, reply)
        else:
            _other(service, head, body, reply)
    except BadRequestBody as error:
        reply.error(error.status, str(error), "invalid_request_error")


def _answer_while_loading(head: RequestHead, reply: Reply) -> None:
    """The placeholder listener of one fork, which has a port before it has a model."""
    reply.json(503 if head.method == "GET" else 529, {"status": "loading"})


def _other(service: Service, head: RequestHead, body: bytes, reply: Reply) -> None:
    service.stamps.stamp("control", method=head.method, path=head.path, query=head.query)
    if head.method == "OPTIONS":
        reply.head(204)
        return
    handler = (GETS if head.method == "GET" else POSTS).get(head.path)
    if handler is None:
        reply.error(404, "no such path")
        return
    try:
        handler(service, head, body, reply)
    except BadRequest as error:
        reply.error(400, str(error), "invalid_request_error")


def _chat(
    service: Service, connection: socket.socket, head: RequestHead, body: bytes, reply: Reply
) -> None:
    sequence = next(service.sequence)
    knobs = service.profile.engine
    recorded = {}
    if knobs.record_bodies and len(body) <= MAX_RECORDED_BODY_BYTES:
        recorded["body"] = body.decode("utf-8", "surrogateescape")
    service.stamps.stamp(
        "request",
        seq=sequence,
        path=head.path,
        query=head.query,
        headers=head.headers,
        body_bytes=len(body),
        body_sha256=hashlib.sha256(body).hexdigest(),
        peer=":".join(map(str, connection.getpeername()[:2])),
        **recorded,
    )
    try:
        answer_chat(service, connection, reply, sequence, body)
        time.sleep(service.profile.request.close_delay_s)
    finally:
        service.stamps.stamp(
            "done",
            seq=sequence,
            status=reply.status,
            response_bytes=reply.body_bytes,
            response_sha256=reply.body_sha256,
        )
