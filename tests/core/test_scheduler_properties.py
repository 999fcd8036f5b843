"""Random histories of a whole daemon's life, judged by the independent ledger.

500 histories of 200 events by default, and as many again for every further one of ``ROUNDS`` (40 in
``make test-deep``), each round a test of its own so that none outlasts the runner's patience.
A history is bytes, three per event, so that a failing one shrinks to a short story.
"""

import os
from random import Random
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from strata_router.core.admission import SchedulerSettings, Ticket
from strata_router.core.refusal import Case
from strata_router.core.vocabulary import ModelId, TicketId, Tier
from tests.core.admission_ledger import Ledger

HISTORIES = 500
ROUNDS = int(os.environ.get("ROUNDS", "1"))
EVENTS = 200
SETTING_BYTES = 8

A, B, C, D = (ModelId(name) for name in "ABCD")


class Kind(NamedTuple):
    """A way to ask: what the ticket accepts and prefers."""

    accepts: tuple[ModelId, ...]
    preferred: ModelId | None


KINDS = (
    Kind((A,), A),
    Kind((B,), B),
    Kind((C,), C),
    Kind((A, B), A),
    Kind((B, C, D), B),
    Kind((D, C), None),
)
TIERS = (Tier.DEFAULT, Tier.DEFAULT, Tier.PRIORITY, Tier.FLEX)
WEIGHTS = {
    "time passes": 20,
    "deadline": 28,
    "asks again": 4,
    "arrive": 58,
    "upload begins": 6,
    "upload ends": 8,
    "abandon": 7,
    "answer ends": 36,
    "lease breaks": 3,
    "headers": 16,
    "pin": 7,
    "engine answers": 26,
    "cache answers": 12,
    "engine stops": 3,
    "operator": 4,
    "routing": 10,
    "busy moment": 8,
}
EVENT_OF_BYTE = [name for name, weight in WEIGHTS.items() for _ in range(weight)]
STEPS_S = (0.0, 0.2, 0.5, 1.0, 3.0, 7.0, 13.0)


def settings_from(raw: bytes) -> SchedulerSettings:
    def pick(index: int, *values: int) -> int:
        return values[raw[index] % len(values)]

    max_wait_ms = {
        Tier.DEFAULT: pick(3, 0, 0, 4000),
        Tier.FLEX: pick(3, 0, 9000),
        Tier.PRIORITY: pick(3, 0, 0, 0, 2000),
    }
    return SchedulerSettings(
        wait_when_busy=raw[0] % 3 > 0,
        max_pending=pick(1, 1, 2, 4, 9),
        model_grace_ms=pick(2, 0, 3000, 500),
        max_wait_ms=max_wait_ms,
        queue_ms=pick(4, 5000, 20000),
        idle_ms=pick(5, 0, 2000, 6000),
        cooldown_ms=pick(6, 2500, 10000),
        cache_lookup_ms=pick(7, 0, 1000, 1000, 600),
        cache_max_active=pick(7, 1, 0, 1, 2, 1),
    )


