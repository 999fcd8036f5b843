"""One engine after another: switches, the idle clock, the operator's on and off (contract 4.4, 7, 10)."""

import json
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from strata_router.simulated.events import Interval, engine_intervals, requests
from tests.runtime.http.raw import Reply
from tests.system.harness import (
    DaemonUnderTest,
    can_bind,
    daemon,
    pid_exists,
    rounds,
    sse_events,
    until,
)
from tests.system.wire import error_of, events

IDLE_S = 11.5
"""Longer than trio keeps an idle thread (10 s), the trap of reports.md B25."""


def _engines(it: DaemonUnderTest) -> list[Interval]:
    return engine_intervals(it.stamps())


def _answered_by(reply: Reply) -> str:
    """The model that says it has answered."""
    model: str = json.loads(reply.body)["model"]
    return model


# ---- switches ----------------------------------------------------------------------------------


async def _chat_at_once(it: DaemonUnderTest, models: list[str]) -> dict[str, list[Reply]]:
    replies: dict[str, list[Reply]] = {model: [] for model in models}

    async def chat(model: str) -> None:
        replies[model].append(await it.chat(model))

    async with trio.open_nursery() as nursery:
        for model in models:
            nursery.start_soon(chat, model)
    return replies


async def test_b01_parallel_requests_for_two_models_are_each_answered_by_their_own(
    tmp_path: Path,
) -> None:
    async with daemon(tmp_path, {"a": {}, "b": {}}, {"max_pending": 64}) as it:
        assert (await it.chat("a")).status == 200
        asked = 1
        for _ in range(rounds(5, 50)):
            replies = await _chat_at_once(it, ["a", "b"] * 20)
            asked += 40
            for model, answers in replies.items():
                assert [reply.status for reply in answers] == [200] * 20
                assert {_answered_by(reply) for reply in answers} == {f"upstream-{model}"}
        assert it.overlaps() == []
        assert len(it.stamps("request")) == asked
        await until(lambda: len(it.stamps("done")) == asked)
        await _check_records_of_switches(it, asked)


async def _check_records_of_switches(it: DaemonUnderTest, asked: int) -> None:
    """One record each; exactly the request that caused an engine's start is marked a switch."""
    metrics = await it.metrics()
    assert metrics["request_log"]["next_seq"] == asked + 1
    records = await it.records()
    assert [record["reason"] for record in records] == ["completed"] * len(records)
    if len(records) < asked:
        return  # a long run: the ring has let go of the oldest
    switches = Counter(r["upstream_model"] for r in records if r["model_switch"])
    assert switches == Counter(engine.model for engine in _engines(it))
    assert all((r["model_load_ms"] is not None) == r["model_switch"] for r in records)


@pytest.mark.parametrize("ready_file", [True, False], ids=["file", "health"])
async def test_b07_an_engine_that_cannot_share_its_port_follows_another_ten_times(
    tmp_path: Path, ready_file: bool
) -> None:
    """Without SO_REUSEADDR a connection that the last engine closed first would bar the port for a minute."""
    models = {name: {"no_reuseaddr": True} for name in ("a", "b")}
    async with daemon(tmp_path, models, ready_file=ready_file) as it:
        for number in range(10):
            model = "ab"[number % 2]
            streamed = await it.chat(model, stream=True)
            assert streamed.status == 200, it.log
            assert sse_events(streamed.body)[-1] == "[DONE]", (await it.status(), streamed.body)
            plain = await it.chat(model)
            assert (plain.status, _answered_by(plain)) == (200, f"upstream-{model}")
        assert it.overlaps() == []
        assert len(_engines(it)) == 10
        # Each engine saw its own two requests and no more, each on a connection of its own.
        served = requests(it.stamps())
        assert set(Counter(request.pid for request in served).values()) == {2}
        assert len({request.peer for request in served}) == len(served)


async def test_b07_an_engine_whose_client_has_left_is_stopped_in_order_and_followed(
    tmp_path: Path,
) -> None:
    """It is not told to stop before it has given the request up: Strata would run it to its end."""
    models = {name: {"no_reuseaddr": True} for name in ("a", "b")}
    async with daemon(tmp_path, models) as it:
        client = await it.send_chat("a", "FX:slow", stream=True)
        await until(lambda: it.stamps("first_chunk"))
        await client.stream.aclose()
        assert (await it.chat("b")).status == 200
        (first, _) = _engines(it)
        assert first.status == 0
        (left,), (stopping,) = map(it.stamps, ("disconnect", "stopping"))
        assert left.at < stopping.at < left.at + 3
        assert it.overlaps() == []


