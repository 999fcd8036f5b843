"""Judges a history of admissions from outside: was anybody passed over, or kept waiting for nothing?

Written from contract section 7 as plain scans over plain lists, without anything of the scheduler's.
What it is told comes from clients, records and engines' stamps; the daemon's counts are not asked.
Invariant 5 of the reliability document is ``idle_waits``; ``wrong_admissions`` is the order.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf

NEAR_S = 0.05
"""Two things that are reported so close to each other may have happened in either order: a record's
times are taken by other tasks than the one that decides."""

IDLE_S = 0.2
"""Reliability document, invariant 5; the lookup's budget comes on top."""

PROOF_S = 0.3
"""From the engine's own "ready" until the daemon has looked at its file, its health and its port."""

ENGINE_CHANGE_S = 3.0
"""Killing or stopping one engine and starting another, on a machine that is busy with other things."""

URGENCY = {"priority": 0, "default": 1, "flex": 2}


@dataclass(frozen=True)
class Asked:
    """One request. Seconds of one clock.

    accepts: the models that may answer, preferred first. lease_s: None if it was never admitted.
    ended_s: when its record was closed, a moment after its lease or ticket had ended.
    model: what it was admitted for, or None. headers_s: when the engine began to answer, or None.
    """

    name: str
    tier: str
    accepts: tuple[str, ...]
    arrived_s: float
    lease_s: float | None
    ended_s: float
    model: str | None
    headers_s: float | None = None

    @property
    def waited_until_s(self) -> float:
        return self.ended_s if self.lease_s is None else self.lease_s

    def waits(self, at_s: float) -> bool:
        return self.arrived_s <= at_s < self.waited_until_s

    def surely_waits(self, at_s: float) -> bool:
        return self.arrived_s + NEAR_S < at_s < self.waited_until_s - NEAR_S

    def holds(self, at_s: float) -> bool:
        return self.lease_s is not None and self.lease_s <= at_s < self.ended_s

    def surely_holds(self, at_s: float) -> bool:
        return self.lease_s is not None and self.lease_s + NEAR_S < at_s < self.ended_s - NEAR_S

    def awaits_headers(self, at_s: float) -> bool:
        """It holds a lease and the engine has not begun to answer."""
        return self.holds(at_s) and at_s < (self.headers_s or self.ended_s)


@dataclass(frozen=True)
class Life:
    """One engine that became ready, until it was told to stop or ended."""

    model: str
    ready_s: float
    ended_s: float


@dataclass(frozen=True)
class Rules:
    """What the configuration says.

    max_wait_s: only tiers that have one. one_before_headers: legacy mode's lock.
    """

    places: float
    grace_s: float
    max_wait_s: Mapping[str, float]
    lookup_s: float = 0.0
    one_before_headers: bool = False


