"""runtime.relay on a real exchange: ends, holds, full sockets and shares that a real engine rarely shows."""

import socket
import time
from contextlib import suppress

import pytest
import trio
import trio.lowlevel

from strata_router.core.http.framing import LAST_CHUNK, chunk
from strata_router.runtime import relay
from strata_router.runtime.http import sockets
from tests.fakes.chat_path import chat_path
from tests.runtime.test_exchange import (
    ANSWER,
    CHUNKED_HEAD,
    DONE,
    LONG,
    PLAIN,
    SSE_HEAD,
    STREAM,
    TOKEN,
    until_left,
    visiting,
)
from tests.system.wire import KEEPALIVE


@pytest.fixture
def short_reads(monkeypatch: pytest.MonkeyPatch) -> int:
    """Reads take a thousand bytes, so that several are needed for what a test can send at once."""
    size_bytes = 1000
    receive, receive_now = sockets.receive, sockets.receive_now

    async def receive_little(sock: socket.socket, *, wait_first: bool = False) -> bytes:
        return await receive(sock, size_bytes, wait_first=wait_first)

    monkeypatch.setattr(sockets, "READ_BYTES", size_bytes)
    monkeypatch.setattr(sockets, "receive", receive_little)
    monkeypatch.setattr(sockets, "receive_now", lambda sock: receive_now(sock, size_bytes))
    return size_bytes


# ---- the end ------------------------------------------------------------------------------------


