"""What one admission decision costs, by the number of waiting tickets.

``python -m tests.bench_admission`` prints the table; ``make bench`` includes it. A decision is what the
coordinator does when a lease ends: ``leave``, ``take_decisions``, ``next_deadline``, and where the cache
is asked also the scores and the decisions that follow. The queue is kept at its size by one arrival
per decision, which is timed as well. Wall time never decides a test; ``test_admission_cost`` counts.
"""

import random
from collections.abc import Callable, Sequence
from statistics import quantiles
from time import thread_time_ns

from strata_router.core.admission import (
    Admit,
    Load,
    LookUpCache,
    Scheduler,
    SchedulerSettings,
    Ticket,
)
from strata_router.core.vocabulary import ModelId, TicketId, Tier

SIZES = (10, 100, 1_000, 10_000)
ROUNDS = 3_000
MODELS = tuple(ModelId(f"model-{number}") for number in range(8))
KINDS = (*((model,) for model in MODELS), *3 * (MODELS[:4],), *3 * (MODELS[4:],))
"""What a ticket accepts, one as likely as the other: eight concrete models, two aliases thrice."""
TIERS = (Tier.PRIORITY, Tier.DEFAULT, Tier.DEFAULT, Tier.DEFAULT, Tier.FLEX)


def settings(*, wait_when_busy: bool = True, cache_lookup_ms: int = 0) -> SchedulerSettings:
    return SchedulerSettings(
        wait_when_busy=wait_when_busy,
        max_pending=1 if wait_when_busy else 1_000_000,
        model_grace_ms=0,
        max_wait_ms={Tier.DEFAULT: 600_000, Tier.FLEX: 3_600_000},
        queue_ms=10_000_000,
        idle_ms=600_000,
        cooldown_ms=10_000,
        cache_lookup_ms=cache_lookup_ms,
        cache_max_active=1,
    )


class FullHouse:
    """A scheduler with ``waiting`` tickets of every kind, and an engine that always obeys at once."""

    def __init__(
        self,
        chosen: SchedulerSettings,
        waiting: int,
        kinds: Sequence[tuple[ModelId, ...]] = KINDS,
        tiers: Sequence[Tier] = TIERS,
    ) -> None:
        self.scheduler = Scheduler(chosen)
        self._kinds = kinds
        self._tiers = tiers
        self._dice = random.Random(1)
        self._last_id = 0
        self.now = 0.0
        self.lease = TicketId(0)
        for _ in range(waiting + 1):
            self.arrive()
        self.decide()

    def arrive(self) -> None:
        self._last_id += 1
        self.now += 0.001
        accepts = self._dice.choice(self._kinds)
        tier = self._dice.choice(self._tiers)
        ticket = Ticket(TicketId(self._last_id), tier, accepts, accepts[0], self.now)
        self.scheduler.arrive(ticket, self.now)

    def end_lease(self) -> None:
        self.now += 0.001
        self.scheduler.leave(self.lease, self.now)

    def decide(self) -> None:
        """Take and carry out decisions until one ticket is a lease on a ready engine."""
        scheduler, lease_before = self.scheduler, self.lease
        for _ in range(2):  # A lookup, then what its answer decides.
            for decision in scheduler.take_decisions(self.now):
                match decision:
                    case Admit():
                        self.lease = decision.ticket
                    case Load():
                        scheduler.engine_ready(decision.model, self.now)
                    case LookUpCache():
                        scores = {ticket: (ticket % 97, 100) for ticket in decision.tickets}
                        scheduler.cache_scores(decision.round, scores, True, self.now)
                    case _:
                        raise AssertionError(decision)
            if self.lease != lease_before:
                break
        assert self.lease != lease_before, "the freed place was not taken"
        scheduler.next_deadline()


def timed(call: Callable[[], None]) -> float:
    """Microseconds of processor time of one call; neighbours on the machine do not count."""
    start = thread_time_ns()
    call()
    return (thread_time_ns() - start) / 1000


def row(name: str, chosen: SchedulerSettings, waiting: int) -> str:
    load = FullHouse(chosen, waiting)
    arrivals, decisions = [], []
    for _ in range(ROUNDS):
        arrivals.append(timed(load.arrive))
        load.end_lease()
        decisions.append(timed(load.decide))
    arrival, decision = quantiles(arrivals, n=100), quantiles(decisions, n=100)
    return (
        f"| {name} | {waiting:,} | {decision[49]:.0f} | {decision[98]:.0f} | {max(decisions):.0f} "
        f"| {arrival[49]:.0f} | {arrival[98]:.0f} |"
    )


def main() -> None:
    print("| mode | waiting | decision p50 (us) | p99 | max | arrival p50 | p99 |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    modes = {
        "wait-first": settings(),
        "wait-first, cache lookup": settings(cache_lookup_ms=1000),
        "legacy": settings(wait_when_busy=False),
    }
    for name, chosen in modes.items():
        for waiting in SIZES:
            print(row(name, chosen, waiting), flush=True)


if __name__ == "__main__":
    main()
