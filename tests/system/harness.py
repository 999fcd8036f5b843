"""A real daemon process on the simulated engine, seen from outside: sockets, files, /proc.

    async with daemon(tmp_path, models={"a": {...knobs}}, config={...}) as it:
        reply = await it.chat("a", "hello", stream=True)
        assert it.overlaps() == []

The harness keeps its own account of what must hold and asks the daemon nothing about it.
"""

import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from strata_router import simulated
from strata_router.simulated import events
from tests.runtime.http.raw import RawClient, Reply, get, post
from tests.system import idle_audit
from tests.system.watched_daemon import FIGURES, read_longest_step_s

ROOT = Path(__file__).parents[2]

START_S = 20.0
"""A daemon must listen by then, on a machine that is busy with something else."""

AUDIT_S = 5.0
"""Within this time after its last client has left, a daemon holds nothing for anybody."""

CHAT = "/v1/chat/completions"

LOCAL_PORT_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int) -> list[int]:
    """Distinct free ports of loopback, of those that the kernel gives to no outgoing connection.

    They are held by nobody until the daemon and its engine take them, so other tests that run at the
    same time must not be likely to choose the same.
    """
    first_outgoing = int(LOCAL_PORT_RANGE.read_text().split()[0])
    candidates = range(10_000, first_outgoing) if first_outgoing > 12_000 else range(50_000, 65_000)
    found: list[int] = []
    while len(found) < count:
        port = random.choice(candidates)
        if port not in found and can_bind(port):
            found.append(port)
    return found


def chat_body(model: str, text: str = "hello", *, stream: bool = False, **fields: Any) -> bytes:
    """A chat request's body; markers such as FX:slow go into ``text``."""
    messages = [{"role": "user", "content": text}]
    return json.dumps(
        {"model": model, "stream": stream, "max_tokens": 16, "messages": messages, **fields}
    ).encode()


def sse_events(body: bytes) -> list[str]:
    """The data of each event, comments left out; strict about framing."""
    found = []
    for block in body.decode().split("\n\n"):
        data = [line[5:].strip() for line in block.split("\n") if line.startswith("data:")]
        if data:
            found.append("\n".join(data))
    return found


def pid_exists(pid: int) -> bool:
    """The process is there and no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def can_bind(port: int) -> bool:
    """An engine that sets SO_REUSEADDR could have the port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def rounds(few: int, full: int) -> int:
    """How often to repeat: ``few`` times in make test, ``full`` in make test-deep (ROUNDS)."""
    return min(full, few * int(os.environ.get("ROUNDS", "1")))


async def until(holds: Callable[[], Any], within_s: float = 10.0) -> None:
    """Wait for a condition, with a bound; fails naming neither luck nor time."""
    with trio.move_on_after(within_s):
        while not holds():
            await trio.sleep(0.01)
    assert holds(), f"not within {within_s} s"


