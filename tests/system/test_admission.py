"""Who goes next on a real daemon in wait-first mode: groups, tiers, grace, due tickets, limits.

Source: design, "Wait-first scheduling" and "Service tiers"; contract 7; reports.md B09.
"""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio

from strata_router.simulated.events import requests
from tests.system.crowd import (
    QUICK,
    Crowd,
    between_s,
    engine_texts,
    finish_of,
    frozen,
    metrics_until,
    start_of,
    starts,
)
from tests.system.harness import DaemonUnderTest, daemon
from tests.system.shared import running, visiting

SLACK_S = 0.4
"""What a busy machine may add to a timer."""

ENGINES = {"a": QUICK, "b": QUICK, "c": QUICK}
ONE_AT_A_TIME = {"max_pending": 1, "model_grace_ms": 0}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonUnderTest]:
    """One request at a time, no grace."""
    aliases = {"test": {"allowed_models": ["b", "a"]}}
    config = {**ONE_AT_A_TIME, "aliases": aliases, "stream_commit_ms": 10_000}
    with running(tmp_path_factory.mktemp("admission"), ENGINES, config) as it:
        yield it


class Scene(Crowd):
    """A crowd in front of a daemon that has model a loaded; what engines saw before is left out."""

    def __init__(self, it: DaemonUnderTest, seen: int, started: int) -> None:
        super().__init__(it)
        self._seen = seen
        self._started = started

    @property
    def texts(self) -> list[str]:
        return engine_texts(self.it)[self._seen :]

    @property
    def loads(self) -> list[str]:
        return starts(self.it)[self._started :]


async def scene(it: DaemonUnderTest) -> Scene:
    assert (await it.chat("a", "warm up")).status == 200
    await metrics_until(it, lambda metrics: metrics["in_flight"] == 0)
    return Scene(it, len(it.stamps("request")), len(it.stamps("start")))


async def keep_asking(it: DaemonUnderTest, pause_s: float) -> None:
    """One client that asks for model a again and again, until cancelled."""
    while True:
        assert (await it.chat("a", "loop", max_tokens=4)).status == 200
        await trio.sleep(pause_s)


# ---- model groups -------------------------------------------------------------------------------


@pytest.mark.parametrize("max_pending", [1, 32])
async def test_b09_a_busy_engine_is_asked_in_groups_with_one_switch(
    tmp_path: Path, max_pending: int
) -> None:
    config = {"model_grace_ms": 0, "max_pending": max_pending}
    async with daemon(tmp_path, ENGINES, config) as it:
        crowd = await scene(it)
        with frozen(it):
            await crowd.send("busy", "a")
            for name in ("A1", "B1", "A2", "B2", "A3"):
                await crowd.send(name, name[0].lower())
        records = await crowd.served()
        # With room for both at once, B1 and B2 race to the engine.
        assert [text[0] for text in crowd.texts] == ["b", "A", "A", "A", "B", "B"]
        assert crowd.texts[:4] == ["busy", "A1", "A2", "A3"]
        assert crowd.loads == ["b"]
        assert [name for name, record in records.items() if record["model_switch"]] == ["B1"]
        assert it.overlaps() == []


async def test_the_earliest_waiting_group_is_next(shared: DaemonUnderTest) -> None:
    async with visiting(shared) as it:
        crowd = await scene(it)
        with frozen(it):
            await crowd.send("busy", "a")
            for name in ("C1", "B1", "C2"):
                await crowd.send(name, name[0].lower())
        await crowd.served()
        assert crowd.texts == ["busy", "C1", "C2", "B1"]
        assert crowd.loads == ["c", "b"]


# ---- tiers --------------------------------------------------------------------------------------


