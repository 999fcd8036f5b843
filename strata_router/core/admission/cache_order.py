"""Which of several competing tickets finds most of its prompt in the loaded engine's cache.

It asks once per freed place and within one budget, so that steady arrivals, each of which makes the
scores stale, cannot keep an idle engine waiting. It decides an order, never a tier or a model.
Source: design, "Current cache matches"; contract section 8.
"""

from collections.abc import Iterator, Mapping
from enum import Enum, auto
from itertools import islice

from strata_router.core.admission.decisions import LookUpCache
from strata_router.core.vocabulary import TicketId

LOOKUP_TICKETS = 256
"""How many of the earliest competing tickets one lookup asks about: sixteen batches of sixteen.

Without a bound a long queue could never be looked up within the budget, and every freed place would
wait for it in vain. Tickets beyond it count as having nothing cached.
"""


class Standing(Enum):
    """What the competition for a free place has to wait for."""

    UNASKED = auto()
    AWAITED = auto()
    DECIDED = auto()


class CacheOrder:
    """The lookup of one freed place: its budget, its round and, for one settling, its answer."""

    __slots__ = (
        "_asked",
        "_first_round",
        "_lookup_ms",
        "_place_taken",
        "_ranked",
        "_round",
        "_supported",
        "budget_until_s",
        "min_tokens",
    )

    def __init__(self, lookup_ms: int) -> None:
        self._lookup_ms = lookup_ms
        self.min_tokens = 0
        self.budget_until_s: float | None = None
        self._supported = True
        self._round = 0
        self._first_round = 1
        self._asked: int | None = None
        self._place_taken = False
        self._ranked: list[TicketId] | None = None

    @property
    def applies(self) -> bool:
        """Whether asking is allowed and the running engine has not said that it cannot answer."""
        return self._lookup_ms > 0 and self._supported

    @property
    def awaits_answer(self) -> bool:
        """Whether the answer to the last round can still decide anything."""
        return self._asked is not None

    def standing(self, now: float) -> Standing:
        budget_is_over = self.budget_until_s is not None and now >= self.budget_until_s
        if self._ranked is not None or budget_is_over:
            return Standing.DECIDED
        return Standing.UNASKED if self._asked is None else Standing.AWAITED

    def ask(self, competing: Iterator[TicketId], now: float) -> LookUpCache:
        """Begin a new round with what is left of this place's budget."""
        if self.budget_until_s is None:
            self.budget_until_s = now + self._lookup_ms / 1000
        self._round += 1
        self._asked = self._round
        left_ms = max(1, round((self.budget_until_s - now) * 1000))
        return LookUpCache(self._round, tuple(islice(competing, LOOKUP_TICKETS)), left_ms)

    def receive(
        self, number: int, scores: Mapping[TicketId, tuple[int, int]] | None, supported: bool
    ) -> None:
        """Take the answer to a round; see ``Scheduler.cache_scores``."""
        if not supported and number >= self._first_round:
            self._supported = False
        if number == self._asked:
            self._asked = None
            self._ranked = self._rank(scores or {})

    def take_best(self) -> TicketId | None:
        """Remove and return the best ranked ticket; None leaves the choice to arrival order."""
        return self._ranked.pop() if self._ranked else None

    def discard_scores(self) -> None:
        """The queue or the cache changed: forget scores and the round that is under way."""
        self._asked = None
        self._ranked = None

    def settled(self) -> None:
        """The settling that could use the answer is over; the next freed place asks again.

        A round asked after a place was taken in the same settling lives on that place's budget.
        """
        self._ranked = None
        if self._place_taken and self._asked is None:
            self.budget_until_s = None
        self._place_taken = False

    def place_taken(self) -> None:
        """A ticket left the queue for the free place: an answer still to come is too late for it.

        An answer that is here, or a budget that is over, stays for the rest of this settling: it
        holds for this very instant, in which further places may be free.
        """
        self._asked = None
        self._place_taken = True

    def nobody_competes(self) -> None:
        """The next competition for a place begins with a whole budget."""
        self.budget_until_s = None

    def engine_changed(self) -> None:
        self.discard_scores()
        self.budget_until_s = None
        self._supported = True
        self._first_round = self._round + 1

    def _rank(self, scores: Mapping[TicketId, tuple[int, int]]) -> list[TicketId]:
        """Best last. Quotients of token counts below 2**26 are equal as floats only if they are."""
        fractions = {
            ticket_id: cached / of
            for ticket_id, (cached, of) in scores.items()
            if cached > 0 and of >= self.min_tokens
        }
        return sorted(fractions, key=lambda ticket_id: (fractions[ticket_id], -ticket_id))
