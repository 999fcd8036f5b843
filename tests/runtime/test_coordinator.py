"""The coordinator against a supervisor that only writes down what it is asked, on virtual time.

What is decided is tested in tests/core; here it is that facts reach the scheduler in order, that
decisions are carried out, and that whoever waits is told.
"""

import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio
import trio.testing

from strata_router.core.admission import Scheduler, Ticket
from strata_router.core.catalog import Catalog
from strata_router.core.chat_request import ChatRequest, read_chat_request
from strata_router.core.config import Config, Defaults, parse_config
from strata_router.core.engine.kinds import EngineKind, LlamaServerKind, StrataKind
from strata_router.core.refusal import Case, Refusal
from strata_router.core.vocabulary import ModelId, TicketId, Tier
from strata_router.runtime import cache_lookup
from strata_router.runtime.cache_lookup import ScoreMap
from strata_router.runtime.coordinator import Admission, Coordinator, Place, ReadyEngine
from strata_router.runtime.engine_supervisor import (
    EngineDied,
    EngineReady,
    EngineReport,
    EngineStopped,
    EngineSupervisor,
    LoadCancelled,
    LoadFailed,
    LoadStarted,
)

A, B = ModelId("a"), ModelId("b")
PORT = 4711
LOAD_MS = 9000
STRATA = StrataKind("/bin/python", "/srv/strata")
LLAMA = LlamaServerKind("/bin/llama-server", {})


class ScriptedSupervisor(EngineSupervisor):
    """Starts nothing. ``asked`` is what the coordinator wanted, in its order."""

    asked: list[str]

    def load(self, model: ModelId) -> None:
        self.asked.append(f"load {model}")

    def unload(self) -> None:
        self.asked.append("unload")

    def cancel_load(self) -> None:
        self.asked.append("cancel load")

    async def run(self) -> None:
        self.asked = []
        await trio.sleep_forever()


@dataclass
class ScriptedExchange:
    """What the coordinator tells one exchange."""

    committed: list[ModelId] = field(default_factory=list)
    cuts: list[Case] = field(default_factory=list)
    sse_events: int | None = None
    when_committed: Callable[[], None] | None = None

    def commit(self, model: ModelId) -> None:
        self.committed.append(model)
        if self.when_committed is not None:
            self.when_committed()

    def cut(self, case: Case) -> None:
        self.cuts.append(case)


@dataclass
class Guest:
    """One exchange's side: its place, and what became of it so far."""

    place: Place
    exchange: ScriptedExchange
    admitted: Admission | Refusal | None = None
    ready: ReadyEngine | Refusal | None = None

    async def wait(self) -> None:
        self.admitted = await self.place.admitted()
        if not isinstance(self.admitted, Refusal):
            self.ready = await self.place.ready()

    @property
    def admission(self) -> Admission:
        assert isinstance(self.admitted, Admission), self.admitted
        return self.admitted

    @property
    def has_engine(self) -> bool:
        return isinstance(self.ready, ReadyEngine)

    @property
    def refusal(self) -> Refusal:
        found = self.ready or self.admitted
        assert isinstance(found, Refusal), found
        return found


def configuration(**keys: Any) -> Config:
    model = {"family": "f", "profile": "/srv/p", "installed": True, "compatible": True}
    document = {
        "python": "/bin/python",
        "strata_dir": "/srv/strata",
        "wait_when_busy": True,
        "models": {name: {**model, "upstream_model": f"upstream-{name}"} for name in (A, B)},
        **keys,
    }
    return parse_config(document, Defaults(runtime_dir=None)).config


def chat(text: str = "hello") -> ChatRequest:
    request = read_chat_request(b'{"model":"a","messages":["%b"]}' % text.encode())
    assert isinstance(request, ChatRequest)
    return request


