"""Measures what share of a daemon's processor time the response tap has, under streams.

Run: ``python research/bench_tap_share.py [ROUNDS]``, in the checkout. Two daemons run side by side, one as it
is and one whose tap looks at nothing, on engines that only stream (``stream_engine.py``). They get the
same load in turn, and the processor time of the daemon's process (/proc/PID/task/*/schedstat) is divided
by the frames. Prints Markdown: median of the rounds, smallest and largest.
"""

import json
import os
import platform
import selectors
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

RESEARCH = Path(__file__).parent

BLIND = """
import strata_router.runtime.exchange as exchange
from strata_router.core.tap import ResponseTap

class BlindTap(ResponseTap):
    '''Says what a whole stream says, and looks at nothing.'''

    __slots__ = ("last",)
    at_event_boundary = True

    def __init__(self, kind):
        super().__init__(kind)
        self.saw_done = True

    def feed(self, chunk, now):
        self.last = now

    def hold_done(self, unsent):
        return unsent, b""

exchange.ResponseTap = BlindTap
"""

MAIN = """
import sys
from strata_router.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


@dataclass(frozen=True)
class Load:
    """rate: frames per second and stream, 0 for as fast as they are taken."""

    name: str
    streams: int
    frames: int
    rate: int


LOADS = (
    Load("1 stream at 100/s", 1, 300, 100),
    Load("32 streams at 100/s each", 32, 300, 100),
    Load("32 streams, unpaced", 32, 3000, 0),
)


@dataclass
class Daemon:
    port: int
    process: subprocess.Popen[bytes]

    def cpu_s(self) -> float:
        """Of all threads so far; the scheduler counts nanoseconds, /proc/PID/stat only hundredths."""
        tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


@contextmanager
def daemon(folder: Path, prelude: str) -> Iterator[Daemon]:
    """A daemon on a streaming engine, warmed up."""
    serve = folder / "checkout" / "serve"
    serve.mkdir(parents=True)
    (serve / "__init__.py").touch()
    shutil.copy(RESEARCH / "stream_engine.py", serve / "server.py")
    (folder / "profile.json").write_text(json.dumps({"model_name": "bench"}))
    (folder / "control").mkdir(mode=0o700)
    port, backend_port = free_ports()
    model = {
        "family": "bench",
        "profile": str(folder / "profile.json"),
        "upstream_model": "bench",
        "installed": True,
        "compatible": True,
    }
    config = {
        "listen": f"127.0.0.1:{port}",
        "backend_port": backend_port,
        "control_socket": str(folder / "control" / "c.sock"),
        "python": sys.executable,
        "strata_dir": str(folder / "checkout"),
        "wait_when_busy": True,
        "response_ms": 0,
        "max_pending": 64,
        "shutdown_ms": 1000,
        "engines": {"strata": {"kind": "strata", "readiness": "health"}},
        "models": {"bench": model},
    }
    (folder / "config.json").write_text(json.dumps(config))
    words = [sys.executable, "-c", prelude + MAIN, "daemon", str(folder / "config.json")]
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL)
    try:
        found = Daemon(port, process)
        wait_until_serving(port)
        drive(found, Load("warm-up", 4, 200, 0))
        yield found
    finally:
        process.terminate()
        process.wait(20)


def free_ports() -> tuple[int, int]:
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as two,
    ):
        return one.getsockname()[1], two.getsockname()[1]


def wait_until_serving(port: int) -> None:
    for _ in range(500):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.02)
    raise TimeoutError("the daemon does not listen")


def drive(target: Daemon, load: Load) -> float:
    """Run the load; microseconds of the daemon's processor time per frame."""
    body = json.dumps(
        {
            "model": "bench",
            "stream": True,
            "max_tokens": load.frames,
            "seed": load.rate,
            "messages": [],
        }
    ).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    before = target.cpu_s()
    selector = selectors.DefaultSelector()
    for _ in range(load.streams):
        client = socket.create_connection(("127.0.0.1", target.port))
        client.sendall(request)
        selector.register(client, selectors.EVENT_READ, [b""])
    while selector.get_map():
        for key, _ in selector.select():
            socket_of = key.fileobj
            assert isinstance(socket_of, socket.socket)
            piece = socket_of.recv(262_144)
            if not piece:
                selector.unregister(socket_of)
                socket_of.close()
                assert b"[DONE]" in key.data[0], "a stream was cut"
            key.data[0] = key.data[0][-100:] + piece
    return (target.cpu_s() - before) / (load.streams * load.frames) * 1e6


def row(load: Load, real: list[float], blind: list[float]) -> str:
    shares = [1 - without / whole for whole, without in zip(real, blind, strict=True)]
    texts = [
        f"{statistics.median(each):.1f} ({min(each):.1f} to {max(each):.1f})"
        for each in (real, blind)
    ]
    difference = statistics.median(real) - statistics.median(blind)
    share = difference / statistics.median(real)
    return (
        f"| {load.name} | {texts[0]} | {texts[1]} | {difference:.1f} | {share:.0%} "
        f"({min(shares):.0%} to {max(shares):.0%}) |"
    )


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    print(
        f"{platform.python_implementation()} {platform.python_version()}, {platform.machine()}, ",
        end="",
    )
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, {rounds} rounds.\n")
    print("| load | daemon, us per frame | with a blind tap | the tap | its share |")
    print("| --- | ---: | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory(prefix="tap-share-") as top:
        folders = [Path(top) / name for name in ("real", "blind")]
        for folder in folders:
            folder.mkdir()
        with daemon(folders[0], "") as real, daemon(folders[1], BLIND) as blind:
            for load in LOADS:
                pairs = [(drive(real, load), drive(blind, load)) for _ in range(rounds)]
                print(row(load, [a for a, _ in pairs], [b for _, b in pairs]), flush=True)


if __name__ == "__main__":
    main()
