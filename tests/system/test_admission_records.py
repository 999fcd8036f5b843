"""What records and metrics say of waiting, admission and loads, checked against what was done.

Source: design, "Record schema, version 1"; contract 5, 9.
"""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.system.crowd import (
    QUICK,
    SEEN_S,
    Crowd,
    between_s,
    frozen,
    metrics_until,
    starts,
)
from tests.system.harness import DaemonUnderTest, daemon, until
from tests.system.shared import running, visiting

LOAD_S = 0.5


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonUnderTest]:
    models = {"a": QUICK, "b": {**QUICK, "load_s": LOAD_S}}
    config = {"max_pending": 1, "model_grace_ms": 0}
    with running(tmp_path_factory.mktemp("records"), models, config) as it:
        yield it


async def idle(it: DaemonUnderTest, model: str) -> None:
    """Have the model loaded and nobody else there."""
    assert (await it.chat(model)).status == 200
    await metrics_until(it, lambda metrics: metrics["in_flight"] == 0)


async def new_records(it: DaemonUnderTest, count: int, after: int) -> list[dict[str, Any]]:
    """The records after a sequence number, once there are so many."""
    with trio.fail_after(SEEN_S):
        while True:
            page = await it.get_json(f"/requests?after={after}&limit=1000")
            found: list[dict[str, Any]] = page["records"]
            if len(found) >= count:
                assert len(found) == count
                return found
            await trio.sleep(0.01)


async def last_seq(it: DaemonUnderTest) -> int:
    return int((await it.metrics())["request_log"]["next_seq"]) - 1


async def test_a_cold_start_counts_as_a_switch(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {"load_s": 0.3}}) as it:
        record = await it.record_of(await it.chat("a"))
        assert (record["queue_depth_at_arrival"], record["in_flight_at_arrival"]) == (0, 0)
        assert record["model_switch"]
        assert record["model_load_ms"] >= 300
        assert record["queue_wait_ms"] < 250


async def test_a_record_tells_what_the_request_found_and_how_long_it_waited(
    shared: DaemonUnderTest,
) -> None:
    async with visiting(shared) as it:
        await idle(it, "a")
        crowd = Crowd(it)
        with frozen(it):
            for name, model in (("A0", "a"), ("A1", "a"), ("A2", "a"), ("B1", "b"), ("B2", "b")):
                await crowd.send(name, model)
            await trio.sleep(0.3)
        records = await crowd.served()
        names = list(crowd.clients)

        def each(field: str) -> list[Any]:
            return [records[name][field] for name in names]

        assert each("queue_depth_at_arrival") == [0, 0, 1, 2, 3]
        assert each("in_flight_at_arrival") == [0, 1, 1, 1, 1]
        assert each("model_switch") == [False, False, False, True, False]
        assert [load is not None for load in each("model_load_ms")] == [False] * 3 + [True, False]
        assert all(waited >= 300 for waited in each("queue_wait_ms")[1:])
        for record in records.values():
            waited_ms = 1000 * between_s(record["arrived_at"], record["lease_at"])
            assert abs(record["queue_wait_ms"] - waited_ms) <= 2
        # Admission comes before the load, so the wait is without it; headers come after both.
        switched = records["B1"]
        assert switched["model_load_ms"] >= 1000 * LOAD_S
        together_ms = switched["queue_wait_ms"] + switched["model_load_ms"]
        assert switched["upstream_headers_ms"] >= together_ms
        assert records["B2"]["queue_wait_ms"] >= records["B1"]["queue_wait_ms"] + 1000 * LOAD_S


async def test_a_reload_after_the_engines_death_is_no_switch(shared: DaemonUnderTest) -> None:
    async with visiting(shared) as it:
        await idle(it, "a")
        os.kill(it.stamps("start")[-1].pid, signal.SIGKILL)
        await metrics_until(it, lambda metrics: metrics["loaded_model"] is None)
        record = await it.record_of(await it.chat("a"))
        assert not record["model_switch"]
        assert record["model_load_ms"] > 0
        record = await it.record_of(await it.chat("a"))
        assert record["model_load_ms"] is None


