"""An engine that only streams, cheaply: what it sends costs next to nothing, so it can feed a daemon.

``bench_tap_share.py`` copies it to ``serve/server.py`` of a checkout of its own, where the daemon starts
it as it starts Strata. Answers /health, and every chat request with so many frames as ``max_tokens``
says; ``seed`` is how many frames per second, 0 for as fast as they are taken. One thread.
"""

import json
import selectors
import socket
import sys
import time
from dataclasses import dataclass

FRAME = (
    b'data: {"id":"chatcmpl-0f1e2d3c4b5a69788796a5b4","object":"chat.completion.chunk",'
    b'"created":1795973238,"model":"bench","choices":[{"index":0,'
    b'"delta":{"content":" hello"},"finish_reason":null}]}\n\n'
)
END = (
    b'data: {"id":"x","object":"chat.completion.chunk","choices":[{"index":0,"delta":{},'
    b'"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":%d}}\n\n'
    b"data: [DONE]\n\n"
)
HEAD = b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
HEALTH = b'{"status":"ok","loaded":true,"model":"%s"}'
TICK_S = 0.01


@dataclass
class Stream:
    """One answer on its way. rate: frames per second, 0 for no pause."""

    left: int
    total: int
    rate: int


def read_request(connection: socket.socket) -> tuple[bytes, bytes]:
    """(path, body), both empty when nothing was asked; requests come in one piece or nearly so."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(65536)
        if not piece:
            return b"", b""
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    length = 0
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    while len(body) < length and (piece := connection.recv(65536)):
        body += piece
    return head.split(b" ")[1], body


class Engine:
    def __init__(self, port: int, model: bytes) -> None:
        self.model = model
        self.streams: dict[socket.socket, Stream] = {}
        self.listener = socket.create_server(("127.0.0.1", port), backlog=256)
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.listener, selectors.EVENT_READ)

    def accept(self) -> None:
        connection, _ = self.listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # One that asks nothing yet must not hold up the others.
        self.selector.register(connection, selectors.EVENT_READ)

    def answer(self, connection: socket.socket) -> None:
        self.selector.unregister(connection)
        path, body = read_request(connection)
        if not path:
            connection.close()
        elif path != b"/v1/chat/completions":
            health = HEALTH % self.model
            connection.sendall(
                b"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n" + health
            )
            connection.close()
        else:
            asked = json.loads(body)
            connection.sendall(HEAD)
            tokens = asked["max_tokens"]
            self.streams[connection] = Stream(tokens, tokens, asked["seed"])

    def push(self) -> None:
        """A tick's worth of frames for every stream: one frame a write, as an engine makes them."""
        for connection, stream in list(self.streams.items()):
            count = min(stream.left, max(1, round(stream.rate * TICK_S)) if stream.rate else 8)
            try:
                for _ in range(count):
                    connection.sendall(FRAME)
                stream.left -= count
                if stream.left == 0:
                    connection.sendall(END % stream.total)
            except OSError:
                stream.left = 0
            if stream.left == 0:
                connection.close()
                del self.streams[connection]

    def run(self) -> None:
        now = time.perf_counter
        due = now()
        while True:
            is_fast = any(stream.rate == 0 for stream in self.streams.values())
            wait_s = 0.0 if is_fast else max(0.0, due - now())
            for key, _ in self.selector.select(wait_s if self.streams else None):
                if key.fileobj is self.listener:
                    self.accept()
                elif isinstance(key.fileobj, socket.socket):
                    self.answer(key.fileobj)
            if is_fast or now() >= due:
                due = max(due + TICK_S, now())
                self.push()


if __name__ == "__main__":
    words = sys.argv[1:]
    options = dict(zip(words[::2], words[1::2], strict=False))
    with open(options["--config"], "rb") as profile:
        name = json.load(profile)["model_name"]
    Engine(int(options["--port"]), name.encode()).run()