@dataclass
class House:
    """A running coordinator."""

    coordinator: Coordinator
    supervisor: ScriptedSupervisor
    nursery: trio.Nursery
    arrivals: int = 0
    leaving: list[Callable[[], None]] = field(default_factory=list)

    def look(self) -> None:
        """As the watcher does: who has left is told now."""
        while self.leaving:
            self.leaving.pop()()

    @property
    def asked(self) -> list[str]:
        return self.supervisor.asked

    async def settle(self) -> None:
        """Let everybody do what can be done without time passing."""
        await trio.testing.wait_all_tasks_blocked()

    async def enter(self, *accepts: ModelId, tier: Tier = Tier.DEFAULT) -> Guest:
        guest = self.enter_now(*accepts, tier=tier)
        await self.settle()
        return guest

    def enter_now(self, *accepts: ModelId, tier: Tier = Tier.DEFAULT) -> Guest:
        self.arrivals += 1
        exchange = ScriptedExchange()
        number = TicketId(self.arrivals)
        ticket = Ticket(number, tier, accepts, accepts[0], trio.current_time())
        guest = Guest(self.coordinator.enter(ticket, chat(), exchange), exchange)
        self.nursery.start_soon(guest.wait)
        return guest

    async def report(self, *reports: EngineReport) -> None:
        for report in reports:
            self.coordinator.engine_report(report)
        await self.settle()

    async def ready(self, model: ModelId, kind: EngineKind = STRATA, min_tokens: int = 0) -> None:
        await self.report(EngineReady(model, kind, PORT, LOAD_MS, min_tokens))

    async def serving(self, model: ModelId, kind: EngineKind = STRATA) -> Guest:
        """One guest whose request is with the engine that was loaded for it."""
        guest = await self.enter(model)
        await self.ready(model, kind)
        assert guest.has_engine
        return guest

    async def leave(self, *guests: Guest) -> None:
        for guest in guests:
            guest.place.leave()
        await self.settle()


@asynccontextmanager
async def house(**keys: Any) -> AsyncIterator[House]:
    config = configuration(**keys)
    made: list[ScriptedSupervisor] = []

    def supervise(*arguments: Any) -> ScriptedSupervisor:
        made.append(ScriptedSupervisor(*arguments))
        return made[0]

    found: list[House] = []
    coordinator = Coordinator(config, Catalog(config, {}), supervise, look=lambda: found[0].look())
    async with trio.open_nursery() as nursery:
        it = House(coordinator, made[0], nursery)
        found.append(it)
        nursery.start_soon(coordinator.run)
        await it.settle()
        yield it
        nursery.cancel_scope.cancel()


# ---- loads and leases ---------------------------------------------------------------------------


