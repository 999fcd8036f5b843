"""What one event of a stream costs the daemon, counted in calls: the guard of issue 8 against slow drift.

The real exchange passes events from a real socket to a real socket on trio's thread; another thread is
engine and client, so that a profile hook on trio's thread sees the daemon's calls and trio's on its
behalf, and nothing else. No clock is read. A change that exceeds a budget here makes every token of
everybody dearer: it needs a reason and a look at ``make bench``, not just a larger number.
"""

import select
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import BuiltinFunctionType, FrameType
from typing import Any

import pytest
import trio
import trio.testing

from strata_router.runtime.exchange import Exchange
from strata_router.runtime.http.connection import ClientConnection
from strata_router.runtime.relay import HOLD_S
from tests.fakes.chat_path import ChatPath, chat_path
from tests.runtime.http.raw import post
from tests.system.harness import CHAT, chat_body

PACED_CALLS = 115
"""Python and C calls per event that comes alone, trio's turn of its loop included."""

SHARED_CALLS = 75
"""Per event when events of several streams are there at once: they share trio's turn, not the rest."""

BULK_CALLS = 0.5
"""The same per event when many come at once: reads, wake-ups and writes are shared by all of them."""

SYSTEM_CALLS = {"epoll.poll": 2, "socket.recv": 1, "socket.send": 1, "epoll.modify": 1}
"""Per event that comes alone: trio's wait and the pump's look, read, write, and trio's re-arming of its
one-shot registration."""

REQUEST_CALLS = 1_700
"""Per whole request on a connection that is kept: head to record, one event and [DONE]; the scripted
engine's own calls, some 300, are among them."""

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
WARM_UP = 50
EVENTS = 200


def event(number: int) -> bytes:
    """One token as llama-server sends it."""
    return (
        b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1764374400,"model":"a",'
        b'"choices":[{"index":0,"delta":{"content":" word%06d"},"finish_reason":null}]}\n\n'
        % number
    )


class Calls:
    """Counts calls on this thread while ``counting``; names: those of C functions by their qualified name."""

    def __init__(self) -> None:
        self.total = 0
        self.names: Counter[str] = Counter()

    @contextmanager
    def counting(self) -> Iterator[None]:
        def note(frame: FrameType, what: str, argument: Any) -> None:
            if what == "call":
                self.total += 1
            elif what == "c_call":
                self.total += 1
                if isinstance(argument, BuiltinFunctionType):
                    self.names[argument.__qualname__] += 1

        before = sys.getprofile()
        sys.setprofile(note)
        try:
            yield
        finally:
            sys.setprofile(before)