async def test_a_failed_load_is_measured_for_who_caused_it(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {"load_s": 0.4, "fail_load": 1}}) as it:
        crowd = Crowd(it)
        await crowd.send("A1", "a")
        await crowd.send("A2", "a")
        replies = await crowd.replies()
        first, second = [await it.record_of(replies[name]) for name in ("A1", "A2")]
        assert first["model_load_ms"] >= 400
        assert (first["model_switch"], first["queue_wait_ms"] is None) == (True, False)
        assert (second["model_load_ms"], second["model_switch"]) == (None, False)
        assert (second["queue_wait_ms"], second["lease_at"]) == (None, None)


async def test_who_left_has_a_wait_only_if_it_was_admitted(shared: DaemonUnderTest) -> None:
    async with visiting(shared) as it:
        await idle(it, "a")
        crowd = Crowd(it)
        after = await last_seq(it)
        with frozen(it):
            await crowd.send("busy", "a")
            sent_s = time.monotonic()
            await crowd.send("A1", "a")
            await trio.sleep(0.3)
            await crowd.leave("A1")
            waited_s = time.monotonic() - sent_s
        await crowd.served()
        queued, _ = await new_records(it, 2, after)
        assert (queued["disconnect_phase"], queued["lease_at"]) == ("queued", None)
        assert (queued["queue_wait_ms"], queued["model_switch"]) == (None, False)
        assert 300 <= queued["total_ms"] <= 1000 * waited_s + 10

        crowd = Crowd(it)
        after = await last_seq(it)
        started = len(it.stamps("start"))
        await crowd.send("B1", "b")
        await until(lambda: starts(it)[started:] == ["b"])
        await crowd.leave("B1")
        (loading,) = await new_records(it, 1, after)
        assert loading["disconnect_phase"] == "loading"
        assert loading["queue_wait_ms"] < 250
        assert (loading["model_switch"], loading["model_load_ms"]) == (True, None)


async def test_metrics_follow_what_waits_and_what_runs(shared: DaemonUnderTest) -> None:
    async with visiting(shared) as it:
        await idle(it, "a")
        crowd = Crowd(it)
        with frozen(it):
            await crowd.send("busy", "a")
            for tier in ("flex", "flex", "default", "priority", "priority", "priority"):
                await crowd.send(f"{tier} {len(crowd.clients)}", "b", service_tier=tier)
            metrics = await it.metrics()
            assert metrics["loaded_model"] == "a"
            assert (metrics["in_flight"], metrics["queue_depth"]) == (1, 6)
            assert metrics["queue_depth_by_tier"] == {"priority": 3, "default": 1, "flex": 2}
            status = await it.status()
            assert (status["in_flight"], status["queue_depth"]) == (1, 6)
        # While b is loading nothing is loaded; its lease exists already.
        metrics = await metrics_until(it, lambda metrics: metrics["loaded_model"] is None)
        assert (metrics["in_flight"], metrics["queue_depth"]) == (1, 5)
        assert metrics["queue_depth_by_tier"] == {"priority": 2, "default": 1, "flex": 2}
        await crowd.served()
        metrics = await metrics_until(it, lambda metrics: metrics["in_flight"] == 0)
        assert (metrics["loaded_model"], metrics["queue_depth"]) == ("b", 0)


async def test_metrics_tell_pace_and_first_token_of_the_last_stream(
    shared: DaemonUnderTest,
) -> None:
    async with visiting(shared) as it:
        await idle(it, "a")
        text = "FX:prefill=0.2 FX:chunk_every_ms=20 FX:force_tokens=20"
        reply = await it.chat("a", text, stream=True)
        record = await it.record_of(reply)
        await it.chat("a", "no stream, so it changes neither")
        metrics = await it.metrics()
        assert metrics["last_ttft_ms"] == record["ttft_ms"] >= 200
        pace = record["completion_tokens"] / (record["generation_ms"] / 1000)
        assert metrics["last_decode_tokens_per_s"] == pytest.approx(pace, abs=0.01)
        await it.chat("a", "FX:usage=none", stream=True)
        metrics = await metrics_until(it, lambda m: m["last_decode_tokens_per_s"] is None)
        assert metrics["last_ttft_ms"] is not None
