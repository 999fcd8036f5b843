"""One measurement: the load client against one target, and what the target used meanwhile."""

import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench import processes
from tests.bench.processes import LOAD_CPU, Missing
from tests.bench.targets import MODEL, Target, ask, chat

PATIENCE_S = 20.0
"""How much longer than planned a load client may take before it is ended."""

STREAM_TOKENS = 100_000_000
"""More than any window lasts: such a stream is still running when its measurement ends."""


@dataclass(frozen=True, slots=True)
class Load:
    """What one load client does; see native/load.c.

    rate: tokens a second and stream, 0 as fast as possible. warm_s, window_s: seconds before and
    of the measurement. pause_us: between a connection's requests. batch: tokens per send of an
    unpaced stream.
    """

    connections: int = 1
    rate: int = 0
    tokens: int = 1
    warm_s: float = 0.3
    window_s: float = 1.5
    pause_us: int = 0
    batch: int = 1
    model: str = MODEL

    @property
    def asked_tokens(self) -> int:
        """A paced stream outlives its window by a little only: some routers read on without a client."""
        most = int(self.rate * (self.warm_s + self.window_s + 3))
        return min(self.tokens, most) if self.rate else self.tokens

    def argv(self, program: Path, port: int) -> list[str]:
        return [
            str(program),
            *("--port", str(port), "--model", self.model),
            *("--connections", str(self.connections), "--rate", str(self.rate)),
            *("--tokens", str(self.asked_tokens), "--batch", str(self.batch)),
            *("--pause-us", str(self.pause_us)),
            *("--warm", str(self.warm_s), "--window", str(self.window_s)),
        ]


Result = dict[str, Any]
"""What load.c prints, and ``cpu_s_per_s``: processor seconds of the target per second of the window;
``pss_mb`` with the load's connections open; ``failed`` instead of all when the client did not end."""


@contextmanager
def running(load: Load, program: Path, target: Target) -> Iterator["subprocess.Popen[str]"]:
    """The load client, ended with the block."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {LOAD_CPU})
    try:
        client = subprocess.Popen(
            load.argv(program, target.port),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
    finally:
        os.sched_setaffinity(0, before)
    # A target that stopped answering must not stop the bench.
    watchdog = threading.Timer(load.warm_s + load.window_s + PATIENCE_S, client.kill)
    watchdog.start()
    try:
        yield client
    finally:
        watchdog.cancel()
        client.kill()
        client.wait()


def measure(load: Load, program: Path, target: Target) -> Result:
    """Run the load and return what came of it."""
    with running(load, program, target) as client:
        assert client.stdout is not None
        pids = target.pids()
        if client.stdout.readline() != "begin\n":
            return {"failed": True}
        cpu_s, began_s = processes.cpu_s(pids), time.monotonic()
        if client.stdout.readline() != "end\n":
            return {"failed": True}
        used_s, took_s = processes.cpu_s(pids) - cpu_s, time.monotonic() - began_s
        try:
            result: Result = json.loads(client.stdout.readline())
        except ValueError:
            return {"failed": True}
        result["cpu_s_per_s"] = used_s / took_s
        result["pss_mb"] = processes.pss_mb(pids)
    return result


def settle(target: Target, within_s: float = 3.0) -> None:
    """Let the target come to rest after a load whose streams were hung up."""
    pids = target.pids()
    give_up = time.monotonic() + within_s
    while pids and time.monotonic() < give_up:
        before = processes.cpu_s(pids)
        time.sleep(0.1)
        if processes.cpu_s(pids) - before < 0.005:
            return
    time.sleep(0.1)


def hang_up_delays_us(target: Target, times: int) -> list[float]:
    """Client's socket closed to the double seeing its own side close, for single running streams."""
    delays = []
    for _ in range(times):
        before = ask(target.double_port, "GET", "/bench/hangups")["count"]
        with open_stream(target.port, MODEL, "bench 100 1000000.") as stream:
            wait_for_token(stream)
            closed_ns = time.monotonic_ns()
        give_up = time.monotonic() + 2
        while time.monotonic() < give_up:
            time.sleep(0.02)
            after = ask(target.double_port, "GET", "/bench/hangups")
            if after["count"] > before:
                delays.append((after["last_ns"] - closed_ns) / 1000)
                break
    return delays


def open_stream(port: int, model: str, text: str) -> socket.socket:
    """A connection on which a stream has been asked for."""
    body = json.dumps(chat(model, text, stream=True)).encode()
    stream = socket.create_connection(("127.0.0.1", port), 10)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n" % port
    head += b"Content-Type: application/json\r\nAuthorization: Bearer sk-bench\r\n"
    stream.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    return stream


def wait_for_token(stream: socket.socket) -> None:
    """Read on until a token has come. Raises Missing when the stream ends before."""
    data = b""
    while b"~" not in data:
        piece = stream.recv(65536)
        if not piece:
            raise Missing("the stream ended before its first token")
        data += piece
