"""Gathers what is going on now, from those who own it, for everybody who shows it."""

from collections.abc import Callable
from dataclasses import dataclass

import trio

from strata_router import __version__
from strata_router.core.admission.snapshot import Snapshot
from strata_router.core.overview import ActiveAnswer, AnswerPhase, EngineNow, Overview
from strata_router.runtime.clock import unix_s
from strata_router.runtime.coordinator import Coordinator, Place
from strata_router.runtime.engine_since import EngineSince


@dataclass(frozen=True, slots=True)
class Overviews:
    """started_unix_s: when the configuration was read. draining: whether a stop has begun."""

    coordinator: Coordinator
    since: EngineSince
    instance_id: str
    draining: Callable[[], bool]
    started_unix_s: int

    def take(self, rows: int) -> Overview:
        """As things stand; at most ``rows`` tickets and as many answers, however many there are."""
        coordinator = self.coordinator
        now = trio.current_time()
        snapshot = coordinator.snapshot()
        return Overview(
            version=__version__,
            instance_id=self.instance_id,
            uptime_s=max(0, int(unix_s()) - self.started_unix_s),
            routing=coordinator.routing,
            draining=self.draining(),
            engine=self._engine(snapshot, now),
            waiting=coordinator.queue(rows),
            waiting_total=snapshot.queue_depth,
            waiting_by_tier=snapshot.queue_depth_by_tier,
            active=[_answer(place, now) for place in coordinator.active_places(rows)],
            active_total=snapshot.in_flight,
        )

    def _engine(self, snapshot: Snapshot, now: float) -> EngineNow:
        loaded, loading = snapshot.loaded, snapshot.loading
        return EngineNow(
            state=self.coordinator.supervisor.state,
            loaded=loaded,
            loaded_ms=None if loaded is None else _ms_since(self.since.ready_s, now),
            loading=loading,
            loading_ms=None if loading is None else _ms_since(self.since.load_started_s, now),
            cooling_ms={model: int(left * 1000) for model, left in snapshot.cooling_s.items()},
        )


def _ms_since(then: float | None, now: float) -> int:
    """then None: it has been decided, and the report of its begin is still to come."""
    return 0 if then is None else max(0, int((now - then) * 1000))


def _answer(place: Place, now: float) -> ActiveAnswer:
    admission = place.admission
    assert admission is not None, "it holds a lease"
    admitted_s = admission.at.monotonic_s
    if place.headers_at_s is not None:
        phase, since_s = AnswerPhase.GENERATING, place.headers_at_s
    elif place.ready_at_s is not None:
        phase, since_s = AnswerPhase.HEADER_WAIT, place.ready_at_s
    else:
        phase, since_s = AnswerPhase.LOADING, admitted_s
    return ActiveAnswer(
        ticket=place.ticket.id,
        model=admission.model,
        tier=place.ticket.tier,
        phase=phase,
        active_ms=_ms_since(admitted_s, now),
        phase_ms=_ms_since(since_s, now),
        sse_events=place.exchange.sse_events,
    )
