"""Loads and unloads that meet waiting, arriving and leaving clients, on a real daemon.

Two bugs of peers are looked for in every round: one of several new models queued for ever, and a
model evicted between "loaded" and its own first request. Source: contract 6.5, 7; reports.md B01.
"""

import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from tests.system.crowd import QUICK, Crowd, engine_texts, frozen, metrics_until, starts, unix_s
from tests.system.harness import DaemonUnderTest, daemon, rounds, until
from tests.system.shared import running, visiting

AT_ONCE_S = 2.5
"""Killing one engine and starting the next, on a machine that is busy with other things."""

ENDLESS = {**QUICK, "load_s": 30.0}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonUnderTest]:
    models = {"a": QUICK, "b": QUICK, "c": QUICK, "d": QUICK, "slow": {**QUICK, "load_s": 0.7}}
    models |= {"endless": ENDLESS}
    aliases = {"test": {"allowed_models": ["a", "slow"]}}
    with running(tmp_path_factory.mktemp("loads"), models, {"aliases": aliases}) as it:
        yield it


def expect_no_load_in_vain(it: DaemonUnderTest) -> None:
    """Every engine that was started was asked something before it ended."""
    asked = {stamp.pid for stamp in it.stamps("request")}
    assert [s.model for s in it.stamps("start") if s.pid not in asked] == []
    assert it.overlaps() == []


# ---- several cold models at one instant ---------------------------------------------------------


@pytest.mark.bound_s(600)
async def test_cold_models_at_one_instant_are_all_served_with_one_load_each(
    tmp_path: Path,
) -> None:
    dice = random.Random(3)
    names = ["a", "b", "c", "d", "e"]
    async with daemon(tmp_path, dict.fromkeys(names, QUICK), {"model_grace_ms": 0}) as it:
        for number in range(rounds(10, 100)):
            loaded = (await it.metrics())["loaded_model"]
            cold = dice.sample([name for name in names if name != loaded], 2 + number % 2)
            started = len(it.stamps("start"))
            crowd = Crowd(it)
            wanted = cold * 2
            dice.shuffle(wanted)
            async with trio.open_nursery() as nursery:
                for index, model in enumerate(wanted):
                    nursery.start_soon(crowd.start, f"{model}{index}", model)
            await crowd.served()
            assert sorted(starts(it)[started:]) == sorted(cold)
        expect_no_load_in_vain(it)


@pytest.mark.bound_s(600)
async def test_a_model_is_never_evicted_before_its_own_first_request(tmp_path: Path) -> None:
    """More urgent work for another model comes at every moment around the end of its load."""
    models = {"b": {**QUICK, "load_s": 0.1}, "c": QUICK}
    async with daemon(tmp_path, models, {"model_grace_ms": 0}) as it:
        assert (await it.chat("c")).status == 200
        count = rounds(6, 80)
        for number in range(count):
            crowd = Crowd(it)
            seen = len(it.stamps("request"))
            await crowd.start("B", "b")
            await trio.sleep(0.1 + 0.3 * number / count)
            await crowd.start("C", "c", service_tier="priority")
            await crowd.served()
            assert engine_texts(it)[seen:] == ["B", "C"]
        expect_no_load_in_vain(it)


# ---- clients that leave -------------------------------------------------------------------------


async def test_the_first_of_a_group_leaves_and_the_rest_waits_no_longer(
    shared: DaemonUnderTest,
) -> None:
    async with visiting(shared) as it:
        await it.chat("a")
        crowd = Crowd(it)
        seen, started = len(it.stamps("request")), len(it.stamps("start"))
        with frozen(it):
            await crowd.send("busy", "a")
            await crowd.send("B1", "b")
            await crowd.send("C1", "c")
            await crowd.send("B2", "b")
            await crowd.leave("B1")
        await crowd.served()
        assert engine_texts(it)[seen:] == ["busy", "C1", "B2"]
        assert starts(it)[started:] == ["c", "b"]