async def test_b09_priority_for_another_model_holds_new_work_and_skips_the_grace(
    tmp_path: Path,
) -> None:
    """There is room for more requests of model a all the time; the engine drains all the same."""
    async with daemon(tmp_path, ENGINES, {"model_grace_ms": 1500}) as it:
        crowd = await scene(it)
        with frozen(it):
            await crowd.send("busy", "a")
            await crowd.send("B1", "b", service_tier="priority")
            await crowd.send("A1", "a")
            metrics = await it.metrics()
            assert (metrics["in_flight"], metrics["queue_depth"]) == (1, 2)
            assert metrics["queue_depth_by_tier"] == {"priority": 1, "default": 1, "flex": 0}
        records = await crowd.served()
        assert crowd.texts == ["busy", "B1", "A1"]
        assert start_of(it, "b") - finish_of(it, "busy") < 1.0
        # A1 is not urgent: it lets the grace of model b pass.
        assert start_of(it, "a") - finish_of(it, "B1") >= 1.5
        waited_s = between_s(records["B1"]["completed_at"], records["A1"]["lease_at"])
        assert waited_s < 1.5 + SLACK_S


async def test_a_lower_tier_waits_behind_higher_ones_also_for_the_loaded_model(
    shared: DaemonUnderTest,
) -> None:
    async with visiting(shared) as it:
        crowd = await scene(it)
        with frozen(it):
            await crowd.send("busy", "a")
            await crowd.send("flex A", "a", service_tier="flex")
            await crowd.send("default B", "b")
            await crowd.send("priority A", "a", service_tier="priority")
            await crowd.send("default A", "a")
            await crowd.send("priority C", "c", speed="fast")
        await crowd.served()
        # Priority: the loaded model first, then C. Default: B came first. Flex last of all.
        assert crowd.texts == [
            *("busy", "priority A", "priority C", "default B", "default A", "flex A")
        ]
        assert crowd.loads == ["c", "b", "a"]


async def test_b09_ordinary_work_for_another_model_waits_while_the_loaded_one_is_kept_busy(
    tmp_path: Path,
) -> None:
    """As documented, and seen in the metrics and in its record; urgent work brings it along."""
    async with daemon(tmp_path, ENGINES, {"model_grace_ms": 500}) as it:
        crowd = await scene(it)
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(keep_asking, it, 0.05)
            await metrics_until(it, lambda metrics: metrics["in_flight"] > 0)
            await crowd.start("default B", "b")
            await metrics_until(it, lambda m: m["queue_depth_by_tier"]["default"] > 0)
            await trio.sleep(1.0)
            assert (await it.metrics())["queue_depth_by_tier"]["default"] > 0
            assert "b" not in starts(it)
            await crowd.start("priority B", "b", service_tier="priority")
            records = await crowd.served()
            nursery.cancel_scope.cancel()
        assert records["priority B"]["lease_at"] <= records["default B"]["lease_at"]
        assert records["default B"]["queue_wait_ms"] >= 1000
        assert records["priority B"]["queue_wait_ms"] < 1000 * SLACK_S
        assert records["priority B"]["model_switch"]
        assert not records["default B"]["model_switch"]


@pytest.mark.parametrize(
    ("fields", "tier"),
    [
        ({}, "default"),
        ({"service_tier": None, "speed": None}, "default"),
        ({"service_tier": "auto"}, "default"),
        ({"service_tier": "default"}, "default"),
        ({"service_tier": "priority"}, "priority"),
        ({"service_tier": "flex"}, "flex"),
        ({"speed": "fast"}, "priority"),
        ({"speed": "standard"}, "default"),
        ({"speed": "fast", "service_tier": "flex"}, "priority"),
        ({"speed": "standard", "service_tier": "flex"}, "flex"),
    ],
)
async def test_the_tier_is_named_to_the_client_and_not_to_the_engine(
    shared: DaemonUnderTest, fields: dict[str, Any], tier: str
) -> None:
    async with visiting(shared) as it:
        for stream in (True, False):
            reply = await it.chat("a", stream=stream, **fields)
            assert reply.status == 200
            assert reply.headers["x-strata-service-tier"] == [tier]
        body = it.stamps("request")[-1].facts["body"]
        assert "service_tier" not in body
        assert "speed" not in body


