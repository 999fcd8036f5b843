"""runtime.http.body_budget: the newest waits, the oldest never (contract 3)."""

import trio
import trio.testing

from strata_router.runtime.http.body_budget import BodyBudget, BodyReservation


async def finishes(reservation: BodyReservation, total_bytes: int) -> bool:
    with trio.move_on_after(1) as scope:
        await reservation.reserve(total_bytes)
    return not scope.cancelled_caught


async def test_reservations_within_the_budget_do_not_wait(autojump_clock: trio.abc.Clock) -> None:
    budget = BodyBudget(100)
    first, second = budget.open(), budget.open()
    assert await finishes(first, 60)
    assert await finishes(second, 40)
    assert budget.held_bytes == 100


async def test_the_newest_reader_waits_until_there_is_room(autojump_clock: trio.abc.Clock) -> None:
    budget = BodyBudget(100)
    first, second = budget.open(), budget.open()
    await first.reserve(80)
    assert not await finishes(second, 40)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(second.reserve, 40)
        await trio.testing.wait_all_tasks_blocked()
        assert budget.held_bytes == 80
        first.release()
    assert budget.held_bytes == 40


async def test_the_oldest_reader_may_always_exceed(autojump_clock: trio.abc.Clock) -> None:
    budget = BodyBudget(100)
    oldest = budget.open()
    assert await finishes(oldest, 1000)


async def test_bodies_that_wait_in_the_queue_do_not_block_the_oldest_reader(
    autojump_clock: trio.abc.Clock,
) -> None:
    budget = BodyBudget(100)
    queued, reader = budget.open(), budget.open()
    await queued.reserve(100)
    assert not await finishes(reader, 50)
    queued.whole()
    assert await finishes(reader, 50)


async def test_a_reader_that_gives_up_makes_the_next_one_the_oldest(
    autojump_clock: trio.abc.Clock,
) -> None:
    budget = BodyBudget(10)
    first, second, third = budget.open(), budget.open(), budget.open()
    await first.reserve(10)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(second.reserve, 10)
        nursery.start_soon(third.reserve, 10)
        await trio.testing.wait_all_tasks_blocked()
        first.whole()
        await trio.testing.wait_all_tasks_blocked()
        assert budget.held_bytes == 20
        second.whole()
    assert budget.held_bytes == 30
    for reservation in (first, second, third):
        reservation.release()
        reservation.release()
    assert budget.held_bytes == 0


async def test_growing_only_takes_the_difference(autojump_clock: trio.abc.Clock) -> None:
    budget = BodyBudget(100)
    reservation = budget.open()
    await reservation.reserve(10)
    await reservation.reserve(30)
    await reservation.reserve(5)
    assert budget.held_bytes == 30
