"""Exactly one truthful record per POST, whatever becomes of it; numbers by a count of our own.

Each way to end is looked at by itself in ``test_errors``, ``test_disconnects`` and ``test_streams``;
here they are mixed at random, raced against the end of the answer, and counted.
"""

import json
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.runtime.http.raw import RawClient, Reply, post
from tests.system.harness import CHAT, DaemonUnderTest, chat_body, daemon, rounds, until
from tests.system.record_rules import expect_each_once, expect_told_the_same

SEED = 20261129

ENGINE = {"disconnect_poll_s": 0.05}

REFUSED = (
    b"{",
    b"[]",
    b'{"model":"no-such"}',
    b'{"model":"absent"}',
    b'{"model":"a","stream":3}',
    b'{"model":"a","service_tier":"gold"}',
)


@dataclass
class Clients:
    """Clients that behave at random, and what they know: how often they asked and what they got."""

    it: DaemonUnderTest
    chance: random.Random
    posts: int = 0
    replies: list[Reply] = field(default_factory=list)

    async def ask(self, body: bytes) -> RawClient:
        client = await self.it.connect()
        await client.send(post(CHAT, body=body))
        self.posts += 1
        return client

    def body(self, text: str = "hello", **fields: Any) -> bytes:
        tiers = ("priority", "default", "flex")
        return chat_body(
            self.chance.choice(("a", "a", "a", "b", "test")),
            text,
            stream=self.chance.random() < 0.6,
            service_tier=self.chance.choice(tiers),
            **fields,
        )

    async def take_the_answer(self, body: bytes | None = None) -> None:
        client = await self.ask(self.body() if body is None else body)
        # When an engine dies, nothing may be left to say.
        with suppress(EOFError, trio.BrokenResourceError):
            self.replies.append(await client.reply())
        client.stream.socket.close()

    async def be_refused(self) -> None:
        await self.take_the_answer(self.chance.choice(REFUSED))

    async def meet_a_fault(self) -> None:
        """Of the engine, short of its death."""
        faults = (
            "FX:error_after_chunks=2",
            "FX:answer=json500",
            "FX:busy",
            "FX:gzip",
            "FX:nofinish",
        )
        await self.take_the_answer(self.body(self.chance.choice(faults)))

    async def see_the_engine_die(self) -> None:
        deaths = ("FX:die", "FX:die_at=headers", "FX:die_at=final", "FX:engine_dies_after_chunks=1")
        await self.take_the_answer(self.body(self.chance.choice(deaths)))

    async def leave(self) -> None:
        """By FIN, at any moment: the head has been sent, so it is read."""
        client = await self.ask(self.body("FX:chunk_every_ms=4"))
        await trio.sleep(self.chance.random() * 0.1)
        client.stream.socket.close()

    async def leave_while_uploading(self) -> None:
        client = await self.it.connect()
        await client.send(post(CHAT, "Content-Length: 5000", body=None), b'{"model"')
        self.posts += 1
        await trio.sleep(self.chance.random() * 0.02)
        client.stream.socket.close()

    async def reset_in_the_answer(self) -> None:
        """Once something has come, the head was read for certain."""
        client = await self.ask(self.body("FX:slow"))
        if await client.stream.receive_some(1):
            client.reset()

    async def do_anything(self) -> None:
        ways: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (40, self.take_the_answer),
            (12, self.be_refused),
            (8, self.meet_a_fault),
            (2, self.see_the_engine_die),
            (20, self.leave),
            (6, self.leave_while_uploading),
            (6, self.reset_in_the_answer),
        ]
        (way,) = self.chance.choices([way for _, way in ways], [weight for weight, _ in ways])
        await way()


async def idle(it: DaemonUnderTest) -> dict[str, Any]:
    """The figures once nobody waits and nothing runs."""
    with trio.fail_after(20):
        while True:
            metrics = await it.metrics()
            if metrics["in_flight"] == metrics["queue_depth"] == 0:
                return metrics
            await trio.sleep(0.02)


