"""Engines that fail, die, will not end, or leave processes behind (contract 4.2, 4.4)."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.system.harness import DaemonUnderTest, can_bind, daemon, pid_exists, until
from tests.system.wire import error_of, events

Models = dict[str, dict[str, Any]]

STOPPED_WORKER: dict[str, Any] = {"workers": 1, "worker_stopped": True, "worker_linger_s": -1}
DEAF_WORKERS: dict[str, Any] = {"workers": 2, "worker_linger_s": -1, "worker_ignores_sigterm": True}
ESCAPED_WORKERS: dict[str, Any] = {**DEAF_WORKERS, "worker_setsid": True}


def _engine_pid(it: DaemonUnderTest) -> int:
    """The server that was started last."""
    return it.stamps("start")[-1].pid


async def _refused_load(it: DaemonUnderTest, model: str) -> dict[str, list[str]]:
    """A chat request that ends as failed loads do; the response's headers."""
    reply = await it.chat(model)
    assert reply.status == 503
    assert error_of(reply)["code"] == "model_load_failed"
    assert (await it.record_of(reply))["reason"] == "model_load_error"
    return reply.headers


# ---- failed loads and their cooldown -----------------------------------------------------------


async def test_b06_a_failed_load_is_not_tried_again_until_its_cooldown_is_over(
    tmp_path: Path,
) -> None:
    async with daemon(tmp_path, {"a": {"fail_first_load": 1}}, {"cooldown_ms": 1500}) as it:
        assert (await _refused_load(it, "a"))["retry-after"] == ["2"]
        assert (await it.status())["last_startup_error"] == (
            "backend exited with status 1 before it was ready"
        )
        (wait_s,) = (await _refused_load(it, "a"))["retry-after"]
        assert wait_s in ("1", "2")
        assert len(it.stamps("start")) == 1
        await trio.sleep(int(wait_s))
        assert (await it.chat("a")).status == 200
        status = await it.status()
        assert (status["last_startup_error"], status["loaded"]) == (None, "a")
        assert it.overlaps() == []


async def test_b06_on_works_inside_the_cooldown(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {"fail_first_load": 1}}) as it:
        await _refused_load(it, "a")
        done = await it.on("a")
        assert (done["ok"], done["loaded"], done["last_startup_error"]) == (True, "a", None)
        assert (await it.chat("a")).status == 200


async def test_b06_one_slow_load_is_not_a_failure_for_ever(tmp_path: Path) -> None:
    config = {"startup_ms": 1000, "cooldown_ms": 300}
    async with daemon(tmp_path, {"a": {"load_s": 5}}, config) as it:
        await _refused_load(it, "a")
        assert (await it.status())["last_startup_error"] == (
            "backend was not ready within startup_ms (1000 ms)"
        )
        assert it.engine_pids() == []
        it.set_knobs("a", {})
        await trio.sleep(0.35)
        assert (await it.chat("a")).status == 200


async def test_b05_a_forced_failure_of_one_model_leaves_the_others_alone(tmp_path: Path) -> None:
    config = {"cooldown_ms": 600}
    async with daemon(tmp_path, {"a": {}, "b": {"fail_first_load": 1}}, config) as it:
        assert (await it.chat("a")).status == 200
        await _refused_load(it, "b")
        failed_at = time.monotonic()
        assert (await it.chat("a")).status == 200
        await trio.sleep(max(0.0, failed_at + 0.65 - time.monotonic()))
        assert (await it.chat("b")).status == 200
        assert it.overlaps() == []


async def test_all_who_wait_for_a_model_learn_of_its_failed_load_at_once(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {"load_s": 0.5, "fail_load": 1}, "b": {}}) as it:
        waiting = [await it.send_chat("a") for _ in range(5)]
        other = await it.send_chat("b")
        statuses = [(await client.reply()).status for client in waiting]
        assert statuses == [503] * 5
        assert (await other.reply()).status == 200
        assert [stamp.model for stamp in it.stamps("start")] == ["upstream-a", "upstream-b"]


