"""The end of a daemon, asked for or not: what becomes of work, and that nothing is left.

Source: contract 4.1, 11.
"""

import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
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


@dataclass
class Askers:
    """Clients that read what comes, as clients do. cut: how many saw no whole response."""

    it: DaemonUnderTest
    nursery: trio.Nursery
    replies: list[Reply] = field(default_factory=list)
    cut: int = 0

    async def ask(self, model: str, text: str = "hello", *, stream: bool = False) -> None:
        """Returns when the request has been sent."""
        client = await self.it.send_chat(model, text, stream=stream)
        self.nursery.start_soon(self._read, client)

    async def _read(self, client: RawClient) -> None:
        try:
            reply = await client.reply()
        except (EOFError, trio.BrokenResourceError):
            self.cut += 1
            return
        finally:
            client.stream.socket.close()
        self.replies.append(reply)
        self.cut += not _is_whole(reply)


def _is_whole(reply: Reply) -> bool:
    if reply.headers["content-type"] == ["text/event-stream"]:
        return reply.status == 200 and sse_events(reply.body)[-1] == "[DONE]"
    return reply.status == 200 and not reply.cut


async def _idle(askers: Askers) -> None:
    assert (await askers.it.chat("a")).status == 200


async def _loading(askers: Askers) -> None:
    await askers.ask("slow")
    await until(lambda: askers.it.stamps("native_start"))


async def _streaming(askers: Askers) -> None:
    await askers.ask("a", "FX:chunk_every_ms=40 FX:force_tokens=25", stream=True)
    await until(lambda: askers.it.stamps("first_chunk"))


async def _waiting(askers: Askers) -> None:
    await _streaming(askers)
    await askers.ask("slow", stream=True)
    await askers.ask("slow")
    await askers.it.status_until(lambda status: status["queue_depth"] == 2)


PHASES = {"idle": _idle, "loading": _loading, "streaming": _streaming, "waiting": _waiting}
MODELS: dict[str, dict[str, Any]] = {"a": {}, "slow": {"load_s": 0.8}}


async def _for_both_signals(
    directory: Path, check: Callable[[Path, signal.Signals], Awaitable[None]]
) -> None:
    """Side by side, because a test would otherwise mostly wait."""
    async with trio.open_nursery() as nursery:
        for number in (signal.SIGINT, signal.SIGTERM):
            own = directory / number.name
            own.mkdir()
            nursery.start_soon(check, own, number)


@pytest.mark.parametrize("phase", PHASES)
async def test_the_first_signal_lets_accepted_work_end_and_then_the_engine(
    tmp_path: Path, phase: str
) -> None:
    async def check(directory: Path, number: signal.Signals) -> None:
        async with daemon(directory, MODELS) as it:
            async with trio.open_nursery() as nursery:
                askers = Askers(it, nursery)
                await PHASES[phase](askers)
                it.signal(number)
                assert await it.wait_ended() == 0
            assert askers.cut == 0, askers.replies
            _expect_nothing_left(it)
            # Every engine stopped in order, the last one too.
            assert {stamp.facts["status"] for stamp in it.stamps("exit")} == {0}
            assert len(it.stamps("exit")) == len(it.stamps("start"))
            assert it.overlaps() == []

    await _for_both_signals(tmp_path, check)


@pytest.mark.parametrize("phase", PHASES)
async def test_the_second_signal_ends_everything_at_once(tmp_path: Path, phase: str) -> None:
    """Whatever the engine thinks of it: this one takes five seconds to stop."""
    models = {name: {**knobs, "exit_s": 5} for name, knobs in MODELS.items()}
    async with daemon(tmp_path, models) as it:
        async with trio.open_nursery() as nursery:
            askers = Askers(it, nursery)
            await PHASES[phase](askers)
            it.signal(signal.SIGTERM)
            await it.status_until(lambda status: status["draining"])
            it.signal(signal.SIGINT)
            await it.wait_ended(within_s=AT_ONCE_S)
        _expect_nothing_left(it)
        assert len(askers.replies) <= askers.cut


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
        for delay_s in (0, 0, 0.003):
            it.launch()
            _watch_for(it.control_socket)
            await trio.sleep(delay_s)
            it.signal(signal.SIGTERM)
            assert await it.wait_ended(within_s=3) == 0
            _expect_nothing_left(it)


async def test_a_finite_drain_interrupts_what_has_not_ended(tmp_path: Path) -> None:
    """The stream is told so in-band, the waiting request by its status; then the engine ends in order."""
    async with daemon(tmp_path, MODELS, {"drain_ms": 300}) as it:
        async with trio.open_nursery() as nursery:
            askers = Askers(it, nursery)
            await askers.ask("a", "FX:slow", stream=True)
            await until(lambda: it.stamps("first_chunk"))
            await askers.ask("slow")
            await it.status_until(lambda status: status["queue_depth"] == 1)
            it.signal(signal.SIGTERM)
            assert await it.wait_ended(within_s=4) == 0
        assert sorted(reply.status for reply in askers.replies) == [200, 503]
        assert all(b'"code":"shutting_down"' in reply.body for reply in askers.replies)
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
        for number in range(1, 6):
            await it.start()
            async with trio.open_nursery() as nursery:
                askers = Askers(it, nursery)
                for model in "abab":
                    await askers.ask(model)
                    await askers.ask(model, "FX:slow", stream=True)
                await _stamped(it, "ready", number)
                it.signal(signal.SIGTERM)
                assert await it.wait_ended(within_s=5) == 0
            assert len(askers.replies) == 8
            assert {reply.status for reply in askers.replies} <= {200, 503}
            _expect_nothing_left(it)
        await it.start()
        assert (await it.chat("b")).status == 200
        assert it.overlaps() == []


async def _stamped(it: DaemonUnderTest, event: str, times: int) -> None:
    await until(lambda: len(it.stamps(event)) >= times)


async def test_b10_sighup_changes_nothing(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {}}) as it:
        assert (await it.chat("a")).status == 200
        before = await it.status()
        del before["loaded_ms"]  # that goes on
        for _ in range(3):
            it.signal(signal.SIGHUP)
        await until(lambda: it.log.count("SIGHUP is ignored") > 0)
        assert (await it.chat("a")).status == 200
        assert before.items() <= (await it.status()).items()
        assert len(it.stamps("start")) == 1
        it.signal(signal.SIGTERM)
        assert await it.wait_ended() == 0
        _expect_nothing_left(it)
