"""The part of the configuration that admission reads, with the two derived limits.

Built once by the coordinator from the checked Config, so bounds are not checked again here.
Source: contract section 3.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from strata_router.core.vocabulary import Tier


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """Limits and durations of admission; every duration in milliseconds.

    wait_when_busy: True is wait-first, False legacy bounded.
    max_pending: wait-first: leases at once; legacy: leases plus tickets.
    model_grace_ms: how long an idle loaded model is kept from other models' tickets; 0 is not at all.
    max_wait_ms: per tier, after which a ticket is due; 0 or absent is never.
    queue_ms: legacy only, after which a ticket is refused.
    idle_ms: until an unused model is unloaded; 0 is never.
    cooldown_ms: per concrete model, after a failed load.
    cache_lookup_ms: budget of one freed place; 0 disables the lookup and lifts cache_max_active.
    cache_max_active: leases at once on one engine; 0 is no additional limit.
    """

    wait_when_busy: bool
    max_pending: int
    model_grace_ms: int
    max_wait_ms: Mapping[Tier, int]
    queue_ms: int
    idle_ms: int
    cooldown_ms: int
    cache_lookup_ms: int
    cache_max_active: int

    @property
    def cache_places(self) -> int | None:
        """Leases at once that the cache order allows, or None for any number."""
        if self.cache_lookup_ms == 0 or self.cache_max_active == 0:
            return None
        return self.cache_max_active
