"""The rules of admission as plain scans over plain dictionaries: the ledger's half that knows.

Written from contract section 7 and the design document, without anything of the scheduler's own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil

from strata_router.core.admission import SchedulerSettings
from strata_router.core.refusal import Case, Refusal
from strata_router.core.vocabulary import ModelId, TicketId, Tier

URGENCY = {Tier.PRIORITY: 0, Tier.DEFAULT: 1, Tier.FLEX: 2}


@dataclass
class Asker:
    """A waiting ticket in the ledger's words."""

    id: TicketId
    tier: Tier
    accepts: tuple[ModelId, ...]
    preferred: ModelId | None
    arrived_s: float


@dataclass
class Holder:
    model: ModelId
    tier: Tier
    headers_seen: bool = False


@dataclass
class Wish:
    model: ModelId | None
    decided: bool = False


@dataclass
class Lookup:
    """What was asked, what came of it, and since when the free place is kept for it."""

    round: int = 0
    first_round_of_engine: int = 1
    outstanding: bool = False
    asked: tuple[TicketId, ...] = ()
    answer: Mapping[TicketId, tuple[int, int]] | None = None
    supported: bool = True
    since_s: float | None = None


@dataclass
class Books:
    settings: SchedulerSettings
    waiting: dict[TicketId, Asker] = field(default_factory=dict)
    leases: dict[TicketId, Holder] = field(default_factory=dict)
    outcomes: dict[TicketId, list[str]] = field(default_factory=dict)
    owed: dict[TicketId, Refusal] = field(default_factory=dict)
    phase: str = "empty"
    model: ModelId | None = None
    died: ModelId | None = None
    last_end_s: float | None = None
    used_s: float = 0.0
    cools_until_s: dict[ModelId, float] = field(default_factory=dict)
    routing: bool = True
    closed: Case | None = None
    wish: Wish | None = None
    lookup: Lookup = field(default_factory=Lookup)
    min_tokens: int = 0
    admitted_now: int = 0
    defer: bool = False
    """While set, inputs pile up and decisions are not taken, as in a coordinator's busy moment."""
    cancel_owed: bool = False

    # The rules as scans

    def refusal_at_arrival(self, asker: Asker, now: float) -> Refusal | None:
        if self.closed is not None:
            return Refusal(self.closed)
        if not self.routing:
            return Refusal(Case.ROUTING_OFF)
        pending = len(self.waiting) + len(self.leases)
        if not self.settings.wait_when_busy and pending >= self.settings.max_pending:
            return Refusal(Case.QUEUE_FULL)
        return self.hopeless(asker, now)

    def hopeless(self, asker: Asker, now: float) -> Refusal | None:
        if self.phase in ("ready", "loading") and self.model in asker.accepts:
            return None
        if asker.preferred is None:
            return Refusal(Case.MODEL_NOT_PREPARED)
        left_s = self.cools_until_s.get(asker.preferred, now) - now
        if left_s > 0:
            return Refusal(Case.MODEL_LOAD_FAILED, retry_after_s=ceil(left_s))
        return None

    def group(self, asker: Asker) -> ModelId | None:
        if self.phase in ("ready", "loading") and self.model in asker.accepts:
            return self.model
        return asker.preferred

    def due_s(self, asker: Asker) -> float | None:
        max_wait_ms = self.settings.max_wait_ms.get(asker.tier, 0)
        return asker.arrived_s + max_wait_ms / 1000 if max_wait_ms else None

    def due(self, now: float) -> list[Asker]:
        times = [(asker, self.due_s(asker)) for asker in self.waiting.values()]
        due = [asker for asker, due_s in times if due_s is not None and due_s <= now]
        return sorted(due, key=lambda asker: asker.id)

    def expires_s(self, asker: Asker) -> float | None:
        if self.settings.wait_when_busy:
            return None
        return asker.arrived_s + self.settings.queue_ms / 1000

    def expired(self, asker: Asker, now: float) -> bool:
        expires_s = self.expires_s(asker)
        return expires_s is not None and expires_s <= now

    def has_place(self) -> bool:
        active = len(self.leases)
        if self.settings.wait_when_busy:
            if active >= self.settings.max_pending:
                return False
        elif any(not holder.headers_seen for holder in self.leases.values()):
            return False
        if self.settings.cache_lookup_ms > 0 and self.settings.cache_max_active > 0:
            return active < self.settings.cache_max_active
        return True

    def highest_tier(self) -> Tier:
        return min((asker.tier for asker in self.waiting.values()), key=lambda tier: URGENCY[tier])

    def group_on_ready(self, tier: Tier) -> list[Asker]:
        group = [a for a in self.waiting.values() if a.tier is tier and self.model in a.accepts]
        return sorted(group, key=lambda asker: asker.id)

    def front(self, now: float) -> Asker | None:
        """Whose turn it is next, if nothing stood in the way; for a group, its earliest."""
        if not self.waiting:
            return None
        if due := self.due(now):
            return due[0]
        tier = self.highest_tier()
        if self.phase == "ready" and (group := self.group_on_ready(tier)):
            return group[0]
        return min((a for a in self.waiting.values() if a.tier is tier), key=lambda a: a.id)

    def next_on_ready(self, tier: Tier, now: float) -> Asker:
        group = self.group_on_ready(tier)
        if len(group) == 1 or self.settings.cache_lookup_ms == 0 or not self.lookup.supported:
            return group[0]
        if self.lookup.answer is None:
            assert self.budget_is_over(now), "the cache order was not waited for"
            return group[0]
        answer = self.lookup.answer

        def fraction(asker: Asker) -> float:
            cached, of = answer.get(asker.id, (0, 0))
            return cached / of if of and of >= self.min_tokens else 0.0

        return min(group, key=lambda asker: (-fraction(asker), asker.id))

    def budget_is_over(self, now: float) -> bool:
        since_s = self.lookup.since_s
        return since_s is not None and now >= since_s + self.settings.cache_lookup_ms / 1000

    def lookup_holds(self, now: float) -> bool:
        group = self.group_on_ready(self.highest_tier())
        return (
            not self.due(now)
            and len(group) > 1
            and self.lookup.outstanding
            and not self.budget_is_over(now)
        )

    def in_grace(self, now: float) -> bool:
        if self.last_end_s is None:
            return False
        return now < self.last_end_s + self.settings.model_grace_ms / 1000

    def grace_holds(self, front: Asker, now: float) -> bool:
        skips = bool(self.due(now)) or front.tier is Tier.PRIORITY
        return self.phase == "ready" and not skips and self.in_grace(now)

    def idle_unload_s(self) -> float | None:
        if self.phase != "ready" or self.settings.idle_ms == 0:
            return None
        idle_s = self.used_s + self.settings.idle_ms / 1000
        if self.last_end_s is None:
            return idle_s
        return max(idle_s, self.last_end_s + self.settings.model_grace_ms / 1000)

    # How the books change

    def engine_is(self, phase: str, model: ModelId | None) -> None:
        self.phase, self.model = phase, model
        self.died = None
        self.last_end_s = None
        first = self.lookup.round + 1
        self.lookup = Lookup(round=self.lookup.round, first_round_of_engine=first)

    def load_ended_without_model(self, model: ModelId) -> None:
        self.engine_is("empty", None)
        if self.wish is not None and self.wish.decided and self.wish.model == model:
            self.wish = None

    def queue_changed(self) -> None:
        """Requests entered or left the queue, or a generation ended: scores are void."""
        self.lookup.outstanding = False
        self.lookup.answer = None

    def owe_everyone(self, refusal: Refusal) -> None:
        self.owed.update(dict.fromkeys(self.waiting, refusal))
        if self.waiting:
            self.waiting.clear()
            self.queue_changed()
