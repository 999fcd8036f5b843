"""runtime.exchange and runtime.reply against a scripted engine: ends that a real one rarely shows.

What a real daemon shows is in tests/system; every await is cancelled in test_exchange_cancellation.
"""

import json
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio

from strata_router.core.catalog import Catalog
from strata_router.core.http.framing import chunk
from strata_router.core.refusal import Case
from strata_router.runtime import relay
from tests.fakes.chat_path import MODEL, ChatPath, Script, ServedExchange, chat_path
from tests.runtime.http.raw import RawClient, Reply, post
from tests.system.wire import KEEPALIVE, events

CHAT = "/v1/chat/completions"
SSE_HEAD = b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
CHUNKED_HEAD = SSE_HEAD.replace(b"1.0", b"1.1")[:-2] + b"Transfer-Encoding: chunked\r\n\r\n"
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}\n\n'
ERROR = b'data: {"error":{"type":"server_error","message":"m"}}\n\n'
DONE = b"data: [DONE]\n\n"
ANSWER = (
    b'HTTP/1.0 200 OK\r\nContent-Type: application/json\r\nContent-Length: 14\r\n\r\n{"choices":[]}'
)

STREAM = post(CHAT, body=b'{"model":"a","stream":true}')
PLAIN = post(CHAT, body=b'{"model":"a"}')


def reset(stream: trio.SocketStream) -> None:
    stream.setsockopt(1, 13, b"\1\0\0\0\0\0\0\0")  # SOL_SOCKET, SO_LINGER: close by reset


async def until_left(stream: trio.SocketStream) -> None:
    """Keep the connection open until the router closes it."""
    await stream.receive_some(1)


@dataclass
class Visit:
    """One client and its exchange, which runs in a task of its own. over: it has ended."""

    path: ChatPath
    client: RawClient
    served: ServedExchange | None = None
    over: trio.Event = field(default_factory=trio.Event)

    async def reply(self) -> Reply:
        with trio.fail_after(5):
            return await self.client.reply()

    async def record(self) -> dict[str, Any]:
        with trio.fail_after(5):
            await self.over.wait()
        (record,) = self.path.records()
        return record


@asynccontextmanager
async def visiting(script: Script, request: bytes = STREAM, **config: Any) -> AsyncIterator[Visit]:
    """A client that has sent its request, whose exchange is about to run; nothing is left at the end."""
    async with chat_path(script, **config) as path, trio.open_nursery() as nursery:
        visit = Visit(path, await path.connect())
        await visit.client.send(request)
        visit.served = await path.next_exchange()

        async def serve() -> None:
            assert visit.served is not None
            await visit.served.run()
            visit.over.set()

        nursery.start_soon(serve)
        try:
            yield visit
            await visit.record()
        finally:
            visit.client.stream.socket.close()
        await path.expect_nothing_held()


# ---- an engine that died without anybody having noticed ------------------------------------------


async def _answers(stream: trio.SocketStream) -> None:
    await stream.send_all(SSE_HEAD + TOKEN + DONE)


def _nothing() -> None:
    """The next engine does not listen either."""


async def _refused_until_noticed(path: ChatPath, next_load: Callable[[], None] = _nothing) -> None:
    """The exchange has its lease and finds nobody; a moment later the death is reported."""
    path.engine.stop_listening()
    with trio.fail_after(5):
        while not path.supervisor.loads:
            await trio.lowlevel.checkpoint()
    await trio.sleep(0.05)
    path.supervisor.next_load = next_load
    path.supervisor.die()


async def test_b20_a_request_that_finds_a_dead_engine_is_answered_by_the_next_one() -> None:
    async with visiting(_answers) as visit:
        await _refused_until_noticed(visit.path, visit.path.engine.listen_again)
        reply = await visit.reply()
        assert (reply.status, reply.body) == (200, TOKEN + DONE)
        record = await visit.record()
        assert (record["reason"], record["success"]) == ("completed", True)
        # The reload after a death is no switch (design, record field model_switch).
        assert record["model_switch"] is False
        assert visit.path.supervisor.loads == [MODEL, MODEL]
        assert visit.path.engine.requests == 1