async def test_nothing_is_loaded_for_a_client_that_leaves_in_the_instant_of_its_turn(
    tmp_path: Path,
) -> None:
    """The daemon stands still meanwhile, so that it learns of the active request's end and of the
    departure in one go. The trial is repeated because its tasks run in random order.
    """
    models = {"a": {**QUICK, "close_delay_s": 0.3}, "b": QUICK}
    async with daemon(tmp_path, models, {"model_grace_ms": 0}) as it:
        await it.chat("a")
        for _ in range(5):
            crowd = Crowd(it)
            ended = len(it.stamps("done"))
            with frozen(it):
                busy = await crowd.send("busy", "a", stream=True)
                impatient = [await crowd.send(f"B{number}", "b") for number in range(3)]
            await busy.until(b"data: [DONE]")
            it.signal(signal.SIGSTOP)
            for client in impatient:
                client.reset()
            await until(lambda ended=ended: len(it.stamps("done")) > ended)  # type: ignore[misc]  # bound early
            it.signal(signal.SIGCONT)
            await metrics_until(it, lambda m: m["in_flight"] + m["queue_depth"] == 0)
            left = [record for record in await it.records() if record["reason"] != "completed"]
            assert [record["disconnect_phase"] for record in left[-3:]] == ["queued"] * 3
        assert (await it.metrics())["loaded_model"] == "a"
        assert starts(it) == ["a"]


async def test_nothing_is_loaded_for_a_client_that_leaves_when_the_grace_ends(
    tmp_path: Path,
) -> None:
    """As before, with the end of the grace in place of the end of a request."""
    async with daemon(tmp_path, {"a": QUICK, "b": QUICK}, {"model_grace_ms": 500}) as it:
        for _ in range(5):
            await it.chat("a")
            grace_ends_s = time.monotonic() + 0.5
            crowd = Crowd(it)
            impatient = await crowd.send("B", "b")
            it.signal(signal.SIGSTOP)
            impatient.reset()
            await trio.sleep(grace_ends_s - time.monotonic() + 0.02)
            it.signal(signal.SIGCONT)
            await metrics_until(it, lambda m: m["in_flight"] + m["queue_depth"] == 0)
        assert starts(it) == ["a"]


async def test_who_caused_the_load_leaves_and_the_next_in_its_group_profits(
    shared: DaemonUnderTest,
) -> None:
    async with visiting(shared) as it:
        await it.chat("a")
        crowd = Crowd(it)
        started = len(it.stamps("start"))
        await crowd.send("S1", "slow")
        await crowd.send("S2", "slow")
        await until(lambda: starts(it)[started:] == ["slow"])
        await crowd.leave("S1")
        record = (await crowd.served())["S2"]
        assert starts(it)[started:] == ["slow"]
        assert not record["model_switch"]
        assert record["model_load_ms"] is None
        assert engine_texts(it)[-1] == "S2"


async def test_a_load_whose_client_left_runs_on_for_who_asks_next(shared: DaemonUnderTest) -> None:
    async with visiting(shared) as it:
        await it.chat("a")
        crowd = Crowd(it)
        started = len(it.stamps("start"))
        await crowd.send("S1", "slow")
        await until(lambda: starts(it)[started:] == ["slow"])
        await crowd.leave("S1")
        await crowd.send("S2", "slow")
        await crowd.served()
        assert starts(it)[started:] == ["slow"]


async def test_a_loading_model_counts_as_loaded_for_an_alias(shared: DaemonUnderTest) -> None:
    async with visiting(shared) as it:
        await it.chat("b")
        crowd = Crowd(it)
        started = len(it.stamps("start"))
        await crowd.send("S1", "slow")
        await crowd.send("alias", "test")  # a would be its preference
        replies = await crowd.replies()
        assert replies["alias"].headers["x-strata-concrete-model"] == ["slow"]
        assert starts(it)[started:] == ["slow"]


async def test_a_load_that_nobody_wants_is_killed_at_once_when_another_model_waits(
    shared: DaemonUnderTest,
) -> None:
    """Whether the other one waits already or comes later; no grace is kept for what never ran."""
    async with visiting(shared) as it:
        for waits_before in (True, False):
            crowd = Crowd(it)
            started = len(it.stamps("start"))
            await crowd.send("E", "endless")
            await until(lambda started=started: starts(it)[started:] == ["endless"])  # type: ignore[misc]  # bound early
            if waits_before:
                await crowd.send("C", "c", service_tier="flex")
            left_s = time.monotonic()
            await crowd.leave("E")
            if not waits_before:
                await crowd.send("C", "c", service_tier="flex")
            record = (await crowd.served())["C"]
            assert time.monotonic() - left_s < AT_ONCE_S
            assert record["model_switch"]
            assert starts(it)[started:] == ["endless", "c"]
        assert it.overlaps() == []


