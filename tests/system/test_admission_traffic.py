"""Random traffic, from a printed seed: the order against a simple model, and a history that is audited.

Several models, an alias, all tiers, clients that leave. Source: contract 7; invariant 5 of the
reliability document.
"""

import random
import time
from collections import Counter
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any

import pytest
import trio

from strata_router.simulated.events import engine_intervals
from tests.system.admission_audit import URGENCY, Asked, History, Life, Rules
from tests.system.crowd import QUICK, Crowd, engine_texts, frozen, metrics_until, unix_s
from tests.system.harness import DaemonUnderTest, daemon, rounds
from tests.system.wire import Leaving, leave

CACHED = {**QUICK, "cache_lookup": True}

# ---- the order, where it is certain -------------------------------------------------------------


@dataclass
class Queued:
    """One waiting request. cached: of ten tokens, what the engine will say."""

    name: str
    model: str
    tier: str
    cached: int


def predicted(queue: list[Queued], loaded: str) -> list[str]:
    """Names in the order in which one place after the other is given to them; no grace."""
    left, order = list(queue), []
    while left:
        tier = min((each.tier for each in left), key=lambda tier: URGENCY[tier])
        urgent = [each for each in left if each.tier == tier]
        if group := [each for each in urgent if each.model == loaded]:
            following = max(group, key=lambda each: (each.cached, -queue.index(each)))
        else:
            following = urgent[0]
            loaded = following.model
        left.remove(following)
        order.append(following.name)
    return order


@pytest.mark.bound_s(900)
async def test_the_engines_are_asked_in_the_order_that_a_simple_model_predicts(
    tmp_path: Path,
) -> None:
    config = {"cache_max_active": 1, "cache_lookup_ms": 10_000, "model_grace_ms": 0}
    async with daemon(tmp_path, dict.fromkeys("abc", CACHED), config) as it:
        for seed in range(rounds(4, 50)):
            dice = random.Random(seed)
            assert (await it.chat("a")).status == 200
            await metrics_until(it, lambda metrics: metrics["in_flight"] == 0)
            seen = len(it.stamps("request"))
            crowd = Crowd(it)
            queue: list[Queued] = []
            with frozen(it):
                await crowd.send("busy", "a")
                for number in range(10):
                    cached = dice.choice([0, 0, 2, 5, 9])
                    model, tier = dice.choice("aabc"), dice.choice(list(URGENCY))
                    name = f"{number} FX:cached={cached}/10"
                    queue.append(Queued(name, model, tier, cached))
                    await crowd.send(name, model, service_tier=tier)
                for gone in dice.sample(queue, 2):
                    queue.remove(gone)
                    await crowd.leave(gone.name)
            await crowd.served()
            found = engine_texts(it)[seen + 1 :]
            assert found == predicted(queue, "a"), f"seed {seed}: {queue}"
        assert it.overlaps() == []


# ---- traffic whose history is audited -----------------------------------------------------------

MODELS = ("a", "b", "c")
ACCEPTS = {"a": ("a",), "b": ("b",), "c": ("c",), "test": ("b", "a")}
PLACES = 2
STUCK_S = 40.0
"""Three seconds of traffic are served in a fraction of this, on whatever machine."""

HASTY = ("a", "flex")
"""Who leaves without having read anything cannot be told from others who did, so all of them are alike."""