@pytest.mark.bound_s(600)
async def test_any_mix_of_requests_and_faults_leaves_one_consistent_record_each(
    tmp_path: Path,
) -> None:
    log = tmp_path / "requests.jsonl"
    config = {
        "aliases": {"test": {"allowed_models": ["b", "a"]}},
        "request_log_path": str(log),
        "request_log_capacity": 100_000,
        "stream_commit_ms": 20,
        "max_pending": 3,
        "shutdown_ms": 1_000,
        "drain_ms": 200,
    }
    async with daemon(
        tmp_path, {"a": ENGINE, "b": ENGINE, "absent": {}}, config, start=False
    ) as it:
        it.config["models"]["absent"]["installed"] = False
        await it.start()
        clients = Clients(it, random.Random(SEED))
        left = rounds(150, 2_000)

        async def client() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                await clients.do_anything()

        async def operator(over: trio.Event) -> None:
            while not over.is_set():
                await trio.sleep(0.8)
                await it.off(now=True)
                await it.on(clients.chance.choice("ab"))

        async with trio.open_nursery() as nursery:
            over = trio.Event()
            nursery.start_soon(operator, over)
            async with trio.open_nursery() as crowd:
                for _ in range(8):
                    crowd.start_soon(client)
            over.set()

        metrics = await idle(it)
        assert metrics["request_log"]["next_seq"] == clients.posts + 1
        assert it.overlaps() == []
        # And some whom the end of the daemon meets: answered, waiting, uploading.
        cut = [chat_body("a", "FX:slow", stream=True), chat_body("a", "FX:slow"), chat_body("b")]
        for body in cut:
            await clients.ask(body)
        uploading = await it.connect()
        await uploading.send(post(CHAT, "Content-Length: 5000", body=None), b'{"model"')
        clients.posts += 1
        with trio.fail_after(20):
            while (await it.metrics())["in_flight"] == 0:
                await trio.sleep(0.01)
        await it.stop()
        records = [json.loads(line) for line in log.read_text().splitlines()]
        expect_each_once(records, clients.posts)
        expect_told_the_same(records, clients.replies)
        assert {record["reason"] for record in records[-len(cut) - 1 :]} == {"shutdown"}
        seen = {record["reason"] for record in records}
        assert seen >= {"completed", "client_disconnect", "invalid_request", "routing_off"}


@pytest.mark.bound_s(600)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
async def test_b23_a_disconnect_that_races_the_end_leaves_one_record(
    tmp_path: Path, stream: bool
) -> None:
    """The moment of leaving is steered to where half of the requests are complete."""
    async with daemon(tmp_path, {"a": ENGINE}, {"request_log_capacity": 100_000}) as it:
        await it.chat("a")
        chance = random.Random(SEED)
        count = rounds(60, 2_000)
        delay_s, ends = 0.005, {"completed": 0, "client_disconnect": 0}
        for number in range(2, count + 2):
            client = await it.send_chat("a", "FX:tokens=3", stream=stream)
            began = time.monotonic()
            while time.monotonic() - began < delay_s:
                await trio.lowlevel.checkpoint()
            client.stream.socket.close()
            with trio.fail_after(5):
                page = await it.get_json(f"/requests?after={number - 1}")
                while not page["records"]:
                    page = await it.get_json(f"/requests?after={number - 1}")
            (record,) = page["records"]
            ends[record["reason"]] += 1
            was_late = record["reason"] == "completed"
            delay_s *= (0.9 if was_late else 1.1) * chance.uniform(0.97, 1.03)
        await idle(it)
        records: list[dict[str, Any]] = []
        while len(records) <= count:
            page = await it.get_json(f"/requests?after={len(records)}&limit=1000")
            records += page["records"]
        expect_each_once(records, count + 1)
        assert min(ends.values()) >= count // 10, ends


async def test_an_engine_that_dies_leaves_one_record_of_each_it_held_up(tmp_path: Path) -> None:
    """While it generates, before its response head, and while the next one loads."""
    engines = {"a": ENGINE, "b": {"die_loading_after_s": 0.2, "load_s": 5}}
    async with daemon(tmp_path, engines, {"cooldown_ms": 60_000}) as it:
        generating = await it.send_chat("a", "FX:slow", stream=True)
        with trio.fail_after(10):
            while b"data:" not in generating.buffer:
                assert await generating._more()
        silent = await it.send_chat("a", "FX:header_delay_s=30")
        await until(lambda: len(it.stamps("request")) == 2)
        loading = await it.send_chat("b")
        with trio.fail_after(5):
            while (await it.metrics())["queue_depth"] != 1:
                await trio.sleep(0.01)
        (server,) = {stamp.pid for stamp in it.stamps("request")}
        os.kill(server, signal.SIGKILL)
        assert (await silent.reply()).status == 502
        assert (await loading.reply()).status == 503
        assert (await generating.reply()).status == 200
        records = await it.records()
        expect_each_once(records, 3)
        assert {record["arrival_seq"]: record["reason"] for record in records} == {
            1: "upstream_error",
            2: "upstream_error",
            3: "model_load_error",
        }
        assert [record["first_token_at"] is None for record in records].count(False) == 1
