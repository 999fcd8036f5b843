"""Owns the one engine: carries out load and unload, has it proven, notices death.

One task (``run``) drives the Lifecycle and holds the process; the coordinator asks by ``load``,
``cancel_load`` and ``unload`` and is told by EngineReports. Every start and end of an engine passes
through here, so "never two engines" is a property of this file.
Source: contract 4.1-4.4.
"""

import logging
import os
import tempfile
from dataclasses import dataclass
from signal import SIGKILL
from typing import Protocol

import trio

from strata_router.core.catalog import Catalog
from strata_router.core.config.schema import Config, Readiness
from strata_router.core.engine.kinds import READY_FILE_OPTION, EngineKind, LaunchPlan, engine_kind
from strata_router.core.engine.lifecycle import EngineEvent, EngineState, Lifecycle
from strata_router.core.vocabulary import ModelId
from strata_router.runtime import config_file, engine_control, engine_log
from strata_router.runtime.engine_process import (
    OUT_OF_MEMORY,
    EngineProcess,
    EngineStuck,
    Launch,
    SpawnFailed,
    ending,
    engine_environment,
    start_engine,
)
from strata_router.runtime.engine_proof import (
    POLL_S,
    EngineProof,
    LoadFault,
    refused_by_host,
)
from strata_router.runtime.help_probe import HelpProbe

log = logging.getLogger(__name__)

QUIET_S = 10.0
"""How long a stop waits for the engine to give up requests whose clients are gone; reading one chunk of a
long prompt takes seconds (facts/strata-server.md section 5). At most half of shutdown_ms."""


@dataclass(frozen=True, slots=True)
class LoadStarted:
    """The previous engine is being stopped or the new one started."""

    model: ModelId


@dataclass(frozen=True, slots=True)
class EngineReady:
    """Proven. load_ms: stop, start and readiness together. cache_min_tokens: from the profile, or 0."""

    model: ModelId
    kind: EngineKind
    port: int
    load_ms: int
    cache_min_tokens: int


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """The load has failed and everything of it is gone (or stuck).

    reason: short, generic, ours. advice: where the operator finds more; may hold paths of the
    configuration, so it is for the control socket and the daemon's log alone.
    """

    model: ModelId
    reason: str
    load_ms: int
    advice: str | None = None

    def in_words(self) -> str:
        """For the operator."""
        told = self.reason if self.advice is None else f"{self.reason}; {self.advice}"
        return f"{self.model}: {told}"


@dataclass(frozen=True, slots=True)
class LoadCancelled:
    """``cancel_load`` was carried out."""

    model: ModelId


@dataclass(frozen=True, slots=True)
class EngineDied:
    """A ready engine ended by itself; what it left behind is being cleared away."""

    model: ModelId


@dataclass(frozen=True, slots=True)
class EngineDeath:
    """How an engine that was ready ended by itself. how: goes on after the engine's name."""

    model: ModelId
    pid: int
    how: str
    at_s: float


@dataclass(frozen=True, slots=True)
class EngineStopped:
    """An asked-for unload is done: process group gone, port free. error: why it is not, or None."""

    error: str | None = None


EngineReport = LoadStarted | EngineReady | LoadFailed | LoadCancelled | EngineDied | EngineStopped


class Listener(Protocol):
    """Who is told; both are synchronous and must not raise."""

    def engine_report(self, report: EngineReport) -> None: ...

    def engine_progress(self, phase: str, message: str) -> None: ...