@dataclass
class DaemonUnderTest:
    """One daemon process and everything it touches. All paths are under ``directory``.

    environment: variables over the test's own, for the next ``launch``.
    audited: at the end nothing may be held; False for a test that leaves a broken daemon on purpose.
    """

    directory: Path
    config: dict[str, Any]
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    clients: list[RawClient] = field(default_factory=list)
    audited: bool = True

    @property
    def port(self) -> int:
        return int(self.config["listen"].rpartition(":")[2])

    @property
    def backend_port(self) -> int:
        return int(self.config["backend_port"])

    @property
    def event_file(self) -> Path:
        return self.directory / "events.jsonl"

    @property
    def log(self) -> str:
        return (self.directory / "daemon.log").read_text()

    @property
    def control_socket(self) -> Path:
        return Path(self.config["control_socket"])

    @property
    def temporary_directory(self) -> Path:
        """The daemon's TMPDIR, where the private folders of its starts are."""
        return self.directory / "tmp"

    @property
    def _figures(self) -> Path:
        return self.directory / "daemon.figures"

    def longest_step_s(self) -> float:
        """CPU seconds for which the event loop was not to be had; see ``watched_daemon``."""
        return read_longest_step_s(self._figures)

    async def task_names(self) -> list[str]:
        """The qualified function name of each of the daemon's tasks; none where a test starts it
        without its launcher. Raises ProcessLookupError when it ends meanwhile."""
        if not self._figures.exists():
            return []
        names = self._figures.with_suffix(".tasks")
        names.unlink(missing_ok=True)
        self.signal(signal.SIGUSR1)
        process = self.process
        assert process is not None
        await until(lambda: names.exists() or process.poll() is not None)
        if not names.exists():
            raise ProcessLookupError
        return names.read_text().splitlines()

    def profile(self, model: str) -> Path:
        return self.directory / f"strata-{model}.json"

    def set_knobs(self, model: str, knobs: Mapping[str, Any], **keys: Any) -> None:
        """Write the model's profile, also while the daemon runs; keys: further profile keys."""
        simulated.write_profile(
            self.profile(model),
            f"upstream-{model}",
            {"event_file": str(self.event_file), **knobs},
            **keys,
        )

    # ---- the process ---------------------------------------------------------------------------

    def launch(self, *through: str, pass_fds: tuple[int, ...] = ()) -> None:
        """Start the daemon; see ``start`` for waiting until it serves.

        through: a command that ends by executing the rest of its arguments.
        """
        path = self.directory / "config.json"
        path.write_text(json.dumps(self.config))
        self.temporary_directory.mkdir(exist_ok=True)
        environment = {
            **os.environ,
            "STRATA_TEST_DIRECTORY": str(self.directory),
            "TMPDIR": str(self.temporary_directory),
            FIGURES: str(self._figures),
            **self.environment,
        }
        self._figures.unlink(missing_ok=True)  # those of the process before
        program = (sys.executable, "-m", "tests.system.watched_daemon")
        with (self.directory / "daemon.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*through, *program, "daemon", str(path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=ROOT,
                pass_fds=pass_fds,
            )

    async def start(self) -> None:
        self.launch()
        await self.wait_serving()

    async def wait_serving(self) -> None:
        """Wait for both sockets: the control socket comes a moment after the listener."""
        process = self.process
        assert process is not None
        with trio.fail_after(START_S):
            while True:
                assert process.poll() is None, self.log
                try:
                    with socket.socket(socket.AF_UNIX) as control:
                        control.connect(self.config["control_socket"])
                    with socket.create_connection(("127.0.0.1", self.port), 1):
                        return
                except OSError:
                    await trio.sleep(0.02)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    async def wait_ended(self, within_s: float = 15.0) -> int:
        process = self.process
        assert process is not None
        await until(lambda: process.poll() is not None, within_s)
        return int(process.returncode)

    async def stop(self, within_s: float = 15.0) -> int:
        self.signal(signal.SIGTERM)
        return await self.wait_ended(within_s)

    # ---- requests ------------------------------------------------------------------------------

    async def connect(self) -> RawClient:
        client = await RawClient.connect(self.port)
        self.clients.append(client)
        return client

    async def send_chat(
        self, model: str, text: str = "hello", *, stream: bool = False, **fields: Any
    ) -> RawClient:
        """Send a chat request and return the connection it was sent on."""
        client = await self.connect()
        await client.send(post(CHAT, body=chat_body(model, text, stream=stream, **fields)))
        return client

    async def chat(
        self, model: str, text: str = "hello", *, stream: bool = False, **fields: Any
    ) -> Reply:
        """One whole exchange on a connection of its own."""
        client = await self.send_chat(model, text, stream=stream, **fields)
        reply = await client.reply()
        await client.stream.aclose()
        return reply

    async def get_json(self, path: str) -> Any:
        client = await self.connect()
        await client.send(get(path))
        reply = await client.reply()
        await client.stream.aclose()
        return json.loads(reply.body)

    async def records(self) -> list[dict[str, Any]]:
        """All records so far, oldest first."""
        page = await self.get_json("/requests?after=0&limit=1000")
        records: list[dict[str, Any]] = page["records"]
        return records

    async def record_of(self, reply: Reply) -> dict[str, Any]:
        """The record of one exchange, once it is there."""
        request_id = reply.headers["x-strata-request-id"][0]
        with trio.fail_after(5):
            while True:
                for record in await self.records():
                    if record["request_id"] == request_id:
                        return record
                await trio.sleep(0.02)

    async def metrics(self) -> dict[str, Any]:
        metrics: dict[str, Any] = await self.get_json("/metrics")
        return metrics

    async def control(self, line: str) -> list[dict[str, Any]]:
        """Send one control line; every line of the answer."""
        stream = await trio.open_unix_socket(self.config["control_socket"])
        async with stream:
            await stream.send_all(line.encode() + b"\n")
            answer = b""
            async for piece in stream:
                answer += piece
        return [json.loads(text) for text in answer.splitlines()]

    async def status(self) -> dict[str, Any]:
        (status,) = await self.control("status")
        return status

    async def status_until(
        self, holds: Callable[[dict[str, Any]], Any], within_s: float = 5.0
    ) -> dict[str, Any]:
        """Ask for the status until it is as it should be, with a bound; return that status."""
        status = await self.status()
        with trio.move_on_after(within_s):
            while not holds(status):
                await trio.sleep(0.01)
                status = await self.status()
        assert holds(status), status
        return status

    async def on(self, model: str | None = None) -> dict[str, Any]:
        """Carry out ``on MODEL``; its last event."""
        return (await self.control(json.dumps({"cmd": "on", "model": model})))[-1]

    async def off(self, *, now: bool = False) -> dict[str, Any]:
        """Carry out ``off``; its last event."""
        return (await self.control(json.dumps({"cmd": "off", "now": now})))[-1]

    # ---- what the engines saw ------------------------------------------------------------------

    def stamps(self, event: str | None = None) -> list[events.Stamp]:
        found = events.read_stamps(self.event_file)
        return [stamp for stamp in found if event is None or stamp.event == event]

    def overlaps(self) -> list[str]:
        """A sentence per pair of engines that lived at one time."""
        return events.overlaps(self.stamps())

    def engine_order(self) -> list[str]:
        """The models in the order in which engines saw chat requests for them."""
        return [stamp.model for stamp in self.stamps("request")]

    def engine_pids(self) -> list[int]:
        """Processes of engines that are alive now: servers, native engines and helpers."""
        return [pid for pid, command in self._processes() if b"guard.py" not in command]

    def left_pids(self) -> list[int]:
        """Everything that this daemon started and that is alive now, guards included."""
        return [pid for pid, _ in self._processes()]

    def _processes(self) -> list[tuple[int, bytes]]:
        """(pid, command line) of everything alive with our mark, but the daemon itself."""
        mark = f"STRATA_TEST_DIRECTORY={self.directory}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == self.pid:
                continue
            try:
                command = (entry / "cmdline").read_bytes()
                environment = (entry / "environ").read_bytes()
            except (OSError, ProcessLookupError):
                continue
            if mark in environment.split(b"\0") and pid_exists(int(entry.name)):
                found.append((int(entry.name), command))
        return found


