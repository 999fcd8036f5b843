"""What the scheduler wants done; the coordinator carries each out and reports back by an input."""

from dataclasses import dataclass

from strata_router.core.refusal import Refusal
from strata_router.core.vocabulary import ModelId, TicketId


@dataclass(frozen=True, slots=True)
class Admit:
    """The ticket becomes a lease.

    model: the concrete model that will answer.
    model_switch: admission found another model loaded, or none (record field of that name).
    in_flight, queue_depth are not repeated here; see ``Scheduler.snapshot``.
    """

    ticket: TicketId
    model: ModelId
    model_switch: bool


@dataclass(frozen=True, slots=True)
class Refuse:
    """The ticket (or, for a failed load, the lease) ends without upstream work."""

    ticket: TicketId
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class Load:
    """Stop whatever runs, then start ``model`` and prove it. At most one load or unload at a time."""

    model: ModelId


@dataclass(frozen=True, slots=True)
class Unload:
    """Stop the engine; answered by ``engine_stopped``."""


@dataclass(frozen=True, slots=True)
class CancelLoad:
    """Kill the load in progress: nobody wants it and another model's ticket waits."""


@dataclass(frozen=True, slots=True)
class LookUpCache:
    """Ask the loaded engine what it holds cached for these tickets.

    round: number to give back with the scores; scores of an older round are ignored.
    tickets: in arrival order. budget_ms: what is left of ``cache_lookup_ms`` for this freed place.
    """

    round: int
    tickets: tuple[TicketId, ...]
    budget_ms: int


Decision = Admit | Refuse | Load | Unload | CancelLoad | LookUpCache
