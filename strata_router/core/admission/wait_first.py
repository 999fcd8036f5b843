"""Wait-first: a busy engine makes requests wait, never refuses them.

``max_pending`` limits what is dispatched, not who waits. Source: design, "Wait-first scheduling".
"""

from dataclasses import dataclass

from strata_router.core.admission.settings import SchedulerSettings
from strata_router.core.admission.ticket import Ticket
from strata_router.core.refusal import Refusal


@dataclass(frozen=True, slots=True)
class WaitFirst:
    """No queue limit, no queue deadline; leases up to the smaller of both limits."""

    places: int
    counts_header_waits: bool = False

    @classmethod
    def of(cls, settings: SchedulerSettings) -> "WaitFirst":
        cache_places = settings.cache_places
        if cache_places is None:
            return cls(settings.max_pending)
        return cls(min(settings.max_pending, cache_places))

    def refuses_arrival(self, waiting: int, active: int) -> Refusal | None:
        return None

    def expires_s(self, ticket: Ticket) -> float | None:
        return None

    def has_place(self, active: int, before_headers: int) -> bool:
        return active < self.places