async def test_a_stream_that_was_committed_learns_of_the_failed_load_in_band(
    tmp_path: Path,
) -> None:
    async with daemon(tmp_path, {"a": {"load_s": 1, "fail_load": 2}}) as it:
        reply = await it.chat("a", stream=True)
        assert reply.status == 200
        (event,) = events(reply.body)
        assert (event.name, event.error["status"]) == ("error", 503)
        assert event.error["code"] == "model_load_failed"
        assert (await it.record_of(reply))["reason"] == "model_load_error"


# ---- stopping ----------------------------------------------------------------------------------


async def test_b04_a_slow_but_orderly_stop_is_not_cut_short(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {"exit_s": 2.5}}, {"shutdown_ms": 15_000}) as it:
        assert (await it.chat("a")).status == 200
        began = time.monotonic()
        assert (await it.off())["ok"]
        assert 2.4 < time.monotonic() - began < 6
        (end,) = it.stamps("exit")
        assert end.facts["status"] == 0
        assert [stamp.facts["why"] for stamp in it.stamps("native_exit")] == ["quit"]


async def test_b04_an_engine_deaf_to_sigterm_is_dead_at_about_shutdown_ms(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {"ignore_sigterm": True}}, {"shutdown_ms": 1000}) as it:
        assert (await it.chat("a")).status == 200
        began = time.monotonic()
        done = await it.off()
        assert done["ok"]
        assert 0.95 < time.monotonic() - began < 2
        assert it.engine_pids() == []
        assert it.stamps("exit") == []


@pytest.mark.parametrize("asker", ["on", "request"])
async def test_b04_a_daemon_told_to_end_during_a_long_load_is_gone_in_time(
    tmp_path: Path, asker: str
) -> None:
    """With no request to wait for at once, with one when ``drain_ms`` (as long as shutdown_ms) is over."""
    config = {"shutdown_ms": 1000, "drain_ms": 1000}
    async with (
        daemon(tmp_path, {"a": {"load_s": 60}}, config) as it,
        trio.open_nursery() as nursery,
    ):
        if asker == "on":
            nursery.start_soon(it.control, json.dumps({"cmd": "on", "model": "a"}))
        else:
            client = await it.send_chat("a")
        await until(lambda: it.stamps("native_start"))
        began = time.monotonic()
        it.signal(signal.SIGTERM)
        assert await it.wait_ended(within_s=2.5) == 0
        assert time.monotonic() - began < (0.9 if asker == "on" else 2.0)
        assert it.left_pids() == []
        if asker == "request":
            assert error_of(await client.reply())["code"] == "shutting_down"


async def test_b05_the_next_engine_starts_when_the_whole_group_of_the_last_is_gone(
    tmp_path: Path,
) -> None:
    """The worker keeps the memory for a second after its server; the next load fails beside it."""
    models: Models = {"a": {"workers": 1, "worker_linger_s": 1}, "b": {"needs_alone": True}}
    async with daemon(tmp_path, models) as it:
        assert (await it.chat("a")).status == 200
        assert (await it.chat("b")).status == 200
        (left,) = it.stamps("worker_exit")
        (_, started) = it.stamps("start")
        assert left.at < started.at
        assert it.overlaps() == []


async def test_b05_what_outlives_the_engine_for_more_than_two_seconds_is_killed(
    tmp_path: Path,
) -> None:
    models: Models = {"a": ESCAPED_WORKERS, "b": {"needs_alone": True}}
    async with daemon(tmp_path, models) as it:
        assert (await it.chat("a")).status == 200
        began = time.monotonic()
        assert (await it.chat("b")).status == 200
        assert 1.9 < time.monotonic() - began < 4
        assert it.overlaps() == []


