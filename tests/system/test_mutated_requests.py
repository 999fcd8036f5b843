"""Thousands of broken requests and one healthy daemon: no 5xx for bad input, no traceback, no leak.

Requests are mutated from a seed at the level of bytes, so nothing on our side repairs them. 500 by
default, 10,000 with ROUNDS=20 or more. Source: reliability.md, "HTTP input"; issue 7.
"""

import os
import random
import re
from collections import Counter
from pathlib import Path

import pytest
import trio

from tests.runtime.http.raw import RawClient, get, post
from tests.system.harness import CHAT, chat_body, daemon, rounds, until

SEED = 20261129
COUNT = rounds(500, 10_000)
AT_ONCE = 20

BOUND_S = 60 + COUNT / 10
"""Many a request is left open until the test gives up on it after a second, 20 at a time."""

FRAGMENTS = [
    b"\r\n",
    b"\n",
    b"\r",
    b"\x00",
    b"\xff\xfe",
    b":",
    b"  ",
    b"Content-Length: 5\r\n",
    b"Content-Length: -1\r\n",
    b"Content-Length: 99999999999999999999\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: gzip, chunked\r\n",
    b"Expect: 100-continue\r\n",
    b"Connection: close\r\n",
    b"Upgrade: websocket\r\nConnection: upgrade\r\n",
    b"Host: evil.example\r\n",
    b"Origin: null\r\n",
    b"Content-Encoding: gzip\r\n",
    b"HTTP/0.9",
    b"HTTP/2.0",
    b"%00%2e%2e/",
    b"/../../etc/passwd",
    b"{" * 50,
    b"[" * 2000,
    b'"\\ud800"',
    b"NaN",
    b"1e999",
    b"A" * 5000,
    "\u202e".encode(),
]


def originals() -> list[bytes]:
    body = chat_body("a", "hi", max_tokens=1)
    chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    return [
        post(CHAT, body=body),
        post(CHAT, body=chat_body("a", "hi", stream=True, max_tokens=1, service_tier="flex")),
        post(CHAT, "Transfer-Encoding: chunked", body=None) + chunked,
        post(CHAT, body=chat_body("no-such-model")),
        get("/v1/models"),
        get("/v1/models/a"),
        get("/requests?after=0&limit=5"),
        get("/metrics"),
        get("/health", method="HEAD"),
    ]


def mutated(chance: random.Random, request: bytes) -> bytes:
    """One to four edits: cut, repeat, insert, replace, swap case."""
    data = bytearray(request)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(data) + 1)
        length = chance.choice((1, 1, 2, 8, 40))
        match chance.randrange(5):
            case 0:
                del data[at : at + length]
            case 1:
                data[at:at] = data[at : at + length]
            case 2:
                data[at:at] = chance.choice(FRAGMENTS)
            case 3:
                data[at : at + length] = bytes(chance.randrange(256) for _ in range(length))
            case _:
                data[at : at + length] = data[at : at + length].swapcase()
        if not data:
            data += b"G"
    return bytes(data)


async def statuses(client: RawClient, request: bytes) -> tuple[list[int], bytes]:
    """Send, half-close never, read until the server closes or has nothing more to say."""
    answer = b""
    with trio.move_on_after(10):
        try:
            await client.stream.send_all(request)
            with trio.move_on_after(1.0):
                while data := await client.stream.receive_some(65536):
                    answer += data
        except trio.BrokenResourceError:
            pass
    return [int(code) for code in re.findall(rb"(?:^|\n)HTTP/1\.1 (\d\d\d) ", answer)], answer


@pytest.mark.bound_s(BOUND_S)
async def test_mutated_requests_never_upset_the_daemon(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    requests = [mutated(chance, chance.choice(originals())) for _ in range(COUNT)]
    limits = {"header_ms": 500, "body_ms": 500}
    async with daemon(tmp_path, {"a": {"load_s": 0}}, limits) as it:
        assert (await it.chat("a")).status == 200
        descriptors = f"/proc/{it.pid}/fd"
        idle = len(os.listdir(descriptors))
        wrong: list[tuple[bytes, list[int]]] = []
        answered: Counter[int] = Counter()
        slots = trio.CapacityLimiter(AT_ONCE)

        async def attack(request: bytes) -> None:
            async with slots:
                client = await RawClient.connect(it.port)
                async with client.stream:
                    codes, answer = await statuses(client, request)
                    answered.update(codes)
                    if any(code >= 500 for code in codes) or b"Traceback" in answer:
                        wrong.append((request, codes))

        async with trio.open_nursery() as nursery:
            for request in requests:
                nursery.start_soon(attack, request)
        assert wrong == []
        assert {200, 400, 404, 408} <= answered.keys()  # bytes of every kind came through
        assert "Traceback" not in it.log
        assert "internal error" not in it.log
        assert (await it.chat("a")).status == 200
        await until(lambda: len(os.listdir(descriptors)) <= idle)
        metrics = await it.metrics()
        assert metrics["in_flight"] == metrics["queue_depth"] == 0
