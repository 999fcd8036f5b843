"""Carries out the operator's ``on``, ``off`` and ``status`` on the coordinator's behalf.

The control server calls it, one operation at a time, and cancels an operation whose client left.
Source: design, "Control the existing daemon"; contract 10.
"""

import os
from collections.abc import Callable, Mapping

import trio

from strata_router.core.catalog import Catalog
from strata_router.core.config.profile import ProfileCheck
from strata_router.core.config.schema import Config
from strata_router.core.control import JSON, Done, Report
from strata_router.core.engine.lifecycle import EngineState
from strata_router.core.overview import Overview
from strata_router.core.refusal import Case, Refusal
from strata_router.core.vocabulary import AliasName, ModelId
from strata_router.runtime.coordinator import Coordinator
from strata_router.runtime.engine_supervisor import (
    EngineReady,
    EngineReport,
    EngineStopped,
    LoadFailed,
)
from strata_router.runtime.record_log import RecordLog
from strata_router.runtime.unprepared import why_not_loaded


class _Follower:
    """Passes the engine's progress on and waits for the report that ends the operation."""

    def __init__(self, report: Report, ends: Callable[[EngineReport], bool]) -> None:
        self._report = report
        self._ends = ends
        self._over = trio.Event()
        self.outcome: EngineReport | None = None

    def engine_report(self, report: EngineReport) -> None:
        if self.outcome is None and self._ends(report):
            self.outcome = report
            self._over.set()

    def engine_progress(self, phase: str, message: str) -> None:
        self._report(phase, message)

    async def outcome_of(self) -> EngineReport:
        await self._over.wait()
        assert self.outcome is not None
        return self.outcome


STATUS_ROWS = 20
"""Waiting tickets, and active answers, that ``status`` lists: what a person looks through."""


