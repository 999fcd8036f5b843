"""The instant at which the server stops accepting, deterministically (contract 11; reports.md B26).

What a whole daemon does is in tests/system/test_service_handoff.py.
"""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import pytest
import trio
import trio.testing

from strata_router.core.http.request_head import RequestHead
from strata_router.runtime.http.connection import ClientConnection
from strata_router.runtime.http.server import DRAIN_IDLE_S, Server
from tests.runtime.http.raw import GENEROUS, get

SPINS = 100
"""So many failing accepts in a row are a loop that lets nothing else run."""


class Listener(socket.socket):
    """A listener that gives up instead of hanging the test when it is asked for ever."""

    failed = 0

    def accept(self) -> tuple[socket.socket, object]:
        try:
            accepted = super().accept()
        except BlockingIOError:
            raise
        except OSError:
            self.failed += 1
            assert self.failed < SPINS, "the accept loop spins on a closed listener"
            raise
        self.failed = 0
        return accepted


@dataclass
class Draining:
    """retained: the service manager's copy of the listener. stop: lets the server stop accepting."""

    server: Server
    retained: socket.socket
    stop: trio.Event = field(default_factory=trio.Event)
    done: trio.Event = field(default_factory=trio.Event)

    def connect(self) -> socket.socket:
        return socket.create_connection(self.retained.getsockname())


async def answer(connection: ClientConnection, head: RequestHead) -> None:
    await connection.respond(200, [], head.path.encode())


@asynccontextmanager
async def draining(*, take_waiting: bool) -> AsyncIterator[Draining]:
    """A server that stops accepting as soon as ``stop`` is set, in a task that is ready to run then."""
    listener = Listener()
    listener.bind(("127.0.0.1", 0))
    listener.listen(16)
    listener.setblocking(False)
    server = Server(listener, answer, GENEROUS, max_connections=10)
    with listener.dup() as retained, listener:
        it = Draining(server, retained)

        async def run() -> None:
            await server.run()
            it.done.set()

        async def stop_accepting() -> None:
            await it.stop.wait()
            server.stop_accepting(take_waiting=take_waiting)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            nursery.start_soon(stop_accepting)
            await trio.testing.wait_all_tasks_blocked()
            yield it
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("attempt", range(8))
async def test_b26_a_connection_that_arrives_with_the_stop_is_served_here_or_left_to_the_successor(
    attempt: int,
) -> None:
    """The accept task is awake already when the listener is closed, in either order of the two tasks
    (trio shuffles them, hence the attempts)."""
    async with draining(take_waiting=False) as it:
        with it.connect() as client:
            it.stop.set()
            await trio.testing.wait_all_tasks_blocked()
            client.sendall(get("/here"))
            it.retained.setblocking(False)
            with trio.fail_after(5):
                if it.server.connections:
                    await trio.lowlevel.wait_readable(client)
                    assert client.recv(4096).endswith(b"/here")
                else:
                    accepted, _ = it.retained.accept()
                    accepted.close()
                await it.done.wait()


@pytest.mark.parametrize("attempt", range(8))
async def test_a_connection_that_is_accepted_with_the_stop_has_no_longer_than_an_idle_one(
    attempt: int, autojump_clock: trio.testing.MockClock
) -> None:
    """Else one that never asks would hold the drain for IDLE_S. Virtual seconds: the sockets' bytes are
    there before the clock jumps."""
    async with draining(take_waiting=True) as it:
        with it.connect():
            it.stop.set()
            with trio.fail_after(DRAIN_IDLE_S + 0.1):
                await it.done.wait()


async def test_what_waits_in_a_listener_of_our_own_is_taken_in_and_served() -> None:
    async with draining(take_waiting=True) as it:
        clients = [it.connect() for _ in range(5)]
        it.stop.set()
        for client in clients:
            client.sendall(get("/here"))
        with trio.fail_after(5):
            for client in clients:
                with client:
                    await trio.lowlevel.wait_readable(client)
                    reply = client.recv(4096)
                    assert reply.endswith(b"/here")
                    assert b"connection: close" in reply.lower()
            await it.done.wait()
        with pytest.raises(ConnectionRefusedError):
            await trio.to_thread.run_sync(partial(_connect_after, it))


def _connect_after(it: Draining) -> None:
    address = it.retained.getsockname()
    it.retained.close()
    socket.create_connection(address)
