"""Asking an engine's cache over a real socket: what is sent, what is made of what comes back."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio

from strata_router.core.chat_request import ChatRequest, read_chat_request
from strata_router.core.vocabulary import TicketId
from strata_router.runtime.cache_lookup import ScoreMap, look_up
from tests.system.harness import free_ports

PATH = "/v1/cache/lookup"
MODEL = "upstream-a"
MIB = 1024 * 1024
HANG = -1


@dataclass
class Engine:
    """Answers each POST with the next of ``replies``, or as asked for when they are used up.

    replies: (status, body); the status HANG is never answered. bodies: what was asked, in order.
    """

    port: int
    replies: list[tuple[int, bytes]]
    bodies: list[bytes] = field(default_factory=list)

    async def serve(self, stream: trio.SocketStream) -> None:
        async with stream:
            received = b""
            while b"\r\n\r\n" not in received:
                received += await stream.receive_some()
            head, _, body = received.partition(b"\r\n\r\n")
            request_line, *lines = head.decode().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in lines)
            assert request_line == f"POST {PATH} HTTP/1.1"
            assert headers["content-type"] == "application/json"
            while len(body) < int(headers["content-length"]):
                body += await stream.receive_some()
            self.bodies.append(body)
            status, answer = self.replies.pop(0) if self.replies else (200, self._scores(body))
            if status == HANG:
                await stream.receive_some()  # until the other side has enough
                return
            await stream.send_all(b"HTTP/1.0 %d Whatever\r\n\r\n" % status + answer)

    def _scores(self, body: bytes) -> bytes:
        """Each request's own number of cached tokens, out of 100."""
        asked = json.loads(body)["requests"]
        return results(*[{"cached_tokens": each["n"], "input_tokens": 100} for each in asked])

    async def look_up(
        self, requests: list[tuple[TicketId, ChatRequest]], budget_s: float = 5.0
    ) -> tuple[ScoreMap | None, bool]:
        return await look_up(self.port, PATH, requests, MODEL, budget_s)


@asynccontextmanager
async def engine(*replies: tuple[int, bytes]) -> AsyncIterator[Engine]:
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        it = Engine(listener.socket.getsockname()[1], list(replies))
        nursery.start_soon(trio.serve_listeners, it.serve, [listener])
        yield it
        nursery.cancel_scope.cancel()


def results(*each: Any) -> bytes:
    return json.dumps({"results": each}).encode()


def request(number: int, size_bytes: int = 0) -> tuple[TicketId, ChatRequest]:
    """Ticket ``number`` with a body that will be forwarded in at least size_bytes."""
    body = b'{"model":"any","n":%d,"speed":"fast","text":"%b"}' % (number, b"x" * size_bytes)
    parsed = read_chat_request(body)
    assert isinstance(parsed, ChatRequest)
    return TicketId(number), parsed


async def test_bodies_are_asked_about_as_they_would_be_forwarded() -> None:
    async with engine() as it:
        found = await it.look_up([request(7), request(9)])
        assert found == ({7: (7, 100), 9: (9, 100)}, True)
        forwarded = b'{"model":"upstream-a","n":%d,"text":""}'
        assert it.bodies == [b'{"requests":[%b,%b]}' % (forwarded % 7, forwarded % 9)]


async def test_nothing_to_ask_about_asks_nothing() -> None:
    async with engine() as it:
        assert await it.look_up([]) == ({}, True)
        assert it.bodies == []


async def test_a_request_that_the_engine_has_no_score_for_has_none() -> None:
    score = {"cached_tokens": 1, "input_tokens": 2}
    async with engine((200, results(None, score))) as it:
        assert await it.look_up([request(1), request(2)]) == ({2: (1, 2)}, True)


async def test_a_batch_has_at_most_sixteen_requests() -> None:
    async with engine() as it:
        found, _ = await it.look_up([request(number) for number in range(1, 36)])
        assert found == {number: (number, 100) for number in range(1, 36)}
        assert [len(json.loads(body)["requests"]) for body in it.bodies] == [16, 16, 3]


async def test_a_batch_has_at_most_eight_mebibytes_of_bodies() -> None:
    frame_bytes = len(b'{"model":"upstream-a","n":1,"text":""}')
    exactly_four_mib = 4 * MIB - frame_bytes
    async with engine() as it:
        found, _ = await it.look_up([request(n, exactly_four_mib) for n in (1, 2, 3)])
        assert found == {n: (n, 100) for n in (1, 2, 3)}
        brackets_bytes = len(b'{"requests":[,]}')
        assert [len(body) for body in it.bodies] == [8 * MIB + brackets_bytes, 4 * MIB + 15]
    async with engine() as it:
        await it.look_up([request(n, exactly_four_mib + 1) for n in (1, 2)])
        assert len(it.bodies) == 2


async def test_a_body_over_eight_mebibytes_is_left_out() -> None:
    async with engine() as it:
        assert await it.look_up([request(1, 8 * MIB), request(2)]) == ({2: (2, 100)}, True)
        assert await it.look_up([request(1, 8 * MIB)]) == ({}, True)
        assert len(it.bodies) == 1


@pytest.mark.parametrize("status", [404, 405, 501])
async def test_an_engine_without_the_endpoint_is_unsupported(status: int) -> None:
    async with engine((status, b"{}")) as it:
        assert await it.look_up([request(1), request(2)]) == (None, False)


@pytest.mark.parametrize(
    "reply",
    [(409, b"{}"), (429, b"{}"), (503, b"{}"), (500, b""), (200, b"{"), (200, results(None))],
    ids=["409", "429", "503", "500", "no JSON", "too few results"],
)
async def test_a_busy_engine_or_an_invalid_reply_gives_no_order_now(
    reply: tuple[int, bytes],
) -> None:
    async with engine(reply) as it:
        assert await it.look_up([request(1), request(2)]) == (None, True)
        assert len(it.bodies) == 1


async def test_one_bad_batch_spoils_the_scores_of_all() -> None:
    """Half an order would put who was asked about first before who was not asked about."""
    async with engine((200, results(*[None] * 16)), (409, b"")) as it:
        assert await it.look_up([request(number) for number in range(1, 36)]) == (None, True)
        assert len(it.bodies) == 2


async def test_nobody_listening_gives_no_order_now() -> None:
    (port,) = free_ports(1)
    assert await look_up(port, PATH, [request(1), request(2)], MODEL, 5.0) == (None, True)


async def test_all_batches_together_have_one_budget() -> None:
    many = [request(number) for number in range(1, 20)]
    async with engine((200, results(*[None] * 16)), (HANG, b"")) as it:
        started_s = trio.current_time()
        assert await it.look_up(many, budget_s=0.3) == (None, True)
        assert 0.29 < trio.current_time() - started_s < 2
        assert len(it.bodies) == 2