@pytest.mark.parametrize("leader", ["deaf", "stopped"])
async def test_b11_off_ends_what_neither_hears_nor_runs(tmp_path: Path, leader: str) -> None:
    """Meanwhile the daemon says that it is busy, refuses requests, and afterwards it is busy no more."""
    knobs = {"ignore_sigterm": leader == "deaf", **STOPPED_WORKER}
    async with daemon(tmp_path, {"a": knobs}, {"shutdown_ms": 1000}) as it:
        assert (await it.chat("a")).status == 200
        if leader == "stopped":
            os.kill(_engine_pid(it), signal.SIGSTOP)
        began = time.monotonic()
        outcome: dict[str, Any] = {}

        async def off() -> None:
            outcome.update(await it.off())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(off)
            status = await it.status_until(lambda status: status["engine_state"] == "stopping")
            assert status["busy"]
            reply = await it.chat("a")
            assert (reply.status, error_of(reply)["code"]) == (503, "routing_off")
        assert outcome["ok"]
        assert outcome["message"] == "model unloaded, routing disabled"
        assert 0.95 < time.monotonic() - began < 2.5
        assert it.engine_pids() == []
        assert can_bind(it.backend_port)
        status = await it.status()
        assert (status["busy"], status["engine_state"]) == (False, "stopped")


FREEZER = Path("/sys/fs/cgroup/freezer")


@pytest.fixture
def freezer() -> Iterator[Path]:
    """A cgroup whose members do not feel SIGKILL while they are frozen."""
    group = FREEZER / f"strata-router-system-{os.getpid()}"
    if not (FREEZER / "cgroup.procs").exists():
        pytest.skip("needs the version 1 cgroup freezer (version 2 lets SIGKILL through)")
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"needs permission to make a freezer cgroup ({error.strerror})")
    yield group
    _set_freezer(group, "THAWED")
    while (group / "cgroup.procs").read_text():
        os.sched_yield()
    group.rmdir()


def _set_freezer(group: Path, state: str) -> None:
    (group / "freezer.state").write_text(state)


@pytest.mark.deep
async def test_b11_off_fails_naming_what_sigkill_does_not_end_and_nothing_starts_until_it_is_gone(
    tmp_path: Path, freezer: Path
) -> None:
    """Takes the ten seconds after which the contract calls an engine stuck."""
    async with daemon(tmp_path, {"a": {}, "b": {}}, {"shutdown_ms": 300}) as it:
        assert (await it.chat("a")).status == 200
        pid = _engine_pid(it)
        (freezer / "cgroup.procs").write_text(str(pid))
        _set_freezer(freezer, "FROZEN")
        done = await it.off()
        reason = f"the previous engine (pid {pid}) does not end, not even by SIGKILL"
        assert (done["ok"], done["message"], done["busy"]) == (False, reason, False)
        assert done["engine_state"] == "stuck"
        done = await it.on("b")
        assert (done["ok"], done["message"]) == (False, f"b: {reason}")
        assert it.stamps("start")[-1].pid == pid
        _set_freezer(freezer, "THAWED")
        await it.status_until(lambda status: status["engine_state"] == "stopped")
        assert (await it.on("b"))["ok"]
        assert it.overlaps() == []


# ---- deaths ------------------------------------------------------------------------------------


async def test_b12_a_killed_engine_is_noticed_and_what_it_left_is_ended_before_the_next_start(
    tmp_path: Path,
) -> None:
    """Both at once, because each waits for two seconds: workers in its group, and escaped ones."""
    async with trio.open_nursery() as nursery:
        for name, workers in (("group", DEAF_WORKERS), ("escaped", ESCAPED_WORKERS)):
            directory = tmp_path / name
            directory.mkdir()
            nursery.start_soon(_check_death_of_a_loaded_engine, directory, workers)


async def _check_death_of_a_loaded_engine(directory: Path, workers: dict[str, Any]) -> None:
    async with daemon(directory, {"a": {**workers, "needs_alone": True}}) as it:
        client = await it.send_chat("a", "FX:slow", stream=True)
        await until(lambda: it.stamps("first_chunk"))
        os.kill(_engine_pid(it), signal.SIGKILL)
        killed_at = time.monotonic()
        reply = await client.reply()
        assert time.monotonic() - killed_at < 1
        (*_, last) = events(reply.body)
        assert last.error["code"] == "upstream_error"
        await it.status_until(lambda status: status["loaded"] is None, within_s=1)
        assert (await it.record_of(reply))["reason"] == "upstream_error"
        again = await it.chat("a")
        assert again.status == 200
        assert time.monotonic() - killed_at < 5
        record = await it.record_of(again)
        # The same model as before: no switch, but a load that it waited for.
        assert (record["model_switch"], record["model_load_ms"] is None) == (False, False)
        assert it.overlaps() == []
        assert "2 processes outlived the engine and were killed" in it.log
        assert (await it.status())["last_startup_error"] is None