class History:
    """Turns bytes into events that could happen now, and lets the ledger see them."""

    def __init__(self, chosen: SchedulerSettings) -> None:
        self.ledger = Ledger(chosen)
        self.now = 100.0
        self.last_id = 0
        self.uploading: list[tuple[TicketId, float]] = []
        self.tickets: dict[TicketId, Ticket] = {}

    def event(self, what: int, x: int, y: int) -> None:
        ledger = self.ledger
        match EVENT_OF_BYTE[what]:
            case "time passes":
                self.pass_time(STEPS_S[x % len(STEPS_S)])
            case "deadline":
                self.wake_at_deadline()
            case "arrive":
                self.arrive(self.new_id(), self.now, x, y)
            case "upload begins":
                self.uploading.append((self.new_id(), self.now))
            case "upload ends" if self.uploading:
                self.arrive(*self.uploading.pop(x % len(self.uploading)), x, y)
            case "abandon" if ledger.waiting:
                ledger.leave(self.one_of(list(ledger.waiting), x), self.now)
            case "answer ends" if ledger.leases and ledger.phase == "ready":
                ledger.leave(self.one_of(list(ledger.leases), x), self.now)
            case "lease breaks" if ledger.leases:
                ledger.leave(self.one_of(list(ledger.leases), x), self.now)
            case "asks again" if ledger.leases:
                self.ask_again(self.one_of(list(ledger.leases), x), x)
            case "headers" if ledger.leases and ledger.phase == "ready":
                ledger.headers_arrived(self.one_of(list(ledger.leases), x), self.now)
            case "pin" if ids := [*ledger.waiting, *ledger.leases, *ledger.owed]:
                ledger.pin(self.one_of(ids, x), self.now)
            case "engine answers":
                self.engine_answers(x)
            case "cache answers":
                self.cache_answers(x, y)
            case "engine stops":
                ledger.engine_stopped(self.now)
            case "operator":
                self.operator(x, y)
            case "routing":
                self.routing(x)
            case "busy moment":
                ledger.defer = True
            case _:
                pass  # Not possible now.

    def new_id(self) -> TicketId:
        self.last_id += 1
        return TicketId(self.last_id)

    def one_of(self, ids: list[TicketId], x: int) -> TicketId:
        return ids[x % len(ids)]

    def pass_time(self, seconds: float) -> None:
        self.ledger.defer = False
        self.ledger.settle(self.now)
        self.now += seconds
        self.ledger.settle(self.now)

    def wake_at_deadline(self) -> None:
        self.pass_time(0.0)
        deadline = self.ledger.scheduler.next_deadline()
        if deadline is not None:
            self.now = deadline
            self.ledger.settle(self.now)

    def arrive(self, ticket_id: TicketId, arrived_s: float, x: int, y: int) -> None:
        kind = KINDS[x % len(KINDS)]
        ticket = Ticket(ticket_id, TIERS[y % len(TIERS)], kind.accepts, kind.preferred, arrived_s)
        self.tickets[ticket_id] = ticket
        self.ledger.arrive(ticket, self.now)

    def ask_again(self, ticket_id: TicketId, x: int) -> None:
        """The engine had died before the request was sent: the same ticket queues once more."""
        if x % 2:
            self.ledger.engine_stopped(self.now)
        self.ledger.leave(ticket_id, self.now)
        if ticket_id not in self.ledger.waiting and ticket_id not in self.ledger.leases:
            self.ledger.arrive(self.tickets[ticket_id], self.now)

    def engine_answers(self, x: int) -> None:
        ledger = self.ledger
        if ledger.phase == "unloading":
            ledger.engine_stopped(self.now)
        elif ledger.phase in ("loading", "cancelling"):
            if x % 8 == 0:
                ledger.load_failed(self.now)
            elif ledger.phase == "cancelling" and x % 8 < 6:
                ledger.load_cancelled(self.now)
            else:
                ledger.engine_ready(self.now)
                ledger.set_cache_min_tokens(101 * (x % 2))

    def cache_answers(self, x: int, y: int) -> None:
        lookup = self.ledger.lookup
        number = lookup.round if x % 4 else max(1, lookup.round - 1)
        if x % 8 == 1 or number == 0:
            self.ledger.cache_scores(number, None, y % 3 > 0, self.now)
            return
        scores = {i: ((i * y) % 5 * 20, 100 + (i * x) % 3) for i in lookup.asked if i % 5}
        self.ledger.cache_scores(number, scores, True, self.now)

    def operator(self, x: int, y: int) -> None:
        if x % 4 == 0:
            self.ledger.operator_unload(self.now)
        elif x % 4 == 1:
            self.ledger.operator_cancel(self.now)
        else:
            self.ledger.operator_load((A, B, C, D)[y % 4], self.now)

    def routing(self, x: int) -> None:
        if x % 128 == 1:
            self.ledger.refuse_all(Case.SHUTTING_DOWN, self.now)
        else:
            self.ledger.set_routing(x % 8 > 0, self.now)

    def finish(self) -> None:
        """Let the world do its part until nobody waits: everything must come to its end."""
        ledger = self.ledger
        self.pass_time(0.0)
        ledger.set_routing(True, self.now)
        for _ in range(20 + 6 * len(ledger.outcomes)):
            if not ledger.waiting and not ledger.leases and ledger.wish is None:
                break
            if ledger.phase in ("loading", "cancelling", "unloading"):
                self.engine_answers(7)
            elif ledger.leases:
                ledger.leave(min(ledger.leases), self.now)
            else:
                self.wake_at_deadline()
        ledger.assert_each_ticket_ended_once()


def live_through(chosen: bytes, events: bytes) -> None:
    history = History(settings_from(chosen))
    for start in range(0, len(events), 3):
        what, x, y = events[start : start + 3]
        if (what, x, y) != (0, 0, 0):
            note(f"at {history.now:.3f} s, {history.ledger.phase}: {EVENT_OF_BYTE[what]} {x} {y}")
        history.event(what, x, y)
    history.finish()


@pytest.mark.parametrize("number", range(ROUNDS))
@settings(
    max_examples=HISTORIES,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(
    chosen=st.binary(min_size=SETTING_BYTES, max_size=SETTING_BYTES),
    events=st.binary(min_size=3 * EVENTS, max_size=3 * EVENTS),
)
def test_every_decision_of_a_chosen_history_keeps_the_rules(
    number: int, chosen: bytes, events: bytes
) -> None:
    """Never stuck, tiers, grace, due, capacity, order, one load, each ticket ends once."""
    live_through(chosen, events)


@pytest.mark.parametrize("number", range(ROUNDS))
@settings(max_examples=HISTORIES, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(dice=st.randoms(use_true_random=True))
def test_every_decision_of_a_random_history_keeps_the_rules(number: int, dice: Random) -> None:
    """The same with evenly spread events, which Hypothesis, who likes zeros, seldom makes."""
    live_through(dice.randbytes(SETTING_BYTES), dice.randbytes(3 * EVENTS))
