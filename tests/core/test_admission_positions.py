"""Places in the queue for many askers: right, and counted seldom."""

from strata_router.core.admission import Position, Positions
from strata_router.core.admission.positions import SPAN_PER_TICKET_S
from strata_router.core.vocabulary import TicketId


class Queue:
    """An order that counts how often it is asked for."""

    def __init__(self, *order: int) -> None:
        self.ids = [TicketId(number) for number in order]
        self.counted = 0

    def order(self) -> list[TicketId]:
        self.counted += 1
        return self.ids


def test_a_place_counts_from_one_in_the_order_of_service() -> None:
    positions = Positions(Queue(7, 3, 9).order)
    assert positions.of(TicketId(7), 0) == Position(place=1, of=3)
    assert positions.of(TicketId(9), 0) == (3, 3)


def test_who_does_not_wait_has_no_place() -> None:
    assert Positions(Queue().order).of(TicketId(1), 0) is None
    assert Positions(Queue(2).order).of(TicketId(1), 0) is None


def test_many_askers_at_one_instant_cost_one_count() -> None:
    queue = Queue(*range(1, 1001))
    positions = Positions(queue.order)
    places = [positions.of(ticket, 5.0) for ticket in queue.ids]
    assert places == [(number, 1000) for number in range(1, 1001)]
    assert queue.counted == 1


def test_a_count_holds_longer_the_more_wait() -> None:
    queue = Queue(*range(1, 1001))
    positions = Positions(queue.order)
    positions.of(TicketId(2), 0.0)
    queue.ids.pop(0)
    assert positions.of(TicketId(2), 1000 * SPAN_PER_TICKET_S) == (2, 1000)
    assert positions.of(TicketId(2), 1001 * SPAN_PER_TICKET_S) == (1, 999)
    assert queue.counted == 2


def test_a_short_queue_is_counted_again_at_the_next_instant() -> None:
    queue = Queue(1, 2)
    positions = Positions(queue.order)
    positions.of(TicketId(2), 0.0)
    queue.ids.pop(0)
    assert positions.of(TicketId(2), 0.001) == (1, 1)