async def test_requests_that_wait_when_the_engine_dies_are_served_by_the_next_one(
    tmp_path: Path,
) -> None:
    async with daemon(tmp_path, {"a": {}, "b": {}}, {"max_pending": 1}) as it:
        active = await it.send_chat("a", "FX:slow", stream=True)
        await until(lambda: it.stamps("first_chunk"))
        waiting = [await it.send_chat(model) for model in ("a", "b", "a")]
        await it.status_until(lambda status: status["queue_depth"] == 3)
        os.kill(_engine_pid(it), signal.SIGKILL)
        assert b'"code":"upstream_error"' in (await active.reply()).body
        assert [(await client.reply()).status for client in waiting] == [200] * 3
        assert [stamp.model for stamp in it.stamps("start")] == [
            *("upstream-a", "upstream-a", "upstream-b")
        ]
        assert it.overlaps() == []


async def test_b12_an_idle_engine_that_dies_is_not_loaded_any_more(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {}}) as it:
        assert (await it.chat("a")).status == 200
        os.kill(_engine_pid(it), signal.SIGKILL)
        status = await it.status_until(lambda status: status["engine_state"] == "stopped", 1)
        assert (status["loaded"], status["child_pid"], status["busy"]) == (None, None, False)
        assert (await it.get_json("/metrics"))["loaded_model"] is None
        assert (await it.chat("a")).status == 200


async def test_b12_an_engine_that_gets_sigterm_as_soon_as_it_runs_leaves_no_workers(
    tmp_path: Path,
) -> None:
    knobs = {"load_s": 30, **DEAF_WORKERS}
    async with daemon(tmp_path, {"a": knobs}, {"cooldown_ms": 100}) as it:
        client = await it.send_chat("a")
        await until(lambda: it.stamps("start"))
        await trio.sleep(0.05)
        os.kill(_engine_pid(it), signal.SIGTERM)
        assert (await client.reply()).status == 503
        assert it.engine_pids() == []
        assert (await it.status())["last_startup_error"] == (
            "backend was killed by signal 15 before it was ready"
        )
        it.set_knobs("a", {"needs_alone": True})
        await trio.sleep(0.15)
        assert (await it.chat("a")).status == 200
        assert it.overlaps() == []


async def test_b12_a_load_is_called_off_as_soon_as_it_runs_without_leaving_workers(
    tmp_path: Path,
) -> None:
    models: Models = {"a": {"load_s": 30, **DEAF_WORKERS}, "b": {"needs_alone": True}}
    async with daemon(tmp_path, models) as it:
        client = await it.send_chat("a")
        await until(lambda: it.stamps("start"))
        await trio.sleep(0.05)
        await client.stream.aclose()
        assert (await it.chat("b")).status == 200
        assert it.overlaps() == []


async def test_a_killed_guard_takes_its_engine_along_and_the_next_request_loads_again(
    tmp_path: Path,
) -> None:
    async with daemon(tmp_path, {"a": {**ESCAPED_WORKERS, "needs_alone": True}}) as it:
        assert (await it.chat("a")).status == 200
        (guard,) = set(it.left_pids()) - set(it.engine_pids())
        engines = it.engine_pids()
        os.kill(guard, signal.SIGKILL)
        await until(lambda: not any(map(pid_exists, engines)), within_s=1)
        await it.status_until(lambda status: status["engine_state"] == "stopped", within_s=1)
        assert (await it.chat("a")).status == 200
        assert it.overlaps() == []