async def test_b20_a_committed_stream_waits_for_the_next_engine_too() -> None:
    async with visiting(_answers, stream_commit_ms=0) as visit:
        assert (await visit.client.head()).headers["x-strata-concrete-model"] == ["a"]
        await _refused_until_noticed(visit.path, visit.path.engine.listen_again)
        assert (await visit.record())["success"]


async def test_an_engine_that_dies_once_more_is_an_upstream_error() -> None:
    async with visiting(_answers, PLAIN) as visit:
        await _refused_until_noticed(visit.path)
        with trio.fail_after(5):
            while len(visit.path.supervisor.loads) < 2:
                await trio.lowlevel.checkpoint()
        visit.path.supervisor.die()
        reply = await visit.reply()
        assert reply.status == 502
        assert (await visit.record())["reason"] == "upstream_error"
        assert visit.path.supervisor.loads == [MODEL, MODEL]


async def test_b20_a_broken_answer_waits_for_the_news_of_the_engines_death() -> None:
    """Until then it keeps the lease, so that nobody else is sent to a dead engine."""

    async def dies(stream: trio.SocketStream) -> None:
        await stream.send_all(SSE_HEAD + TOKEN)
        await stream.aclose()
        await trio.sleep(0.1)
        assert visit.path.coordinator.depths() == (0, 1)
        assert not visit.over.is_set()
        visit.path.supervisor.die()

    async with visiting(dies) as visit:
        reply = await visit.reply()
        assert events(reply.body)[-1].error["status"] == 502
        assert visit.path.coordinator.snapshot().loaded is None
        assert (await visit.record())["reason"] == "upstream_error"


async def test_an_error_that_was_known_before_the_commit_keeps_its_status() -> None:
    async def says_nothing(stream: trio.SocketStream) -> None:
        await trio.sleep(0.01)

    async with visiting(says_nothing, stream_commit_ms=100) as visit:
        assert (await visit.reply()).status == 502
        assert (await visit.record())["status"] == 502


async def test_an_engine_that_runs_but_refuses_is_an_upstream_error_after_a_second() -> None:
    async with visiting(_answers, PLAIN) as visit:
        visit.path.engine.stop_listening()
        started_s = trio.current_time()
        assert (await visit.reply()).status == 502
        assert 0.9 < trio.current_time() - started_s < 3
        assert (await visit.record())["upstream_status"] is None


# ---- the last moments of a stream ---------------------------------------------------------------


async def test_a_reset_after_done_takes_nothing_from_the_answer() -> None:
    async def script(stream: trio.SocketStream) -> None:
        await stream.send_all(SSE_HEAD + TOKEN + DONE)
        await trio.sleep(0.02)
        reset(stream)

    async with visiting(script) as visit:
        reply = await visit.reply()
        assert (reply.body, reply.cut) == (TOKEN + DONE, False)
        assert (await visit.record())["success"]


@pytest.mark.parametrize("after_s", [0.01, 0.1], ids=["held", "passed on"])
async def test_a_cut_after_done_takes_nothing_from_the_answer(after_s: float) -> None:
    async def script(stream: trio.SocketStream) -> None:
        await stream.send_all(SSE_HEAD + TOKEN + DONE)
        await trio.sleep(after_s)
        assert visit.served is not None
        visit.served.exchange.cut(Case.ROUTING_OFF)
        await until_left(stream)

    async with visiting(script) as visit:
        reply = await visit.reply()
        assert (reply.body, reply.cut) == (TOKEN + DONE, False)
        assert (await visit.record())["reason"] == "completed"


@pytest.mark.parametrize(
    ("frames", "reason"),
    [(TOKEN, "completed"), (ERROR, "upstream_error")],
    ids=["token", "error"],
)
async def test_leaving_after_done_ends_as_the_answer_did(frames: bytes, reason: str) -> None:
    async def script(stream: trio.SocketStream) -> None:
        await stream.send_all(SSE_HEAD + frames + DONE)
        await until_left(stream)

    async with visiting(script) as visit:
        await visit.client.until(b"[DONE]")
        visit.client.stream.socket.shutdown(1)
        record = await visit.record()
        assert (record["reason"], record["disconnect_phase"]) == (reason, None)
        assert record["success"] is (reason == "completed")


