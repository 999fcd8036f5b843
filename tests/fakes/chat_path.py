"""The chat path in one process: the real exchange and coordinator, a scripted engine on a real socket.

    async with chat_path(script) as path:
        client = await path.connect()
        ...
        await path.serve_one()

No process is started: ``InstantSupervisor`` says that the engine is ready. What the path holds can be
asked afterwards: places, connections to the engine, watches, timers, body bytes, records.
"""

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import trio
import trio.lowlevel
import trio.testing

from strata_router.core.catalog import Catalog
from strata_router.core.config import Config, Defaults, parse_config
from strata_router.core.engine.kinds import engine_kind
from strata_router.core.metrics.tally import Tally
from strata_router.core.vocabulary import ModelId
from strata_router.runtime.coordinator import Coordinator
from strata_router.runtime.engine_supervisor import (
    EngineDied,
    EngineReady,
    EngineStopped,
    EngineSupervisor,
    Listener,
    LoadCancelled,
    LoadStarted,
)
from strata_router.runtime.exchange import Exchange, Services
from strata_router.runtime.http import sockets
from strata_router.runtime.http.body_budget import BodyBudget
from strata_router.runtime.http.connection import ClientConnection, limits
from strata_router.runtime.http.pump import Pump
from strata_router.runtime.http.sockets import PeerGone
from strata_router.runtime.http.watcher import DisconnectWatcher
from strata_router.runtime.ledger import Ledger
from strata_router.runtime.timers import Timer, Timers
from tests.runtime.http.raw import RawClient

MODEL = ModelId("a")

Script = Callable[[trio.SocketStream], Awaitable[None]]
"""What the engine does with one connection whose request has been read; then it closes."""


class InstantSupervisor(EngineSupervisor):
    """Says that every load succeeds; owns no process.

    loads: models in order. next_load: what the next load does before it succeeds.
    """

    def __init__(self, config: Config, catalog: Catalog, listener: Listener) -> None:
        super().__init__(config, catalog, listener)
        self._port = config.backend_port
        self._kind = engine_kind(config.engines["other"], config)
        self._told = listener
        self._todo, self._coming = trio.open_memory_channel[Callable[[], None]](100)
        self.loads: list[ModelId] = []
        self.next_load: Callable[[], None] | None = None

    def load(self, model: ModelId) -> None:
        self._todo.send_nowait(lambda: self._told.engine_report(LoadStarted(model)))
        self._todo.send_nowait(lambda: self._be_ready(model))

    def _be_ready(self, model: ModelId) -> None:
        if self.next_load is not None:
            self.next_load()
        self.loads.append(model)
        self._told.engine_report(EngineReady(model, self._kind, self._port, 0, 0))

    def cancel_load(self) -> None:
        self._todo.send_nowait(lambda: self._told.engine_report(LoadCancelled(MODEL)))

    def unload(self) -> None:
        self._todo.send_nowait(lambda: self._told.engine_report(EngineStopped()))

    def die(self) -> None:
        """The engine ends by itself, and that is noticed now."""
        self._told.engine_report(EngineDied(MODEL))

    async def run(self) -> None:
        async for step in self._coming:
            step()


class NotedTimers(Timers):
    """Remembers every timer that was set."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Timer] = []

    def at(self, when: float, callback: Callable[[], None]) -> Timer:
        timer = super().at(when, callback)
        self.made.append(timer)
        return timer

    @property
    def armed(self) -> int:
        return sum(timer.callback is not None for timer in self.made)


class NotedWatcher(DisconnectWatcher):
    """Remembers whom to tell, so that a test can be the kernel's messenger."""

    gone: Callable[[], None] | None = None

    def watch(self, sock: socket.socket, gone: Callable[[], None]) -> None:
        super().watch(sock, gone)
        self.gone = gone


