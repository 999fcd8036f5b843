"""What differs between the two scheduling modes; everything else is shared.

``wait_first`` and ``legacy`` implement it, ``turns`` and ``scheduler`` ask it.
"""

from typing import Protocol

from strata_router.core.admission.ticket import Ticket
from strata_router.core.refusal import Refusal


class Policy(Protocol):
    """The limits of one mode. Values only: it is told counts and keeps none."""

    @property
    def counts_header_waits(self) -> bool:
        """Whether the queue's split by tier includes leases whose upstream headers are awaited."""

    def refuses_arrival(self, waiting: int, active: int) -> Refusal | None:
        """What a newcomer is told when ``waiting`` tickets and ``active`` leases are too many."""

    def expires_s(self, ticket: Ticket) -> float | None:
        """Monotonic second at which the ticket has waited too long, or None for never."""

    def has_place(self, active: int, before_headers: int) -> bool:
        """Whether one more lease fits beside ``active``, of which some await upstream headers."""
