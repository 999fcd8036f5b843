"""A client that goes away, in every phase and by every way, streaming or not.

Noticed within a second: its ticket or lease is gone, the engine sees its own client leave, there is
exactly one record. Clients that stay but take nothing more: ``test_slow_readers.py``. Source: contract 6.5;
reports.md B08, B14, B15, B23, B24.
"""

import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import trio

from tests.runtime.http.raw import RawClient, post
from tests.system.harness import CHAT, DaemonUnderTest, chat_body, until
from tests.system.proc_figures import descriptors
from tests.system.shared import running, visiting
from tests.system.wire import Leaving, leave, next_piece

NOTICED_S = 1.0

WAYS = pytest.mark.parametrize("how", list(Leaving), ids=str)
MODES = pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])

ENGINE = {"disconnect_poll_s": 0.05}
"""Strata looks twice a second; a shorter interval shows how soon the router has let go."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonUnderTest]:
    config = {"stream_commit_ms": 100, "keepalive_ms": 500, "max_pending": 1}
    models = {
        "a": ENGINE,
        "b": {**ENGINE, "load_s": 0.5},
        "closes-late": {**ENGINE, "close_delay_s": 2.0},
    }
    with running(tmp_path_factory.mktemp("disconnects"), models, config) as it:
        yield it


async def within(holds: Any, within_s: float = NOTICED_S) -> None:
    """Wait for an asynchronous condition."""
    with trio.move_on_after(within_s):
        while not await holds():
            await trio.sleep(0.01)
        return
    raise AssertionError(f"not within {within_s} s")


async def is_free(it: DaemonUnderTest) -> bool:
    metrics = await it.metrics()
    return int(metrics["in_flight"]) + int(metrics["queue_depth"]) == 0


async def is_queued(it: DaemonUnderTest) -> bool:
    return int((await it.metrics())["queue_depth"]) == 1


@dataclass
class Departure:
    """One request whose client leaves."""

    it: DaemonUnderTest
    seq: int  # of the next record when it began
    engine_requests: int

    async def record(self) -> dict[str, Any]:
        """The one record that was made since; there within a second, and no second one."""

        async def closed() -> bool:
            return int((await self.it.metrics())["request_log"]["next_seq"]) > self.seq

        await within(closed)
        await within(lambda: is_free(self.it))
        page = await self.it.get_json(f"/requests?after={self.seq - 1}")
        (record,) = page["records"]
        assert isinstance(record, dict)
        return record

    async def expect(self, phase: str, *, stream: bool) -> dict[str, Any]:
        """That record tells of a client that left in this phase."""
        record = await self.record()
        assert (record["reason"], record["disconnect_phase"]) == ("client_disconnect", phase)
        assert (record["stream"], record["success"]) == (stream, False)
        return record

    async def expect_engine_saw_it(self) -> None:
        """The engine was asked, and has noticed that nobody waits for its answer."""
        it = self.it
        (asked,) = it.stamps("request")[self.engine_requests :]

        def left() -> bool:
            return any(
                (stamp.pid, stamp.facts["seq"]) == (asked.pid, asked.facts["seq"])
                for stamp in it.stamps("disconnect")
            )

        await until(left, NOTICED_S)

    def expect_engine_was_not_asked(self) -> None:
        assert len(self.it.stamps("request")) == self.engine_requests


@asynccontextmanager
async def departing(shared: DaemonUnderTest, model: str = "a") -> AsyncIterator[Departure]:
    """A visit to an idle daemon with this model loaded."""
    async with visiting(shared) as it:
        if (await it.metrics())["loaded_model"] != model:
            assert (await it.chat(model)).status == 200
        await within(lambda: is_free(it))
        next_seq = (await it.metrics())["request_log"]["next_seq"]
        yield Departure(it, next_seq, len(it.stamps("request")))


async def expect_nothing_more(client: RawClient, how: Leaving) -> None:
    """One that only closed its sending half is not answered: its connection ends."""
    if how is Leaving.HALF_CLOSE:
        with trio.fail_after(NOTICED_S):
            while await client.stream.receive_some():
                pass


# ---- one phase after the other ------------------------------------------------------------------


@WAYS
@MODES
async def test_b15_leaving_while_uploading(
    shared: DaemonUnderTest, how: Leaving, stream: bool
) -> None:
    """What the client wanted is not known before its body is complete."""
    async with departing(shared) as departure:
        client = await departure.it.connect()
        begun = chat_body("a", stream=stream)[:50]
        await client.send(post(CHAT, "Content-Length: 1000", body=None), begun)
        leave(client, how)
        record = await departure.expect("queued", stream=False)
        assert (record["status"], record["model_requested"]) == (None, None)
        departure.expect_engine_was_not_asked()
        await expect_nothing_more(client, how)


@WAYS
@MODES
async def test_b08_leaving_while_queued_never_reaches_the_engine(
    shared: DaemonUnderTest, how: Leaving, stream: bool
) -> None:
    async with departing(shared) as departure:
        it = departure.it
        busy = await it.send_chat("a", "FX:slow", stream=True)
        await next_piece_after_head(busy)
        client = await it.send_chat("a", "I will not wait", stream=stream)
        await within(lambda: is_queued(it))
        if stream:
            await next_piece_after_head(client)
        leave(client, how)

        async def has_left() -> bool:
            return not await is_queued(it)

        await within(has_left)
        page = await it.get_json(f"/requests?after={departure.seq - 1}")
        (record,) = page["records"]
        assert (record["reason"], record["disconnect_phase"]) == ("client_disconnect", "queued")
        assert (record["stream"], record["lease_at"]) == (stream, None)
        assert record["status"] == (200 if stream else None)
        await expect_nothing_more(client, how)
        busy.reset()
        await within(lambda: is_free(it))
        assert len(it.stamps("request")) == departure.engine_requests + 1


async def next_piece_after_head(client: RawClient) -> None:
    await client.head()
    await next_piece(client)


@WAYS
@MODES
async def test_b14_leaving_while_loading_frees_the_lease_and_the_load_runs_on(
    shared: DaemonUnderTest, how: Leaving, stream: bool
) -> None:
    async with departing(shared, "a") as departure:
        it = departure.it
        starts = len(it.stamps("start"))
        client = await it.send_chat("b", stream=stream)
        await until(lambda: len(it.stamps("start")) == starts + 1)
        leave(client, how)
        record = await departure.expect("loading", stream=stream)
        assert record["lease_at"] is not None
        assert record["upstream_headers_ms"] is None
        await expect_nothing_more(client, how)
        # The next asker profits of the load.
        assert (await it.chat("b")).status == 200
        assert len(it.stamps("start")) == starts + 1
        assert len(it.stamps("request")) == departure.engine_requests + 1


@WAYS
@MODES
async def test_b14_leaving_while_the_engine_is_silent(
    shared: DaemonUnderTest, how: Leaving, stream: bool
) -> None:
    async with departing(shared) as departure:
        it = departure.it
        client = await it.send_chat("a", "FX:header_delay_s=20", stream=stream)
        await until(lambda: len(it.stamps("request")) > departure.engine_requests)
        leave(client, how)
        await departure.expect("loading", stream=stream)
        await departure.expect_engine_saw_it()
        await expect_nothing_more(client, how)


@WAYS
@MODES
async def test_b08_leaving_while_the_answer_comes(
    shared: DaemonUnderTest, how: Leaving, stream: bool
) -> None:
    async with departing(shared) as departure:
        it = departure.it
        text = "FX:slow" if stream else "FX:segment_bytes=20 FX:segment_gap_ms=40"
        client = await it.send_chat("a", text, stream=stream)
        head = await client.head()
        if stream:
            await client.until(b'"content":"This')
        leave(client, how)
        record = await departure.expect("generating", stream=stream)
        assert record["request_id"] == head.headers["x-strata-request-id"][0]
        assert record["status"] == 200
        assert (record["first_token_at"] is not None) is stream
        if stream:
            await departure.expect_engine_saw_it()


@WAYS
@MODES
async def test_leaving_with_the_last_byte_is_no_disconnect(
    shared: DaemonUnderTest, how: Leaving, stream: bool
) -> None:
    async with departing(shared) as departure:
        client = await departure.it.send_chat("a", stream=stream)
        await client.reply()
        leave(client, how)
        record = await departure.record()
        assert (record["reason"], record["success"]) == ("completed", True)
        assert record["disconnect_phase"] is None


@WAYS
async def test_leaving_after_done_is_no_disconnect(shared: DaemonUnderTest, how: Leaving) -> None:
    async with departing(shared, "closes-late") as departure:
        client = await departure.it.send_chat("closes-late", stream=True)
        await client.until(b"data: [DONE]\n\n")
        left_s = time.monotonic()
        leave(client, how)
        record = await departure.record()
        assert time.monotonic() - left_s < NOTICED_S
        assert (record["reason"], record["success"]) == ("completed", True)


# ---- what follows -------------------------------------------------------------------------------


@WAYS
@MODES
async def test_b08_a_waiting_request_for_another_model_proceeds(
    shared: DaemonUnderTest, how: Leaving, stream: bool
) -> None:
    async with departing(shared, "b") as departure:
        it = departure.it
        client = await it.send_chat("b", "FX:header_delay_s=20 FX:slow", stream=stream)
        await until(lambda: len(it.stamps("request")) > departure.engine_requests)
        waiting = await it.send_chat("a")
        await within(lambda: is_queued(it))
        left_s = time.monotonic()
        leave(client, how)
        reply = await waiting.reply()
        assert reply.status == 200
        assert time.monotonic() - left_s < 2.5  # the old engine's stop and a load without a delay
        assert (await it.record_of(reply))["model_switch"]
        assert it.overlaps() == []


async def test_b15_a_half_close_right_behind_the_request_counts_as_leaving(
    shared: DaemonUnderTest,
) -> None:
    async with departing(shared) as departure:
        client = await departure.it.send_chat("a", "FX:header_delay_s=20")
        leave(client, Leaving.HALF_CLOSE)
        record = await departure.record()
        assert record["reason"] == "client_disconnect"
        await expect_nothing_more(client, Leaving.HALF_CLOSE)


async def test_b23_the_last_usage_seen_survives_the_clients_leaving(
    shared: DaemonUnderTest,
) -> None:
    async with departing(shared) as departure:
        it = departure.it
        text = "FX:usage=inline FX:chunk_every_ms=30 FX:force_tokens=200"
        client = await it.send_chat("a", text, stream=True)
        for _ in range(6):
            await client.until(b'"usage":')
        leave(client, Leaving.FIN)
        record = await departure.expect("generating", stream=True)
        assert record["completion_tokens"] >= 6
        assert record["first_token_at"] is not None
        assert record["last_token_at"] > record["first_token_at"]


async def test_a_client_behind_its_own_pipelined_bytes_is_noticed(shared: DaemonUnderTest) -> None:
    async with departing(shared) as departure:
        client = await departure.it.send_chat("a", "FX:header_delay_s=20")
        await client.send(b"\r\n" + post(CHAT, body=b"x" * 60_000))
        await until(lambda: len(departure.it.stamps("request")) > departure.engine_requests)
        leave(client, Leaving.FIN)
        await departure.expect("loading", stream=False)
        await departure.expect_engine_saw_it()


async def test_b24_impatient_clients_leave_nothing_behind(shared: DaemonUnderTest) -> None:
    clients = 150
    dice = random.Random(24)
    async with departing(shared) as departure:
        it = departure.it
        before = descriptors(it.pid)

        async def impatient() -> None:
            client = await it.send_chat("a", stream=dice.random() < 0.5)
            await trio.sleep(dice.uniform(0, 0.05))
            leave(client, dice.choice(list(Leaving)))

        async with trio.open_nursery() as nursery:
            for _ in range(clients):
                nursery.start_soon(impatient)

        async def all_closed() -> bool:
            seq = int((await it.metrics())["request_log"]["next_seq"])
            return seq == departure.seq + clients and await is_free(it)

        await within(all_closed, 10)
        started_s = time.monotonic()
        assert (await it.chat("a")).status == 200
        assert time.monotonic() - started_s < 0.5
        for client in it.clients:
            client.stream.socket.close()
        await until(lambda: descriptors(it.pid) <= before, 2)
