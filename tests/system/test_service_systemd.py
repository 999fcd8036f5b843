"""The shipped, hardened units under a real systemd: activation, restarts, crashes, stops (contract 11).

tests/systemd_restart.py runs this file for an installed strata-router. Nothing of the host's own
service manager is touched. Skipped, with the reason, where namespaces cannot be had.
"""

import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.runtime.http.raw import RawClient, get
from tests.system.harness import pid_exists, rounds, until
from tests.system.restart_load import RestartLoad, fault_of, instance_of
from tests.system.service_under_test import SERVICE, SOCKET, Service, service
from tests.system.systemd_namespace import unsupported

pytestmark = pytest.mark.skipif(unsupported() is not None, reason=str(unsupported()))

SLOW = {"chunk_every_ms": 50, "force_tokens": 20}
"""One second of streaming."""


async def said(it: Service, text: str, within_s: float = 10.0) -> None:
    """Wait until ``systemctl status`` would show this."""
    await until(lambda: text in it.status_text(), within_s)


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if pid_exists(pid)]


async def test_the_first_connection_starts_the_service(tmp_path: Path) -> None:
    async with service(tmp_path, {"a": {}}) as it:
        it.systemd.ctl("start", SOCKET)
        assert (it.state(SOCKET), it.state()) == ("active", "inactive")
        reply = await it.daemon.chat("a", stream=True)
        assert fault_of(reply, stream=True) is None
        assert it.state() == "active"
        await said(it, "serving; model a; 0 active, 0 waiting")
        status = await it.daemon.status()
        assert status["loaded"] == "a"
        assert it.has_runtime_directory()


async def test_a_restart_while_streaming_queued_and_loading_drops_nobody(tmp_path: Path) -> None:
    # A load long enough that the status, which is told every second, cannot miss it.
    async with service(tmp_path, {"a": SLOW, "b": {"load_s": 2.5}}) as it:
        it.start()
        streamer = await it.daemon.send_chat("a", stream=True)
        await until(lambda: it.daemon.stamps("first_chunk"))
        queued = await it.daemon.send_chat("b", stream=True)
        idle = await it.daemon.connect()
        await idle.send(get("/v1/models"))
        await idle.reply()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(it.restart)
            await said(it, "draining; model a; 1 active, 1 waiting")
            assert it.state() == "deactivating"
            # A new client waits in the socket; nothing of the old process can take it.
            late = await it.daemon.send_chat("b", stream=True)
            await said(it, "draining; loading model b; 1 active, 0 waiting")
        old = [await client.reply() for client in (streamer, queued)]
        new = await late.reply()
        assert [fault_of(reply, stream=True) for reply in (*old, new)] == [None] * 3
        assert len({instance_of(reply) for reply in old}) == 1
        assert instance_of(new) != instance_of(old[0])
        assert await idle.at_eof(), "closed in order; a reset would raise"
        assert it.daemon.overlaps() == []
        assert it.systemd.show(SERVICE, "Result") == "success"


@pytest.mark.bound_s(400)
async def test_restarts_in_a_row_under_load_drop_nobody(tmp_path: Path) -> None:
    models: dict[str, dict[str, Any]] = {
        "a": {"hash_responses": True, "chunk_every_ms": 10, "force_tokens": 12},
        "b": {"hash_responses": True},
    }
    async with service(tmp_path, models, {"model_grace_ms": 50}) as it:
        it.start()
        load = RestartLoad(it.daemon.port)
        async with trio.open_nursery() as nursery:
            for model, stream in 3 * [("a", True), ("a", False), ("b", True), ("b", False)]:
                nursery.start_soon(partial(load.asker, model, stream=stream))
            for _ in range(2):
                nursery.start_soon(load.idler)
            for _ in range(rounds(2, 20)):
                before = load.answers
                await until(partial(_answered_more_than, load, before + 12), 30)
                await it.restart()
            load.stop()
        assert load.failures == []
        assert len(load.served) > rounds(2, 20) // 2, "most processes answered something"
        assert load.closed_idle > 0
        assert it.daemon.overlaps() == []
        await until(lambda: len(it.daemon.stamps("done")) >= load.answers)
        sent = {stamp.facts["response_sha256"] for stamp in it.daemon.stamps("done")}
        assert set(load.hashes) <= sent, "every stream is byte for byte what an engine sent"


def _answered_more_than(load: RestartLoad, answers: int) -> bool:
    return load.answers > answers


