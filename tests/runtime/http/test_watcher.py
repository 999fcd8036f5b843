"""runtime.http.watcher: departures are noticed whatever lies unread in front of them (B15)."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from strata_router.runtime.http.watcher import DisconnectWatcher


@asynccontextmanager
async def watching() -> AsyncIterator[DisconnectWatcher]:
    watcher = DisconnectWatcher()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watcher.run)
        yield watcher
        nursery.cancel_scope.cancel()


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
    return server, client


async def left(event: trio.Event, within_s: float = 1.0) -> bool:
    with trio.move_on_after(within_s):
        await event.wait()
    return event.is_set()


async def test_a_close_is_noticed() -> None:
    async with watching() as watcher:
        server, client = tcp_pair()
        gone = trio.Event()
        watcher.watch(server, gone.set)
        assert not await left(gone, 0.1)
        client.close()
        assert await left(gone)
        watcher.forget(server)
        server.close()


async def test_b15_a_half_close_counts_as_leaving() -> None:
    async with watching() as watcher:
        server, client = tcp_pair()
        gone = trio.Event()
        watcher.watch(server, gone.set)
        client.shutdown(socket.SHUT_WR)
        assert await left(gone)
        watcher.forget(server)
        server.close()
        client.close()


async def test_a_reset_is_noticed() -> None:
    async with watching() as watcher:
        server, client = tcp_pair()
        gone = trio.Event()
        watcher.watch(server, gone.set)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        client.close()
        assert await left(gone)
        watcher.forget(server)
        server.close()


async def test_a_close_behind_pipelined_bytes_is_noticed() -> None:
    async with watching() as watcher:
        server, client = tcp_pair()
        gone = trio.Event()
        client.sendall(b"x" * 65536)
        watcher.watch(server, gone.set)
        assert not await left(gone, 0.1)
        client.close()
        assert await left(gone)
        watcher.forget(server)
        server.close()


async def test_who_left_before_being_watched_is_noticed_too() -> None:
    async with watching() as watcher:
        server, client = tcp_pair()
        client.close()
        await trio.sleep(0.05)
        gone = trio.Event()
        watcher.watch(server, gone.set)
        assert await left(gone)
        watcher.forget(server)
        server.close()


async def test_a_forgotten_socket_is_never_reported_and_its_number_can_be_used_again() -> None:
    async with watching() as watcher:
        server, client = tcp_pair()
        first, second = trio.Event(), trio.Event()
        watcher.watch(server, first.set)
        watcher.forget(server)
        watcher.forget(server)
        watcher.watch(server, second.set)
        client.close()
        assert await left(second)
        assert not first.is_set()
        watcher.forget(server)
        assert watcher.watched == 0
        server.close()


async def test_forgetting_is_possible_when_the_watcher_has_ended() -> None:
    """At the daemon's end exchanges are cancelled together with it, in any order."""
    async with watching() as watcher:
        server, client = tcp_pair()
        watcher.watch(server, lambda: None)
    watcher.forget(server)
    assert watcher.watched == 0
    server.close()
    client.close()