LOADERS: dict[str, Callable[[DaemonUnderTest, str], Awaitable[Any]]] = {
    "request": lambda it, model: it.chat(model),
    "alias": lambda it, _: it.chat("test"),
    "on": lambda it, model: it.on(model),
}


async def test_b13_five_models_at_once_never_make_two_engines(tmp_path: Path) -> None:
    names = ["m1", "m2", "m3", "m4", "m5"]
    config = {"aliases": {"test": {"allowed_models": names}}}
    async with daemon(tmp_path, {name: {} for name in names}, config) as it:
        replies: dict[str, list[Reply]] = {}

        async def chat() -> None:
            replies.update(await _chat_at_once(it, [*names, "test", *names, "test"]))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(chat)
            for name in ("m3", "m5"):
                assert (await it.on(name))["ok"]
        answers = [reply for each in replies.values() for reply in each]
        assert [reply.status for reply in answers] == [200] * 12
        for name in names:
            assert {_answered_by(reply) for reply in replies[name]} == {f"upstream-{name}"}
        assert it.overlaps() == []


@pytest.mark.parametrize("loader", LOADERS)
async def test_b13_idle_ms_ends_an_engine_however_it_was_loaded(
    tmp_path: Path, loader: str
) -> None:
    config = {"idle_ms": 400, "aliases": {"test": {"allowed_models": ["a"]}}}
    async with daemon(tmp_path, {"a": {}}, config) as it:
        await LOADERS[loader](it, "a")
        await it.status_until(lambda status: status["engine_state"] == "stopped", within_s=3)
        (engine,) = _engines(it)
        assert (engine.model, engine.status) == ("upstream-a", 0)
        assert it.left_pids() == []


# ---- the idle clock ----------------------------------------------------------------------------

IDLE_MS = 500
IDLE_AT_MOST_S = 1.2
"""The clock is exact to milliseconds; what is added is a busy host and the engine's own stop."""


async def test_b02_the_idle_clock_runs_from_the_end_of_a_stream_and_not_from_its_start(
    tmp_path: Path,
) -> None:
    async with daemon(tmp_path, {"a": {}}, {"idle_ms": IDLE_MS}) as it:
        reply = await it.chat("a", "FX:chunk_every_ms=50 FX:force_tokens=30", stream=True)
        assert sse_events(reply.body)[-1] == "[DONE]"
        await until(lambda: it.stamps("stopping"))
        (started,), (done,), (stopping,) = map(it.stamps, ("first_chunk", "done", "stopping"))
        assert done.at - started.at > 1.4
        assert IDLE_MS / 1000 - 0.1 < stopping.at - done.at < IDLE_AT_MOST_S


async def test_b02_a_load_longer_than_idle_ms_is_no_idleness(tmp_path: Path) -> None:
    """The asker has left meanwhile, so nobody uses the engine: its clock starts when it is ready."""
    async with daemon(tmp_path, {"a": {"load_s": 1.2}}, {"idle_ms": IDLE_MS}) as it:
        client = await it.send_chat("a")
        await until(lambda: it.stamps("native_start"))
        await client.stream.aclose()
        await until(lambda: it.stamps("stopping"))
        (ready,), (stopping,) = map(it.stamps, ("ready", "stopping"))
        assert IDLE_MS / 1000 - 0.1 < stopping.at - ready.at < IDLE_AT_MOST_S


@pytest.mark.parametrize("routing_was_off", [False, True])
async def test_b02_the_idle_clock_restarts_when_on_finishes(
    tmp_path: Path, routing_was_off: bool
) -> None:
    """Also when there was nothing to load."""
    async with daemon(tmp_path, {"a": {}}, {"idle_ms": IDLE_MS}) as it:
        done: float = 0
        for _ in range(3):
            assert (await it.on("a"))["ok"]
            done = time.monotonic()
            if routing_was_off:
                await it.control("off")
            await trio.sleep(0.3)
        assert it.stamps("stopping") == []
        await until(lambda: it.stamps("stopping"))
        (stopping,) = it.stamps("stopping")
        assert IDLE_MS / 1000 - 0.1 < stopping.at - done < IDLE_AT_MOST_S


