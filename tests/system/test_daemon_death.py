"""The end of a daemon, asked for or not: what becomes of work, and that nothing is left.

Source: contract 4.1, 11.
"""

import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.runtime.http.raw import RawClient, Reply
from tests.system.harness import START_S, DaemonUnderTest, can_bind, daemon, sse_events, until

ESCAPED_WORKERS: dict[str, Any] = {
    "workers": 2,
    "worker_setsid": True,
    "worker_linger_s": -1,
    "worker_ignores_sigterm": True,
}
"""Helpers that have left the engine's group and session and would never end by themselves."""

AT_ONCE_S = 1.5
"""For the end of a process on a busy host; nothing in it waits for anything."""


def _expect_nothing_left(it: DaemonUnderTest) -> None:
    """After an orderly end: no process, no control socket, no private folder, the port free."""
    assert it.left_pids() == []
    assert not it.control_socket.exists()
    assert list(it.temporary_directory.iterdir()) == []
    assert can_bind(it.backend_port)
    assert can_bind(it.port)


# ---- killed ------------------------------------------------------------------------------------


async def _restart_after_a_crash(it: DaemonUnderTest) -> None:
    """What systemd does by removing the runtime directory, and an operator by hand."""
    it.control_socket.unlink()
    await it.start()


@pytest.mark.parametrize(
    ("knobs", "moment"),
    [
        ({"load_s": 60}, "native_start"),
        ({}, "first_chunk"),
        (ESCAPED_WORKERS, "first_chunk"),
        ({"ignore_sigterm": True, "hang_load": True, **ESCAPED_WORKERS}, "native_start"),
    ],
    ids=["mid-load", "mid-stream", "mid-stream-escaped", "mid-load-escaped"],
)
async def test_b03_nothing_of_an_engine_outlives_a_killed_daemon_and_the_next_one_serves(
    tmp_path: Path, knobs: dict[str, Any], moment: str
) -> None:
    async with daemon(tmp_path, {"a": knobs}) as it:
        await it.send_chat("a", "FX:slow", stream=True)
        await until(lambda: it.stamps(moment))
        assert len(it.engine_pids()) >= 2
        it.signal(signal.SIGKILL)
        await it.wait_ended()
        await until(lambda: not it.left_pids(), within_s=1)
        assert can_bind(it.backend_port)
        it.set_knobs("a", {"needs_alone": True})
        await _restart_after_a_crash(it)
        assert (await it.chat("a")).status == 200
        assert it.overlaps() == []


async def test_b03_a_daemon_killed_during_the_stop_of_an_engine_leaves_nothing(
    tmp_path: Path,
) -> None:
    knobs = {"ignore_sigterm": True, "needs_alone": True, **ESCAPED_WORKERS}
    async with daemon(tmp_path, {"a": knobs, "b": {}}) as it:
        assert (await it.chat("a")).status == 200
        await it.send_chat("b")
        await it.status_until(lambda status: status["engine_state"] == "stopping")
        it.signal(signal.SIGKILL)
        await it.wait_ended()
        await until(lambda: not it.left_pids(), within_s=1)
        await _restart_after_a_crash(it)
        assert (await it.chat("a")).status == 200
        assert it.overlaps() == []


# ---- told to end -------------------------------------------------------------------------------


async def _idle(it: DaemonUnderTest) -> list[RawClient]:
    assert (await it.chat("a")).status == 200
    return []


async def _loading(it: DaemonUnderTest) -> list[RawClient]:
    client = await it.send_chat("slow")
    await until(lambda: it.stamps("native_start"))
    return [client]


async def _streaming(it: DaemonUnderTest) -> list[RawClient]:
    client = await it.send_chat("a", "FX:chunk_every_ms=40 FX:force_tokens=25", stream=True)
    await until(lambda: it.stamps("first_chunk"))
    return [client]


async def _waiting(it: DaemonUnderTest) -> list[RawClient]:
    first = await _streaming(it)
    second = await it.send_chat("slow", stream=True)
    third = await it.send_chat("slow")
    await it.status_until(lambda status: status["queue_depth"] == 2)
    return [*first, second, third]


Phase = Callable[[DaemonUnderTest], Awaitable[list[RawClient]]]

PHASES: dict[str, Phase] = {
    "idle": _idle,
    "loading": _loading,
    "streaming": _streaming,
    "waiting": _waiting,
}
BOTH_SIGNALS = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
MODELS: dict[str, dict[str, Any]] = {"a": {}, "slow": {"load_s": 0.8}}


def _is_whole(reply: Reply) -> bool:
    if reply.headers["content-type"] == ["text/event-stream"]:
        return reply.status == 200 and sse_events(reply.body)[-1] == "[DONE]"
    return reply.status == 200 and not reply.cut


@BOTH_SIGNALS
@pytest.mark.parametrize("phase", PHASES)
async def test_the_first_signal_lets_accepted_work_end_and_then_the_engine(
    tmp_path: Path, phase: str, number: signal.Signals
) -> None:
    async with daemon(tmp_path, MODELS) as it:
        clients = await PHASES[phase](it)
        it.signal(number)
        status = await it.wait_ended()
        replies = [await client.reply() for client in clients]
        assert all(map(_is_whole, replies)), replies
        assert status == 0
        _expect_nothing_left(it)
        # Every engine stopped in order, the last one too.
        assert {stamp.facts["status"] for stamp in it.stamps("exit")} == {0}
        assert len(it.stamps("exit")) == len(it.stamps("start"))
        assert it.overlaps() == []