async def test_after_sigkill_the_service_is_back_within_two_seconds_and_no_engine_is_left(
    tmp_path: Path,
) -> None:
    """Two seconds once in three times: the machine may be busy with something else."""
    async with service(tmp_path, {"a": {"workers": 1, "worker_setsid": True}}) as it:
        it.start()
        took_s: list[float] = []
        while not took_s or (min(took_s) >= 2 and len(took_s) < 3):
            assert fault_of(await it.daemon.chat("a"), stream=False) is None
            victim, everything = it.systemd.main_pid(SERVICE), it.systemd.pids(SERVICE)
            assert victim is not None
            assert len(everything) > 3
            os.kill(victim, signal.SIGKILL)
            killed_s = time.monotonic()
            # Until then the dying process could still accept a connection.
            await until(lambda victim=victim: not alive([victim]))  # type: ignore[misc]
            client = await RawClient.connect(it.daemon.port)
            async with client.stream:
                await client.send(get("/health"))
                assert (await client.reply()).status == 200
            took_s.append(time.monotonic() - killed_s)
            assert alive(everything) == []
            assert it.state(SOCKET) == "active"
            assert it.systemd.show(SERVICE, "NRestarts") == str(len(took_s))
        assert min(took_s) < 2
        assert it.daemon.overlaps() == []


async def test_stopping_socket_and_service_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    async with service(tmp_path, {"a": {"workers": 1}}) as it:
        it.start()
        assert fault_of(await it.daemon.chat("a"), stream=False) is None
        everything = it.systemd.pids(SERVICE)
        await it.ctl("stop", SOCKET, SERVICE)
        assert (it.state(SOCKET), it.state()) == ("inactive", "inactive")
        assert it.systemd.show(SERVICE, "Result") == "success"
        assert alive(everything) == []
        assert not it.has_runtime_directory()
        with pytest.raises(OSError, match="all attempts to connect"):
            await RawClient.connect(it.daemon.port)


async def test_a_finite_stop_timeout_does_not_cut_a_drain_that_goes_on(tmp_path: Path) -> None:
    """EXTEND_TIMEOUT_USEC; the shipped unit has no timeout at all."""
    models = {"a": {"chunk_every_ms": 100, "force_tokens": 25}}
    async with service(tmp_path, models, unit={"TimeoutStopSec": "1s"}) as it:
        it.start()
        streamer = await it.daemon.send_chat("a", stream=True)
        await until(lambda: it.daemon.stamps("first_chunk"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(it.ctl, "stop", SOCKET, SERVICE)
            assert fault_of(await streamer.reply(), stream=True) is None
        assert it.systemd.show(SERVICE, "Result") == "success"


async def test_a_daemon_that_stands_still_is_replaced_by_the_watchdog(tmp_path: Path) -> None:
    async with service(tmp_path, {"a": {}}, unit={"WatchdogSec": "1s"}) as it:
        it.start()
        assert fault_of(await it.daemon.chat("a"), stream=False) is None
        await trio.sleep(1.5)
        assert it.systemd.show(SERVICE, "NRestarts") == "0", "it gives signs of life"
        main, everything = it.systemd.main_pid(SERVICE), it.systemd.pids(SERVICE)
        assert main is not None
        os.kill(main, signal.SIGSTOP)
        waiting = await it.daemon.send_chat("a")
        assert fault_of(await waiting.reply(), stream=False) is None
        assert it.systemd.show(SERVICE, "NRestarts") == "1"
        assert alive(everything) == []


async def test_a_broken_configuration_keeps_the_socket_and_its_clients_until_it_is_mended(
    tmp_path: Path,
) -> None:
    """With a start limit the second failure would fail the socket too, and refuse who waits."""
    async with service(tmp_path, {"a": {}}, unit={"RestartSec": "50ms"}) as it:
        it.systemd.drop_in(SERVICE, Unit={"StartLimitBurst": "2"})
        it.systemd.ctl("daemon-reload")
        it.daemon.config["listen"] = f"127.0.0.2:{it.daemon.port}"
        it.write_config()
        it.systemd.ctl("start", SOCKET)
        waiting = await it.daemon.send_chat("a", stream=True)
        await until(lambda: int(it.systemd.show(SERVICE, "NRestarts")) >= 3, 30)
        assert it.state(SOCKET) == "active"
        it.daemon.config["listen"] = f"127.0.0.1:{it.daemon.port}"
        it.write_config()
        assert fault_of(await waiting.reply(), stream=True) is None
