"""runtime.http.pump: steps run for sockets that have something, and only their ends wake a task."""

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import trio
import trio.testing

from strata_router.runtime.http import pump as pump_module
from strata_router.runtime.http.pump import CROWD, Pump
from tests.runtime.http.test_watcher import tcp_pair


@asynccontextmanager
async def pumping() -> AsyncIterator[Pump]:
    pump = Pump()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pump.run)
        yield pump
        nursery.cancel_scope.cancel()


@dataclass
class Stream:
    """A socket that a task has pumped. verdict: what a step says of these bytes, or raises.

    bite_bytes: how much a step takes.
    """

    verdict: Callable[[bytes], bool]
    ends: tuple[socket.socket, socket.socket] = field(default_factory=tcp_pair)
    got: list[bytes] = field(default_factory=list)
    over: bool = False
    bite_bytes: int = 100

    @property
    def engine(self) -> socket.socket:
        return self.ends[1]

    def step(self) -> bool:
        self.got.append(self.ends[0].recv(self.bite_bytes))
        return self.verdict(self.got[-1])

    async def run(self, pump: Pump) -> None:
        try:
            await pump.while_readable(self.ends[0], self.step)
        finally:
            self.over = True

    def close(self) -> None:
        for end in self.ends:
            end.close()


def until_its_end(data: bytes) -> bool:
    return data != b""


async def test_a_step_is_taken_for_whatever_comes_until_it_says_that_it_is_enough() -> None:
    async with pumping() as pump, trio.open_nursery() as nursery:
        stream = Stream(lambda data: data != b"enough")
        nursery.start_soon(stream.run, pump)
        for data in (b"one", b"two", b"enough"):
            assert not stream.over
            stream.engine.sendall(data)
            await trio.testing.wait_all_tasks_blocked(0.01)
        assert stream.got == [b"one", b"two", b"enough"]
        assert stream.over
        stream.engine.sendall(b"more")
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert stream.got[-1] == b"enough"
        assert pump.streams == 0
        stream.close()


async def test_what_a_step_leaves_is_offered_again() -> None:
    async with pumping() as pump:
        stream = Stream(lambda data: data != b"c", bite_bytes=1)
        stream.engine.sendall(b"abc")
        with trio.fail_after(1):
            await stream.run(pump)
        assert stream.got == [b"a", b"b", b"c"]
        stream.close()


async def test_what_was_there_before_is_found() -> None:
    async with pumping() as pump:
        stream = Stream(lambda _: False)
        stream.engine.sendall(b"early")
        with trio.fail_after(1):
            await stream.run(pump)
        assert stream.got == [b"early"]
        stream.close()


async def test_an_end_is_a_step_too() -> None:
    async with pumping() as pump:
        stream = Stream(until_its_end)
        stream.engine.close()
        with trio.fail_after(1):
            await stream.run(pump)
        assert stream.got == [b""]
        stream.close()


async def test_what_a_step_raises_is_its_tasks_and_the_others_go_on() -> None:
    def fail(_: bytes) -> bool:
        raise ConnectionResetError("its own")

    async with pumping() as pump, trio.open_nursery() as nursery:
        failing, other = Stream(fail), Stream(until_its_end)
        nursery.start_soon(other.run, pump)
        failing.engine.sendall(b"x")
        other.engine.sendall(b"x")
        with trio.fail_after(1), pytest.raises(ConnectionResetError, match="its own"):
            await failing.run(pump)
        assert pump.streams == 1
        other.engine.close()
        with trio.fail_after(1):
            while not other.over:
                await trio.sleep(0.001)
        for stream in (failing, other):
            stream.close()


async def test_cancelled_it_takes_no_further_step_and_the_socket_can_be_pumped_again() -> None:
    async with pumping() as pump:
        stream = Stream(lambda data: data != b"last")
        with trio.move_on_after(0.01):
            await stream.run(pump)
        assert pump.streams == 0
        stream.engine.sendall(b"last")
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert stream.got == []
        with trio.fail_after(1):
            await stream.run(pump)
        assert stream.got == [b"last"]
        stream.close()