# ---- grace --------------------------------------------------------------------------------------


async def test_a_tool_gap_within_the_grace_keeps_the_model(tmp_path: Path) -> None:
    async with daemon(tmp_path, ENGINES, {"model_grace_ms": 900}) as it:
        crowd = await scene(it)
        await crowd.send("B1", "b")
        for turn in ("turn 1", "turn 2", "turn 3"):
            assert (await it.chat("a", turn)).status == 200
            await trio.sleep(0.45)  # the gap; together they are longer than the grace
        assert crowd.loads == []
        last = (await it.records())[-1]
        record = (await crowd.served())["B1"]
        assert crowd.texts == ["turn 1", "turn 2", "turn 3", "B1"]
        assert start_of(it, "b") - finish_of(it, "turn 3") >= 0.9
        assert between_s(last["completed_at"], record["lease_at"]) < 0.9 + SLACK_S
        assert record["queue_wait_ms"] >= 450 + 450 + 900


async def test_without_grace_the_engine_changes_hands_at_once(shared: DaemonUnderTest) -> None:
    async with visiting(shared) as it:
        crowd = await scene(it)
        with frozen(it):
            await crowd.send("busy", "a")
            await crowd.send("B1", "b")
        records = await crowd.served()
        waited_s = between_s(records["busy"]["completed_at"], records["B1"]["lease_at"])
        assert waited_s < SLACK_S


# ---- max_wait_ms --------------------------------------------------------------------------------


async def test_a_due_ticket_stops_new_work_and_skips_the_grace(tmp_path: Path) -> None:
    config = {"model_grace_ms": 60_000, "max_wait_ms": {"default": 1000}}
    async with daemon(tmp_path, ENGINES, config) as it:
        crowd = await scene(it)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_asking, it, 0)
            await metrics_until(it, lambda metrics: metrics["in_flight"] > 0)
            await crowd.start("B1", "b")
            record = (await crowd.served())["B1"]
            nursery.cancel_scope.cancel()
        assert record["model_switch"]
        assert 1000 <= record["queue_wait_ms"] < 1000 + 1000 * SLACK_S


async def test_due_tickets_are_served_oldest_first_whatever_their_tier(tmp_path: Path) -> None:
    config = {**ONE_AT_A_TIME, "max_wait_ms": {"flex": 300, "default": 200}}
    async with daemon(tmp_path, ENGINES, config) as it:
        crowd = await scene(it)
        with frozen(it):
            await crowd.send("busy", "a")
            await crowd.send("flex B", "b", service_tier="flex")
            await crowd.send("default C", "c")
            await crowd.send("default A", "a")
            await crowd.send("priority A", "a", service_tier="priority")
            await trio.sleep(0.35)
        await crowd.served()
        assert crowd.texts == ["busy", "flex B", "default C", "default A", "priority A"]


# ---- limits -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "places"),
    [
        ({"max_pending": 3}, 3),
        ({"max_pending": 5, "cache_max_active": 2}, 2),
        ({"max_pending": 4, "cache_max_active": 2, "cache_lookup_ms": 0}, 4),
        ({"wait_when_busy": False, "max_pending": 6, "cache_max_active": 2}, 2),
        ({"wait_when_busy": False, "max_pending": 6}, 6),
    ],
)
async def test_no_more_requests_are_with_the_engine_than_the_limits_allow(
    tmp_path: Path, config: dict[str, Any], places: int
) -> None:
    async with daemon(tmp_path, {"a": {}}, config, start=False) as it:
        it.set_knobs("a", QUICK, parallel=8)
        await it.start()
        crowd = await scene(it)
        with frozen(it):
            for number in range(6):
                await crowd.send(f"A{number}", "a", stream=True)
            await metrics_until(it, lambda metrics: metrics["in_flight"] == places)
            with trio.fail_after(5):
                while len(crowd.texts) < places:
                    await trio.sleep(0.01)
            assert (await it.metrics())["queue_depth"] == 6 - places
        await crowd.served()
        assert sorted(crowd.texts) == [f"A{number}" for number in range(6)]
        assert most_at_once(it) == places