async def test_a_request_that_comes_during_an_idle_unload_waits_for_it_and_loads_anew(
    tmp_path: Path,
) -> None:
    async with daemon(tmp_path, {"a": {"exit_s": 0.6}}, {"idle_ms": 200}) as it:
        assert (await it.chat("a")).status == 200
        await until(lambda: it.stamps("stopping"))
        assert (await it.chat("a")).status == 200
        assert len(_engines(it)) == 2
        assert it.overlaps() == []


# ---- the operator ------------------------------------------------------------------------------


def _expect_nothing_loaded(it: DaemonUnderTest, done: dict[str, Any]) -> None:
    """To be called in the same breath as ``off`` has answered: it is a promise about this instant."""
    assert done["ok"], done
    assert it.left_pids() == []
    assert can_bind(it.backend_port)
    assert (done["loaded"], done["child_pid"], done["routing"]) == (None, None, False)


async def test_off_waits_for_the_request_whose_model_is_loading(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {"load_s": 0.7}, "b": {}}) as it:
        client = await it.send_chat("a")
        queued = await it.send_chat("b")
        await until(lambda: it.stamps("native_start"))
        done = await it.off()
        _expect_nothing_loaded(it, done)
        assert (await client.reply()).status == 200
        refused = await queued.reply()
        assert (refused.status, error_of(refused)["code"]) == (503, "routing_off")
        assert (await it.record_of(refused))["reason"] == "routing_off"


async def test_off_calls_a_load_off_that_nobody_waits_for(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {"load_s": 60}}) as it:
        client = await it.send_chat("a")
        await until(lambda: it.stamps("native_start"))
        await client.stream.aclose()
        await it.status_until(lambda status: status["in_flight"] == 0)
        began = time.monotonic()
        _expect_nothing_loaded(it, await it.off())
        assert time.monotonic() - began < 2


async def test_off_now_calls_a_load_off_and_refuses_who_waits_for_it(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {"load_s": 60}}) as it:
        plain = await it.send_chat("a")
        stream = await it.send_chat("a", stream=True)
        await until(lambda: it.stamps("native_start"))
        await stream.until(b"keepalive")
        _expect_nothing_loaded(it, await it.off(now=True))
        refused = await plain.reply()
        assert (refused.status, error_of(refused)["code"]) == (503, "routing_off")
        assert b'"code":"routing_off"' in await stream.until(b"0\r\n\r\n")
        for record in await it.records():
            assert record["reason"] == "routing_off"


async def test_off_waits_for_an_active_stream_and_tells_so(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {}}) as it:
        client = await it.send_chat("a", "FX:chunk_every_ms=50 FX:force_tokens=20", stream=True)
        await until(lambda: it.stamps("first_chunk"))
        lines = await it.control('{"cmd":"off","now":false}')
        _expect_nothing_loaded(it, lines[-1])
        assert [line["phase"] for line in lines[:-1]] == [
            *("routing", "waiting", "unloading", "stopping", "stopped")
        ]
        reply = await client.reply()
        assert sse_events(reply.body)[-1] == "[DONE]"


async def test_off_now_interrupts_an_active_stream_in_band(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {}}) as it:
        client = await it.send_chat("a", "FX:slow", stream=True)
        await until(lambda: it.stamps("first_chunk"))
        began = time.monotonic()
        lines = await it.control('{"cmd":"off","now":true}')
        _expect_nothing_loaded(it, lines[-1])
        assert time.monotonic() - began < 3
        assert "interrupting" in [line["phase"] for line in lines[:-1]]
        reply = await client.reply()
        (*_, last) = events(reply.body)
        assert (last.name, last.error["code"]) == ("error", "routing_off")
        assert (await it.record_of(reply))["reason"] == "routing_off"
        # SIGTERM came when the engine had given the request up, so it stopped in order.
        (disconnect,), (stopping,) = map(it.stamps, ("disconnect", "stopping"))
        assert disconnect.at < stopping.at
        assert [stamp.facts["status"] for stamp in it.stamps("exit")] == [0]


