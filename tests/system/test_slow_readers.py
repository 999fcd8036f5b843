"""Clients that stop reading: given up after a while, and never a burden to the others.

The way of leaving that ``test_disconnects.py`` leaves out, in the same phases. Who only waits has nothing to
take, so nothing shows while a request is queued, loading or without headers; a body that stalls while it
is uploaded is a 408 (``test_errors.py``). Source: contract 3 (``write_stall_ms``), 6.5; reports.md B16, B17.
"""

import json
import socket
import time
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.runtime.http.raw import RawClient, post
from tests.system.harness import CHAT, DaemonUnderTest, chat_body, daemon, until
from tests.system.proc_figures import MIB, resident_bytes
from tests.system.shared import running, visiting
from tests.system.wire import all_pieces, next_piece, send_unread

FLOOD = "FX:chunk_bytes=50000 FX:force_tokens=1000"
"""50 MB as fast as they are taken."""

TOO_MUCH = "FX:chunk_bytes=50000 FX:force_tokens=400"
"""More than the sockets hold between an engine and a client that reads nothing."""

ENGINE = {"disconnect_poll_s": 0.05}
STALL_S = 0.5
WAIT_S = 0.9

MODES = pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])


class Phase(StrEnum):
    """Where a request waits for WAIT_S before its answer comes."""

    QUEUED = "queued"
    LOADING = "loading"
    HEADER_WAIT = "header_wait"


PHASES = pytest.mark.parametrize("phase", list(Phase), ids=str)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonUnderTest]:
    config = {
        "write_stall_ms": int(STALL_S * 1000),
        "stream_commit_ms": 100,
        "keepalive_ms": 500,
        "max_pending": 1,
    }
    models = {"a": {**ENGINE, "load_s": WAIT_S}, "b": ENGINE}
    with running(tmp_path_factory.mktemp("slow"), models, config) as it:
        yield it


async def wait_unread(
    it: DaemonUnderTest, phase: Phase, text: str, *, stream: bool
) -> tuple[RawClient, dict[str, Any]]:
    """A client of model a that waits for WAIT_S in this phase and reads nothing, and its record."""
    assert (await it.chat("b" if phase is Phase.LOADING else "a")).status == 200
    since = int((await it.metrics())["request_log"]["next_seq"])
    if phase is Phase.QUEUED:
        busy = await it.send_chat("a", f"FX:prefill={WAIT_S + 0.3}", stream=True)
        await busy.head()
    elif phase is Phase.HEADER_WAIT:
        text = f"FX:header_delay_s={WAIT_S} {text}"
    client = await send_unread(it, text, stream=stream)
    records: list[dict[str, Any]] = []
    expected = 2 if phase is Phase.QUEUED else 1
    with trio.fail_after(10):
        while len(records) < expected:
            records = (await it.get_json(f"/requests?after={since - 1}"))["records"]
            await trio.sleep(0.01)
    assert len(records) == expected
    record = records[-1]
    spent_ms = {
        Phase.QUEUED: record["queue_wait_ms"],
        Phase.LOADING: record["model_load_ms"],
        Phase.HEADER_WAIT: record["upstream_headers_ms"],
    }
    assert spent_ms[phase] >= 1000 * WAIT_S
    return client, record


def with_batch_slots(it: DaemonUnderTest, slots: int) -> None:
    """Let the engine of model a answer several requests at once."""
    path = Path(it.config["models"]["a"]["profile"])
    profile: dict[str, Any] = json.loads(path.read_text())
    path.write_text(json.dumps({**profile, "parallel": slots}))


@MODES
async def test_a_reader_that_stalls_is_given_up_as_a_disconnect(
    tmp_path: Path, stream: bool
) -> None:
    async with daemon(tmp_path, {"a": ENGINE}, {"write_stall_ms": 700}) as it:
        await it.chat("a")
        client = await send_unread(it, TOO_MUCH, stream=stream)
        record = await it.record_of(await client.head())
        assert (record["reason"], record["disconnect_phase"]) == ("client_disconnect", "generating")
        assert 700 <= record["total_ms"] < 4000
        assert 0 < record["response_bytes"] < 15_000_000
        assert (await it.metrics())["in_flight"] == 0
        if stream:  # a plain answer is complete for the engine before it is sent
            await until(lambda: len(it.stamps("disconnect")) == 1, 1)


@PHASES
@MODES
async def test_a_reader_that_stalls_after_a_wait_is_given_up_then(
    shared: DaemonUnderTest, phase: Phase, stream: bool
) -> None:
    async with visiting(shared) as it:
        left = len(it.stamps("disconnect"))
        _, record = await wait_unread(it, phase, TOO_MUCH, stream=stream)
        assert (record["reason"], record["disconnect_phase"]) == ("client_disconnect", "generating")
        assert record["total_ms"] >= 1000 * (WAIT_S + STALL_S)
        metrics = await it.metrics()
        assert metrics["in_flight"] == metrics["queue_depth"] == 0
        if stream:
            await until(lambda: len(it.stamps("disconnect")) == left + 1, 1)


@PHASES
@MODES
async def test_a_wait_beyond_the_stall_limit_is_no_stall(
    shared: DaemonUnderTest, phase: Phase, stream: bool
) -> None:
    async with visiting(shared) as it:
        client, record = await wait_unread(it, phase, "hello", stream=stream)
        assert (record["reason"], record["success"]) == ("completed", True)
        assert (await client.reply()).status == 200


@MODES
async def test_a_last_byte_that_is_fetched_late_is_no_stall(
    shared: DaemonUnderTest, stream: bool
) -> None:
    """What the client's own socket has taken is delivered; its connection stays good for more."""
    async with visiting(shared) as it:
        client, record = await wait_unread(it, Phase.LOADING, "hello", stream=stream)
        await trio.sleep(2 * STALL_S)
        assert not (await client.reply()).cut
        await client.send(post(CHAT, body=chat_body("a")))
        assert (await client.reply()).status == 200
        assert (await it.records())[-2] == record


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