class Streams:
    """Running streams: ``engines[i]`` is the engine's end of the one that ``clients[i]`` reads."""

    def __init__(self) -> None:
        self.engines: list[socket.socket] = []
        self.clients: list[socket.socket] = []
        self.over = trio.Event()
        self._sent = 0

    async def script(self, stream: trio.SocketStream) -> None:
        """The engine's part on trio: hand the socket over and leave it alone until the end."""
        await stream.send_all(HEAD)
        self.engines.append(stream.socket._sock)  # type: ignore[attr-defined] # no public way
        await self.over.wait()

    async def open(self, path: ChatPath, nursery: trio.Nursery, count: int) -> None:
        """Start ``count`` streams, one after the other so that both lists have one order."""
        for number in range(count):
            client = await path.connect()
            await client.send(post(CHAT, body=chat_body("a", stream=True)))
            served = await path.next_exchange()
            nursery.start_soon(served.run)
            with trio.fail_after(5):
                while len(self.engines) <= number:
                    await trio.sleep(0.001)
            self.clients.append(client.stream.socket._sock)  # type: ignore[attr-defined] # as above

    def lockstep(self, events: int) -> None:
        """On another thread: one event at a time, on each stream in turn, each read before the next."""
        for index in range(events):
            at = index % len(self.engines)
            self._sent += 1
            data = event(self._sent)
            assert self.engines[at].send(data) == len(data)
            _receive(self.clients[at], b"word%06d" % self._sent)

    def together(self, events: int) -> None:
        """On another thread: an event on every stream, then all of them read, and so on."""
        for _ in range(events // len(self.engines)):
            first = self._sent + 1
            for engine in self.engines:
                self._sent += 1
                engine.send(event(self._sent))
            for number, client in enumerate(self.clients, first):
                _receive(client, b"word%06d" % number)

    def at_once(self, events: int) -> None:
        """On another thread: all of them as fast as the first stream takes them."""
        last = self._sent + events
        data = b"".join(event(number) for number in range(self._sent + 1, last + 1))
        self._sent = last
        writer = threading.Thread(target=_send, args=(self.engines[0], data))
        writer.start()
        _receive(self.clients[0], b"word%06d" % last)
        writer.join()


def _send(sock: socket.socket, data: bytes) -> None:
    left = memoryview(data)
    while left:
        select.select([], [sock], [], 10)
        try:
            left = left[sock.send(left) :]
        except BlockingIOError:
            continue


def _receive(sock: socket.socket, mark: bytes) -> None:
    data = b""
    while mark not in data:
        assert select.select([sock], [], [], 10)[0], "the event did not come through"
        data = data[-len(mark) :] + sock.recv(65536)


async def calls_of(streams: int, work: Callable[[Streams], None]) -> Calls:
    """What ``work`` costs the daemon while so many streams run."""
    calls = Calls()
    running = Streams()
    async with (
        chat_path(running.script, max_pending=streams) as path,
        trio.open_nursery() as nursery,
    ):
        await running.open(path, nursery, streams)
        await trio.to_thread.run_sync(running.lockstep, WARM_UP * streams)
        # The last event is out, but its exchange may not yet be back where it waits; and the timers of what
        # streams held at their beginning are swept out when they would have been due.
        await trio.sleep(2 * HOLD_S)
        await trio.testing.wait_all_tasks_blocked()
        with calls.counting():
            await trio.to_thread.run_sync(work, running)
        running.over.set()
        nursery.cancel_scope.cancel()
    for client in running.clients:
        client.close()
    return calls


async def test_a_paced_event_keeps_to_its_budget_of_calls() -> None:
    calls = await calls_of(1, lambda streams: streams.lockstep(EVENTS))
    assert calls.total / EVENTS < PACED_CALLS
    assert calls.total / EVENTS > PACED_CALLS / 2, "the budget is stale: lower it"


async def test_a_paced_event_keeps_to_its_budget_of_system_calls() -> None:
    calls = await calls_of(1, lambda streams: streams.lockstep(EVENTS))
    for name, budget in SYSTEM_CALLS.items():
        # A few more belong to the thread's own coming and going.
        assert calls.names[name] <= budget * EVENTS + 10, name
    others = {name for name in calls.names if name.startswith(("epoll.", "socket."))}
    others -= {*SYSTEM_CALLS, "socket.fileno"}
    assert sum(calls.names[name] for name in others) <= 10, others


async def test_events_of_many_streams_share_a_turn_of_the_loop() -> None:
    """Whatever its pace: how many are there at once is up to the threads, so the best of five counts."""
    runs = [await calls_of(32, lambda streams: streams.together(640)) for _ in range(5)]
    assert min(calls.total for calls in runs) / 640 < SHARED_CALLS


async def test_events_that_come_together_share_reads_and_writes() -> None:
    """Under load many events cost one wake-up and one write, which is why the blast beats nginx."""
    calls = await calls_of(1, lambda streams: streams.at_once(10 * EVENTS))
    assert calls.total / (10 * EVENTS) < BULK_CALLS
    assert calls.names["socket.send"] < EVENTS


@pytest.mark.parametrize("streams", [10, 100])
async def test_an_event_costs_the_same_however_many_streams_are_open(streams: int) -> None:
    one = await calls_of(1, lambda running: running.lockstep(EVENTS))
    many = await calls_of(streams, lambda running: running.lockstep(EVENTS))
    assert many.total <= 1.1 * one.total


async def test_a_short_request_keeps_to_its_budget_of_calls() -> None:
    """The cheapest of ten on one connection: the scripted engine takes more or fewer steps."""
    costs: list[int] = []
    answer = HEAD + event(1) + b"data: [DONE]\n\n"

    async def script(stream: trio.SocketStream) -> None:
        await stream.send_all(answer)

    async with chat_path(script) as path:
        client = await path.connect()
        request = post(CHAT, body=chat_body("a", stream=True))
        await client.send(request)
        served = await path.next_exchange()
        await served.exchange.run()
        sock = client.stream.socket._sock  # type: ignore[attr-defined] # no public way
        await trio.to_thread.run_sync(_receive, sock, b"0\r\n\r\n")
        for _ in range(10):
            calls = Calls()
            await client.send(request)
            with calls.counting():
                await _serve_next(path, served.connection)
            await trio.to_thread.run_sync(_receive, sock, b"0\r\n\r\n")
            costs.append(calls.total)
        served.connection.close()
        sock.close()
    assert min(costs) < REQUEST_CALLS
    assert min(costs) > REQUEST_CALLS / 2, "the budget is stale: lower it"


async def _serve_next(path: ChatPath, connection: ClientConnection) -> None:
    """As the server does with a connection that was kept."""
    head = await connection.next_head()
    assert head is not None
    await Exchange(path.services, connection, head).run()