async def test_on_joins_the_load_of_a_request_and_a_request_joins_the_load_of_on(
    tmp_path: Path,
) -> None:
    async with daemon(tmp_path, {"a": {"load_s": 0.5}}) as it:
        client = await it.send_chat("a")
        await until(lambda: it.stamps("native_start"))
        assert (await it.on("a"))["ok"]
        assert (await client.reply()).status == 200
        assert (await it.off())["ok"]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(it.on, "a")
            await until(lambda: len(it.stamps("native_start")) == 2)
            assert (await it.chat("a")).status == 200
        assert len(_engines(it)) == 2


async def test_a_cancelled_on_leaves_no_engine_and_the_routing_as_it_was(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {"load_s": 60}}) as it:
        await it.control("off")
        stream = await trio.open_unix_socket(str(it.control_socket))
        await stream.send_all(b'{"cmd":"on","model":"a"}\n')
        await until(lambda: it.stamps("native_start"))
        await stream.aclose()
        status = await it.status_until(lambda status: status["engine_state"] == "stopped")
        assert (status["routing"], status["busy"]) == (False, False)
        assert it.left_pids() == []


async def test_a_failed_on_says_why_and_leaves_the_routing_as_it_was(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {"fail_load": 2}}) as it:
        await it.control("off")
        done = await it.on("a")
        reason = "backend exited with status 2 before it was ready"
        assert not done["ok"]
        assert done["message"].startswith(f"a: {reason}; ")
        assert (done["routing"], done["last_startup_error"]) == (False, reason)


async def test_on_replaces_an_engine_that_does_not_answer_its_health_check(tmp_path: Path) -> None:
    """Its native engine has died, and the server says so."""
    async with daemon(tmp_path, {"a": {"engine_dies_idle_after_s": 0.2}}) as it:
        assert (await it.chat("a")).status == 200
        child_pid = (await it.status())["child_pid"]
        await until(lambda: it.stamps("native_gone"))
        it.set_knobs("a", {})
        lines = await it.control('{"cmd":"on","model":"a"}')
        assert lines[-1]["ok"], lines
        assert lines[-1]["child_pid"] not in (None, child_pid)
        assert "unhealthy" in [line["phase"] for line in lines[:-1]]
        assert (await it.chat("a")).status == 200
        assert it.overlaps() == []


async def test_on_and_off_in_turn_under_requests_end_with_a_healthy_daemon(tmp_path: Path) -> None:
    """Every request is answered or refused with routing_off, and every off keeps its promise."""
    async with daemon(tmp_path, {"a": {}, "b": {}}) as it:
        statuses: Counter[int] = Counter()

        async def ask(model: str) -> None:
            while True:
                reply = await it.chat(model)
                statuses[reply.status] += 1
                if reply.status == 503:
                    assert error_of(reply)["code"] == "routing_off"
                    await trio.sleep(0.02)

        async with trio.open_nursery() as nursery:
            for model in ("a", "b", "a", "b"):
                nursery.start_soon(ask, model)
            for number in range(rounds(4, 20)):
                assert (await it.on("ab"[number % 2]))["ok"]
                await trio.sleep(0.05)
                _expect_nothing_loaded(it, await it.off(now=number % 4 == 3))
            assert (await it.on("a"))["ok"]
            nursery.cancel_scope.cancel()
        assert set(statuses) <= {200, 503}
        assert statuses[200] > 0
        assert (await it.chat("a")).status == 200
        await it.status_until(lambda status: status["in_flight"] == 0)
        status = await it.status()
        assert (status["busy"], status["routing"], status["queue_depth"]) == (False, True, 0)
        assert it.overlaps() == []


# ---- idleness that must not harm ---------------------------------------------------------------


async def test_b25_an_engine_that_was_idle_for_longer_than_trios_threads_is_still_there(
    tmp_path: Path,
) -> None:
    async with daemon(tmp_path, {"a": {}}) as it:
        assert (await it.chat("a")).status == 200
        await trio.sleep(IDLE_S)
        (engine,) = _engines(it)
        assert pid_exists(engine.pid)
        assert (await it.status())["child_pid"] == engine.pid
        assert (await it.chat("a")).status == 200
        assert len(_engines(it)) == 1
        # And it still dies with its daemon.
        it.signal(signal.SIGKILL)
        await until(lambda: not it.left_pids(), within_s=1)
