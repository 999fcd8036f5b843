"""Clients that stop reading: given up after a while, and never a burden to the others.

Source: contract 3 (``write_stall_ms``), 6.5; reports.md B16, B17.
"""

import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.runtime.http.raw import post
from tests.system.harness import CHAT, DaemonUnderTest, chat_body, daemon, until
from tests.system.proc_figures import MIB, resident_bytes
from tests.system.wire import all_pieces, next_piece, send_unread

FLOOD = "FX:chunk_bytes=50000 FX:force_tokens=1000"
"""50 MB as fast as they are taken."""


def with_batch_slots(it: DaemonUnderTest, slots: int) -> None:
    """Let the engine of model a answer several requests at once."""
    path = Path(it.config["models"]["a"]["profile"])
    profile: dict[str, Any] = json.loads(path.read_text())
    path.write_text(json.dumps({**profile, "parallel": slots}))


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
async def test_a_reader_that_stalls_is_given_up_as_a_disconnect(
    tmp_path: Path, stream: bool
) -> None:
    engine = {"disconnect_poll_s": 0.05}
    async with daemon(tmp_path, {"a": engine}, {"write_stall_ms": 700}) as it:
        await it.chat("a")
        client = await send_unread(it, "FX:chunk_bytes=50000 FX:force_tokens=400", stream=stream)
        record = await it.record_of(await client.head())
        assert (record["reason"], record["disconnect_phase"]) == ("client_disconnect", "generating")
        assert 700 <= record["total_ms"] < 4000
        assert 0 < record["response_bytes"] < 15_000_000
        assert (await it.metrics())["in_flight"] == 0
        if stream:  # a plain answer is complete for the engine before it is sent
            await until(lambda: len(it.stamps("disconnect")) == 1, 1)


async def test_a_slow_but_steady_reader_is_served_to_the_end(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {}}, {"write_stall_ms": 500}) as it:
        client = await it.connect()
        client.stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        text = "FX:chunk_bytes=50000 FX:force_tokens=160"
        await client.send(post(CHAT, body=chat_body("a", text, stream=True)))
        head = await client.head()
        started_s = time.monotonic()
        end = client.buffer[-100:]
        while not end.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
            end = (end + await client.stream.receive_some(65536))[-100:]
            await trio.sleep(0.01)
        assert time.monotonic() - started_s > 1
        assert (await it.record_of(head))["success"]


async def test_b17_a_client_that_reads_nothing_of_50_mb_burdens_nobody(tmp_path: Path) -> None:
    others = 10
    config = {"shutdown_ms": 300, "stream_commit_ms": 2000}
    async with daemon(tmp_path, {"a": {}}, config, start=False) as it:
        with_batch_slots(it, others + 1)
        await it.start()
        await it.chat("a")
        before = resident_bytes(it.pid)
        stalled = await send_unread(it, FLOOD)
        await stalled.head()
        waits_s: list[float] = []

        async def other() -> None:
            sent_s = time.monotonic()
            text = "FX:chunk_every_ms=20 FX:force_tokens=30"
            client = await it.send_chat("a", text, stream=True)
            await client.head()
            first = await next_piece(client)
            waits_s.append(first.at_s - sent_s)
            assert (await all_pieces(client))[-2].data.endswith(b"data: [DONE]\n\n")

        async with trio.open_nursery() as nursery:
            for _ in range(others):
                nursery.start_soon(other)
        assert len(waits_s) == others
        assert max(waits_s) < 0.5
        assert resident_bytes(it.pid) - before < 8 * MIB
        assert (await it.metrics())["in_flight"] == 1

        async def off() -> None:
            await it.control('{"cmd":"off","now":true}')

        async with trio.open_nursery() as nursery:
            cut_s = time.monotonic()
            nursery.start_soon(off)
            while (await it.metrics())["in_flight"]:
                await trio.sleep(0.005)
            assert time.monotonic() - cut_s < 0.5

        async def recorded() -> bool:
            return any(record["reason"] == "routing_off" for record in await it.records())

        with trio.fail_after(3):
            while not await recorded():
                await trio.sleep(0.02)
