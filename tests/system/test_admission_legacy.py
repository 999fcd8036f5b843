"""Legacy bounded mode on a real daemon: its lock, its limits, and what it shares with wait-first.

One request at a time selects a model, loads it and waits for upstream headers; work for the loaded
model overlaps afterwards. Source: design, "Legacy bounded scheduling"; contract 7.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from strata_router.simulated.events import Request, requests
from tests.runtime.http.raw import post
from tests.system.crowd import (
    QUICK,
    Crowd,
    engine_texts,
    frozen,
    metrics_until,
    request_text,
    start_of,
    starts,
)
from tests.system.harness import CHAT, DaemonUnderTest, chat_body, daemon, until
from tests.system.shared import running, visiting
from tests.system.wire import error_of

SLACK_S = 0.4
"""What a busy machine may add to a timer."""

LEGACY = {"wait_when_busy": False, "max_pending": 8}
SLOW_HEAD = "FX:header_delay_s=0.6"


def _slots_for_all(it: DaemonUnderTest) -> None:
    for model in "abc":
        it.set_knobs(model, QUICK, parallel=8)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonUnderTest]:
    """An engine with eight slots per model, so that only the router makes requests wait."""
    directory = tmp_path_factory.mktemp("legacy")
    with running(directory, dict.fromkeys("abc", QUICK), LEGACY, _slots_for_all) as it:
        yield it


async def loaded(it: DaemonUnderTest, model: str) -> int:
    """Have the model loaded and idle; how many requests engines have seen by then."""
    assert (await it.chat(model)).status == 200
    await metrics_until(it, lambda metrics: metrics["in_flight"] == 0)
    return len(it.stamps("request"))


def seen_by_engine(it: DaemonUnderTest) -> dict[str, Request]:
    """Requests by name; the last one of each."""
    names = [request_text(stamp) for stamp in it.stamps("request")]
    return dict(zip(names, requests(it.stamps()), strict=True))


# ---- the lock -----------------------------------------------------------------------------------


async def test_one_request_at_a_time_waits_for_its_headers(shared: DaemonUnderTest) -> None:
    async with visiting(shared) as it:
        seen = await loaded(it, "a")
        crowd = Crowd(it)
        names = [f"{name} {SLOW_HEAD}" for name in ("A1", "A2", "A3")]
        for name in names:
            await crowd.send(name, "a")
        # Whoever waits for headers has its lease, and counts as queued all the same.
        metrics = await it.metrics()
        assert (metrics["in_flight"], metrics["queue_depth"]) == (1, 2)
        assert metrics["queue_depth_by_tier"] == {"priority": 0, "default": 3, "flex": 0}
        await crowd.served()
        assert engine_texts(it)[seen:] == names
        first, second, third = (seen_by_engine(it)[name] for name in names)
        assert second.at - first.at >= 0.6
        assert third.at - second.at >= 0.6


async def test_work_for_the_loaded_model_overlaps_once_headers_are_there(
    shared: DaemonUnderTest,
) -> None:
    async with visiting(shared) as it:
        await loaded(it, "a")
        crowd = Crowd(it)
        names = [f"A{number}" for number in range(4)]
        with frozen(it):
            for name in names:
                await crowd.send(name, "a", stream=True)
            # All have their headers, which counted as waiting before; none has ended.
            nobody = {"priority": 0, "default": 0, "flex": 0}
            metrics = await metrics_until(it, lambda m: m["queue_depth_by_tier"] == nobody)
            assert (metrics["in_flight"], metrics["queue_depth"]) == (4, 0)
        await crowd.served()
        asked = seen_by_engine(it)
        ends = [asked[name].done_at for name in names]
        assert max(asked[name].at for name in names) < min(end for end in ends if end is not None)


async def test_the_lock_covers_the_load(shared: DaemonUnderTest) -> None:
    async with visiting(shared) as it:
        await loaded(it, "b")
        crowd = Crowd(it)
        names = [f"A1 {SLOW_HEAD}", "A2"]
        for name in names:
            await crowd.send(name, "a")
        metrics = await it.metrics()
        assert (metrics["in_flight"], metrics["queue_depth_by_tier"]["default"]) == (1, 2)
        records = await crowd.served()
        first, second = (seen_by_engine(it)[name] for name in names)
        assert second.at - first.at >= 0.6
        assert [records[name]["model_switch"] for name in names] == [True, False]
        assert records["A2"]["model_load_ms"] is None


async def test_who_leaves_while_waiting_for_headers_frees_the_lock(
    shared: DaemonUnderTest,
) -> None:
    async with visiting(shared) as it:
        await loaded(it, "a")
        crowd = Crowd(it)
        hopeless = await crowd.send("FX:header_delay_s=30", "a")
        await crowd.send("A2", "a")
        left_s = time.monotonic()
        hopeless.stream.socket.close()
        del crowd.clients["FX:header_delay_s=30"]
        await crowd.served()
        assert time.monotonic() - left_s < 1 + SLACK_S


async def test_a_request_for_another_model_waits_until_all_active_ones_have_finished(
    shared: DaemonUnderTest,
) -> None:
    async with visiting(shared) as it:
        seen = await loaded(it, "a")
        crowd = Crowd(it)
        started = len(it.stamps("start"))
        with frozen(it):
            for name in ("A1", "A2"):
                await crowd.send(name, "a", stream=True)
            await crowd.send("B1", "b")
            await crowd.send("A3", "a", stream=True)  # the loaded model's work goes first
            await metrics_until(it, lambda m: (m["in_flight"], m["queue_depth"]) == (3, 1))
        await crowd.served()
        assert sorted(engine_texts(it)[seen:]) == ["A1", "A2", "A3", "B1"]
        assert engine_texts(it)[-1] == "B1"
        assert starts(it)[started:] == ["b"]
        assert start_of(it, "b") > max(
            seen_by_engine(it)[n].done_at or 0 for n in ("A1", "A2", "A3")
        )


async def test_a_waiting_higher_tier_holds_back_lower_ones(shared: DaemonUnderTest) -> None:
    async with visiting(shared) as it:
        seen = await loaded(it, "a")
        crowd = Crowd(it)
        with frozen(it):
            await crowd.send("A1", "a", stream=True)
            await crowd.send("B priority", "b", service_tier="priority")
            await crowd.send("A default", "a", stream=True)
            await crowd.send("A flex", "a", stream=True, service_tier="flex")
            # A1 counts as waiting until its headers are there.
            split = {"priority": 1, "default": 1, "flex": 1}
            metrics = await metrics_until(it, lambda m: m["queue_depth_by_tier"] == split)
            assert (metrics["in_flight"], metrics["queue_depth"]) == (1, 3)
        await crowd.served()
        assert engine_texts(it)[seen:] == ["A1", "B priority", "A default", "A flex"]


# ---- limits -------------------------------------------------------------------------------------


async def test_max_pending_counts_active_and_waiting_requests_of_every_tier(
    shared: DaemonUnderTest,
) -> None:
    async with visiting(shared) as it:
        await loaded(it, "a")
        crowd = Crowd(it)
        with frozen(it):
            for number in range(4):
                await crowd.send(f"A{number}", "a", stream=True)
            for number in range(4):
                await crowd.send(f"B{number}", "b")
            await metrics_until(it, lambda m: (m["in_flight"], m["queue_depth"]) == (4, 4))
            for model, tier in (("a", "priority"), ("b", "default")):
                reply = await it.chat(model, "too many", service_tier=tier)
                assert (reply.status, error_of(reply)["code"]) == (429, "queue_full")
                record = await it.record_of(reply)
                assert (record["reason"], record["lease_at"]) == ("queue_full", None)
                assert record["queue_depth_at_arrival"] == record["in_flight_at_arrival"] == 4
            await crowd.leave("B0")
            await crowd.send("B4", "b")  # one place less in use is one more to have
        await crowd.served()
        assert "too many" not in engine_texts(it)


async def test_who_waits_longer_than_queue_ms_gets_504_and_causes_no_switch(
    tmp_path: Path,
) -> None:
    config = {**LEGACY, "queue_ms": 600}
    async with daemon(tmp_path, {"a": QUICK, "b": QUICK}, config) as it:
        await loaded(it, "a")
        crowd = Crowd(it)
        with frozen(it):
            await crowd.send("A1", "a", stream=True)
            sent_s = time.monotonic()
            reply = await it.chat("b", "late", service_tier="priority")
            waited_s = time.monotonic() - sent_s
        assert (reply.status, error_of(reply)["code"]) == (504, "queue_timeout")
        assert 0.6 <= waited_s < 0.6 + SLACK_S
        record = await it.record_of(reply)
        assert (record["reason"], record["queue_wait_ms"]) == ("queue_timeout", None)
        await crowd.served()
        assert (await it.metrics())["loaded_model"] == "a"
        assert starts(it) == ["a"]


async def test_the_wait_for_a_load_of_ones_own_is_not_bounded_by_queue_ms(tmp_path: Path) -> None:
    config = {**LEGACY, "queue_ms": 300}
    async with daemon(tmp_path, {"a": {**QUICK, "load_s": 0.9}}, config) as it:
        owner = await it.send_chat("a", "owner")
        await until(lambda: it.stamps("start"))
        reply = await it.chat("a", "waits behind the lock")
        assert (reply.status, error_of(reply)["code"]) == (504, "queue_timeout")
        assert (await owner.reply()).status == 200


async def test_the_time_of_the_upload_does_not_count_for_queue_ms(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": QUICK}, {**LEGACY, "queue_ms": 400}) as it:
        client = await it.connect()
        body = chat_body("a")
        await client.send(post(CHAT, f"Content-Length: {len(body)}", body=None), body[:10])
        await trio.sleep(0.6)
        await client.send(body[10:])
        reply = await client.reply()
        assert reply.status == 200
        # In the record it does.
        assert (await it.record_of(reply))["queue_wait_ms"] >= 500


# ---- as in wait-first ---------------------------------------------------------------------------


async def test_an_idle_model_is_unloaded_and_loaded_again(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": QUICK}, {**LEGACY, "idle_ms": 300}) as it:
        for count in (1, 2):
            assert (await it.chat("a")).status == 200
            ended_s = time.monotonic()
            await until(lambda count=count: len(it.stamps("stopping")) == count)  # type: ignore[misc]  # bound early
            assert it.stamps("stopping")[-1].at - ended_s > 0.2
            await metrics_until(it, lambda metrics: metrics["loaded_model"] is None)
        assert starts(it) == ["a", "a"]


async def test_during_the_cooldown_requests_are_refused_without_another_launch(
    tmp_path: Path,
) -> None:
    models = {"a": {**QUICK, "fail_first_load": 1}, "b": QUICK}
    async with daemon(tmp_path, models, {**LEGACY, "cooldown_ms": 1200}) as it:
        failed = await it.chat("a")
        failed_s = time.monotonic()
        assert (failed.status, error_of(failed)["code"]) == (503, "model_load_failed")
        refused = await it.chat("a")
        assert refused.status == 503
        assert 1 <= int(refused.headers["retry-after"][0]) <= 2
        record = await it.record_of(refused)
        assert (record["reason"], record["model_load_ms"]) == ("model_load_error", None)
        assert (await it.chat("b")).status == 200
        assert starts(it) == ["a", "b"]
        await trio.sleep(max(0, failed_s + 1.25 - time.monotonic()))
        assert (await it.chat("a")).status == 200
        assert starts(it) == ["a", "b", "a"]
