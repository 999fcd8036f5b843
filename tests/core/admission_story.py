"""A scheduler told as a story: every step says what happened when, and returns what is decided.

Defaults are those of the example configuration without the cache lookup: wait-first, three seconds of
grace. Tickets are named by number, models by letter.
"""

from collections.abc import Mapping
from dataclasses import replace

from strata_router.core.admission import Decision, Scheduler, SchedulerSettings, Ticket
from strata_router.core.refusal import Case, Refusal
from strata_router.core.vocabulary import ModelId, TicketId, Tier

A, B, C = ModelId("A"), ModelId("B"), ModelId("C")
PRIORITY, DEFAULT, FLEX = Tier.PRIORITY, Tier.DEFAULT, Tier.FLEX

WAIT_FIRST = SchedulerSettings(
    wait_when_busy=True,
    max_pending=32,
    model_grace_ms=3000,
    max_wait_ms={},
    queue_ms=120_000,
    idle_ms=0,
    cooldown_ms=10_000,
    cache_lookup_ms=0,
    cache_max_active=0,
)
LEGACY = replace(WAIT_FIRST, wait_when_busy=False, model_grace_ms=0)
LOAD_FAILED = Refusal(Case.MODEL_LOAD_FAILED, retry_after_s=10)
"""What everyone is told whom a failed load was for: come back when the cooldown is over."""


class Story:
    """The scheduler under test is ``scheduler``; ``decided`` is everything it ever decided."""

    def __init__(self, settings: SchedulerSettings = WAIT_FIRST) -> None:
        self.scheduler = Scheduler(settings)
        self.decided: list[Decision] = []

    def take(self, now: float) -> list[Decision]:
        decisions = self.scheduler.take_decisions(now)
        self.decided += decisions
        return decisions

    def ask(
        self,
        number: int,
        *accepts: ModelId,
        now: float,
        tier: Tier = DEFAULT,
        prepared: bool = True,
        arrived_s: float | None = None,
    ) -> list[Decision]:
        arrived_s = now if arrived_s is None else arrived_s
        preferred = accepts[0] if prepared else None
        self.scheduler.arrive(Ticket(TicketId(number), tier, accepts, preferred, arrived_s), now)
        return self.take(now)

    def leave(self, number: int, now: float) -> list[Decision]:
        self.scheduler.leave(TicketId(number), now)
        return self.take(now)

    def headers(self, number: int, now: float) -> list[Decision]:
        self.scheduler.headers_arrived(TicketId(number), now)
        return self.take(now)

    def pin(self, number: int, now: float) -> ModelId | Refusal:
        return self.scheduler.pin(TicketId(number), now)

    def ready(self, model: ModelId, now: float) -> list[Decision]:
        self.scheduler.engine_ready(model, now)
        return self.take(now)

    def fail(self, model: ModelId, now: float, refusal: Refusal | None = None) -> list[Decision]:
        """refusal: None tells the case alone, as the coordinator does."""
        refusal = refusal or Refusal(Case.MODEL_LOAD_FAILED)
        self.scheduler.load_failed(model, refusal, now)
        return self.take(now)

    def cancelled(self, model: ModelId, now: float) -> list[Decision]:
        self.scheduler.load_cancelled(model, now)
        return self.take(now)

    def stopped(self, now: float) -> list[Decision]:
        self.scheduler.engine_stopped(now)
        return self.take(now)

    def scores(
        self,
        number: int,
        scores: Mapping[int, tuple[int, int]] | None,
        now: float,
        *,
        supported: bool = True,
    ) -> list[Decision]:
        typed = None if scores is None else {TicketId(i): pair for i, pair in scores.items()}
        self.scheduler.cache_scores(number, typed, supported, now)
        return self.take(now)

    def operator_load(self, model: ModelId, now: float) -> list[Decision]:
        self.scheduler.operator_load(model, now)
        return self.take(now)

    def operator_unload(self, now: float) -> list[Decision]:
        self.scheduler.operator_unload(now)
        return self.take(now)

    def operator_cancel(self, now: float) -> list[Decision]:
        self.scheduler.operator_cancel(now)
        return self.take(now)

    def serving(self, model: ModelId, number: int, now: float) -> "Story":
        """Load ``model`` for ticket ``number``, all at ``now``."""
        self.ask(number, model, now=now)
        self.ready(model, now)
        return self
