"""The one place that calls the Scheduler: facts in, decisions carried out, one timer.

Exchanges, the engine supervisor and the operator drop facts into an inbox (synchronously, from
anywhere in trio's thread) and wait for events that the coordinator's task sets. Before it decides about
anybody who waits it has the watcher look who has left: a ticket is granted to a client that is still there,
or not at all (contract 7), whatever trio has told to whom by then.

While nobody waits there is no such choice, and the way through this task would be two turns of the event
loop for nothing: what an exchange has to say is then taken, and decided upon, as it is said.
"""

import logging
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Protocol, assert_never

import trio

from strata_router.core.admission import Position, Positions, Scheduler, SchedulerSettings, Wait
from strata_router.core.admission.decisions import (
    Admit,
    CancelLoad,
    Decision,
    Load,
    LookUpCache,
    Refuse,
    Unload,
)
from strata_router.core.admission.snapshot import Snapshot
from strata_router.core.admission.ticket import Ticket
from strata_router.core.catalog import Catalog
from strata_router.core.chat_request import ChatRequest
from strata_router.core.config.schema import Config
from strata_router.core.engine.kinds import EngineKind
from strata_router.core.moment import Moment
from strata_router.core.refusal import Case, Refusal
from strata_router.core.vocabulary import ModelId, TicketId
from strata_router.runtime import cache_lookup
from strata_router.runtime.clock import moment
from strata_router.runtime.engine_supervisor import (
    EngineDied,
    EngineReady,
    EngineReport,
    EngineStopped,
    EngineSupervisor,
    Listener,
    LoadCancelled,
    LoadFailed,
    LoadStarted,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Admission:
    """A ticket became a lease: when, for which model, and whether that meant a switch."""

    at: Moment
    model: ModelId
    model_switch: bool


@dataclass(frozen=True, slots=True)
class ReadyEngine:
    """Where an admitted exchange sends its request.

    load_ms: what the load took that this lease caused; None when it caused none.
    """

    port: int
    kind: EngineKind
    load_ms: int | None


class Exchange(Protocol):
    """What the coordinator may tell an exchange; synchronous, must not raise."""

    def commit(self, model: ModelId) -> None:
        """The stream's head may leave now and names this model."""

    def cut(self, case: Case) -> None:
        """End now: the operator or the daemon's end interrupts the exchange."""

    @property
    def sse_events(self) -> int | None:
        """Events of the engine's stream so far; None before it began, and for what is no stream."""


class Place:
    """One exchange's place with the coordinator, from arrival to ``leave``."""

    __slots__ = (
        "_coordinator",
        "admission",
        "changed",
        "engine",
        "exchange",
        "headers_at_s",
        "left",
        "load_ms",
        "ready_at_s",
        "refusal",
        "request",
        "ticket",
    )

    def __init__(
        self, coordinator: "Coordinator", ticket: Ticket, request: ChatRequest, exchange: Exchange
    ) -> None:
        self._coordinator = coordinator
        self.ticket = ticket
        self.request: ChatRequest | None = request
        self.exchange = exchange
        self.admission: Admission | None = None
        self.engine: ReadyEngine | None = None
        self.refusal: Refusal | None = None
        self.load_ms: int | None = None  # of the load this lease caused, also when it failed
        self.ready_at_s: float | None = None  # since when ``engine`` is known
        self.headers_at_s: float | None = None  # since when the engine answers
        self.left = False
        self.changed = trio.Event()

    async def admitted(self) -> Admission | Refusal:
        """Wait for the lease, however long that takes."""
        while self.admission is None and self.refusal is None:
            await self._next_change()
        return self.admission or self._refused()

    async def ready(self) -> ReadyEngine | Refusal:
        """After admission: wait until the engine is proven to answer as the admitted model."""
        while self.engine is None and self.refusal is None:
            await self._next_change()
        # A refusal beats: an engine that failed after it was ready is no place to send a request.
        return self.refusal or self._engine()

    async def _next_change(self) -> None:
        self.changed = trio.Event()
        await self.changed.wait()

    def _refused(self) -> Refusal:
        assert self.refusal is not None
        return self.refusal

    def _engine(self) -> ReadyEngine:
        assert self.engine is not None
        return self.engine

    def request_commit(self) -> None:
        """Ask for ``exchange.commit`` with the model that the head must name."""
        self._coordinator.post(lambda now: self._coordinator.pin(self.ticket.id, now))

    def position(self) -> Position | None:
        """Its place in the queue, at most a moment old; None when it does not wait."""
        if self.admission is not None:
            return None  # the count may be a moment older
        return self._coordinator.position(self.ticket.id)

    def headers_arrived(self) -> None:
        """The upstream's response head was seen."""
        self.headers_at_s = trio.current_time()
        self._coordinator.headers_arrived(self)

    def leave(self) -> None:
        """Give the ticket or lease back. Synchronous and idempotent."""
        if not self.left:
            self.left = True
            self.request = None
            self._coordinator.forget(self)


Fact = Callable[[float], None]


class Observer(Protocol):
    """Follows the engine on behalf of an operator's command; synchronous, must not raise."""

    def engine_report(self, report: EngineReport) -> None: ...

    def engine_progress(self, phase: str, message: str) -> None: ...


class Coordinator:
    """See the module's text. Methods are synchronous and may be called from any task."""

    def __init__(
        self,
        config: Config,
        catalog: Catalog,
        supervise: Callable[[Config, Catalog, Listener], EngineSupervisor] = EngineSupervisor,
        *,
        look: Callable[[], None] = lambda: None,
    ) -> None:
        """look: has whoever has left by now say so; ``DisconnectWatcher.look``."""
        self._catalog = catalog
        self._look = look
        self.scheduler = Scheduler(settings(config))
        self.supervisor = supervise(config, catalog, self)
        self._inbox: deque[Fact] = deque()
        self._wake = trio.Event()
        self._sleeps_until_s = math.inf
        self._in_turn = False
        self._failure: Exception | None = None
        self._nursery: trio.Nursery | None = None  # while ``run`` runs
        self._positions = Positions(self.scheduler.order)
        self._places: dict[TicketId, Place] = {}
        self._engine: EngineReady | None = None
        self._lookup: trio.CancelScope | None = None
        self._observers: list[Observer] = []
        self.routing = True
        self.last_loaded: ModelId | None = None

    # ---- facts ---------------------------------------------------------------------------------

    def post(self, fact: Fact) -> None:
        """Have ``fact(now)`` called by the coordinator's task, soon and in order."""
        self._inbox.append(fact)
        self._wake.set()

    def enter(self, ticket: Ticket, request: ChatRequest, exchange: Exchange) -> Place:
        """Queue a ticket; its fate arrives at the returned Place."""
        place = Place(self, ticket, request, exchange)
        self._places[ticket.id] = place
        arrival = partial(self.scheduler.arrive, ticket)
        if self._engine is not None and self._engine.model in ticket.accepts:
            self._post_at_once(arrival)
        else:
            # A load is no small thing: whoever leaves in the instant of its arrival causes none.
            self.post(arrival)
        return place

    def headers_arrived(self, place: Place) -> None:
        fact = partial(self.scheduler.headers_arrived, place.ticket.id)
        if self._is_quiet:
            fact(trio.current_time())  # only who waits could have waited for this
        else:
            self.post(fact)

    def forget(self, place: Place) -> None:
        del self._places[place.ticket.id]
        self._post_at_once(partial(self.scheduler.leave, place.ticket.id))

    @property
    def _is_quiet(self) -> bool:
        """Nobody waits for a decision, and no fact for its turn."""
        waiting, _ = self.scheduler.depths()
        return not (waiting or self._inbox or self._in_turn or self._nursery is None)

    def _post_at_once(self, fact: Fact) -> None:
        """``post``, but in quiet times do here what the task would do with it."""
        if not self._is_quiet:
            self.post(fact)
            return
        self._inbox.append(fact)
        try:
            self._turn(looks=False)
        except Exception as exc:  # a bug of ours: it ends the daemon, as in the task
            self._failure = exc
        if self._failure or self._inbox or self._deadline_s() < self._sleeps_until_s:
            self._wake.set()

    def pin(self, ticket_id: TicketId, now: float) -> None:
        # By its id: the exchange may have queued once more since it asked.
        place = self._places.get(ticket_id)
        if place is None or place.refusal is not None:
            return
        match self.scheduler.pin(ticket_id, now):
            case Refusal() as refusal:
                self._settle(place, refusal)
            case model:
                place.exchange.commit(model)

    def set_routing(self, on: bool) -> None:
        """Off refuses everyone who waits or arrives; leases are left alone."""
        self.routing = on
        self.post(lambda now: self.scheduler.set_routing(on, now))

    def refuse_all(self, case: Case) -> None:
        """From now on nobody waits and nobody gets in (the daemon ends)."""
        self.post(lambda now: self.scheduler.refuse_all(case, now))

    def cut_leases(self, case: Case) -> None:
        """Interrupt every exchange that holds a lease."""
        for place in list(self._places.values()):
            if place.admission is not None:
                place.exchange.cut(case)

    def operator_load(self, model: ModelId) -> None:
        self.post(lambda now: self.scheduler.operator_load(model, now))

    def operator_unload(self) -> None:
        self.post(self.scheduler.operator_unload)

    def operator_cancel(self) -> None:
        self.post(self.scheduler.operator_cancel)

    def observe(self, observer: Observer) -> None:
        self._observers.append(observer)

    def stop_observing(self, observer: Observer) -> None:
        self._observers.remove(observer)

    # ---- what others see -----------------------------------------------------------------------

    def depths(self) -> tuple[int, int]:
        """(waiting tickets, leases) now."""
        return self.scheduler.depths()

    def snapshot(self) -> Snapshot:
        return self.scheduler.snapshot(trio.current_time())

    def queue(self, limit: int) -> list[Wait]:
        """The first ``limit`` tickets in the order of their service, and what each waits for."""
        return self.scheduler.queue(trio.current_time(), limit)

    def position(self, ticket: TicketId) -> Position | None:
        return self._positions.of(ticket, trio.current_time())

    def active_places(self, limit: int) -> list[Place]:
        """The first ``limit`` of those that hold a lease, in the order of their admission."""
        leases = islice(self.scheduler.active(), limit)
        places = [self._places.get(ticket) for ticket in leases]
        # One that has left may still be in the scheduler's books: that fact is in the inbox.
        return [place for place in places if place is not None and place.admission is not None]

    @property
    def busy_places(self) -> int:
        """Exchanges that wait or hold a lease."""
        return len(self._places)

    # ---- the engine's reports (EngineSupervisor's Listener) ------------------------------------

    def engine_report(self, report: EngineReport) -> None:
        self.post(lambda now: self._take_report(report, now))

    def engine_progress(self, phase: str, message: str) -> None:
        for observer in list(self._observers):
            observer.engine_progress(phase, message)

    def _take_report(self, report: EngineReport, now: float) -> None:
        match report:
            case LoadStarted(model):
                self._engine = None
                self.scheduler.load_started(model, now)
            case EngineReady() as ready:
                self._engine = ready
                self.last_loaded = ready.model
                self.scheduler.engine_ready(ready.model, now)
                self.scheduler.set_cache_min_tokens(ready.cache_min_tokens)
                self._serve_waiting_leases(ready)
            case LoadFailed(model, _, load_ms):
                for place in self._places.values():
                    if place.admission is not None and place.engine is None:
                        place.load_ms = load_ms
                self.scheduler.load_failed(model, Refusal(Case.MODEL_LOAD_FAILED), now)
            case LoadCancelled(model):
                self.scheduler.load_cancelled(model, now)
            case EngineDied() | EngineStopped():
                self._engine = None
                self.scheduler.engine_stopped(now)
            case unreachable:
                assert_never(unreachable)
        for observer in list(self._observers):
            observer.engine_report(report)

    def _serve_waiting_leases(self, ready: EngineReady) -> None:
        """The lease that caused this load (at most one) has its engine now."""
        for place in self._places.values():
            admission = place.admission
            if admission is not None and place.engine is None and admission.model == ready.model:
                place.load_ms = ready.load_ms
                self._connect(place, ready)

    # ---- the one task --------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until cancelled. Runs the supervisor too, and outlives it by nothing."""
        async with trio.open_nursery() as self._nursery:
            self._nursery.start_soon(self.supervisor.run)
            try:
                await self._take_turns()
            finally:
                # Exchanges may outlive this by a moment; nothing is decided for them.
                self._nursery = None

    async def _take_turns(self) -> None:
        while True:
            # First, so that a fact that is posted on the way is not slept over.
            self._wake = trio.Event()
            if self._failure is not None:
                raise self._failure
            self._turn(looks=True)
            # A deadline that moves away meanwhile is slept until all the same; looking is cheap.
            self._sleeps_until_s = self._deadline_s()
            with trio.move_on_at(self._sleeps_until_s):
                await self._wake.wait()

    def _turn(self, *, looks: bool) -> None:
        """Hear who has left if anybody could wait, take the facts, then decide and carry out."""
        self._in_turn = True
        try:
            now = trio.current_time()
            if looks:
                self._look()
            while self._inbox:
                self._inbox.popleft()(now)
            for decision in self.scheduler.take_decisions(now):
                self._carry_out(decision)
            if not self.scheduler.awaits_scores:
                self._end_lookup()
        finally:
            self._in_turn = False

    def _deadline_s(self) -> float:
        return self.scheduler.next_deadline() or math.inf

    def _carry_out(self, decision: Decision) -> None:
        if log.isEnabledFor(logging.DEBUG):
            log.debug("%s", _in_words(decision))
        match decision:
            case Admit(ticket, model, model_switch):
                self._admit(ticket, model, model_switch)
            case Refuse(ticket, refusal):
                place = self._places.get(ticket)
                if place is not None:
                    self._settle(place, refusal)
            case Load(model):
                self._engine = None
                self.supervisor.load(model)
            case Unload():
                self._engine = None
                self.supervisor.unload()
            case CancelLoad():
                self.supervisor.cancel_load()
            case LookUpCache():
                self._begin_lookup(decision)
            case unreachable:
                assert_never(unreachable)

    def _admit(self, ticket: TicketId, model: ModelId, model_switch: bool) -> None:
        place = self._places[ticket]  # whoever left has said so before decisions were taken
        place.admission = Admission(moment(), model, model_switch)
        if self._engine is not None and self._engine.model == model:
            self._connect(place, self._engine)
        place.changed.set()

    def _connect(self, place: Place, engine: EngineReady) -> None:
        place.engine = ReadyEngine(engine.port, engine.kind, place.load_ms)
        place.ready_at_s = trio.current_time()
        place.changed.set()

    def _settle(self, place: Place, refusal: Refusal) -> None:
        place.refusal = refusal
        place.changed.set()

    def _end_lookup(self) -> None:
        """Its answer would change nothing; it would only keep the engine from what comes next."""
        if self._lookup is not None:
            self._lookup.cancel()
            self._lookup = None

    def _begin_lookup(self, decision: LookUpCache) -> None:
        self._end_lookup()
        assert self._nursery is not None
        assert self._engine is not None, "lookups are decided for a ready engine"
        self._lookup = trio.CancelScope()
        self._nursery.start_soon(self._look_up_cache, decision, self._engine, self._lookup)

    async def _look_up_cache(
        self, decision: LookUpCache, engine: EngineReady, scope: trio.CancelScope
    ) -> None:
        with scope:
            scores, supported = await self._ask_cache(decision, engine)
            self.post(
                lambda now: self.scheduler.cache_scores(decision.round, scores, supported, now)
            )

    async def _ask_cache(
        self, decision: LookUpCache, engine: EngineReady
    ) -> tuple[cache_lookup.ScoreMap | None, bool]:
        """(scores, supported), as ``Scheduler.cache_scores`` takes them."""
        path = engine.kind.cache_lookup_path
        if path is None:
            return None, False
        waiting = [(ticket, self._places.get(ticket)) for ticket in decision.tickets]
        try:
            return await cache_lookup.look_up(
                engine.port,
                path,
                [(ticket, place.request) for ticket, place in waiting if place and place.request],
                self._catalog.upstream_model(engine.model),
                decision.budget_ms / 1000,
            )
        except Exception as exc:  # the top of a task: an order is not worth the daemon's life
            log.warning("the cache lookup failed (%s); arrival order holds", type(exc).__name__)
            return None, True


def settings(config: Config) -> SchedulerSettings:
    """The scheduler's part of the configuration."""
    return SchedulerSettings(
        wait_when_busy=config.wait_when_busy,
        max_pending=config.max_pending,
        model_grace_ms=config.model_grace_ms,
        max_wait_ms=config.max_wait_ms,
        queue_ms=config.queue_ms,
        idle_ms=config.idle_ms,
        cooldown_ms=config.cooldown_ms,
        cache_lookup_ms=config.cache_lookup_ms,
        cache_max_active=config.cache_max_active,
    )


def _in_words(decision: Decision) -> str:
    """One line for the log at debug level: ids from the configuration and numbers, nothing else."""
    match decision:
        case Admit(ticket, model, model_switch):
            return f"admit {ticket} to {model}{' (switch)' if model_switch else ''}"
        case Refuse(ticket, refusal):
            return f"refuse {ticket}: {refusal.case}"
        case Load(model):
            return f"load {model}"
        case Unload():
            return "unload"
        case CancelLoad():
            return "cancel the load"
        case LookUpCache(number, tickets, budget_ms):
            return f"look up cache, round {number}: {len(tickets)} tickets, {budget_ms} ms"
        case unreachable:
            assert_never(unreachable)
