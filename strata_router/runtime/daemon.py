"""Builds the daemon and runs it: who owns whom, what starts first, what ends last.

    run_daemon
      configuration -> listener, control socket, record log   (errors end here, with a sentence)
      nursery
        watcher, pump, timers      serve all exchanges
        coordinator -> supervisor  the queue and the one engine
        server -> connections      requests
        control server             the operator
        record writer
      signal: stop accepting -> accepted work ends -> engine ends -> control socket goes -> log is flushed

Source: design, "Service deployment"; contract 11; style.md 3, "Async".
"""

import gc
import logging
import math
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import trio

from strata_router import __version__
from strata_router.core.catalog import Catalog
from strata_router.core.config import ConfigError, ProfileCheck
from strata_router.core.config.schema import Config
from strata_router.core.metrics import Tally
from strata_router.core.refusal import Case
from strata_router.core.socket_path import default_socket_path
from strata_router.core.vocabulary import ModelId
from strata_router.runtime.allocator import return_large_buffers
from strata_router.runtime.clock import unix_s
from strata_router.runtime.config_file import load_config
from strata_router.runtime.control_endpoint import (
    ControlEndpoint,
    ControlSocketRefusedError,
    claim_endpoint,
)
from strata_router.runtime.control_socket import ControlServer
from strata_router.runtime.coordinator import Coordinator
from strata_router.runtime.daemon_log import write_log_to_stderr
from strata_router.runtime.descriptors import claim_descriptors
from strata_router.runtime.engine_since import EngineSince
from strata_router.runtime.engine_tally import EngineTally
from strata_router.runtime.exchange import Services
from strata_router.runtime.front import Front
from strata_router.runtime.http.app_bridge import AppBridge
from strata_router.runtime.http.body_budget import BodyBudget
from strata_router.runtime.http.connection import limits
from strata_router.runtime.http.pump import Pump
from strata_router.runtime.http.server import IDLE_S, Server
from strata_router.runtime.http.watcher import DisconnectWatcher
from strata_router.runtime.ledger import Ledger
from strata_router.runtime.listener import Listener, ListenerError, open_listener
from strata_router.runtime.operator import EngineOperator
from strata_router.runtime.orphans import become_subreaper
from strata_router.runtime.overviews import Overviews
from strata_router.runtime.record_log import RecordLog, RecordLogRefused
from strata_router.runtime.service_manager import ServiceManager, status_line
from strata_router.runtime.timers import Timers
from strata_router.runtime.unprepared import start_warnings
from strata_router.runtime.views import build_views
from strata_router.runtime.web.app import build_app

log = logging.getLogger(__name__)

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_CONFIG = 2

LOG_FLUSH_S = 2.0
"""Design: a clean shutdown gives the record writer up to two seconds."""

CUT_S = 2.0
"""How long interrupted exchanges may take to say so to their clients."""

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def run_daemon(config_path: str, log_level: str) -> int:
    """Run until SIGTERM or SIGINT; the exit status for the shell. Prints what is wrong, if anything."""
    write_log_to_stderr(log_level, os.environ)
    try:
        loaded = load_config(config_path)
    except ConfigError as error:
        for problem in error.problems:
            print(problem, file=sys.stderr)
        return EXIT_CONFIG
    for warning in loaded.warnings:
        log.warning("%s", warning)
    config = loaded.config
    catalog = Catalog(config, loaded.profiles)
    with ExitStack() as stack:
        stack.enter_context(_stop_signals_held())
        service = ServiceManager.from_environment(os.environ)
        stack.callback(service.close)
        try:
            listener = open_listener(config.listen, config.require_socket_activation, os.environ)
            stack.callback(listener.sock.close)
            default = default_socket_path(os.environ.get("XDG_RUNTIME_DIR"))
            endpoint = stack.enter_context(claim_endpoint(config.control_socket, default))
            record_log = _open_record_log(config)
        except (ListenerError, ControlSocketRefusedError, RecordLogRefused) as error:
            log.error("%s", error)
            return EXIT_FAILED
        for line in start_warnings(config, catalog, loaded.profiles):
            log.warning("%s", line)
        become_subreaper()
        config = replace(config, max_connections=claim_descriptors(config.max_connections))
        return_large_buffers()
        daemon = Daemon(config, catalog, loaded.profiles, listener, endpoint, record_log, service)
        # All that exists by now stays. Unfrozen, every full run of the collector would look through it
        # again: tens of milliseconds in which no stream moves (RESEARCH.md, "The hot path").
        gc.freeze()
        trio.run(daemon.run)
    return EXIT_OK


