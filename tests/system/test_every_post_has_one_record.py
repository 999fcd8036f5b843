"""A random mixture of every outcome, from a printed seed: as many records as POSTs, each once.

Source: contract 9, spec/reliability.md, invariants 1 to 3. ``ROUNDS`` multiplies the requests,
``SEED`` repeats a run.
"""

import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.runtime.http.raw import RawClient, post
from tests.system.harness import CHAT, DaemonUnderTest, chat_body, daemon
from tests.system.proc_figures import descriptors
from tests.system.wire import CHUNKED_HEAD, Leaving, chunked, leave

ROUNDS = int(os.environ.get("ROUNDS", "1"))
SEED = int(os.environ.get("SEED", "20261129"))
REQUESTS = 300 * ROUNDS
AT_ONCE = 24

Act = Callable[["Crowd"], Awaitable[int]]
"""One client's doing; returns how many POSTs on the chat path it made."""


class Crowd:
    """The clients of one run, all decisions from one seed."""

    def __init__(self, it: DaemonUnderTest, dice: random.Random) -> None:
        self.it = it
        self.dice = dice
        self.statuses: Counter[int] = Counter()

    def model(self) -> str:
        """Mostly the same, so that not every request is a switch."""
        return self.dice.choices(["a", "b", "test", "broken"], [60, 6, 30, 4])[0]

    def is_stream(self) -> bool:
        return self.dice.random() < 0.5

    async def ask(self, text: str, **fields: Any) -> RawClient:
        model = fields.pop("model", self.model())
        return await self.it.send_chat(model, text, stream=self.is_stream(), **fields)

    async def read(self, client: RawClient) -> None:
        """Take the answer, whole or cut; then go."""
        try:
            self.statuses[(await client.reply()).status] += 1
        except (EOFError, trio.BrokenResourceError):
            self.statuses[0] += 1
        client.stream.socket.close()


async def answered(crowd: Crowd) -> int:
    text = crowd.dice.choice(["hello", "FX:crlf", "FX:gzip", "FX:usage=none", "FX:nofinish"])
    tier = crowd.dice.choice(["priority", "default", "flex", "auto"])
    await crowd.read(await crowd.ask(text, service_tier=tier))
    return 1


async def refused(crowd: Crowd) -> int:
    bodies = [b"", b"{", b"[]", b'{"model":5}', chat_body("no-such"), chat_body("a", speed="x")]
    headers = crowd.dice.choice([(), ("Origin: null",), ("Content-Encoding: gzip",)])
    client = await crowd.it.connect()
    await client.send(post(CHAT, *headers, body=crowd.dice.choice(bodies)))
    await crowd.read(client)
    return 1


async def too_large(crowd: Crowd) -> int:
    client = await crowd.it.connect()
    body = b"x" * 70_000
    framed = CHUNKED_HEAD + chunked(body, 9000)
    await client.send(framed if crowd.is_stream() else post(CHAT, body=body))
    await crowd.read(client)
    return 1


async def failing_engine(crowd: Crowd) -> int:
    faults = ["json500", "json400", "busy", "html500", "empty200", "nothing", "headers_only"]
    cuts = ["FX:cut_after_chunks=1", "FX:cut_after_chunks=1 FX:cut=mid_event", "FX:done=false"]
    text = crowd.dice.choice([f"FX:answer={fault}" for fault in faults] + cuts)
    late = crowd.dice.choice(["", " FX:header_delay_s=0.1"])
    await crowd.read(await crowd.ask(text + late))
    return 1


async def dying_engine(crowd: Crowd) -> int:
    await crowd.read(await crowd.ask("FX:die_after_chunks=1"))
    return 1


async def uploading_leaver(crowd: Crowd) -> int:
    client = await crowd.it.connect()
    await client.send(post(CHAT, "Content-Length: 500", body=None), b'{"model":')
    await trio.sleep(crowd.dice.uniform(0, 0.03))
    leave(client, crowd.dice.choice(list(Leaving)))
    return 1


async def leaver(crowd: Crowd) -> int:
    text = crowd.dice.choice(["FX:header_delay_s=5", "FX:slow", "FX:prefill=5", "hello"])
    client = await crowd.ask(text)
    await trio.sleep(crowd.dice.uniform(0, 0.2))
    leave(client, crowd.dice.choice(list(Leaving)))
    return 1


async def pipelining(crowd: Crowd) -> int:
    client = await crowd.it.connect()
    await client.send(post(CHAT, body=chat_body("a")), post(CHAT, body=b"{"))
    for _ in range(2):
        crowd.statuses[(await client.reply()).status] += 1
    return 2


