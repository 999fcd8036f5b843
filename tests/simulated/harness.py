"""Starts simulated engines as processes and talks to them over raw sockets.

Nothing here knows how the engine is made: command line, signals, bytes and the event file only.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strata_router.simulated import strata_dir, write_profile
from strata_router.simulated.events import Request, Stamp, read_stamps, requests, stamped_now

WITHIN_S = 8.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True, slots=True)
class Reply:
    """One HTTP answer. headers: names in lower case, the last of each. body: all bytes until EOF."""

    status_line: str
    headers: dict[str, str]
    body: bytes

    @property
    def status(self) -> int:
        return int(self.status_line.split()[1])

    def json(self) -> Any:
        return json.loads(self.body)

    def events(self) -> list[bytes]:
        """The stream's events without the blank lines between them."""
        whole = self.body.replace(b"\r\n", b"\n").split(b"\n\n")
        return [event for event in whole if event]

    def chunks(self) -> list[dict[str, Any]]:
        """The JSON of every data event but ``[DONE]``."""
        datas = [event.removeprefix(b"data: ") for event in self.events() if event[:1] == b"d"]
        return [json.loads(data) for data in datas if data != b"[DONE]"]

    def deltas(self) -> list[dict[str, Any]]:
        return [c["choices"][0]["delta"] for c in self.chunks() if c.get("choices")]

    def text(self) -> str:
        return "".join(delta.get("content") or "" for delta in self.deltas())


def parse_reply(raw: bytes) -> Reply:
    head, _, body = raw.partition(b"\r\n\r\n")
    status_line, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return Reply(status_line, {name.lower(): value.strip() for name, _, value in pairs}, body)


def chat_body(text: str = "hello", **more: Any) -> bytes:
    messages = [{"role": "user", "content": text}]
    return json.dumps({"model": "m", "messages": messages, **more}).encode()


def request_bytes(
    method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
) -> bytes:
    fields = {"Host": "127.0.0.1"}
    if body is not None:
        fields |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
    fields |= dict(headers or {})
    lines = [f"{method} {path} HTTP/1.1", *(f"{k}: {v}" for k, v in fields.items() if v)]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + (body or b"")


class Peer:
    """A raw client connection."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), WITHIN_S)
        self.received = b""

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def until(self, mark: bytes, count: int = 1) -> bytes:
        """Read until ``mark`` was seen ``count`` times; everything so far."""
        while self.received.count(mark) < count:
            data = self.socket.recv(65536)
            assert data, f"the connection ended before {mark!r}: {self.received!r}"
            self.received += data
        return self.received

    def rest(self) -> bytes:
        """Read until the end of the connection; everything so far."""
        parts = [self.received]
        try:
            while data := self.socket.recv(65536):
                parts.append(data)
        finally:
            self.received = b"".join(parts)
        return self.received

    def close(self) -> None:
        self.socket.close()


class Engine:
    """One process of the simulated engine."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, event_file: Path) -> None:
        self.process = process
        self.port = port
        self.event_file = event_file

    def wait_ready(self, within_s: float = WITHIN_S) -> None:
        deadline = time.monotonic() + within_s
        while True:
            with suppress(OSError):
                if self.get("/health").status_line:
                    return
            assert self.process.poll() is None, f"ended with {self.process.returncode}"
            assert time.monotonic() < deadline, "the engine does not become ready"
            time.sleep(0.01)

    def connect(self) -> Peer:
        return Peer(self.port)

    def raw(self, data: bytes) -> bytes:
        """Send bytes and return all that comes back."""
        peer = self.connect()
        try:
            peer.send(data)
            return peer.rest()
        finally:
            peer.close()

    def ask(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Reply:
        """headers: by name with ``_`` for ``-``; an empty value leaves one out."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return parse_reply(self.raw(request_bytes(method, path, body, named)))

    def get(self, path: str, **headers: str) -> Reply:
        return self.ask("GET", path, None, headers)

    def post(self, path: str, body: bytes = b"{}", **headers: str) -> Reply:
        return self.ask("POST", path, body, headers)

    def chat(self, text: str = "hello", **more: Any) -> Reply:
        return self.post("/v1/chat/completions", chat_body(text, **more))

    def open_chat(self, text: str = "hello", **more: Any) -> Peer:
        """Send a chat request and leave the connection open."""
        peer = self.connect()
        body = chat_body(text, **more)
        peer.send(request_bytes("POST", "/v1/chat/completions", body))
        return peer

    def stamps(self) -> list[Stamp]:
        return read_stamps(self.event_file)

    def requests(self) -> list[Request]:
        return requests(self.stamps())

    def stamped(self, event: str, count: int = 1, within_s: float = WITHIN_S) -> Stamp:
        return stamped_now(self.event_file, event, within_s, count)

    def events(self) -> list[str]:
        return [stamp.event for stamp in self.stamps()]

    def ends(self, within_s: float = WITHIN_S) -> int:
        return self.process.wait(within_s)


class Yard:
    """Starts engines in one folder with one event file, and leaves none behind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.event_file = folder / "events.jsonl"
        self._engines: list[Engine] = []

    def profile(
        self, model: str = "m", keys: Mapping[str, Any] | None = None, **knobs: Any
    ) -> Path:
        simulated = {"event_file": str(self.event_file), **knobs}
        path = self.folder / f"strata-{model}.json"
        return write_profile(path, model, simulated, **dict(keys or {}))

    def spawn(
        self,
        profile: Path,
        *,
        port: int | None = None,
        ready_file: Path | None = None,
        arguments: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
        output: int = subprocess.DEVNULL,
    ) -> Engine:
        """Start a server and return at once."""
        port = free_port() if port is None else port
        command = [sys.executable, "-m", "serve.server", "--engine", "strata"]
        command += ["--config", str(profile), "--host", "127.0.0.1", "--port", str(port)]
        command += ["--idle-unload", "0", *arguments]
        if ready_file is not None:
            command += ["--ready-file", str(ready_file)]
        process = subprocess.Popen(
            command,
            cwd=strata_dir(ready_file=ready_file is not None),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.PIPE,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
        engine = Engine(process, port, self.event_file)
        self._engines.append(engine)
        return engine

    def start(
        self, model: str = "m", keys: Mapping[str, Any] | None = None, **knobs: Any
    ) -> Engine:
        """Start a server and wait until it answers."""
        engine = self.spawn(self.profile(model, keys, **knobs))
        engine.wait_ready()
        return engine

    def clear(self) -> None:
        """Kill everything that was started, processes that left the group included."""
        for engine in self._engines:
            with suppress(ProcessLookupError):
                os.killpg(engine.process.pid, signal.SIGKILL)
            engine.process.wait()
            for stream in (engine.process.stdout, engine.process.stderr):
                if stream is not None:
                    stream.close()
        for stamp in read_stamps(self.event_file):
            if stamp.event in ("worker_start", "native_start"):
                with suppress(ProcessLookupError):
                    os.kill(stamp.pid, signal.SIGKILL)


@contextmanager
def yard_in(folder: Path) -> Iterator[Yard]:
    yard = Yard(folder)
    try:
        yield yard
    finally:
        yard.clear()


def wait_until(claim: Any, within_s: float = WITHIN_S) -> None:
    """Wait until ``claim()`` is true."""
    deadline = time.monotonic() + within_s
    while not claim():
        assert time.monotonic() < deadline, "the condition does not come true"
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="latin-1")
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"
