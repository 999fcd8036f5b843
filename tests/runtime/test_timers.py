"""runtime.timers on virtual time."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from strata_router.runtime.timers import PURGE_AT, Timers


@asynccontextmanager
async def running() -> AsyncIterator[Timers]:
    timers = Timers()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(timers.run)
        yield timers
        nursery.cancel_scope.cancel()


async def test_timers_fire_in_order_at_their_time(autojump_clock: trio.abc.Clock) -> None:
    fired: list[tuple[str, float]] = []
    async with running() as timers:
        start = trio.current_time()
        for name, delay in (("c", 3.0), ("a", 1.0), ("b", 2.0)):

            def note(name: str = name) -> None:
                fired.append((name, trio.current_time() - start))

            timers.at(start + delay, note)
        await trio.sleep(10)
    assert fired == [("a", 1.0), ("b", 2.0), ("c", 3.0)]


async def test_an_earlier_timer_set_later_is_not_missed(autojump_clock: trio.abc.Clock) -> None:
    fired: list[float] = []
    async with running() as timers:
        start = trio.current_time()
        timers.at(start + 100, lambda: fired.append(trio.current_time() - start))
        await trio.sleep(5)
        timers.at(start + 6, lambda: fired.append(trio.current_time() - start))
        await trio.sleep(2)
    assert fired == [6.0]


async def test_a_cancelled_timer_does_not_fire(autojump_clock: trio.abc.Clock) -> None:
    fired: list[str] = []
    async with running() as timers:
        start = trio.current_time()
        first = timers.at(start + 1, lambda: fired.append("first"))
        second = timers.at(start + 2, lambda: fired.append("second"))
        first.cancel()
        await trio.sleep(3)
        second.cancel()
        second.cancel()
    assert fired == ["second"]


async def test_a_callback_may_set_the_next_timer(autojump_clock: trio.abc.Clock) -> None:
    ticks: list[float] = []
    async with running() as timers:
        start = trio.current_time()

        def tick() -> None:
            ticks.append(trio.current_time() - start)
            timers.at(trio.current_time() + 1, tick)

        timers.at(start + 1, tick)
        await trio.sleep(3.5)
    assert ticks == [1.0, 2.0, 3.0]


async def test_cancelled_timers_far_away_do_not_pile_up(autojump_clock: trio.abc.Clock) -> None:
    async with running() as timers:
        far = trio.current_time() + 600
        for _ in range(PURGE_AT * 20):
            timers.at(far, lambda: None).cancel()
        assert len(timers) <= PURGE_AT * 2