def counted(body: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    return head % len(body) + body


@pytest.mark.parametrize("reads", [7, 8, 9, 16])
@pytest.mark.parametrize("framing", ["counted", "chunked"])
async def test_an_answer_is_over_with_its_last_byte_though_the_engine_keeps_the_connection(
    reads: int, framing: str, short_reads: int
) -> None:
    """Whichever read of a step that byte comes with, and whether or not more reads were allowed then."""
    size = reads * short_reads - 600
    body = b'{"x":"%b"}' % (b"y" * size) if framing == "counted" else b": %b\n\n" % (b"y" * size)

    async def script(stream: trio.SocketStream) -> None:
        if framing == "counted":
            await stream.send_all(counted(body))
        else:
            await stream.send_all(CHUNKED_HEAD + chunk(body) + LAST_CHUNK)
        await until_left(stream)

    async with visiting(script, PLAIN if framing == "counted" else STREAM) as visit:
        reply = await visit.reply()
        assert reply.body.startswith(body)
        record = await visit.record()
        # A stream without its [DONE] is over, too, and no success.
        assert record["success"] is (framing == "counted")


async def test_an_answer_of_megabytes_is_over_with_its_last_byte() -> None:
    body = b'{"x":"%b"}' % (b"y" * 3_300_000)

    async def script(stream: trio.SocketStream) -> None:
        await stream.send_all(counted(body))
        await until_left(stream)

    for _ in range(10):
        async with visiting(script, PLAIN) as visit:
            assert (await visit.reply()).body == body
            assert (await visit.record())["success"]


# ---- what is held -------------------------------------------------------------------------------


@pytest.mark.parametrize("event", [TOKEN, b""], ids=["with_the_first_event", "alone"])
async def test_done_is_held_from_its_own_coming_on_and_not_from_the_heads(
    event: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "HOLD_S", 0.6)

    async def script(stream: trio.SocketStream) -> None:
        await stream.send_all(SSE_HEAD)
        await trio.sleep(0.4)
        await stream.send_all(event + DONE)
        if event:
            await trio.sleep(0.4)  # the head's hold would have ended meanwhile

    async with visiting(script) as visit:
        seen = b""
        while b"[DONE]" not in seen:
            seen += await visit.client.stream.receive_some(65536)
        assert seen.endswith(LAST_CHUNK)


@pytest.mark.parametrize("end", ["engine_ends", "hold_is_over"])
async def test_b23_a_reset_in_the_instant_in_which_done_would_leave_is_a_disconnect(
    end: str,
) -> None:
    """Whoever is told first, of the engine's end and of the client's: the order is trio's dice."""

    async def script(stream: trio.SocketStream) -> None:
        await stream.send_all(SSE_HEAD + TOKEN)
        await visit.client.until(b'"content":"x"')
        await stream.send_all(DONE)
        await trio.sleep(0.01)  # it is held now
        visit.client.reset()
        if end == "hold_is_over":
            time.sleep(1.2 * relay.HOLD_S)  # noqa: ASYNC251 - the loop is busy: both are seen in one turn
            await until_left(stream)

    for _ in range(8):
        async with visiting(script) as visit:
            record = await visit.record()
            assert (record["reason"], record["success"]) == ("client_disconnect", False)


@pytest.mark.parametrize("commit_ms", [5000, 0], ids=["let_go", "committed"])
async def test_a_head_that_met_a_full_socket_follows_when_there_is_room(commit_ms: int) -> None:
    """The client has not read its previous answer yet, and the engine says nothing for long."""

    async def script(stream: trio.SocketStream) -> None:
        if commit_ms:
            await stream.send_all(SSE_HEAD)
        await until_left(stream)

    async with (
        chat_path(script, stream_commit_ms=commit_ms, keepalive_ms=500) as path,
        trio.open_nursery() as nursery,
    ):
        client = await path.connect()
        await client.send(STREAM)
        served = await path.next_exchange()
        stuffed = 0
        for size in (65536, 1) * 3:  # again, until the kernel has moved all that it will
            with suppress(BlockingIOError):
                while True:
                    stuffed += served.connection.sock.send(b"s" * size)
            await trio.sleep(0.05)
        nursery.start_soon(served.run)
        await trio.sleep(0.2)
        await client.exactly(stuffed)
        with trio.fail_after(5):
            await client.until(KEEPALIVE)
        client.stream.socket.close()


# ---- fair shares --------------------------------------------------------------------------------


async def test_of_a_client_that_does_not_read_one_read_is_held_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    in_hand = reads = 0
    receive_now, send_now = sockets.receive_now, sockets.send_now

    def receive(sock: socket.socket) -> bytes | None:
        nonlocal in_hand, reads
        data = receive_now(sock)
        in_hand += len(data or b"")
        reads += 1
        return data

    def send(sock: socket.socket, data: bytes | memoryview) -> int:
        nonlocal in_hand
        sent = send_now(sock, data)
        if visit.served is not None and sock is visit.served.connection.sock:
            in_hand -= sent
        return sent

    async def script(stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError):
            await stream.send_all(SSE_HEAD)
            while True:
                await stream.send_all(100 * LONG)

    async with visiting(script) as visit:
        monkeypatch.setattr(sockets, "receive_now", receive)
        monkeypatch.setattr(sockets, "send_now", send)
        before = -1
        with trio.fail_after(10):
            while reads != before:  # until the kernel has taken all that it will
                before = reads
                await trio.sleep(0.1)
        assert reads > 0
        assert in_hand <= sockets.READ_BYTES
        visit.client.reset()


async def test_a_step_takes_no_more_than_its_share(
    short_reads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much is there, others have their turn after READS_PER_YIELD reads."""
    reads = longest = 0
    receive_now = sockets.receive_now

    def counting(sock: socket.socket) -> bytes | None:
        nonlocal reads, longest
        reads += 1
        longest = max(longest, reads)
        return receive_now(sock)

    async def others() -> None:
        nonlocal reads
        while not visit.over.is_set():
            reads = 0
            await trio.lowlevel.checkpoint()

    async def script(stream: trio.SocketStream) -> None:
        await stream.send_all(SSE_HEAD)
        await trio.sleep(0.05)
        await stream.send_all(50 * LONG + DONE)

    monkeypatch.setattr(sockets, "receive_now", counting)
    async with visiting(script) as visit, trio.open_nursery() as nursery:
        nursery.start_soon(others)
        assert (await visit.reply()).body.endswith(DONE)
        await visit.record()
    assert 2 <= longest <= 2 * sockets.READS_PER_YIELD


# ---- who has left -------------------------------------------------------------------------------


async def test_b08_who_left_before_its_request_was_read_never_reaches_an_idle_engine() -> None:
    """The lease could be had at once, so nobody else has a turn in which to notice."""

    async def script(stream: trio.SocketStream) -> None:
        await stream.send_all(ANSWER)

    async with chat_path(script) as path:
        client = await path.connect()
        await client.send(PLAIN)
        await (await path.next_exchange()).run()  # which loads the model
        client.stream.socket.close()
        for _ in range(5):
            client = await path.connect()
            await client.send(PLAIN)
            client.stream.socket.close()
            await (await path.next_exchange()).run()
        assert path.engine.requests == 1
        assert {(r["reason"], r["disconnect_phase"]) for r in path.records()[1:]} == {
            ("client_disconnect", "queued")
        }
