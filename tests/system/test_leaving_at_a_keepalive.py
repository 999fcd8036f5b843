"""A client that leaves in the instant of a keep-alive: before, with or behind it, nothing is left of it.

The keep-alive's timer writes into a connection between its task's own writes, so this is where a write can
meet a close. Source: reliability.md, "Faults to survive", Client; contract 6.4, 6.5.
"""

import random
from pathlib import Path

import pytest
import trio

from tests.runtime.http.raw import RawClient
from tests.system.harness import DaemonUnderTest, daemon, rounds
from tests.system.record_rules import expect_each_once
from tests.system.wire import KEEPALIVE, Leaving, leave

KEEPALIVE_S = 0.5
"""As keepalive_ms below: the least that is allowed."""

SPREAD_S = 0.004
"""Around the instant at which the timer is due, as this client can know it."""

LEAVE_BY = (Leaving.FIN, Leaving.RST, Leaving.HALF_CLOSE)


async def leave_around_a_keepalive(
    it: DaemonUnderTest, text: str, chance: random.Random, how: Leaving
) -> None:
    """Two keep-alives tell when the third is due; leave then, or as soon as it has come."""
    client = await it.send_chat("a", text, stream=True)
    async with client.stream:
        for _ in range(2):
            await client.until(KEEPALIVE)
        due = trio.current_time() + KEEPALIVE_S
        if chance.random() < 0.25:
            await client.until(KEEPALIVE)
        else:
            await trio.sleep_until(due + chance.uniform(-SPREAD_S, SPREAD_S))
        leave(client, how)
        if how is Leaving.HALF_CLOSE:
            await read_to_the_end(client)


async def read_to_the_end(client: RawClient) -> None:
    while await client.stream.receive_some(65536):
        pass


@pytest.mark.parametrize(
    ("text", "phase"), [("hello", "queued"), ("FX:prefill_s=30", "generating")]
)
async def test_whoever_leaves_around_a_keepalive_leaves_one_record_and_nothing_else(
    tmp_path: Path, text: str, phase: str
) -> None:
    """Queued behind another's answer, or while the engine says nothing yet."""
    config = {
        "keepalive_ms": int(KEEPALIVE_S * 1000),
        "stream_commit_ms": 0,
        "max_pending": 1 if phase == "queued" else 64,
    }
    leaving = rounds(30, 60)
    chance = random.Random(phase)
    async with daemon(tmp_path, {"a": {"disconnect_poll_s": 0.1}}, config) as it:
        first = await it.send_chat("a", "FX:prefill_s=60", stream=True)
        await first.until(KEEPALIVE)
        async with trio.open_nursery() as nursery:
            for number in range(leaving):
                how = LEAVE_BY[number % len(LEAVE_BY)]
                nursery.start_soon(leave_around_a_keepalive, it, text, chance, how)
        await it.status_until(lambda now: (now["queue_depth"], now["in_flight"]) == (0, 1))
        leave(first, Leaving.FIN)
        assert (await it.chat("a", stream=True)).status == 200
        records = await it.records()
        expect_each_once(records, 1 + leaving + 1)
        theirs = [record for record in records if 1 < record["arrival_seq"] <= 1 + leaving]
        assert {record["reason"] for record in theirs} == {"client_disconnect"}
        assert {record["disconnect_phase"] for record in theirs} == {phase}
        assert "internal error" not in it.log