def most_at_once(it: DaemonUnderTest) -> int:
    """How many chat requests an engine had at one time, by its own stamps."""
    changes = []
    for request in requests(it.stamps()):
        assert request.done_at is not None
        changes += [(request.at, 1), (request.done_at, -1)]
    level = peak = 0
    for _, change in sorted(changes):
        level += change
        peak = max(peak, level)
    return peak


# ---- aliases ------------------------------------------------------------------------------------


async def test_an_alias_stands_for_what_is_loaded_when_its_turn_comes(
    shared: DaemonUnderTest,
) -> None:
    """Streams too, until they are committed; the header names who answers."""
    async with visiting(shared) as it:
        for stream in (False, True):
            # While it waits, a is loaded, which it accepts; then c, which it does not; so b is.
            crowd = await scene(it)
            with frozen(it):
                await crowd.send("busy", "a")
                await crowd.send("C1", "c", service_tier="priority")
                await crowd.send("alias", "test", stream=stream)
            assert (await crowd.replies())["alias"].headers["x-strata-concrete-model"] == ["b"]
            assert crowd.loads == ["c", "b"]
            # And here it prefers b, but finds a loaded.
            crowd = await scene(it)
            with frozen(it):
                await crowd.send("busy", "a")
                await crowd.send("alias", "test", stream=stream)
            reply = (await crowd.replies())["alias"]
            assert reply.headers["x-strata-concrete-model"] == ["a"]
            assert crowd.loads == []
            record = await it.record_of(reply)
            assert (record["model_requested"], record["model_resolved"]) == ("test", "a")


async def test_a_committed_alias_is_answered_by_the_model_that_its_head_has_named(
    tmp_path: Path,
) -> None:
    aliases = {"test": {"allowed_models": ["b", "a"]}}
    config = {**ONE_AT_A_TIME, "aliases": aliases, "stream_commit_ms": 0}
    async with daemon(tmp_path, ENGINES, config) as it:
        crowd = await scene(it)
        with frozen(it):
            await crowd.send("busy", "a")
            alias = await crowd.send("alias", "test", stream=True)
            await alias.until(b": keepalive")
            await crowd.send("B1", "b", service_tier="priority")
            await crowd.send("B2", "b")
        crowd.clients.pop("alias")
        await crowd.replies()
        await alias.until(b"data: [DONE]")
        # B2 is for the loaded model; the alias, had it not been committed, could have joined it.
        assert crowd.texts == ["busy", "B1", "B2", "alias"]
        assert crowd.loads == ["b", "a"]
        record = (await it.records())[-1]
        assert (record["model_resolved"], record["model_switch"]) == ("a", True)


async def test_a_failed_alias_never_tries_another_model(tmp_path: Path) -> None:
    aliases = {"test": {"allowed_models": ["b", "a"]}}
    async with daemon(tmp_path, {"a": QUICK, "b": {"fail_load": 1}}, {"aliases": aliases}) as it:
        reply = await it.chat("test")
        assert reply.status == 503
        assert reply.headers["x-strata-concrete-model"] == ["b"]
        assert starts(it) == ["b"]


async def test_requests_of_one_group_keep_their_order_of_arrival(shared: DaemonUnderTest) -> None:
    async with visiting(shared) as it:
        crowd = await scene(it)
        names = [f"A{number}" for number in range(6)]
        with frozen(it):
            await crowd.send("busy", "a")
            for name in names:
                await crowd.send(name, "a")
        records = await crowd.served()
        assert crowd.texts == ["busy", *names]
        leases = [records[name]["lease_at"] for name in names]
        assert all(earlier <= later for earlier, later in pairwise(leases))
