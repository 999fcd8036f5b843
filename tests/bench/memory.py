"""Memory of the daemon in four states, and of the peers in the two that they have."""

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from tests.bench import processes
from tests.bench.measures import measure, open_stream, wait_for_token
from tests.bench.rounds import STREAMS
from tests.bench.targets import MODEL, OTHER_MODEL, Target, ask, chat

QUEUED_STREAMS = 500
QUEUED_BODIES = 32
BODY_BYTES = 50 * 1024 * 1024
"""One queued body; 32 of them are 1,600 MiB, inside the default ``max_buffered_body_bytes``."""

ARRIVE_S = 60.0


def idle_and_streaming(target: Target, program: Path) -> tuple[float, float]:
    """PSS in MB: at rest (after whatever it did before), and with 32 paced streams open."""
    idle = processes.pss_mb(target.pids())
    return idle, float(measure(STREAMS, program, target).get("pss_mb", 0.0))


@contextlib.contextmanager
def engine_taken(target: Target) -> Iterator[None]:
    """A stream of MODEL runs, so that requests for OTHER_MODEL wait."""
    with open_stream(target.port, MODEL, "bench 10 1000000.") as stream:
        wait_for_token(stream)
        yield


def queued_streams_mb(target: Target) -> float:
    """PSS with 500 streams of the other model waiting, each with its head and keep-alives sent."""
    with engine_taken(target), contextlib.ExitStack() as opened:
        for _ in range(QUEUED_STREAMS):
            opened.enter_context(open_stream(target.port, OTHER_MODEL, "bench 10 10."))
        _wait_for_queue(target, QUEUED_STREAMS)
        time.sleep(2.0)  # their heads have been committed by then
        return processes.pss_mb(target.pids())


def queued_bodies_mb(target: Target) -> float:
    """PSS with 32 requests of 50 MB each waiting."""
    filler = "x" * (BODY_BYTES - 200)
    body = json.dumps(chat(OTHER_MODEL, filler, stream=True)).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n" % target.port
    head += b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    with engine_taken(target), contextlib.ExitStack() as opened:
        for _ in range(QUEUED_BODIES):
            sock = socket.create_connection(("127.0.0.1", target.port), ARRIVE_S)
            opened.enter_context(sock)
            sock.sendall(head)
            sock.sendall(body)
        _wait_for_queue(target, QUEUED_BODIES)
        return processes.pss_mb(target.pids())


def _wait_for_queue(target: Target, waiting: int) -> None:
    def all_wait() -> bool:
        metrics = ask(target.port, "GET", "/metrics")
        return bool(metrics["queue_depth"] >= waiting)

    processes.wait_until(all_wait, ARRIVE_S, f"{waiting} requests wait")