@BOTH_SIGNALS
@pytest.mark.parametrize("phase", PHASES)
async def test_the_second_signal_ends_everything_at_once(
    tmp_path: Path, phase: str, number: signal.Signals
) -> None:
    """Whatever the engine thinks of it: this one takes five seconds to stop."""
    models = {name: {**knobs, "exit_s": 5} for name, knobs in MODELS.items()}
    async with daemon(tmp_path, models) as it:
        clients = await PHASES[phase](it)
        it.signal(number)
        await it.status_until(lambda status: status["draining"])
        began = time.monotonic()
        it.signal(number)
        await it.wait_ended(within_s=AT_ONCE_S)
        assert time.monotonic() - began < AT_ONCE_S
        _expect_nothing_left(it)
        assert not any(map(_is_whole, await _what_came(clients)))


async def _what_came(clients: list[RawClient]) -> list[Reply]:
    """The replies of those who got any; the others saw the connection end."""
    replies = []
    for client in clients:
        try:
            replies.append(await client.reply())
        except (EOFError, trio.BrokenResourceError):
            continue
    return replies


def _watch_for(path: Path) -> None:
    """Return in the instant in which it appears; an event loop would come too late."""
    deadline = time.monotonic() + START_S
    while not path.exists():
        assert time.monotonic() < deadline, path


async def test_a_signal_while_the_daemon_starts_ends_it_without_a_stale_socket(
    tmp_path: Path,
) -> None:
    """From the instant of the first thing that could be left behind."""
    async with daemon(tmp_path, {"a": {}}, start=False) as it:
        for delay_s in (0, 0, 0, 0.001, 0.003, 0.01):
            it.launch()
            _watch_for(it.control_socket)
            await trio.sleep(delay_s)
            it.signal(signal.SIGTERM)
            assert await it.wait_ended(within_s=3) == 0
            _expect_nothing_left(it)


async def test_a_finite_drain_interrupts_what_has_not_ended(tmp_path: Path) -> None:
    """The stream is told so in-band, the waiting request by its status; then the engine ends in order."""
    async with daemon(tmp_path, MODELS, {"drain_ms": 300}) as it:
        stream = await it.send_chat("a", "FX:slow", stream=True)
        await until(lambda: it.stamps("first_chunk"))
        waiting = await it.send_chat("slow")
        await it.status_until(lambda status: status["queue_depth"] == 1)
        it.signal(signal.SIGTERM)
        assert await it.wait_ended(within_s=4) == 0
        assert b'"code":"shutting_down"' in (await stream.reply()).body
        assert (await waiting.reply()).status == 503
        assert [stamp.facts["status"] for stamp in it.stamps("exit")] == [0]
        _expect_nothing_left(it)


async def test_b12_a_daemon_told_to_end_as_soon_as_its_engine_runs_leaves_no_workers(
    tmp_path: Path,
) -> None:
    models = {"a": {"load_s": 60, **ESCAPED_WORKERS}}
    async with daemon(tmp_path, models, {"drain_ms": 1}) as it:
        client = await it.send_chat("a")
        await until(lambda: it.stamps("start"))
        await trio.sleep(0.05)
        it.signal(signal.SIGTERM)
        assert await it.wait_ended(within_s=3) == 0
        assert (await client.reply()).status == 503
        _expect_nothing_left(it)


# ---- again and again ---------------------------------------------------------------------------


async def test_b10_restarts_in_quick_succession_with_queued_requests_never_make_two_engines(
    tmp_path: Path,
) -> None:
    config = {"drain_ms": 200, "shutdown_ms": 1000}
    models = {name: {"load_s": 0.2, "needs_alone": True} for name in ("a", "b")}
    async with daemon(tmp_path, models, config, start=False) as it:
        began = time.monotonic()
        for number in range(5):
            await it.start()
            clients = [await it.send_chat(model) for model in "abab"]
            streams = [await it.send_chat(model, "FX:slow", stream=True) for model in "ab"]
            await until(lambda number=number: len(it.stamps("ready")) > number)  # type: ignore[misc]  # a lambda's default has no annotation
            it.signal(signal.SIGTERM)
            assert await it.wait_ended(within_s=5) == 0
            for reply in await _what_came(clients + streams):
                assert reply.status in (200, 503)
            _expect_nothing_left(it)
        assert time.monotonic() - began < 30
        await it.start()
        assert (await it.chat("b")).status == 200
        assert it.overlaps() == []


async def test_b10_sighup_changes_nothing(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {}}) as it:
        assert (await it.chat("a")).status == 200
        before = await it.status()
        for _ in range(3):
            it.signal(signal.SIGHUP)
        await until(lambda: it.log.count("SIGHUP is ignored") > 0)
        assert (await it.chat("a")).status == 200
        assert await it.status() == before
        assert len(it.stamps("start")) == 1
        it.signal(signal.SIGTERM)
        assert await it.wait_ended() == 0
        _expect_nothing_left(it)