async def test_leaving_while_done_is_still_held_is_a_disconnect() -> None:
    async def script(stream: trio.SocketStream) -> None:
        await stream.send_all(SSE_HEAD + TOKEN)
        await visit.client.until(b'"content":"x"')
        await stream.send_all(DONE)
        await trio.sleep(0.01)
        visit.client.stream.socket.close()
        await until_left(stream)

    async with visiting(script) as visit:
        record = await visit.record()
        assert (record["reason"], record["disconnect_phase"]) == ("client_disconnect", "generating")


async def test_a_last_line_without_its_end_counts() -> None:
    async def script(stream: trio.SocketStream) -> None:
        await stream.send_all(SSE_HEAD + TOKEN + DONE.rstrip())

    async with visiting(script) as visit:
        reply = await visit.reply()
        assert (reply.body, reply.cut) == (TOKEN + DONE.rstrip(), False)
        assert (await visit.record())["success"]


async def test_bytes_behind_done_are_passed_on() -> None:
    more = b": the engine's last comment\n\n"

    async def script(stream: trio.SocketStream) -> None:
        await stream.send_all(SSE_HEAD + TOKEN + DONE + more)

    async with visiting(script) as visit:
        assert (await visit.reply()).body == TOKEN + DONE + more
        assert (await visit.record())["success"]


async def test_a_piece_of_framing_behind_the_head_does_not_keep_the_head_back() -> None:
    """The size of a chunk has come and its bytes have not: the client still learns of the 200."""

    async def script(stream: trio.SocketStream) -> None:
        await stream.send_all(CHUNKED_HEAD + b"%x\r\n" % len(TOKEN + DONE))
        await head_seen.wait()
        await stream.send_all(TOKEN + DONE + b"\r\n0\r\n\r\n")

    head_seen = trio.Event()
    async with visiting(script) as visit:
        with trio.fail_after(1):
            head = await visit.client.head()
        assert head.status == 200
        head_seen.set()
        assert (await visit.record())["success"]