class ScriptedEngine:
    """Accepts connections, reads one request from each and lets the script answer."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self._listens_again = trio.Event()
        self.port: int = self._listener.getsockname()[1]
        self.open_connections = 0
        self.requests = 0

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            while True:
                try:
                    await trio.lowlevel.wait_readable(self._listener)
                    stream = trio.SocketStream(
                        trio.socket.from_stdlib_socket(self._listener.accept()[0])
                    )
                except trio.ClosedResourceError:
                    await self._listens_again.wait()
                else:
                    nursery.start_soon(self._answer, stream)

    def close(self) -> None:
        self._listener.close()

    def stop_listening(self) -> None:
        """From now on connections are refused, as a dead engine's are."""
        trio.lowlevel.notify_closing(self._listener)
        self.close()
        self._listens_again = trio.Event()

    def listen_again(self) -> None:
        """On the same port, as the next engine does."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._listener.setblocking(False)
        self._listens_again.set()

    async def _answer(self, stream: trio.SocketStream) -> None:
        self.open_connections += 1
        try:
            async with stream:
                with suppress(trio.BrokenResourceError, EOFError):
                    await _read_request(stream)
                    self.requests += 1
                    await self._script(stream)
        finally:
            self.open_connections -= 1


async def _read_request(stream: trio.SocketStream) -> None:
    client = RawClient(stream)
    head = await client.until(b"\r\n\r\n")
    length = next(
        line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
    )
    await client.exactly(int(length.partition(b":")[2]))


class ChatPath:
    """Everything that exchanges share, and one listener for their clients."""

    def __init__(self, engine: ScriptedEngine, config: Config) -> None:
        self.engine = engine
        self.config = config
        catalog = Catalog(config, {})
        self.supervisors: list[InstantSupervisor] = []

        def supervise(config: Config, catalog: Catalog, listener: Listener) -> InstantSupervisor:
            self.supervisors.append(InstantSupervisor(config, catalog, listener))
            return self.supervisors[-1]

        self.watcher = NotedWatcher()
        self.coordinator = Coordinator(config, catalog, supervise, look=self.watcher.look)
        self.ledger = Ledger(100, None, Tally([MODEL]))
        self.pump = Pump()
        self.timers = NotedTimers()
        self.budget = BodyBudget(config.max_buffered_body_bytes)
        self.services = Services(
            config=config,
            catalog=catalog,
            coordinator=self.coordinator,
            ledger=self.ledger,
            timers=self.timers,
            watcher=self.watcher,
            pump=self.pump,
            budget=self.budget,
        )
        self._limits = limits(idle_s=30, header_ms=5000, body_ms=5000, write_stall_ms=0)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)

    @property
    def supervisor(self) -> InstantSupervisor:
        (supervisor,) = self.supervisors
        return supervisor

    async def connect(self) -> RawClient:
        return await RawClient.connect(self._listener.getsockname()[1])

    async def next_exchange(self) -> "ServedExchange":
        """Take the next connection and its request's head; the exchange has not run yet."""
        await trio.lowlevel.wait_readable(self._listener)
        connection = ClientConnection(sockets.adopt(self._listener.accept()[0]), self._limits)
        head = await connection.next_head()
        assert head is not None
        return ServedExchange(connection, Exchange(self.services, connection, head))

    def records(self) -> list[dict[str, Any]]:
        return [record.to_mapping() for record in self.ledger.ring.page(0, 1000).records]

    async def expect_nothing_held(self) -> None:
        """No place, lease, connection to the engine, watch, armed timer or body byte is left."""
        with trio.fail_after(2):
            while self.engine.open_connections:
                await trio.lowlevel.checkpoint()
        await trio.testing.wait_all_tasks_blocked()
        assert self.coordinator.busy_places == 0
        assert self.coordinator.depths() == (0, 0)
        assert self.watcher.watched == 0
        assert self.pump.streams == 0
        assert self.timers.armed == 0
        assert self.budget.held_bytes == 0
        # A reader left behind would be older than this one and keep it waiting.
        reservation = self.budget.open()
        with trio.fail_after(1):
            await reservation.reserve(self.config.max_buffered_body_bytes + 1)
        reservation.release()

    def close(self) -> None:
        self._listener.close()


class ServedExchange:
    """One exchange and the connection it answers on."""

    def __init__(self, connection: ClientConnection, exchange: Exchange) -> None:
        self.connection = connection
        self.exchange = exchange

    async def run(self) -> None:
        """As the server does: the connection is closed afterwards if its response has no end."""
        try:
            with suppress(PeerGone):
                await self.exchange.run()
        finally:
            self.connection.close()


@asynccontextmanager
async def chat_path(script: Script, **config: Any) -> AsyncIterator[ChatPath]:
    """A running chat path; ``config``: keys over wait-first and generous limits."""
    engine = ScriptedEngine(script)
    model = {"family": "f", "args": [], "upstream_model": "upstream-a"}
    document = {
        "backend_port": engine.port,
        "python": "/python",
        "strata_dir": "/strata",
        "models": {"a": {**model, "installed": True, "compatible": True, "engine": "other"}},
        "engines": {"other": {"kind": "llama-server", "command": "/llama-server"}},
        "wait_when_busy": True,
        "response_ms": 0,
        **config,
    }
    try:
        path = ChatPath(engine, parse_config(document, Defaults(runtime_dir="/run/user/0")).config)
    except BaseException:
        engine.close()
        raise
    async with trio.open_nursery() as nursery:
        for service in (
            engine.run,
            path.watcher.run,
            path.pump.run,
            path.timers.run,
            path.coordinator.run,
        ):
            nursery.start_soon(service)
        try:
            yield path
        finally:
            path.close()
            engine.close()
            nursery.cancel_scope.cancel()