class EngineSupervisor:
    """See the module's text. All methods but ``run`` are synchronous and called from trio's thread."""

    def __init__(self, config: Config, catalog: Catalog, listener: Listener) -> None:
        self._config = config
        self._catalog = catalog
        self._listener = listener
        self._lifecycle = Lifecycle()
        self._process: EngineProcess | None = None
        self._log_path: str | None = None  # where the output of the last one started goes
        self._wanted: ModelId | None = None
        self._cancel_wanted = False  # asked for before the load had a scope to cancel
        self._unload_wanted = False
        self._load_scope: trio.CancelScope | None = None
        self._wake = trio.Event()
        self._nursery: trio.Nursery | None = None
        self._finishing = False
        self._finished = trio.Event()
        self._died = False
        self._help = HelpProbe()
        names = frozenset(entry.upstream_name for entry in config.models.values())
        self._proof = EngineProof(
            config.backend_port, config.startup_ms, names, self._progress, self._reported_ready
        )
        self.last_failure: LoadFailed | None = None
        """The last load, if it failed."""
        self.last_death: EngineDeath | None = None

    # ---- what others see -----------------------------------------------------------------------

    @property
    def state(self) -> EngineState:
        return self._lifecycle.state

    @property
    def model(self) -> ModelId | None:
        """What is loading, loaded or being stopped."""
        return self._lifecycle.model

    @property
    def child_pid(self) -> int | None:
        """The process that runs the server; None when there is none."""
        process = self._process
        return process.pid if process is not None and process.exit_status is None else None

    # ---- requests of the coordinator -----------------------------------------------------------

    def load(self, model: ModelId) -> None:
        """Stop what runs, then start ``model``; answered by EngineReady or LoadFailed."""
        self._wanted = model
        self._cancel_wanted = False
        self._wake.set()

    def cancel_load(self) -> None:
        """Kill the load in progress; answered by LoadCancelled (or, too late, by EngineReady)."""
        self._cancel_wanted = True
        if self._load_scope is not None:
            self._load_scope.cancel()

    async def is_healthy(self) -> bool:
        """Does the ready engine still answer, and as the model it was proven to be?"""
        model = self._lifecycle.ready_model
        if model is None:
            return False
        kind, name = self._kind_of(model), self._catalog.upstream_model(model)
        return await self._proof.holds(kind, name) and self._lifecycle.ready_model == model

    def unload(self) -> None:
        """Stop the engine; answered by EngineStopped."""
        self._unload_wanted = True
        self._wake.set()

    # ---- the one task --------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until ``finish``. Cancelled instead: the engine is killed (its nursery sees to that)."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            if self._config.engine_log_path is not None:
                nursery.start_soon(engine_log.keep_bounded, self._config.engine_log_path)
            while not self._finishing:
                await self._step()
            await self._end_process()
            self._finished.set()
            nursery.cancel_scope.cancel()

    async def finish(self) -> None:
        """End the engine in order, whatever it is doing, and with it ``run``."""
        self._finishing = True
        self.cancel_load()
        self._wake.set()
        await self._finished.wait()

    async def _step(self) -> None:
        await self._wake.wait()
        self._wake = trio.Event()
        if self._died:
            self._died = False
            await self._clear_after_death()
        if self._unload_wanted:
            self._unload_wanted = False
            error = await self._stop_for_unload()
            self._listener.engine_report(EngineStopped(error))
        if self._wanted is not None and not self._finishing:
            model, self._wanted = self._wanted, None
            await self._load(model)

    async def _watch(self, process: EngineProcess) -> None:
        """Notice the death of a ready engine at once."""
        status = await process.wait_exited()
        if process is self._process and self._lifecycle.state is EngineState.READY:
            model = self._lifecycle.model
            assert model is not None
            how = ending(status)
            log.warning("engine pid %d (%s) %s", process.pid, model, how)
            self.last_death = EngineDeath(model, process.pid, how, trio.current_time())
            self._lifecycle.on(EngineEvent.EXITED)
            self._died = True
            self._listener.engine_report(EngineDied(model))
            self._wake.set()

    # ---- load ----------------------------------------------------------------------------------

    async def _load(self, model: ModelId) -> None:
        started_s = trio.current_time()

        def load_ms() -> int:
            return int((trio.current_time() - started_s) * 1000)

        advice: str | None = None
        self._listener.engine_report(LoadStarted(model))
        with trio.CancelScope() as scope:
            self._load_scope = scope
            if self._cancel_wanted:
                scope.cancel()
            try:
                ready = await self._bring_up(model)
            except LoadFault as fault:
                reason = str(fault)
                advice = fault.advice or self._where_to_look()
            except OSError as error:  # no descriptor, no room for the private folder, ...
                reason = refused_by_host(error)
            else:
                self._load_scope = None
                self.last_failure = None
                process = self._process
                assert process is not None
                assert self._nursery is not None
                self._nursery.start_soon(self._watch, process)
                log.info("engine pid %d is ready as %s after %d ms", process.pid, model, load_ms())
                self._listener.engine_report(
                    EngineReady(
                        model, ready.kind, self._config.backend_port, load_ms(), ready.cache_min
                    )
                )
                return
        cancelled = scope.cancelled_caught
        self._load_scope = None
        stuck = await self._discard_load(EngineEvent.STOP if cancelled else EngineEvent.FAILED)
        if cancelled:
            log.info("load of %s was cancelled after %d ms", model, load_ms())
            self._listener.engine_report(LoadCancelled(model))
            return
        if stuck is not None:
            reason = f"{reason}; {stuck}"
        failed = LoadFailed(model, reason, load_ms(), advice)
        self.last_failure = failed
        log.error("load failed after %d ms: %s", failed.load_ms, failed.in_words())
        self._listener.engine_report(failed)

    def _where_to_look(self) -> str | None:
        """For the operator, while what the failed load has started is still there."""
        process = self._process
        if process is None or self._lifecycle.loading_model is None:
            return None
        if self._config.engine_log_path is None:
            output = "set engine_log_path to keep the engine's output"
        elif self._log_path is None or process.log_problem is not None:
            output = "the engine's output is lost, as its log cannot be written"
        else:
            output = f"the engine's output is in {self._log_path}"
        return f"{OUT_OF_MEMORY}; {output}" if process.exit_status == -SIGKILL else output

    async def _bring_up(self, model: ModelId) -> "_Proven":
        """From whatever is there to a proven engine. Raises LoadFault; cancellable."""
        if self._lifecycle.state is EngineState.READY:
            with trio.CancelScope(shield=True):  # half a stop is no state to be in
                error = await self._stop_for_unload()
            if error is not None:
                raise LoadFault(error)
        if self._lifecycle.state is EngineState.STUCK:
            raise LoadFault(self._stuck_text())
        self._progress("starting", f"starting backend for model {model}")
        self._lifecycle.load(model)
        entry = self._config.models[model]
        kind = self._kind_of(model)
        cache_min = 0
        if kind.uses_profile:
            check = await trio.to_thread.run_sync(config_file.read_profile, entry)
            if check.profile is None:
                raise LoadFault("the model's profile is refused: " + "; ".join(check.problems))
            cache_min = check.profile.conversation_cache_min_tokens or 0
        self._proof.demand_free_port()
        # Errors ignored: an engine whose load has failed may be writing into it when it is removed.
        with tempfile.TemporaryDirectory(
            prefix="strata-router-", ignore_cleanup_errors=True
        ) as private_dir:
            ready_file = None
            if await self._wants_ready_file(entry.engine, kind):
                ready_file = os.path.join(private_dir, "ready.json")
            plan = kind.launch_plan(entry, self._config.backend_port, ready_file)
            process = await self._start(plan, model)
            self._progress(
                "loading",
                f"backend pid {process.pid} started, waiting for readiness (loading model {model})",
            )
            upstream_model = self._catalog.upstream_model(model)
            with trio.move_on_after(self._config.startup_ms / 1000) as bound:
                await self._proof.demand(process, kind, upstream_model, ready_file)
            if bound.cancelled_caught:
                raise LoadFault(
                    f"backend was not ready within startup_ms ({self._config.startup_ms} ms)"
                )
        self._lifecycle.on(EngineEvent.VERIFIED)
        return _Proven(kind, cache_min)

    def _kind_of(self, model: ModelId) -> EngineKind:
        return engine_kind(self._config.engines[self._config.models[model].engine], self._config)

    async def _wants_ready_file(self, engine: str, kind: EngineKind) -> bool:
        plan = kind.help_plan()
        if plan is None:
            return False
        match self._config.engines[engine].readiness:
            case Readiness.FILE:
                return True
            case Readiness.HEALTH:
                return False
            case Readiness.AUTO:
                return await self._help.offers(plan, READY_FILE_OPTION)

    async def _start(self, plan: LaunchPlan, model: ModelId) -> EngineProcess:
        log_path = self._config.engine_log_path
        if log_path is not None and (why := await engine_log.prepare_log(log_path)) is not None:
            log.warning("the engine starts without its log: %s", why)
            log_path = None
        self._log_path = log_path
        launch = Launch(
            argv=plan.argv,
            cwd=plan.cwd,
            env=engine_environment(os.environ, plan.environment),
            log_path=log_path,
        )
        try:
            assert self._nursery is not None
            self._process = await start_engine(launch, self._nursery)
        except SpawnFailed as exc:
            where = "" if plan.cwd is None else f" in {plan.cwd}"
            raise LoadFault(str(exc), f"it was to run {plan.argv[0]}{where}") from exc
        log.info("engine pid %d started for %s", self._process.pid, model)
        if self._process.log_problem is not None:
            log.warning("the engine runs without its log: %s", self._process.log_problem)
        return self._process

    def _reported_ready(self) -> None:
        self._lifecycle.on(EngineEvent.REPORTED_READY)

    def _progress(self, phase: str, message: str) -> None:
        self._listener.engine_progress(phase, message)

    # ---- stop ----------------------------------------------------------------------------------

    async def _discard_load(self, event: EngineEvent) -> str | None:
        """Kill and reap what a failed or cancelled load left; None, or why that did not work."""
        if self._lifecycle.state not in (EngineState.STARTING, EngineState.CHECKING):
            return None
        self._lifecycle.on(event)
        process = self._process
        if process is None:
            self._lifecycle.on(EngineEvent.GONE)
            return None
        with trio.CancelScope(
            shield=True
        ):  # a killed load must be gone before anything else starts
            try:
                await process.force_stop()
            except EngineStuck as stuck:
                return await self._stuck(stuck)
        self._gone()
        return None

    async def _clear_after_death(self) -> None:
        process = self._process
        if process is None:
            return
        with trio.CancelScope(shield=True):  # survivors hold memory and perhaps the port
            try:
                stopped = await process.stop(self._config.shutdown_ms)
            except EngineStuck as stuck:
                await self._stuck(stuck)
                return
        if stopped.survivors_killed:
            log.warning(
                "%d processes outlived the engine and were killed", stopped.survivors_killed
            )
        self._gone()

    async def _stop_for_unload(self) -> str | None:
        """The stop ladder for a ready engine; None, or why the engine is still there."""
        if self._lifecycle.state is EngineState.STUCK:
            return self._stuck_text()
        process = self._process
        if process is None or self._lifecycle.state is not EngineState.READY:
            return None
        self._lifecycle.on(EngineEvent.STOP)
        self._progress("unloading", f"unloading model {self._lifecycle.model}")
        started_s = trio.current_time()
        await self._await_quiet()
        spent_ms = round((trio.current_time() - started_s) * 1000)
        try:
            stopped = await process.stop(
                max(0, self._config.shutdown_ms - spent_ms),
                lambda text: self._progress("stopping", text),
            )
        except EngineStuck as stuck:
            return await self._stuck(stuck)
        log.info(
            "engine pid %d stopped in %.1f s%s",
            process.pid,
            trio.current_time() - started_s,
            " (killed)" if stopped.killed else "",
        )
        self._gone()
        why_not = await self._proof.why_port_is_not_free()
        if why_not is not None:
            return f"backend pid {process.pid} exited and its memory is free, but {why_not}"
        self._progress("stopped", f"backend pid {process.pid} exited, memory released")
        return None

    async def _await_quiet(self) -> None:
        """Let the engine notice that its clients have hung up, if it needs that for a quick stop."""
        model = self._lifecycle.model
        assert model is not None
        kind = self._kind_of(model)
        path = kind.activity_path
        if path is None:
            return
        told = False
        with trio.move_on_after(min(QUIET_S, self._config.shutdown_ms / 2000)):
            while True:
                answer = await engine_control.ask(self._config.backend_port, path, QUIET_S)
                if isinstance(answer, engine_control.NoAnswer):
                    return
                if not kind.is_busy(answer.status, answer.body):
                    return
                if not told:
                    told = True
                    self._progress("interrupted", "waiting for the backend to drop unwanted work")
                await trio.sleep(POLL_S)

    async def _end_process(self) -> None:
        """At the end of the daemon: no engine, or a line in the log that says which one is left."""
        if self._died:
            await self._clear_after_death()
        error = await self._stop_for_unload()
        if error is not None:
            log.error("the daemon ends, but %s", error)

    async def _stuck(self, stuck: EngineStuck) -> str:
        """SIGKILL had no effect. Nothing starts until the process is gone, which is looked for here."""
        self._lifecycle.on(EngineEvent.UNKILLABLE)
        log.error(
            "engine pid %d does not die of SIGKILL; no engine starts until it is gone", stuck.pid
        )
        process = self._process
        assert process is not None
        assert self._nursery is not None
        self._nursery.start_soon(self._await_end_of_stuck, process)
        return self._stuck_text()

    async def _await_end_of_stuck(self, process: EngineProcess) -> None:
        await process.wait_gone()
        if process is self._process:
            log.info("engine pid %d is gone at last", process.pid)
            self._gone()

    def _stuck_text(self) -> str:
        pid = self._process.pid if self._process is not None else 0
        return f"the previous engine (pid {pid}) does not end, not even by SIGKILL"

    def _gone(self) -> None:
        self._lifecycle.on(EngineEvent.GONE)
        self._process = None


@dataclass(frozen=True, slots=True)
class _Proven:
    kind: EngineKind
    cache_min: int