@dataclass
class Traffic:
    """Clients that ask at random for a while, and what they know of their requests afterwards."""

    it: DaemonUnderTest
    dice: random.Random
    until_s: float
    known: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Request id -> name and tier that were asked for."""
    answered: Counter[int] = field(default_factory=Counter)

    @property
    def commits(self) -> bool:
        return self.it.config.get("stream_commit_ms") == 0

    async def run(self, clients: int) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(clients):
                nursery.start_soon(self._client)

    async def _client(self) -> None:
        while time.monotonic() < self.until_s:
            await trio.sleep(self.dice.choice([0.0, 0.02, 0.1, 0.4]) * self.dice.random())
            await self.dice.choice([self._patient] * 6 + [self._impatient] * 2 + [self._hasty])()

    def _choice(self) -> tuple[str, str]:
        model = self.dice.choices(["a", "b", "c", "test"], [5, 3, 1, 2])[0]
        return model, self.dice.choices(["priority", "default", "flex"], [1, 6, 2])[0]

    async def _ask(self, model: str, tier: str, *, stream: bool) -> Any:
        tokens, pace_ms = self.dice.randint(1, 8), self.dice.choice([0, 5, 30, 60])
        text = f"FX:force_tokens={tokens} FX:chunk_every_ms={pace_ms}"
        if self.dice.random() < 0.15:
            text += " FX:header_delay_s=0.2"
        return await self.it.send_chat(model, text, stream=stream, service_tier=tier)

    async def _patient(self) -> None:
        model, tier = self._choice()
        client = await self._ask(model, tier, stream=self.dice.random() < 0.6)
        reply = await client.reply()
        await client.stream.aclose()
        self.answered[reply.status] += 1
        assert not reply.cut
        assert b"event: error" not in reply.body
        self.known[reply.headers["x-strata-request-id"][0]] = (model, tier)

    async def _impatient(self) -> None:
        """Leaves some time after its head, which comes at once if streams are committed at once."""
        model, tier = self._choice()
        client = await self._ask(model, tier, stream=True)
        head = await client.head()
        self.known[head.headers["x-strata-request-id"][0]] = (model, tier)
        await trio.sleep(self.dice.choice([0.0, 0.05, 0.5]) * self.dice.random())
        leave(client, self.dice.choice([Leaving.FIN, Leaving.RST]))

    async def _hasty(self) -> None:
        client = await self._ask(*HASTY, stream=self.dice.random() < 0.5)
        await trio.sleep(self.dice.choice([0.0, 0.005, 0.03]) * self.dice.random())
        leave(client, self.dice.choice([Leaving.FIN, Leaving.RST]))

    async def asked(self) -> list[Asked]:
        """Every request that reached the daemon, as its record tells it."""
        page = await self.it.get_json("/requests?after=0&limit=1000")
        assert page["dropped"] == 0
        return [self._asked(record) for record in page["records"]]

    def _asked(self, record: dict[str, Any]) -> Asked:
        name, tier = self.known.get(record["request_id"], HASTY)
        accepts = ACCEPTS[name]
        if record["stream"] and self.commits and record["model_resolved"] is not None:
            accepts = (record["model_resolved"],)  # committed at once, so bound to one model
        return Asked(
            name=f"{record['request_id']} ({tier}, {name})",
            tier=tier,
            accepts=accepts,
            arrived_s=unix_s(record["arrived_at"]),
            lease_s=None if record["lease_at"] is None else unix_s(record["lease_at"]),
            ended_s=unix_s(record["completed_at"]),
            model=record["model_resolved"] if record["lease_at"] is not None else None,
            headers_s=_headers_s(record),
        )


def _headers_s(record: dict[str, Any]) -> float | None:
    headers_ms = record["upstream_headers_ms"]
    return None if headers_ms is None else unix_s(record["arrived_at"]) + headers_ms / 1000


def lives(it: DaemonUnderTest) -> list[Life]:
    """Engines that became ready, on the records' clock."""
    to_unix_s = time.time() - time.monotonic()
    stopping = {stamp.pid: stamp.at for stamp in it.stamps("stopping")}
    found = []
    for interval in engine_intervals(it.stamps()):
        if interval.ready_at is not None:
            end = stopping.get(interval.pid, interval.ended_at)
            ended_s = float("inf") if end is None else end + to_unix_s
            found.append(
                Life(
                    interval.model.removeprefix("upstream-"), interval.ready_at + to_unix_s, ended_s
                )
            )
    return found


@dataclass(frozen=True)
class Setting:
    """One configuration, what follows from it for the audit, and what clients may be told."""

    config: dict[str, Any]
    rules: Rules
    statuses: frozenset[int] = frozenset({200})


WAIT_FIRST: dict[str, Any] = {
    "max_pending": PLACES,
    "model_grace_ms": 150,
    "max_wait_ms": {"default": 2500, "flex": 4000},
    "stream_commit_ms": 0,
}
MAX_WAIT_S = {"default": 2.5, "flex": 4.0}
SETTINGS = {
    "arrival order": Setting({**WAIT_FIRST, "cache_lookup_ms": 0}, Rules(PLACES, 0.15, MAX_WAIT_S)),
    "cache order": Setting(
        {**WAIT_FIRST, "cache_lookup_ms": 300, "cache_max_active": 1},
        Rules(1, 0.15, MAX_WAIT_S, lookup_s=0.3),
    ),
    "legacy": Setting(
        {"wait_when_busy": False, "max_pending": 8, "queue_ms": 2000, "cache_lookup_ms": 0},
        Rules(inf, 0.0, {}, one_before_headers=True),
        frozenset({200, 429, 504}),
    ),
}


@pytest.mark.bound_s(900)
@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
async def test_no_ticket_waits_while_the_rules_would_admit_it(
    tmp_path: Path, setting: Setting
) -> None:
    """Many clients, all models and tiers; nobody is lost, passed over or left to wait for nothing."""
    aliases = {"test": {"allowed_models": list(ACCEPTS["test"])}}
    config = {"aliases": aliases, **setting.config}
    for seed in range(rounds(1, 20)):
        directory = tmp_path / str(seed)
        directory.mkdir()
        async with daemon(directory, dict.fromkeys(MODELS, CACHED), config, start=False) as it:
            for model in MODELS:
                it.set_knobs(model, CACHED, parallel=PLACES)
            await it.start()
            traffic = Traffic(it, random.Random(seed), time.monotonic() + 3.0)
            with trio.fail_after(STUCK_S):
                await traffic.run(clients=10)
            await metrics_until(it, lambda m: m["in_flight"] + m["queue_depth"] == 0)
            asked = await traffic.asked()
            history = History(asked, lives(it), setting.rules)
            assert history.breaches() == [], f"seed {seed}"
            assert set(traffic.answered) <= setting.statuses, f"seed {seed}"
            assert it.overlaps() == [], f"seed {seed}"
            assert traffic.answered[200] > 10
            assert len({life.model for life in history.lives}) > 1