async def test_released_it_ends_without_a_step_and_a_release_of_nobody_is_nothing() -> None:
    async with pumping() as pump, trio.open_nursery() as nursery:
        stream = Stream(until_its_end)
        pump.release(stream.ends[0])
        nursery.start_soon(stream.run, pump)
        await trio.testing.wait_all_tasks_blocked()
        pump.release(stream.ends[0])
        pump.release(stream.ends[0])
        await trio.testing.wait_all_tasks_blocked()
        assert stream.over
        assert stream.got == []
        stream.close()


async def test_a_step_may_have_its_own_task_cancelled() -> None:
    async with pumping() as pump:
        with trio.fail_after(1), trio.CancelScope() as scope:

            def leave(_: bytes) -> bool:
                scope.cancel()
                return False

            stream = Stream(leave)
            stream.engine.sendall(b"x")
            await stream.run(pump)
        assert scope.cancelled_caught
        assert pump.streams == 0
        stream.close()


async def test_a_step_may_end_another_stream_whose_turn_would_come() -> None:
    async with pumping() as pump, trio.open_nursery() as nursery:
        scopes = [trio.CancelScope(), trio.CancelScope()]
        streams = []
        for mine, other in (scopes, scopes[::-1]):

            def step(_: bytes, other: trio.CancelScope = other) -> bool:
                other.cancel()
                return True

            streams.append(Stream(step))

            async def run(stream: Stream = streams[-1], mine: trio.CancelScope = mine) -> None:
                with mine:
                    await stream.run(pump)

            nursery.start_soon(run)
        await trio.testing.wait_all_tasks_blocked()
        for stream in streams:
            stream.engine.sendall(b"x")
        with trio.fail_after(1):
            while not any(stream.over for stream in streams):
                await trio.sleep(0.001)
        assert sum(len(stream.got) for stream in streams) == 1
        nursery.cancel_scope.cancel()
    for stream in streams:
        stream.close()


async def test_streams_that_outlive_the_pump_can_still_be_cancelled() -> None:
    pump = Pump()
    stream = Stream(until_its_end)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stream.run, pump)
        await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(0) as scope:
            scope.cancel()
            await pump.run()
        nursery.cancel_scope.cancel()
    assert stream.over
    assert pump.streams == 0
    stream.close()


@pytest.mark.parametrize(("count", "gathers"), [(CROWD - 1, False), (CROWD, True)])
async def test_after_a_crowd_the_next_turn_gathers(
    count: int, gathers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pump_module, "GATHER_S", 0.3)
    async with pumping() as pump, trio.open_nursery() as nursery:
        streams = [Stream(until_its_end) for _ in range(count)]
        for stream in streams:
            nursery.start_soon(stream.run, pump)
        await trio.testing.wait_all_tasks_blocked()
        for data in (b"x", b"y"):
            for stream in streams:
                stream.engine.sendall(data)  # of one turn: nobody else runs meanwhile
            await trio.testing.wait_all_tasks_blocked(0.01)
        assert [len(stream.got) for stream in streams] == [1 if gathers else 2] * count
        with trio.fail_after(5):
            while any(len(stream.got) < 2 for stream in streams):
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    for stream in streams:
        stream.close()


class TaskSteps(trio.abc.Instrument):
    """Counts how often any task runs."""

    count = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += 1


async def test_many_streams_at_once_are_one_turn_and_wake_none_of_their_tasks() -> None:
    async with pumping() as pump, trio.open_nursery() as nursery:
        streams = [Stream(until_its_end) for _ in range(50)]
        for stream in streams:
            nursery.start_soon(stream.run, pump)
        await trio.testing.wait_all_tasks_blocked()
        for stream in streams:
            stream.engine.sendall(b"x")
        steps = TaskSteps()
        trio.lowlevel.add_instrument(steps)
        await trio.testing.wait_all_tasks_blocked()
        trio.lowlevel.remove_instrument(steps)
        assert [stream.got for stream in streams] == [[b"x"]] * 50
        # The pump, this task, and the turns in which trio finds that all are blocked.
        assert steps.count < 10
        nursery.cancel_scope.cancel()
    for stream in streams:
        stream.close()
