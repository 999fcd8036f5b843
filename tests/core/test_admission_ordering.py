"""Ids by arrival and by deadline: the two orders and their lazy deletion."""

from hypothesis import given
from hypothesis import strategies as st

from strata_router.core.admission.ordering import ArrivalOrder, Deadlines
from strata_router.core.vocabulary import TicketId


def ids(*numbers: int) -> list[TicketId]:
    return [TicketId(number) for number in numbers]


def arrival_order(*numbers: int) -> ArrivalOrder:
    order = ArrivalOrder()
    for number in numbers:
        order.add(TicketId(number))
    return order


def test_an_empty_order_has_no_first() -> None:
    assert ArrivalOrder().first() is None


def test_a_late_smaller_id_comes_first() -> None:
    order = arrival_order(5, 9, 2)
    assert order.first() == 2
    assert list(order) == ids(2, 5, 9)


def test_a_discarded_id_is_neither_first_nor_walked_nor_counted() -> None:
    order = arrival_order(1, 2, 3)
    order.discard(TicketId(1))
    order.discard(TicketId(3))
    assert order.first() == 2
    assert list(order) == ids(2)
    assert len(order) == 1
    assert TicketId(3) not in order


def test_discarding_an_unknown_id_changes_nothing() -> None:
    order = arrival_order(1)
    order.discard(TicketId(7))
    assert list(order) == ids(1)


def test_an_id_smaller_than_the_dead_ones_before_the_first_is_found() -> None:
    order = arrival_order(1, 2, 8)
    order.discard(TicketId(2))
    order.discard(TicketId(1))
    assert order.first() == 8
    order.add(TicketId(4))
    assert list(order) == ids(4, 8)


def test_an_id_that_comes_back_is_walked_once() -> None:
    """As when an exchange finds its engine dead and queues again, as old as before."""
    for number in (1, 2, 3):
        order = arrival_order(1, 2, 3)
        order.discard(TicketId(number))
        order.add(TicketId(number))
        assert list(order) == ids(1, 2, 3)
        assert len(order) == 3


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 60)), max_size=300))
def test_an_order_is_a_sorted_set(steps: list[tuple[bool, int]]) -> None:
    order, model = ArrivalOrder(), set[TicketId]()
    for adds, number in steps:
        ticket_id = TicketId(number)
        if not adds:
            order.discard(ticket_id)
            model.discard(ticket_id)
        else:
            order.add(ticket_id)
            model.add(ticket_id)
        assert order.first() == min(model, default=None)
        assert list(order) == sorted(model)
        assert len(order) == len(model)


def test_dead_entries_do_not_pile_up() -> None:
    order, deadlines = ArrivalOrder(), Deadlines()
    for number in range(10_000):
        order.add(TicketId(number))
        deadlines.add(TicketId(number), 1000.0)
        if number >= 5:
            # The oldest stays, so that the dead lie in the middle.
            order.discard(TicketId(number - 4))
            deadlines.discard(TicketId(number - 4))
    assert len(order._ids) < 100
    assert len(deadlines._heap) < 100


def test_without_ids_no_deadline_comes() -> None:
    assert Deadlines().first_s() is None
    assert Deadlines().take(1e9) == []


def test_a_deadline_is_reached_at_its_second_and_once() -> None:
    deadlines = Deadlines()
    deadlines.add(TicketId(1), 20.0)
    deadlines.add(TicketId(2), 10.0)
    assert deadlines.first_s() == 10.0
    assert deadlines.take(9.999) == []
    assert deadlines.take(10.0) == ids(2)
    assert deadlines.take(30.0) == ids(1)
    assert deadlines.take(30.0) == []


def test_an_id_that_comes_back_counts_with_its_new_second_only() -> None:
    deadlines = Deadlines()
    deadlines.add(TicketId(1), 10.0)
    deadlines.discard(TicketId(1))
    deadlines.add(TicketId(1), 20.0)
    assert deadlines.first_s() == 20.0
    assert deadlines.take(15.0) == []
    assert deadlines.take(25.0) == ids(1)


def test_a_discarded_deadline_never_comes() -> None:
    deadlines = Deadlines()
    deadlines.add(TicketId(1), 10.0)
    deadlines.add(TicketId(2), 20.0)
    deadlines.discard(TicketId(1))
    assert deadlines.first_s() == 20.0
    assert deadlines.take(15.0) == []