async def test_the_first_ticket_is_admitted_and_causes_a_load(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with house() as it:
        await trio.sleep(5)
        guest = await it.enter(A)
        assert guest.admission.at.monotonic_s == trio.current_time()
        assert (guest.admission.model, guest.admission.model_switch) == (A, True)
        assert it.asked == ["load a"]
        assert not guest.has_engine
        await it.report(LoadStarted(A))
        await it.ready(A)
        assert guest.ready == ReadyEngine(PORT, STRATA, LOAD_MS)
        assert it.coordinator.last_loaded == A


async def test_a_ticket_for_the_loaded_model_is_admitted_and_connected_at_once(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with house() as it:
        await it.serving(A)
        second = await it.enter(A)
        assert not second.admission.model_switch
        assert second.ready == ReadyEngine(PORT, STRATA, load_ms=None)
        assert it.coordinator.depths() == (0, 2)
        assert it.coordinator.busy_places == 2


async def test_only_the_lease_that_caused_the_load_has_its_duration(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with house() as it:
        first, second = await it.enter(A), await it.enter(A)
        await it.ready(A)
        assert [guest.place.load_ms for guest in (first, second)] == [LOAD_MS, None]
        assert second.ready == ReadyEngine(PORT, STRATA, load_ms=None)


async def test_a_failed_load_is_told_to_its_lease_and_to_all_who_wait_for_that_model(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with house() as it:
        first, second, other = await it.enter(A), await it.enter(A), await it.enter(B)
        await it.report(LoadFailed(A, "no memory", LOAD_MS))
        told = Refusal(Case.MODEL_LOAD_FAILED, retry_after_s=10)
        assert first.refusal == second.refusal == told
        assert [guest.place.load_ms for guest in (first, second)] == [LOAD_MS, None]
        assert other.admission.model == B
        assert it.asked == ["load a", "load b"]
        late = await it.enter(A)
        assert late.refusal == told


async def test_another_model_is_loaded_when_the_last_lease_ends_and_the_grace_is_over(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with house(model_grace_ms=3000) as it:
        first = await it.serving(A)
        waiting = await it.enter(B)
        await trio.sleep(10)
        assert it.asked == ["load a"]
        await it.leave(first)
        ended_s = trio.current_time()
        await trio.sleep(2.9)
        assert waiting.admitted is None
        await trio.sleep(0.2)
        assert waiting.admission.at.monotonic_s == pytest.approx(ended_s + 3)
        assert it.asked == ["load a", "load b"]


async def test_an_engine_that_is_being_replaced_is_nobodys(autojump_clock: trio.abc.Clock) -> None:
    async with house() as it:
        first = await it.serving(A)
        second = await it.enter(B)
        await it.leave(first)
        assert second.admission.model == B
        assert not second.has_engine
        # Late news of the engine that is being stopped changes nothing.
        await it.report(EngineDied(A))
        assert not second.has_engine
        await it.ready(B)
        assert second.ready == ReadyEngine(PORT, STRATA, LOAD_MS)


async def test_after_a_death_the_same_model_is_loaded_again_without_a_switch(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with house() as it:
        first = await it.serving(A)
        await it.report(EngineDied(A))
        second = await it.enter(A)
        assert second.admitted is None  # the dead engine's lease has not ended yet
        await it.leave(first)
        assert not second.admission.model_switch
        assert it.asked == ["load a", "load a"]
        assert not second.has_engine
        await it.ready(A)
        assert second.ready == ReadyEngine(PORT, STRATA, LOAD_MS)


async def test_a_load_that_nobody_wants_is_called_off_when_another_model_is_asked_for(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with house() as it:
        first = await it.enter(A)
        await it.report(LoadStarted(A))
        await it.leave(first)
        assert it.asked == ["load a"]
        other = await it.enter(B)
        assert it.asked == ["load a", "cancel load"]
        await it.report(LoadCancelled(A))
        assert it.asked == ["load a", "cancel load", "load b"]
        assert other.admission.model == B


async def test_a_load_that_was_ready_before_it_could_be_called_off_is_used(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with house() as it:
        await it.leave(await it.enter(A))
        await it.enter(B)
        late = await it.enter(A)
        assert it.asked == ["load a", "cancel load"]
        await it.ready(A)
        assert late.ready == ReadyEngine(PORT, STRATA, load_ms=None)


async def test_the_idle_engine_is_unloaded_and_a_ticket_waits_for_the_end_of_that(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with house(idle_ms=60_000) as it:
        await it.leave(await it.serving(A))
        await trio.sleep(59.9)
        assert it.asked == ["load a"]
        await trio.sleep(0.2)
        assert it.asked == ["load a", "unload"]
        guest = await it.enter(A)
        assert guest.admitted is None
        await it.report(EngineStopped())
        assert guest.admission.model_switch
        assert it.asked == ["load a", "unload", "load a"]


# ---- leaving ------------------------------------------------------------------------------------


async def test_who_leaves_in_the_instant_of_arrival_is_never_admitted(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with house() as it:
        guest = it.enter_now(A)
        guest.place.leave()
        await it.settle()
        assert guest.admitted is None
        assert it.asked == []
        assert it.coordinator.depths() == (0, 0)


async def test_who_leaves_in_the_instant_in_which_its_turn_comes_is_not_admitted(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with house(max_pending=1, model_grace_ms=0) as it:
        first, second, other = await it.serving(A), await it.enter(A), await it.enter(B)
        # Whichever is told first: the coordinator hears of both before it decides.
        first.place.leave()
        second.place.leave()
        await it.settle()
        assert second.admitted is None
        assert other.admission.model == B


async def test_leaving_twice_is_leaving_once(autojump_clock: trio.abc.Clock) -> None:
    async with house() as it:
        guest = await it.serving(A)
        await it.leave(guest, guest)
        assert guest.place.left
        assert guest.place.request is None
        assert it.coordinator.busy_places == 0


async def test_a_refused_guest_leaves_like_any_other(autojump_clock: trio.abc.Clock) -> None:
    async with house() as it:
        it.coordinator.set_routing(False)
        guest = await it.enter(A)
        assert guest.refusal == Refusal(Case.ROUTING_OFF)
        await it.leave(guest)
        assert it.coordinator.busy_places == 0


async def test_a_refusal_for_who_has_left_is_dropped(autojump_clock: trio.abc.Clock) -> None:
    async with house() as it:
        it.coordinator.set_routing(False)
        guest = it.enter_now(A)  # refused on arrival, which is not carried out before it has left
        guest.place.leave()
        await it.settle()
        assert guest.place.refusal is None


# ---- quiet times --------------------------------------------------------------------------------


async def test_while_nobody_waits_the_loaded_model_is_given_without_a_turn_of_the_loop(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with house() as it:
        await it.serving(A)
        guest = it.enter_now(A)
        assert guest.place.admission is not None
        assert guest.place.engine is not None
        guest.place.leave()
        assert it.coordinator.depths() == (0, 1)


async def test_while_somebody_waits_nobody_is_decided_upon_before_the_coordinators_turn(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with house(max_pending=1) as it:
        first, waiting = await it.serving(A), await it.enter(A)
        first.place.leave()
        newcomer = it.enter_now(A, tier=Tier.PRIORITY)
        assert it.coordinator.depths() == (1, 1), "the departure is not known yet"
        await it.settle()
        assert newcomer.has_engine
        assert waiting.admitted is None


async def test_a_lease_that_ends_in_quiet_times_starts_the_idle_time(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with house(idle_ms=1000) as it:
        guest = await it.serving(A)
        guest.place.leave()
        await trio.sleep(0.9)
        it.enter_now(A).place.leave()  # the idle time begins anew
        await trio.sleep(0.9)
        assert it.asked == ["load a"]
        await trio.sleep(0.2)
        assert it.asked == ["load a", "unload"]


async def test_who_leaves_in_the_instant_of_arrival_causes_no_switch(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with house(model_grace_ms=0) as it:
        await it.leave(await it.serving(A))
        it.enter_now(B, tier=Tier.PRIORITY).place.leave()
        await it.settle()
        assert it.asked == ["load a"]


async def test_legacy_headers_that_arrive_while_nobody_waits_free_the_lock(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with house(wait_when_busy=False, max_pending=4, queue_ms=1000) as it:
        first = await it.serving(A)
        first.place.headers_arrived()
        await it.settle()
        assert (await it.enter(A)).has_engine


async def test_who_has_left_is_heard_before_a_decision_whoever_was_told_of_it(
    autojump_clock: trio.abc.Clock,
) -> None:
    """At a deadline, and when a lease ends: the departure lies with the kernel in both cases."""
    async with house(model_grace_ms=1000) as it:
        first, waiting = await it.serving(A), await it.enter(B)
        await it.leave(first)
        it.leaving.append(waiting.place.leave)
        await trio.sleep(2)
        assert it.asked == ["load a"]
    async with house(model_grace_ms=0) as it:
        first, waiting = await it.serving(A), await it.enter(B)
        it.leaving.append(waiting.place.leave)
        await it.leave(first)
        assert it.asked == ["load a"]


async def test_a_bug_that_shows_in_the_instant_of_a_deadline_is_not_slept_over(
    autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    async def arrive_at_the_deadline() -> None:
        async with house(idle_ms=1000) as it:
            await it.leave(await it.serving(A))
            await trio.sleep(1)
            monkeypatch.setattr(Scheduler, "arrive", fail)
            it.enter_now(A)
            await trio.sleep(60)

    with pytest.raises(ExceptionGroup) as caught:
        await arrive_at_the_deadline()
    assert caught.group_contains(ZeroDivisionError)


async def test_what_is_said_while_a_fact_is_taken_is_taken_after_it(
    autojump_clock: trio.abc.Clock,
) -> None:
    """A client that turns out to be gone when its head is to leave."""
    async with house() as it:
        guest = await it.serving(A)
        guest.exchange.when_committed = guest.place.leave
        guest.place.request_commit()
        await it.settle()
        assert it.coordinator.depths() == (0, 0)


async def test_a_bug_that_shows_in_quiet_times_ends_the_coordinator_and_not_the_exchange(
    autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    async def leave_quietly() -> None:
        async with house() as it:
            guest = await it.serving(A)
            monkeypatch.setattr(Scheduler, "leave", fail)
            guest.place.leave()
            await trio.sleep(1)

    with pytest.raises(ExceptionGroup) as caught:
        await leave_quietly()
    assert caught.group_contains(ZeroDivisionError)


# ---- commits ------------------------------------------------------------------------------------


async def test_a_waiting_stream_is_committed_to_the_model_that_will_answer_it(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with house(max_pending=1) as it:
        first = await it.serving(A)
        waiting = await it.enter(B, A)
        priority = await it.enter(B, tier=Tier.PRIORITY)
        waiting.place.request_commit()
        await it.settle()
        assert waiting.exchange.committed == [A]
        await it.leave(first)
        await it.ready(B)
        assert waiting.admitted is None  # B might have answered it before
        await it.leave(priority)
        assert waiting.admission.model == A


async def test_without_a_commit_an_alias_follows_what_is_loaded(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with house(max_pending=1) as it:
        first = await it.serving(A)
        waiting = await it.enter(A, B)
        priority = await it.enter(B, tier=Tier.PRIORITY)
        await it.leave(first)
        await it.ready(B)
        await it.leave(priority)
        assert waiting.admission.model == B


async def test_an_admitted_stream_is_committed_to_its_own_model(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with house() as it:
        guest = await it.enter(B, A)
        guest.place.request_commit()
        await it.settle()
        assert guest.exchange.committed == [B]


async def test_a_commit_that_is_asked_for_when_nobody_can_serve_it_is_a_refusal(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with house(max_pending=1) as it:
        await it.serving(B)
        it.arrivals += 1
        exchange = ScriptedExchange()
        # An alias whose first model is not prepared: the loaded one may answer, no other will.
        ticket = Ticket(TicketId(it.arrivals), Tier.DEFAULT, (A, B), None, trio.current_time())
        guest = Guest(it.coordinator.enter(ticket, chat(), exchange), exchange)
        it.nursery.start_soon(guest.wait)
        await it.settle()
        it.coordinator.engine_report(EngineDied(B))
        guest.place.request_commit()
        await it.settle()
        assert guest.refusal == Refusal(Case.MODEL_NOT_PREPARED)
        assert exchange.committed == []


async def test_nobody_is_committed_after_a_refusal_or_after_leaving(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with house(max_pending=1) as it:
        await it.serving(A)
        refused, left = await it.enter(A), await it.enter(A)
        await it.leave(left)
        it.coordinator.set_routing(False)
        await it.settle()
        for guest in (refused, left):
            guest.place.request_commit()
        await it.settle()
        assert refused.exchange.committed == left.exchange.committed == []


async def test_a_commit_reaches_an_exchange_that_queues_once_more_in_the_same_instant(
    autojump_clock: trio.abc.Clock,
) -> None:
    """It found its engine dead; the request to commit was already under way."""
    async with house() as it:
        guest = await it.serving(A)
        await it.report(EngineDied(A))
        guest.place.request_commit()
        guest.place.leave()
        again = it.coordinator.enter(guest.place.ticket, chat(), guest.exchange)
        await it.settle()
        assert guest.exchange.committed == [A]
        assert again.admission is not None


# ---- the operator -------------------------------------------------------------------------------


async def test_routing_off_refuses_who_waits_and_leaves_leases_alone(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with house(max_pending=1) as it:
        active, waiting = await it.serving(A), await it.enter(A)
        it.coordinator.set_routing(False)
        await it.settle()
        assert waiting.refusal == Refusal(Case.ROUTING_OFF)
        assert active.has_engine
        assert active.exchange.cuts == []
        await it.leave(active)
        for on in (False, True):
            it.coordinator.set_routing(on)
            assert it.coordinator.routing is on
        assert (await it.enter(A)).admission.model == A


async def test_the_end_refuses_everybody_who_waits_or_comes(autojump_clock: trio.abc.Clock) -> None:
    async with house(max_pending=1) as it:
        await it.serving(A)
        waiting = await it.enter(A)
        it.coordinator.refuse_all(Case.SHUTTING_DOWN)
        late = await it.enter(A)
        assert waiting.refusal == late.refusal == Refusal(Case.SHUTTING_DOWN)


async def test_cutting_reaches_leases_only(autojump_clock: trio.abc.Clock) -> None:
    async with house(max_pending=1) as it:
        active, waiting = await it.serving(A), await it.enter(A)
        it.coordinator.cut_leases(Case.ROUTING_OFF)
        assert active.exchange.cuts == [Case.ROUTING_OFF]
        assert waiting.exchange.cuts == []


async def test_the_operators_wishes_are_carried_out(autojump_clock: trio.abc.Clock) -> None:
    async with house() as it:
        it.coordinator.operator_load(A)
        await it.settle()
        await it.ready(A)
        it.coordinator.operator_unload()
        await it.settle()
        await it.report(EngineStopped())
        it.coordinator.operator_load(B)
        await it.settle()
        it.coordinator.operator_cancel()
        await it.settle()
        assert it.asked == ["load a", "unload", "load b", "cancel load"]


@dataclass
class Follower:
    """What an observer saw; it may stop at the first report."""

    stop: Callable[["Follower"], None] | None = None
    reports: list[EngineReport] = field(default_factory=list)
    progress: list[tuple[str, str]] = field(default_factory=list)

    def engine_report(self, report: EngineReport) -> None:
        self.reports.append(report)
        if self.stop is not None:
            self.stop(self)

    def engine_progress(self, phase: str, message: str) -> None:
        self.progress.append((phase, message))


async def test_observers_follow_until_they_stop(autojump_clock: trio.abc.Clock) -> None:
    async with house() as it:
        fickle, faithful = Follower(it.coordinator.stop_observing), Follower()
        it.coordinator.observe(fickle)
        it.coordinator.observe(faithful)
        it.coordinator.engine_progress("starting", "words")
        await it.report(LoadStarted(A), LoadCancelled(A))
        it.coordinator.engine_progress("stopped", "more words")
        assert fickle.reports == [LoadStarted(A)]
        assert fickle.progress == [("starting", "words")]
        assert faithful.reports == [LoadStarted(A), LoadCancelled(A)]
        assert len(faithful.progress) == 2


async def test_others_see_what_waits_and_what_runs(autojump_clock: trio.abc.Clock) -> None:
    async with house(max_pending=1) as it:
        await it.serving(A)
        await it.enter(A, tier=Tier.FLEX)
        snapshot = it.coordinator.snapshot()
        assert (snapshot.loaded, snapshot.in_flight, snapshot.queue_depth) == (A, 1, 1)
        assert snapshot.queue_depth_by_tier[Tier.FLEX] == 1


async def test_others_see_the_queue_in_the_order_of_service_and_who_holds_a_lease(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with house(max_pending=1) as it:
        active = await it.serving(A)
        flex = await it.enter(A, tier=Tier.FLEX)
        other, same = await it.enter(B), await it.enter(A)
        waits = it.coordinator.queue(limit=2)
        assert [wait.ticket for wait in waits] == [same.place.ticket.id, other.place.ticket.id]
        assert flex.place.position() == (3, 3)
        assert active.place.position() is None
        assert it.coordinator.active_places(limit=5) == [active.place]
        active.place.leave()  # not heard of yet by the scheduler
        assert it.coordinator.active_places(limit=5) == []


async def test_a_place_knows_since_when_it_has_an_engine_and_an_answer(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with house() as it:
        guest = await it.enter(A)
        await trio.sleep(9)
        await it.ready(A)
        ready_s = trio.current_time()
        await trio.sleep(1)
        guest.place.headers_arrived()
        assert (guest.place.ready_at_s, guest.place.headers_at_s) == (ready_s, ready_s + 1)


# ---- legacy -------------------------------------------------------------------------------------


async def test_legacy_admits_the_next_when_the_headers_of_the_last_have_arrived(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with house(wait_when_busy=False) as it:
        first, second = await it.serving(A), await it.enter(A)
        assert second.admitted is None
        first.place.headers_arrived()
        await it.settle()
        assert second.admission.model == A


async def test_legacy_refuses_who_has_waited_too_long(autojump_clock: trio.abc.Clock) -> None:
    async with house(wait_when_busy=False, queue_ms=2000) as it:
        await it.serving(A)
        waiting = await it.enter(B)
        await trio.sleep(1.9)
        assert waiting.admitted is None
        await trio.sleep(0.2)
        assert waiting.refusal == Refusal(Case.QUEUE_TIMEOUT)
        assert it.asked == ["load a"]


# ---- cache order --------------------------------------------------------------------------------

ONE_PLACE = {"cache_max_active": 1, "cache_lookup_ms": 1000}


@dataclass
class Oracle:
    """Stands in for ``cache_lookup.look_up``. after_s: how long an answer takes."""

    answers: list[tuple[ScoreMap | None, bool] | Exception]
    after_s: float = 0.1
    asked: list[tuple[int, str, list[TicketId], str, float]] = field(default_factory=list)
    ended_s: list[float] = field(default_factory=list)

    async def look_up(
        self,
        port: int,
        path: str,
        requests: Sequence[tuple[TicketId, ChatRequest]],
        upstream_model: str,
        budget_s: float,
    ) -> tuple[ScoreMap | None, bool]:
        self.asked.append((port, path, [t for t, _ in requests], upstream_model, budget_s))
        answer = self.answers[len(self.asked) - 1]
        try:
            await trio.sleep(self.after_s)
        finally:
            self.ended_s.append(trio.current_time())
        if isinstance(answer, Exception):
            raise answer
        return answer


def scores(**cached: int) -> Mapping[TicketId, tuple[int, int]]:
    """t2=5: ticket 2 has 5 of 10 tokens cached."""
    return {TicketId(int(name[1:])): (tokens, 10) for name, tokens in cached.items()}


def consult(monkeypatch: pytest.MonkeyPatch, *answers: Any, after_s: float = 0.1) -> Oracle:
    oracle = Oracle(list(answers), after_s)
    monkeypatch.setattr(cache_lookup, "look_up", oracle.look_up)
    return oracle


async def admitted_order(it: House, guests: Sequence[Guest]) -> list[int]:
    """Let one after the other of these be served; their numbers in the order of admission."""
    order: list[int] = []
    while len(order) < len(guests):
        await trio.sleep(2)
        (active,) = [g for g in guests if g.admitted and g.place.ticket.id not in order]
        order.append(active.place.ticket.id)
        await it.leave(active)
    return order


async def test_the_answer_decides_who_gets_the_freed_place(
    autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house(**ONE_PLACE) as it:
        oracle = consult(monkeypatch, (scores(t2=1, t4=9), True), (scores(t2=1), True))
        first = await it.serving(A)
        guests = [await it.enter(A) for _ in range(3)]
        await it.leave(first)
        assert await admitted_order(it, guests) == [4, 2, 3]
        assert oracle.asked == [
            (PORT, "/v1/cache/lookup", [2, 3, 4], "upstream-a", 1.0),
            (PORT, "/v1/cache/lookup", [2, 3], "upstream-a", 1.0),
        ]


async def test_the_threshold_is_the_loaded_models(
    autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house(**ONE_PLACE) as it:
        consult(monkeypatch, (scores(t3=9), True))
        first = await it.enter(A)
        guests = [await it.enter(A) for _ in range(2)]
        await it.ready(A, min_tokens=11)
        await it.leave(first)
        assert await admitted_order(it, guests) == [2, 3]


async def test_an_engine_kind_without_lookup_is_not_asked_and_nobody_waits(
    autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house(**ONE_PLACE) as it:
        oracle = consult(monkeypatch)
        first = await it.serving(A, LLAMA)
        second, third = await it.enter(A), await it.enter(A)
        await it.leave(first)
        assert second.admission.at.monotonic_s == trio.current_time()
        assert third.admitted is None
        assert oracle.asked == []


async def test_a_lookup_that_fails_unexpectedly_costs_the_order_and_nothing_else(
    autojump_clock: trio.abc.Clock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with house(**ONE_PLACE) as it:
        consult(monkeypatch, ValueError("secret"), (scores(t3=1), True))
        first = await it.serving(A)
        guests = [await it.enter(A) for _ in range(3)]
        await it.leave(first)
        assert await admitted_order(it, guests) == [2, 3, 4]
        assert "ValueError" in caplog.text
        assert "secret" not in caplog.text


async def test_a_new_question_ends_the_old_one(
    autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house(**ONE_PLACE) as it:
        late, right = (scores(t2=9), True), (scores(t4=9), True)
        oracle = consult(monkeypatch, late, right, after_s=0.4)
        first = await it.serving(A)
        guests = [await it.enter(A) for _ in range(2)]
        await it.leave(first)
        freed_s = trio.current_time()
        await trio.sleep(0.25)
        guests.append(await it.enter(A))
        assert oracle.ended_s == [pytest.approx(freed_s + 0.25)]
        await trio.sleep(0.5)
        assert oracle.asked[1][-1] == pytest.approx(0.75)  # what is left of the one budget
        assert [bool(guest.admitted) for guest in guests] == [False, False, True]


async def test_steady_arrivals_do_not_keep_an_idle_engine_waiting(
    autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house(**ONE_PLACE) as it:
        consult(monkeypatch, *[(scores(t3=9), True)] * 20, after_s=0.2)
        first = await it.serving(A)
        second = await it.enter(A)
        await it.enter(A)
        await it.leave(first)
        freed_s = trio.current_time()
        for _ in range(15):
            await it.enter(A)
            await trio.sleep(0.1)
        assert second.admission.at.monotonic_s == pytest.approx(freed_s + 1)


async def test_a_lookup_ends_with_the_competition_it_was_for(
    autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an admission, by everybody's leaving, and by whatever happens to the engine."""

    async def by_admission(it: House) -> None:
        await it.enter(A, tier=Tier.PRIORITY)

    async def by_departure(it: House) -> None:
        await it.leave(*waiting)

    async def by_death(it: House) -> None:
        await it.report(EngineDied(A))

    async def by_switch(it: House) -> None:
        await it.enter(B, tier=Tier.PRIORITY)

    async def by_unload(it: House) -> None:
        it.coordinator.operator_unload()
        await it.settle()

    async def by_load(it: House) -> None:
        it.coordinator.operator_load(B)
        await it.settle()

    async def by_a_load_begun_elsewhere(it: House) -> None:
        await it.report(LoadStarted(B))

    by_changes = (by_death, by_switch, by_unload, by_load, by_a_load_begun_elsewhere)
    for end in (by_admission, by_departure, *by_changes):
        async with house(**ONE_PLACE) as it:
            oracle = consult(monkeypatch, (None, True), after_s=0.9)
            first = await it.serving(A)
            waiting = [await it.enter(A) for _ in range(2)]
            await it.leave(first)
            await trio.sleep(0.1)
            assert oracle.ended_s == []
            await end(it)
            assert oracle.ended_s == [trio.current_time()], end.__name__


async def test_decisions_are_logged_at_debug_level_with_ids_and_numbers_only(
    autojump_clock: trio.abc.Clock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "strata_router.runtime.coordinator")
    async with house(**ONE_PLACE, idle_ms=60_000) as it:
        consult(monkeypatch, (None, True))
        first = await it.serving(A)
        second, third = await it.enter(A), await it.enter(A)
        await it.leave(first)
        await trio.sleep(1)
        it.coordinator.set_routing(False)
        await it.leave(second, third)
        await trio.sleep(70)
        await it.report(EngineStopped())
        it.coordinator.set_routing(True)
        await it.leave(await it.enter(B))
        await it.enter(A)
    assert [record.getMessage() for record in caplog.records] == [
        *("admit 1 to a (switch)", "load a", "look up cache, round 1: 2 tickets, 1000 ms"),
        *("admit 2 to a", "refuse 3: routing_off", "unload"),
        *("admit 4 to b (switch)", "load b", "cancel the load"),
    ]


async def test_status_is_answered_while_a_lookup_runs(
    autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with house(**ONE_PLACE) as it:
        consult(monkeypatch, (None, True), after_s=0.9)
        first = await it.serving(A)
        guests = [await it.enter(A) for _ in range(2)]
        await it.leave(first)
        asked_s = trio.current_time()
        assert it.coordinator.snapshot().queue_depth == 2
        await it.leave(*guests)
        assert it.coordinator.depths() == (0, 0)
        assert trio.current_time() == asked_s