async def test_a_load_that_somebody_waits_for_goes_on_whoever_else_comes(
    shared: DaemonUnderTest,
) -> None:
    async with visiting(shared) as it:
        await it.chat("a")
        crowd = Crowd(it)
        seen = len(it.stamps("request"))
        await crowd.send("S1", "slow")
        await crowd.send("S2", "slow", service_tier="flex")
        await crowd.send("C1", "c", service_tier="priority")
        await crowd.leave("S1")
        await crowd.served()
        # Nobody who is ahead of S2 lets it go first, but its model is not thrown away unused.
        assert sorted(engine_texts(it)[seen:]) == ["C1", "S2"]
        assert it.overlaps() == []


@pytest.mark.bound_s(600)
async def test_a_client_that_leaves_at_any_moment_of_a_load_costs_nobody_a_wait(
    tmp_path: Path,
) -> None:
    """Before, while and after its engine starts, is ready and is asked."""
    async with daemon(tmp_path, {"b": QUICK, "c": QUICK}, {"model_grace_ms": 0}) as it:
        assert (await it.chat("c")).status == 200
        count = rounds(10, 120)
        for number in range(count):
            crowd = Crowd(it)
            await crowd.start("B", "b", stream=bool(number % 2))
            await trio.sleep(0.4 * number / count)
            await crowd.start("C", "c")
            left_s = time.monotonic()
            crowd.clients.pop("B").stream.socket.close()
            await crowd.served()
            assert time.monotonic() - left_s < AT_ONCE_S
        await metrics_until(it, lambda m: m["in_flight"] + m["queue_depth"] == 0)
        assert it.overlaps() == []


# ---- idle unload --------------------------------------------------------------------------------

IDLE_MS = 200
STEP_S = 0.05
STEPS = 20
"""Together they reach from the end of one request to well behind the end of the unload."""


@pytest.mark.bound_s(600)
async def test_a_request_is_answered_whenever_it_meets_the_idle_unload(tmp_path: Path) -> None:
    count = rounds(STEPS, 200)
    daemons = 4

    async def meet(directory: Path, numbers: range) -> None:
        directory.mkdir()
        knobs = {**QUICK, "exit_s": 0.15}
        async with daemon(directory, {"a": knobs}, {"idle_ms": IDLE_MS}) as it:
            assert (await it.chat("a")).status == 200
            for number in numbers:
                await trio.sleep(STEP_S * (number % STEPS))
                reply = await it.chat("a", f"meeting {number}")
                assert reply.status == 200
                record = await it.record_of(reply)
                assert record["model_switch"] == (record["model_load_ms"] is not None)
            assert 1 < len(it.stamps("start")) <= 1 + len(numbers)
            expect_no_load_in_vain(it)

    async with trio.open_nursery() as nursery:
        for part in range(daemons):
            numbers = range(part, count, daemons)
            nursery.start_soon(meet, tmp_path / str(part), numbers)


async def test_the_unload_waits_for_the_grace_and_for_an_empty_queue(tmp_path: Path) -> None:
    config = {"idle_ms": 50, "model_grace_ms": 600}
    async with daemon(tmp_path, {"a": QUICK, "b": QUICK}, config) as it:
        reply = await it.chat("a")
        ended_s = time.monotonic()
        assert reply.status == 200
        await until(lambda: it.stamps("stopping"))
        unloaded_s = it.stamps("stopping")[0].at
        assert unloaded_s - ended_s > 0.6 - 0.1
        await metrics_until(it, lambda metrics: metrics["loaded_model"] is None)
        # And while a ticket waits out the grace, the model goes by a switch, not by an unload.
        await it.chat("a")
        crowd = Crowd(it)
        await crowd.send("B", "b")
        record = (await crowd.served())["B"]
        assert record["queue_wait_ms"] >= 400
        ended_s = it.stamps("exit")[-1].at + time.time() - time.monotonic()
        assert unix_s(record["lease_at"]) < ended_s
