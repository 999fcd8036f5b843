"""Which report ends ``on``: the races that a real daemon shows too seldom."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

import trio

from strata_router.core.admission import Snapshot
from strata_router.core.catalog import Catalog
from strata_router.core.config import Config, Defaults, ProfileCheck, check_profile, parse_config
from strata_router.core.control import Done
from strata_router.core.engine.kinds import LlamaServerKind
from strata_router.core.engine.lifecycle import EngineState
from strata_router.core.overview import Overview
from strata_router.core.vocabulary import ModelId, Tier
from strata_router.runtime.coordinator import Coordinator, Observer
from strata_router.runtime.engine_supervisor import (
    EngineReady,
    EngineReport,
    LoadCancelled,
    LoadFailed,
    LoadStarted,
)
from strata_router.runtime.operator import EngineOperator
from tests.core.overviews import IDLE

A, B = ModelId("a"), ModelId("b")
READY_A = EngineReady(A, LlamaServerKind("/x", {}), 8089, 5, 0)


@dataclass
class ScriptedSupervisor:
    """healthy: what the health check of the loaded model says."""

    healthy: bool = True
    state: EngineState = EngineState.STOPPED

    async def is_healthy(self) -> bool:
        await trio.lowlevel.checkpoint()
        return self.healthy


@dataclass
class ScriptedCoordinator:
    """Answers ``operator_load`` with the reports of ``script`` and notes what it is asked."""

    script: list[EngineReport]
    loaded: ModelId | None = None
    routing: bool = True
    supervisor: ScriptedSupervisor = field(default_factory=ScriptedSupervisor)
    last_loaded: ModelId | None = None
    asked: list[str] = field(default_factory=list)
    observers: list[Observer] = field(default_factory=list)

    def snapshot(self) -> Snapshot:
        return Snapshot(0, dict.fromkeys(Tier, 0), 0, self.loaded, None, False, {})

    def depths(self) -> tuple[int, int]:
        return 0, 0

    def set_routing(self, on: bool) -> None:
        self.routing = on

    def observe(self, observer: Observer) -> None:
        self.observers.append(observer)

    def stop_observing(self, observer: Observer) -> None:
        self.observers.remove(observer)

    def operator_load(self, model: ModelId) -> None:
        self.asked.append(f"load {model}")
        for report in self.script:
            for observer in self.observers:
                observer.engine_report(report)

    def operator_cancel(self) -> None:
        self.asked.append("cancel")


def _config() -> Config:
    model = {"family": "f", "profile": "/p", "installed": True, "compatible": True}
    document: dict[str, Any] = {
        "python": "/python",
        "strata_dir": "/strata",
        "control_socket": "/run/x/c.sock",
        "models": {"a": model, "b": model},
    }
    return parse_config(document, Defaults(None)).config


def _operator(coordinator: ScriptedCoordinator, overview: Overview = IDLE) -> EngineOperator:
    config = _config()
    profiles: dict[ModelId, ProfileCheck] = {
        name: check_profile({"model_name": name}, name) for name in (A, B)
    }
    return EngineOperator(
        config,
        Catalog(config, profiles),
        profiles,
        cast(Coordinator, coordinator),
        lambda _rows: overview,
        None,
    )


async def _on(
    coordinator: ScriptedCoordinator, model: str = "a", overview: Overview = IDLE
) -> Done:
    report: Callable[[str, str], None] = lambda _phase, _message: None  # noqa: E731 - a Report that says nothing
    with trio.fail_after(5):
        return await _operator(coordinator, overview).on(model, report)


async def test_the_end_of_a_load_that_was_called_off_before_is_not_the_end_of_on() -> None:
    """Its asker had left for the sake of another model just before the operator asked for it."""
    coordinator = ScriptedCoordinator([LoadCancelled(A), LoadStarted(A), READY_A])
    assert await _on(coordinator) == Done(True, "model a loaded and healthy, routing enabled")
    assert coordinator.asked == ["load a"]


async def test_reports_about_another_model_are_not_the_end_of_on() -> None:
    coordinator = ScriptedCoordinator([LoadFailed(B, "no", 3), LoadStarted(A), READY_A])
    assert (await _on(coordinator)).ok


async def test_a_failed_load_is_withdrawn_and_routing_is_as_it_was() -> None:
    coordinator = ScriptedCoordinator([LoadStarted(A), LoadFailed(A, "why", 3)], routing=False)
    assert await _on(coordinator) == Done(False, "a: why")
    assert coordinator.asked == ["load a", "cancel"]
    assert not coordinator.routing
    assert coordinator.observers == []


async def test_on_for_a_healthy_model_asks_for_it_all_the_same_to_restart_its_idle_clock() -> None:
    coordinator = ScriptedCoordinator([], loaded=A)
    assert await _on(coordinator) == Done(True, "already on")
    assert coordinator.asked == ["load a"]
    coordinator.routing = False
    assert await _on(coordinator) == Done(True, "model a loaded and healthy, routing enabled")
    assert coordinator.routing


async def test_a_daemon_that_is_shutting_down_loads_nothing_and_touches_nothing() -> None:
    coordinator = ScriptedCoordinator([], routing=False)
    done = await _on(coordinator, overview=replace(IDLE, draining=True))
    assert done == Done(False, "the daemon is shutting down and loads nothing any more")
    assert coordinator.asked == []
    assert not coordinator.routing