@pytest.mark.parametrize("pieces", [1, 2], ids=["with_the_last_event", "by_itself"])
async def test_an_end_that_comes_with_done_is_not_waited_for(
    pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script(stream: trio.SocketStream) -> None:
        body = [TOKEN + DONE] if pieces == 1 else [TOKEN, DONE]
        for number, piece in enumerate(body, 1):
            end = b"0\r\n\r\n" if number == len(body) else b""
            await stream.send_all(CHUNKED_HEAD * (number == 1) + chunk(piece) + end)
            await trio.sleep(0.02)
        await until_left(stream)

    monkeypatch.setattr(relay, "HOLD_S", 60.0)
    async with visiting(script) as visit:
        reply = await visit.reply()
        assert (reply.body, reply.cut) == (TOKEN + DONE, False)
        assert (await visit.record())["success"]


LONG = 64 * TOKEN


async def test_a_client_that_takes_less_than_comes_gets_every_byte_in_order() -> None:
    parts = [b": %d\n\n" % number + LONG for number in range(800)]

    async def script(stream: trio.SocketStream) -> None:
        await stream.send_all(SSE_HEAD + b"".join(parts) + DONE)

    async with visiting(script) as visit:
        visit.client.stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        await trio.sleep(0.05)  # so that the daemon's socket is full, and later half full
        body = b"".join(parts) + DONE
        reply = await visit.reply()
        assert reply.body.replace(KEEPALIVE, b"") == body
        record = await visit.record()
        assert (record["success"], record["response_bytes"]) == (True, len(body))


async def test_leaving_before_all_was_taken_is_a_disconnect_even_after_done() -> None:
    async def script(stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError):
            await stream.send_all(SSE_HEAD + 2000 * LONG + DONE)
            await until_left(stream)

    async with visiting(script) as visit:
        visit.client.stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await visit.client.head()
        visit.client.reset()
        record = await visit.record()
        assert (record["reason"], record["success"]) == ("client_disconnect", False)


# ---- bytes of ours in a stream ------------------------------------------------------------------


COUNTED_HEAD = SSE_HEAD[:-2] + b"Content-Length: 1000\r\n\r\n"


async def test_an_event_stream_with_a_length_may_still_get_an_error_event() -> None:
    """Our bytes are not in the engine's count, so its length is not promised on."""

    async def script(stream: trio.SocketStream) -> None:
        await stream.send_all(COUNTED_HEAD + TOKEN)

    async with visiting(script) as visit:
        reply = await visit.reply()
        assert reply.headers["transfer-encoding"] == ["chunked"]
        assert [event.name for event in events(reply.body)] == [None, "error"]
        assert (await visit.record())["reason"] == "upstream_error"


async def test_a_stream_that_speaks_needs_no_keepalives() -> None:
    async def script(stream: trio.SocketStream) -> None:
        await stream.send_all(SSE_HEAD)
        for _ in range(16):
            await stream.send_all(TOKEN)
            await trio.sleep(0.1)
        await stream.send_all(DONE)

    async with visiting(script, keepalive_ms=1000) as visit:
        assert (await visit.reply()).body == 16 * TOKEN + DONE


async def test_a_keepalive_does_not_overtake_what_is_held() -> None:
    """Held bytes may belong to an event that the client has in part."""
    start, rest = DONE[:9], DONE[9:]

    async def script(stream: trio.SocketStream) -> None:
        await stream.send_all(SSE_HEAD + TOKEN + start)
        await trio.sleep(0.49)  # the keep-alive is due while the rest is held
        await stream.send_all(rest)
        await trio.sleep(0.2)

    async with visiting(script, keepalive_ms=500) as visit:
        reply = await visit.reply()
        assert reply.body.replace(KEEPALIVE, b"") == TOKEN + DONE
        assert DONE in reply.body


async def test_a_stream_that_was_cut_before_its_commit_gets_a_status() -> None:
    async def silent(stream: trio.SocketStream) -> None:
        await until_left(stream)

    async with visiting(silent) as visit:
        await trio.sleep(0.05)
        assert visit.served is not None
        visit.served.exchange.cut(Case.ROUTING_OFF)
        visit.served.exchange.commit(MODEL)  # crosses with the cut
        reply = await visit.reply()
        assert reply.status == 503
        assert json.loads(reply.body)["error"]["code"] == "routing_off"


# ---- a mistake of ours --------------------------------------------------------------------------


@pytest.mark.parametrize("stream_commit_ms", [0, 5000], ids=["in-band", "status"])
async def test_a_mistake_of_ours_is_500_and_neither_shown_nor_fatal(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, stream_commit_ms: int
) -> None:
    def mistaken(catalog: Catalog, model: str) -> str:
        if visit.path.supervisor.loads:
            raise ZeroDivisionError("s3cr3t request content")
        return "upstream-a"

    monkeypatch.setattr(Catalog, "upstream_model", mistaken)
    with caplog.at_level(logging.ERROR):
        async with visiting(_answers, stream_commit_ms=stream_commit_ms) as visit:
            reply = await visit.reply()
            if stream_commit_ms:
                assert reply.status == 500
                error = json.loads(reply.body)["error"]
            else:
                (event,) = events(reply.body)
                assert event.name == "error"
                error = event.error
            assert (error["type"], error["code"]) == ("internal_error", "internal_error")
            assert error["status"] == 500
            record = await visit.record()
            assert (record["reason"], record["success"]) == ("upstream_error", False)
    assert "ZeroDivisionError" in caplog.text
    assert "s3cr3t" not in caplog.text
    assert b"s3cr3t" not in reply.body


async def test_no_descriptor_for_the_engine_is_an_upstream_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def no_room(port: int) -> None:
        raise OSError(24, "too many open files")

    monkeypatch.setattr("strata_router.runtime.upstream._connected", no_room)
    async with visiting(_answers, PLAIN) as visit:
        assert (await visit.reply()).status == 502
        assert (await visit.record())["reason"] == "upstream_error"