async def stranger(crowd: Crowd) -> int:
    """What is no POST on the chat path, or no request at all."""
    client = await crowd.it.connect()
    request = [
        post("/v1/responses", body=b"{}"),
        post(CHAT, body=b"").replace(b"POST", b"PUT"),
        post(CHAT, "Content-Length: 1", "Transfer-Encoding: chunked", body=None),
        b"\x16\x03\x01\r\n\r\n",
    ]
    await client.send(crowd.dice.choice(request))
    await crowd.read(client)
    return 0


ACTS: dict[Act, int] = {
    answered: 30,
    refused: 12,
    too_large: 4,
    failing_engine: 14,
    dying_engine: 1,
    uploading_leaver: 8,
    leaver: 20,
    pipelining: 5,
    stranger: 6,
}


@pytest.mark.bound_s(60.0 + 60.0 * ROUNDS)
@pytest.mark.parametrize("wait_when_busy", [True, False], ids=["wait-first", "legacy"])
async def test_every_post_has_exactly_one_record(tmp_path: Path, wait_when_busy: bool) -> None:
    print(f"SEED={SEED} ROUNDS={ROUNDS}")
    dice = random.Random(SEED)
    requests = REQUESTS if wait_when_busy else REQUESTS // 3
    fast = {"disconnect_poll_s": 0.02}
    models: dict[str, dict[str, Any]] = {"a": fast, "b": fast, "broken": {"fail_load": 1}}
    config = {
        "wait_when_busy": wait_when_busy,
        "max_request_body_bytes": 65536,
        "request_log_capacity": 100_000,
        "request_log_path": str(tmp_path / "records.jsonl"),
        "stream_commit_ms": 50,
        "cooldown_ms": 500,
        "aliases": {"test": {"allowed_models": ["a", "b"]}},
        "queue_ms": 3000,
        "max_pending": 16,
        "shutdown_ms": 500,
    }
    async with daemon(tmp_path, models, config) as it:
        await it.chat("a")
        crowd = Crowd(it, dice)
        idle_descriptors = descriptors(it.pid)
        posts = 1
        slots = trio.Semaphore(AT_ONCE)

        async def act(one: Act) -> None:
            nonlocal posts
            async with slots:
                made = await one(crowd)
                posts += made

        async with trio.open_nursery() as nursery:
            for one in dice.choices(list(ACTS), list(ACTS.values()), k=requests):
                nursery.start_soon(act, one)
        with trio.fail_after(20):
            while (await it.metrics())["request_log"]["next_seq"] <= posts:
                await trio.sleep(0.02)
        await trio.sleep(0.2)  # that no further record comes cannot be waited for
        metrics = await it.metrics()
        records = await all_records(it)
        everyone = list(range(1, posts + 1))
        assert [record["seq"] for record in records] == everyone
        assert sorted(record["arrival_seq"] for record in records) == everyone
        assert len({record["request_id"] for record in records}) == posts
        assert (metrics["in_flight"], metrics["queue_depth"]) == (0, 0)
        assert metrics["request_log"]["write_drops"] == 0
        assert it.overlaps() == []
        assert "internal error" not in it.log
        for record in records:
            expect_consistent(record)
        seen = Counter(record["reason"] for record in records)
        assert {"completed", "invalid_request", "upstream_error", "client_disconnect"} <= set(seen)
        for client in it.clients:
            client.stream.socket.close()
        with trio.fail_after(8):
            while descriptors(it.pid) > idle_descriptors:
                await trio.sleep(0.05)
    lines = (tmp_path / "records.jsonl").read_text().splitlines()
    assert len(lines) == posts


async def all_records(it: DaemonUnderTest) -> list[dict[str, Any]]:
    """Page by page, as a collector reads them."""
    records: list[dict[str, Any]] = []
    while True:
        after = records[-1]["seq"] if records else 0
        page = await it.get_json(f"/requests?after={after}&limit=1000")
        if not page["records"]:
            return records
        records += page["records"]


def expect_consistent(record: dict[str, Any]) -> None:
    """What must hold of any record, whatever happened."""
    left = record["reason"] == "client_disconnect"
    assert (record["disconnect_phase"] is not None) is left, record
    assert record["success"] <= (record["reason"] == "completed"), record
    assert record["success"] <= (record["status"] is not None and record["status"] < 300), record
    if record["lease_at"] is None:
        assert record["queue_wait_ms"] is None, record
        assert record["upstream_status"] is None, record
        assert not record["model_switch"], record
    if record["first_token_at"] is not None:
        assert record["upstream_headers_ms"] <= record["ttft_ms"] <= record["total_ms"], record
    if record["status"] is None:
        assert record["response_bytes"] == 0, record
        assert record["reason"] in ("client_disconnect", "shutdown"), record
