"""A waiting request as the scheduler sees it: ids and small facts, never bodies."""

from dataclasses import dataclass

from strata_router.core.vocabulary import ModelId, TicketId, Tier


@dataclass(frozen=True, slots=True)
class Ticket:
    """One request that asks for a lease.

    id: arrival sequence; smaller arrived earlier.
    tier: orders waiting work only.
    accepts: concrete models that may answer, in the alias's effective order; one for a concrete
        request. A loaded (or loading) member wins.
    preferred: what to load when none of ``accepts`` is loaded: the first of ``accepts``; None when
        that first model is not prepared, which refuses the ticket then.
    arrived_s: monotonic seconds; ``max_wait_ms`` and ``queue_ms`` count from here.
    """

    id: TicketId
    tier: Tier
    accepts: tuple[ModelId, ...]
    preferred: ModelId | None
    arrived_s: float