@asynccontextmanager
async def daemon(
    directory: Path,
    models: Mapping[str, Mapping[str, Any]],
    config: Mapping[str, Any] | None = None,
    *,
    ready_file: bool = True,
    start: bool = True,
) -> AsyncIterator[DaemonUnderTest]:
    """Run a daemon with these simulated models (id -> knobs); end it, and whatever it left.

    config: keys over the defaults below. start False: the caller starts it.
    """
    port, backend_port = free_ports(2)
    control = directory / "control"
    control.mkdir(mode=0o700, exist_ok=True)
    it = DaemonUnderTest(
        directory,
        {
            "listen": f"127.0.0.1:{port}",
            "backend_port": backend_port,
            "control_socket": str(control / "c.sock"),
            "python": sys.executable,
            "strata_dir": str(simulated.strata_dir(ready_file=ready_file)),
            "wait_when_busy": True,
            "response_ms": 0,
            "drain_ms": 0,
            "startup_ms": 20_000,
            "shutdown_ms": 5_000,
            "models": {},
            **(config or {}),
        },
    )
    for name, knobs in models.items():
        it.set_knobs(name, knobs)
        it.config["models"][name] = {
            "family": "test",
            "profile": str(it.profile(name)),
            "upstream_model": f"upstream-{name}",
            "installed": True,
            "compatible": True,
        }
    try:
        if start:
            await it.start()
        yield it
        _hang_up(it)
        await _expect_nothing_held(it)
    finally:
        _hang_up(it)
        if it.process is not None:
            if it.process.poll() is None:
                it.process.kill()
            it.process.wait()
            # Every test ends with the promise that nothing of an engine outlives its daemon.
            with trio.CancelScope(shield=True):
                await _expect_no_engine(it)


def _hang_up(it: DaemonUnderTest) -> None:
    for client in it.clients:
        client.stream.socket.close()


async def _expect_nothing_held(it: DaemonUnderTest) -> None:
    """Every test ends with the promise that a client who left has left nothing behind."""
    found = ["it was not asked"]
    with trio.move_on_after(AUDIT_S):
        while found and it.audited and it.process is not None and it.process.poll() is None:
            try:
                names = await it.task_names()  # first, for asking for the status is a task, too
                answer = await it.control("status")
                found = idle_audit.held(it.pid, it.port, it.backend_port, answer[0], names)
            except (OSError, trio.BrokenResourceError, IndexError):
                return  # it is ending, so there is nothing to be judged
            if found:
                await trio.sleep(0.02)
        return
    raise AssertionError(f"{AUDIT_S} s after the last client: {'; '.join(found)}")


async def _expect_no_engine(it: DaemonUnderTest) -> None:
    try:
        await until(lambda: not it.engine_pids(), within_s=3)
    finally:
        for pid in it.engine_pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