@contextmanager
def _stop_signals_held() -> Iterator[None]:
    """A stop that comes while the daemon is being built waits until ``Daemon.run`` listens for it:
    to die in between would leave a stale control socket."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _open_record_log(config: Config) -> RecordLog | None:
    if config.request_log_path is None:
        return None
    record_log = RecordLog(
        config.request_log_path, config.request_log_max_bytes, config.request_log_rotate_files
    )
    record_log.open()
    return record_log


@dataclass
class Daemon:
    """Everything of one running daemon."""

    config: Config
    catalog: Catalog
    profiles: Mapping[ModelId, ProfileCheck]
    listener: Listener
    endpoint: ControlEndpoint
    record_log: RecordLog | None
    service: ServiceManager

    def __post_init__(self) -> None:
        config = self.config
        self.draining = False
        self.watcher = DisconnectWatcher()
        self.coordinator = Coordinator(config, self.catalog, look=self.watcher.look)
        tally = Tally(self.catalog.prepared_models())
        self.coordinator.observe(EngineTally(tally))
        since = EngineSince()
        self.coordinator.observe(since)
        self.ledger = Ledger(config.request_log_capacity, self.record_log, tally)
        self.pump = Pump()
        self.timers = Timers()
        services = Services(
            config=config,
            catalog=self.catalog,
            coordinator=self.coordinator,
            ledger=self.ledger,
            timers=self.timers,
            watcher=self.watcher,
            pump=self.pump,
            budget=BodyBudget(config.max_buffered_body_bytes),
        )
        overviews = Overviews(
            self.coordinator,
            since,
            self.ledger.instance_id,
            lambda: self.draining,
            int(unix_s()),
        )
        views = build_views(config, self.catalog, self.coordinator, self.ledger, overviews)
        front = Front(config, services, AppBridge(build_app(views), self.watcher))
        self.server = Server(
            self.listener.sock,
            front.handle,
            limits(
                idle_s=IDLE_S,
                header_ms=config.header_ms,
                body_ms=config.body_ms,
                write_stall_ms=config.write_stall_ms,
            ),
            config.max_connections,
        )
        operator = EngineOperator(
            config,
            self.catalog,
            self.profiles,
            self.coordinator,
            overviews.take,
            self.record_log,
        )
        self.control = ControlServer(operator)

    async def run(self) -> None:
        """Serve until told to stop, then drain and end in order."""
        with trio.open_signal_receiver(*STOP_SIGNALS, signal.SIGHUP) as signals:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
            async with trio.open_nursery() as nursery:
                served = trio.Event()
                for part in (self.watcher, self.pump, self.timers, self.coordinator):
                    nursery.start_soon(part.run)
                if self.record_log is not None:
                    nursery.start_soon(self.record_log.run)
                nursery.start_soon(self.control.serve, self.endpoint.listener)
                nursery.start_soon(self._serve, served)
                nursery.start_soon(self.service.run, self._status_line)
                log.info(
                    "strata-router %s (pid %d) listens on %s",
                    __version__,
                    os.getpid(),
                    self.config.listen,
                )
                await _next_stop(signals)
                nursery.start_soon(self._end_at_second_signal, signals, nursery.cancel_scope)
                await self._drain(served)
                await self.coordinator.supervisor.finish()
                self.endpoint.close()
                if self.record_log is not None:
                    await self.record_log.close(LOG_FLUSH_S)
                nursery.cancel_scope.cancel()
        log.info("strata-router (pid %d) has ended", os.getpid())

    async def _serve(self, served: trio.Event) -> None:
        await self.server.run()
        served.set()

    def _status_line(self) -> str:
        return status_line(
            self.coordinator.snapshot(), routing=self.coordinator.routing, draining=self.draining
        )

    async def _drain(self, served: trio.Event) -> None:
        """Stop accepting; let accepted work end; interrupt what has not within drain_ms."""
        self.draining = True
        self.server.stop_accepting(take_waiting=not self.listener.adopted)
        self.service.stopping()
        waiting, active = self.coordinator.depths()
        log.info("draining: %d waiting, %d active requests", waiting, active)
        bound_s = self.config.drain_ms / 1000 if self.config.drain_ms else math.inf
        with trio.move_on_after(bound_s):
            await served.wait()
        if served.is_set():
            return
        log.warning("drain_ms is over; interrupting what is left")
        self.coordinator.refuse_all(Case.SHUTTING_DOWN)
        self.coordinator.cut_leases(Case.SHUTTING_DOWN)
        with trio.move_on_after(CUT_S):
            await served.wait()
        self.server.cancel()

    async def _end_at_second_signal(
        self, signals: AsyncIterator[int], scope: trio.CancelScope
    ) -> None:
        await _next_stop(signals)
        log.warning("second signal: ending at once")
        scope.cancel()


async def _next_stop(signals: AsyncIterator[int]) -> None:
    async for number in signals:
        if number != signal.SIGHUP:
            return
        log.info("SIGHUP is ignored: the configuration is read at start")