class EngineOperator:
    """The control server's Operator.

    profiles: as checked at the start. overview: takes how many tickets and answers to list.
    record_log: None while no request_log_path is configured.
    """

    def __init__(
        self,
        config: Config,
        catalog: Catalog,
        profiles: Mapping[ModelId, ProfileCheck],
        coordinator: Coordinator,
        overview: Callable[[int], Overview],
        record_log: RecordLog | None,
    ) -> None:
        self._config = config
        self._catalog = catalog
        self._profiles = profiles
        self._coordinator = coordinator
        self._overview = overview
        self._record_log = record_log

    def status(self) -> dict[str, JSON]:
        """How things stand; never waits."""
        supervisor = self._coordinator.supervisor
        failed = supervisor.last_failure
        overview = self._overview(STATUS_ROWS)
        engine = overview.engine
        by_tier: dict[str, JSON] = {
            tier.value: count for tier, count in overview.waiting_by_tier.items()
        }
        return {
            "version": overview.version,
            "pid": os.getpid(),
            "child_pid": supervisor.child_pid,
            "loaded": engine.loaded,
            "loaded_ms": engine.loaded_ms,
            "loading": engine.loading,
            "loading_ms": engine.loading_ms,
            "engine_state": engine.state.value,
            "last_startup_error": None if failed is None else failed.reason,
            "last_startup_model": None if failed is None else failed.model,
            "last_startup_advice": None if failed is None else failed.advice,
            "last_engine_death": self._last_death(),
            "routing": overview.routing,
            "draining": overview.draining,
            "busy": engine.state
            in (EngineState.STARTING, EngineState.CHECKING, EngineState.STOPPING),
            "in_flight": overview.active_total,
            "queue_depth": overview.waiting_total,
            "queue_depth_by_tier": by_tier,
            "active": list(overview.answers()),
            "queue": list(overview.tickets()),
            "request_log": self._lost_records(),
            "listen": str(self._config.listen),
        }

    def _lost_records(self) -> JSON:
        log = self._record_log
        if log is None:
            return None
        return {"write_errors": log.write_errors, "write_drops": log.write_drops}

    def _last_death(self) -> JSON:
        death = self._coordinator.supervisor.last_death
        if death is None:
            return None
        ago_ms = int((trio.current_time() - death.at_s) * 1000)
        return {"model": death.model, "pid": death.pid, "how": death.how, "ago_ms": ago_ms}

    def set_routing(self, on: bool) -> None:
        """The bare words ``on`` and ``off``: the flag and nothing else."""
        self._coordinator.set_routing(on)

    async def off(self, now: bool, report: Report) -> Done:
        """Disable routing, end or cut active work, stop the engine, and say so when it is gone."""
        coordinator = self._coordinator
        had_model = coordinator.supervisor.state is not EngineState.STOPPED
        coordinator.set_routing(False)
        report("routing", "routing disabled: new and queued requests get 503")
        follower = _Follower(report, lambda report: isinstance(report, EngineStopped))
        coordinator.observe(follower)
        finished = False
        try:
            self._report_active(report, now)
            if now:
                coordinator.cut_leases(Case.ROUTING_OFF)
            coordinator.operator_unload()
            outcome = await follower.outcome_of()
            finished = True
        finally:
            coordinator.stop_observing(follower)
            if not finished:
                coordinator.operator_cancel()
        assert isinstance(outcome, EngineStopped)
        if outcome.error is not None:
            return Done(ok=False, message=outcome.error)
        what = "model unloaded" if had_model else "no model was loaded"
        return Done(ok=True, message=f"{what}, routing disabled")

    def _report_active(self, report: Report, now: bool) -> None:
        active = self._coordinator.depths()[1]
        if not active:
            return
        requests = "1 active request" if active == 1 else f"{active} active requests"
        if now:
            report("interrupting", f"{requests}, interrupting")
        else:
            them = "it" if active == 1 else "them"
            report("waiting", f"{requests}, waiting for {them} to finish (use --now to interrupt)")

    async def on(self, model: str | None, report: Report) -> Done:
        """Enable routing, load a model and say so when it is proven."""
        if self._overview(0).draining:
            return Done(ok=False, message="the daemon is shutting down and loads nothing any more")
        choice = self._choose(model)
        if isinstance(choice, Refusal):
            return Done(ok=False, message=self._explain(choice, model))
        coordinator = self._coordinator
        loaded = coordinator.snapshot().loaded == choice
        healthy = loaded and await coordinator.supervisor.is_healthy()
        if healthy:
            coordinator.operator_load(choice)  # nothing to load; it restarts the idle clock
            if coordinator.routing:
                return Done(ok=True, message="already on")
        routing_before = coordinator.routing
        coordinator.set_routing(True)
        report("routing", "routing enabled")
        finished = False
        try:
            if loaded and not healthy:
                report("unhealthy", "the loaded model does not answer its health check")
                await self._unload(report)
            error = None if healthy else await self._load(choice, report)
            finished = error is None
        finally:
            if not finished:
                coordinator.operator_cancel()
                coordinator.set_routing(routing_before)
        if error is not None:
            return Done(ok=False, message=error)
        return Done(ok=True, message=f"model {choice} loaded and healthy, routing enabled")

    def _explain(self, refusal: Refusal, name: str | None) -> str:
        """Why ``name`` cannot be loaded, for a person who may have mistyped it."""
        if refusal.case is Case.MODEL_NOT_FOUND and name is not None:
            offered = ", ".join((*self._config.enabled_models, *self._config.aliases))
            return f"no enabled model or alias is called {name}; there are: {offered or 'none'}"
        return refusal.message or refusal.row.message

    def _unprepared(self, name: str) -> Refusal:
        """The same for a name on offer: the model that it would have to be is not prepared."""
        model = self._catalog.effective_aliases().get(AliasName(name), (ModelId(name),))[0]
        why = why_not_loaded(
            self._config.models[model],
            self._catalog.preparation(model),
            self._profiles.get(model),
        )
        stands_for = "" if model == name else f"{name} stands for {model}, and "
        return Refusal(Case.MODEL_NOT_PREPARED, f"{stands_for}{why}")

    def _choose(self, name: str | None) -> ModelId | Refusal:
        """MODEL, else the loaded one, else the last one loaded, else the first enabled one.

        It must be prepared; there is no fallback to another model.
        """
        snapshot = self._coordinator.snapshot()
        current = snapshot.loaded or snapshot.loading
        if name is None:
            default = current or self._coordinator.last_loaded or self._catalog.default_model()
            if default is None:
                return Refusal(Case.MODEL_NOT_FOUND, "no model is enabled in the configuration")
            name = default
        resolution = self._catalog.resolve(name)
        if isinstance(resolution, Refusal):
            is_offered = resolution.case is Case.MODEL_NOT_PREPARED
            return self._unprepared(name) if is_offered else resolution
        if current is not None and current in resolution.accepts:
            return current
        return resolution.preferred or self._unprepared(name)

    async def _load(self, model: ModelId, report: Report) -> str | None:
        """Have ``model`` loaded; None, or why it is not."""
        coordinator = self._coordinator
        active = coordinator.depths()[1]
        if active:
            report("waiting", f"waiting for active requests to finish ({active} now)")

        def ends(report: EngineReport) -> bool:
            # A LoadCancelled is about a load that was called off before we asked; ours follows it.
            return isinstance(report, EngineReady | LoadFailed) and report.model == model

        follower = _Follower(report, ends)
        coordinator.observe(follower)
        try:
            coordinator.operator_load(model)
            outcome = await follower.outcome_of()
        finally:
            coordinator.stop_observing(follower)
        return outcome.in_words() if isinstance(outcome, LoadFailed) else None

    async def _unload(self, report: Report) -> None:
        follower = _Follower(report, lambda report: isinstance(report, EngineStopped))
        self._coordinator.observe(follower)
        try:
            self._coordinator.operator_unload()
            await follower.outcome_of()
        finally:
            self._coordinator.stop_observing(follower)
