"""Tells many waiting clients their place in the queue without counting the queue for each of them.

The places are counted at most once per span that grows with the queue, so that counting never takes
more than a small share of the time, however many ask. ``runtime.coordinator`` owns one.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from strata_router.core.vocabulary import TicketId

SPAN_PER_TICKET_S = 0.0001
"""How long a count holds, per waiting ticket. Counting takes below a hundredth of that (less
than 1 us each, research/page.md), and a queue of 10,000 is counted once a second."""


class Position(NamedTuple):
    """place: 1 is served first. of: how many wait."""

    place: int
    of: int


class Positions:
    """See the module's text. order: gives the waiting tickets in the order of their service."""

    def __init__(self, order: Callable[[], Sequence[TicketId]]) -> None:
        self._order = order
        self._places: dict[TicketId, int] = {}
        self._counted_at_s: float | None = None

    def of(self, ticket_id: TicketId, now: float) -> Position | None:
        """None when the ticket did not wait when the places were last counted."""
        span_s = len(self._places) * SPAN_PER_TICKET_S
        if self._counted_at_s is None or now > self._counted_at_s + span_s:
            self._places = {each: place for place, each in enumerate(self._order(), start=1)}
            self._counted_at_s = now
        place = self._places.get(ticket_id)
        return None if place is None else Position(place, len(self._places))