@dataclass(frozen=True)
class History:
    asked: Sequence[Asked]
    lives: Sequence[Life]
    rules: Rules

    def breaches(self) -> list[str]:
        """A sentence per breach; empty is what should be."""
        return [*self.wrong_admissions(), *self.idle_waits(), *self.lost_engines()]

    # ---- the state at one instant ----------------------------------------------------------------

    def _ready(self, at_s: float) -> Life | None:
        return next((life for life in self.lives if life.ready_s <= at_s < life.ended_s), None)

    def _due_s(self, asked: Asked) -> float:
        return asked.arrived_s + self.rules.max_wait_s.get(asked.tier, inf)

    def _grace_until_s(self, life: Life, at_s: float) -> float:
        """Since the end of the last lease on this engine; a lease that ends starts it."""
        ends = [
            asked.ended_s
            for asked in self.asked
            if asked.lease_s is not None
            and asked.model == life.model
            and life.ready_s < asked.ended_s <= at_s
        ]
        return max(ends, default=-inf) + self.rules.grace_s

    # ---- invariant 5 -----------------------------------------------------------------------------

    def idle_waits(self) -> Iterator[str]:
        """Spans in which the rules would have admitted somebody and nobody was."""
        allowed_s = IDLE_S + self.rules.lookup_s
        idle_since_s: float | None = None
        empty_since_s: float | None = None
        admissions = {asked.lease_s for asked in self.asked}
        for now, following in pairwise(self._moments()):
            if now in admissions:
                idle_since_s = empty_since_s = None
            idle_since_s = (idle_since_s or now) if self._would_admit(now) else None
            empty_since_s = (empty_since_s or now) if self._is_stuck_empty(now) else None
            if idle_since_s is not None and following - idle_since_s > allowed_s:
                yield f"somebody could have been admitted from {idle_since_s:.3f} to {following:.3f}"
                idle_since_s = following
            if empty_since_s is not None and following - empty_since_s > ENGINE_CHANGE_S:
                yield f"nothing was loaded for anybody from {empty_since_s:.3f} to {following:.3f}"
                empty_since_s = following

    def _moments(self) -> list[float]:
        """Every second at which something may change, in order."""
        found = set[float]()
        for asked in self.asked:
            found |= {asked.arrived_s, asked.waited_until_s, asked.ended_s, self._due_s(asked)}
            found.add(asked.headers_s or asked.ended_s)
            found.add(asked.ended_s + self.rules.grace_s)
        for life in self.lives:
            found |= {life.ready_s + PROOF_S, life.ended_s}
        last_s = max(asked.ended_s for asked in self.asked)
        return sorted(moment for moment in found if moment <= last_s)

    def _would_admit(self, now: float) -> bool:
        waiting = [asked for asked in self.asked if asked.waits(now)]
        leases = [asked for asked in self.asked if asked.holds(now)]
        ready = self._ready(now - PROOF_S)
        if not waiting or ready is None or ready.ended_s <= now:
            return False
        if any(lease.model != ready.model for lease in leases):
            return False
        has_room = len(leases) < self.rules.places and not self._is_locked(leases, now)
        due = [asked for asked in waiting if self._due_s(asked) <= now]
        if due:
            oldest = min(due, key=lambda asked: asked.arrived_s)
            return has_room if ready.model in oldest.accepts else not leases
        tier = min((asked.tier for asked in waiting), key=lambda tier: URGENCY[tier])
        if any(asked.tier == tier and ready.model in asked.accepts for asked in waiting):
            return has_room
        return not leases and (tier == "priority" or now >= self._grace_until_s(ready, now))

    def _is_locked(self, leases: Sequence[Asked], now: float) -> bool:
        return self.rules.one_before_headers and any(each.awaits_headers(now) for each in leases)

    def _is_stuck_empty(self, now: float) -> bool:
        """Somebody waits, no engine is ready, and nobody's load explains it."""
        waits = any(asked.waits(now) for asked in self.asked)
        return waits and self._ready(now) is None and not any(a.holds(now) for a in self.asked)

    # ---- order -----------------------------------------------------------------------------------

    def wrong_admissions(self) -> Iterator[str]:
        """Admissions that the rules forbid, whatever the order of what was near to them."""
        for asked in self.asked:
            if asked.lease_s is not None:
                for fault in self._faults(asked, asked.lease_s):
                    yield f"{asked.name} at {asked.lease_s:.3f}: {fault}"

    def _faults(self, asked: Asked, now: float) -> Iterator[str]:
        others = [other for other in self.asked if other is not asked]
        waiting = [other for other in others if other.surely_waits(now)]
        leases = [other for other in others if other.surely_holds(now)]
        ready = self._ready(now)
        switches = ready is None or asked.model != ready.model
        if asked.model not in asked.accepts:
            yield f"was admitted for {asked.model}"
        if len(leases) >= self.rules.places:
            yield f"was one more than {self.rules.places}"
        if switches and leases:
            yield "switched under an active lease"
        if self._is_locked(leases, now + NEAR_S):
            yield "was admitted while another one waited for its headers"
        due = [other for other in waiting if self._due_s(other) + NEAR_S < now]
        for other in due:
            if other.arrived_s + NEAR_S < asked.arrived_s:
                yield f"went before {other.name}, which was due"
        if due or self._due_s(asked) - NEAR_S <= now:
            return
        yield from self._tier_faults(asked, waiting, ready, switches=switches)
        if ready is not None and switches and asked.tier != "priority":
            left_s = self._grace_until_s(ready, now) - now
            if left_s > NEAR_S:
                yield f"broke the grace {left_s:.3f} s early"

    def _tier_faults(
        self, asked: Asked, waiting: Sequence[Asked], ready: Life | None, *, switches: bool
    ) -> Iterator[str]:
        for other in waiting:
            if URGENCY[other.tier] < URGENCY[asked.tier]:
                yield f"went before {other.name} of a higher tier"
            if other.tier != asked.tier:
                continue
            came_first = other.arrived_s + NEAR_S < asked.arrived_s
            if switches:
                if ready is not None and ready.model in other.accepts:
                    yield f"went before {other.name}, whose model was loaded"
                if came_first:
                    yield f"switched although {other.name} came first"
            elif came_first and asked.model in other.accepts and self.rules.lookup_s == 0:
                yield f"went before {other.name} of its own group"

    # ---- engines ---------------------------------------------------------------------------------

    def lost_engines(self) -> Iterator[str]:
        """Leases whose engine was taken away, be it before their first request or in the middle."""
        for life in self.lives:
            for asked in self.asked:
                if asked.model == life.model and asked.surely_holds(life.ended_s):
                    yield f"{asked.name} lost its engine of {life.model} at {life.ended_s:.3f}"
