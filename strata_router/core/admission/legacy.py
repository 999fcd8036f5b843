"""Legacy bounded: the original contract with its lock, its 429 and its 504.

One lease at a time selects, loads and waits for upstream headers; leases of the loaded model overlap
only afterwards. Source: design, "Legacy bounded scheduling".
"""

from dataclasses import dataclass

from strata_router.core.admission.settings import SchedulerSettings
from strata_router.core.admission.ticket import Ticket
from strata_router.core.refusal import Case, Refusal


@dataclass(frozen=True, slots=True)
class Legacy:
    """cache_places: leases at once, or None where only ``max_pending`` bounds them."""

    max_pending: int
    queue_ms: int
    cache_places: int | None
    counts_header_waits: bool = True

    @classmethod
    def of(cls, settings: SchedulerSettings) -> "Legacy":
        return cls(settings.max_pending, settings.queue_ms, settings.cache_places)

    def refuses_arrival(self, waiting: int, active: int) -> Refusal | None:
        if waiting + active < self.max_pending:
            return None
        return Refusal(Case.QUEUE_FULL)

    def expires_s(self, ticket: Ticket) -> float | None:
        return ticket.arrived_s + self.queue_ms / 1000

    def has_place(self, active: int, before_headers: int) -> bool:
        if before_headers > 0:
            return False
        return self.cache_places is None or active < self.cache_places
