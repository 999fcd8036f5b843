"""Restarts without dropping anyone, with a retained descriptor in systemd's place (contract 11).

tests/restart.py runs this file. What only a real systemd shows is in test_service_systemd.py; how a drain
ends by its deadline or by a second signal does not depend on whose the listener is: test_drain.py.
"""

import os
import random
import signal
import socket
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.runtime.http.raw import RawClient, get, post
from tests.system.harness import (
    CHAT,
    DaemonUnderTest,
    can_bind,
    chat_body,
    daemon,
    rounds,
    until,
)
from tests.system.restart_load import RestartLoad, fault_of, instance_of
from tests.system.retained_listener import (
    BACKLOG,
    RetainedListener,
    backlog_of,
    retained_listener,
    waiting_in,
)

SLOW = {"chunk_every_ms": 50, "force_tokens": 16}
"""0.8 s of streaming."""

SHORT = "FX:force_tokens=1"


def streaming(it: DaemonUnderTest) -> bool:
    """An engine has begun to answer."""
    return bool(it.stamps("first_chunk"))


def open_files(pid: int) -> set[str]:
    """What the process has open, as /proc names it."""
    found = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it has just closed it
            found.add(os.readlink(entry))
    return found


def inode_of(listener: socket.socket) -> str:
    """The socket as ``open_files`` shows it."""
    return os.readlink(f"/proc/self/fd/{listener.fileno()}")


def variable_names(pid: int) -> set[bytes]:
    """The environment the process was started with."""
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return {variable.partition(b"=")[0] for variable in variables}


# ---- the whole ---------------------------------------------------------------------------------


async def test_a_restart_while_streaming_queued_and_connecting_drops_nobody(tmp_path: Path) -> None:
    async with retained_listener(tmp_path, {"a": SLOW, "b": {"load_s": 0.3}}) as it:
        streamer = await it.daemon.send_chat("a", stream=True)
        await until(lambda: streaming(it.daemon))
        queued = await it.daemon.send_chat("b")
        queued_stream = await it.daemon.send_chat("b", stream=True)
        await it.daemon.status_until(lambda status: status["queue_depth"] == 2)
        it.daemon.signal(signal.SIGTERM)
        await it.hear("STOPPING=1")

        late = [await it.daemon.send_chat("a", stream=stream) for stream in (True, False)]
        assert waiting_in(it.listener) == 2
        assert inode_of(it.listener) not in open_files(it.daemon.pid), "it has closed its copy"
        status = await it.daemon.status()
        assert (status["draining"], status["routing"]) == (True, True)

        old = [await client.reply() for client in (streamer, queued, queued_stream)]
        assert await it.daemon.wait_ended() == 0
        assert waiting_in(it.listener) == 2
        await it.start()
        new = [await client.reply() for client in late]
        for reply, stream in zip(old + new, (True, False, True, True, False), strict=True):
            assert fault_of(reply, stream=stream) is None
        first, second = {instance_of(reply) for reply in old}, {instance_of(reply) for reply in new}
        assert len(first) == len(second) == 1
        assert first != second
        assert it.daemon.overlaps() == []


async def test_a_restart_during_a_load_or_a_header_wait_waits_for_the_answer(
    tmp_path: Path,
) -> None:
    async with retained_listener(tmp_path, {"a": {"load_s": 0.4, "header_delay_s": 0.4}}) as it:
        loading = await it.daemon.send_chat("a", stream=True)
        await it.daemon.status_until(lambda status: status["loading"] == "a")
        assert await it.replace() == 0
        assert fault_of(await loading.reply(), stream=True) is None

        waiting = await it.daemon.send_chat("a")
        await until(lambda: len(it.daemon.stamps("request")) == 2)
        assert await it.replace() == 0
        assert fault_of(await waiting.reply(), stream=False) is None
        assert it.daemon.overlaps() == []


@pytest.mark.bound_s(240)
async def test_b10_restarts_under_load_drop_nobody_and_never_run_two_engines(
    tmp_path: Path,
) -> None:
    """Also SIGHUP, which is ignored: the configuration is read at start."""
    models: dict[str, dict[str, Any]] = {
        "a": {"hash_responses": True, "chunk_every_ms": 10, "force_tokens": 12},
        "b": {"hash_responses": True},
    }
    async with retained_listener(tmp_path, models, {"model_grace_ms": 50}) as it:
        load = RestartLoad(it.daemon.port)
        async with trio.open_nursery() as nursery:
            for model, stream in 3 * [("a", True), ("a", False), ("b", True), ("b", False)]:
                nursery.start_soon(partial(load.asker, model, stream=stream))
            for _ in range(2):
                nursery.start_soon(load.idler)
            for _ in range(rounds(2, 20)):
                before = load.answers
                await until(lambda before=before: load.answers > before + 12, 30)  # type: ignore[misc]
                it.daemon.signal(signal.SIGHUP)
                assert await it.replace() == 0
            load.stop()
        assert load.failures == []
        assert len(load.served) > rounds(2, 20) // 2, "most processes answered something"
        assert load.closed_idle > 0
        assert it.daemon.overlaps() == []
        await until(lambda: len(it.daemon.stamps("done")) >= load.answers)
        sent = {stamp.facts["response_sha256"] for stamp in it.daemon.stamps("done")}
        assert set(load.hashes) <= sent, "every stream is byte for byte what an engine sent"


# ---- the listener --------------------------------------------------------------------------------


async def test_b26_the_backlog_keeps_its_size_and_all_who_wait_in_it_are_served(
    tmp_path: Path,
) -> None:
    async with retained_listener(tmp_path, {"a": SLOW}) as it:
        streamer = await it.daemon.send_chat("a", stream=True)
        await until(lambda: streaming(it.daemon))
        it.daemon.signal(signal.SIGTERM)
        await it.hear("STOPPING=1")
        load = RestartLoad(it.daemon.port)
        async with trio.open_nursery() as nursery:
            for number in range(300):
                if number % 10:
                    nursery.start_soon(_models_listed, it.daemon, load)
                else:
                    nursery.start_soon(
                        lambda: load.ask("a", stream=False, text="FX:force_tokens=1")
                    )
            await until(lambda: waiting_in(it.listener) == 300)
            assert fault_of(await streamer.reply(), stream=True) is None
            assert await it.daemon.wait_ended() == 0
            await it.start()
        assert load.failures == []
        assert load.answers == 30
        assert backlog_of(it.listener) == BACKLOG


async def _models_listed(it: DaemonUnderTest, load: RestartLoad) -> None:
    client = await RawClient.connect(it.port)
    async with client.stream:
        await client.send(get("/v1/models"))
        if (await client.reply()).status != 200:
            load.failures.append("models")


async def test_who_waits_in_the_backlog_at_the_stop_is_left_to_the_successor(
    tmp_path: Path,
) -> None:
    """Taken in, they would make the drain longer, and without an end while clients keep coming."""
    async with retained_listener(tmp_path, {"a": SLOW}, {"max_connections": 2}) as it:
        served = [await it.daemon.send_chat("a", stream=True) for _ in range(2)]
        await until(lambda: streaming(it.daemon))
        late = await it.daemon.send_chat("a", stream=True)
        it.daemon.signal(signal.SIGTERM)
        await it.hear("STOPPING=1")
        assert waiting_in(it.listener) == 1
        old = [await client.reply() for client in served]
        assert await it.daemon.wait_ended() == 0
        await it.start()
        new = await late.reply()
        assert [fault_of(reply, stream=True) for reply in (*old, new)] == [None] * 3
        assert instance_of(new) not in {instance_of(reply) for reply in old}


async def test_b26_the_engine_gets_neither_the_listener_nor_the_managers_variables(
    tmp_path: Path,
) -> None:
    async with retained_listener(tmp_path, {"a": {"workers": 1}}, start=False) as it:
        it.daemon.environment["WATCHDOG_USEC"] = "60000000"
        await it.start()
        assert (await it.daemon.chat("a")).status == 200
        inode = inode_of(it.listener)
        assert inode in open_files(it.daemon.pid)
        started = it.daemon.left_pids()
        assert len(started) >= 3, "the guard, the server, its native engine and the helper"
        assert not [pid for pid in started if inode in open_files(pid)]
        names = set[bytes]().union(*map(variable_names, started))
        assert b"PATH" in names
        assert not {n for n in names if n.startswith((b"LISTEN_", b"NOTIFY_", b"WATCHDOG_"))}


@pytest.mark.bound_s(240)
async def test_connections_that_meet_the_stop_are_served_by_the_one_or_the_other(
    tmp_path: Path,
) -> None:
    """The instant of the signal, 30 connections around it. A client that a dying process accepted
    and did not serve would see a reset here."""
    async with retained_listener(tmp_path, {"a": {}}) as it:
        assert (await it.daemon.chat("a")).status == 200
        for _ in range(rounds(2, 40)):
            load = RestartLoad(it.daemon.port)
            async with trio.open_nursery() as nursery:

                async def burst(load: RestartLoad = load) -> None:
                    for _ in range(30):
                        nursery.start_soon(partial(load.ask, "a", stream=True))
                        await trio.sleep(0.001)

                nursery.start_soon(burst)
                await trio.sleep(random.uniform(0.005, 0.03))
                assert await it.replace() == 0
            assert load.failures == []
            assert load.answers == 30


async def test_an_activation_for_another_process_ends_the_daemon_and_binds_nothing(
    tmp_path: Path,
) -> None:
    async with daemon(tmp_path, {}, start=False) as it:
        it.environment.update(LISTEN_FDS="1", LISTEN_PID="1")
        it.launch()
        assert await it.wait_ended() == 1
        assert "LISTEN_PID does not name this process" in it.log
        assert can_bind(it.port)


async def test_a_listener_elsewhere_than_configured_ends_the_daemon(tmp_path: Path) -> None:
    async with retained_listener(tmp_path, {}, start=False) as it:
        it.daemon.config["listen"] = "127.0.0.1:1"
        it.launch()
        assert await it.daemon.wait_ended() == 1
        assert "make ListenStream and 'listen' the same" in it.daemon.log


# ---- the drain -----------------------------------------------------------------------------------


async def test_an_idle_connection_is_closed_in_order_and_one_that_asks_is_served_and_closed(
    tmp_path: Path,
) -> None:
    async with retained_listener(tmp_path, {"a": SLOW}) as it:
        streamer = await it.daemon.send_chat("a", stream=True)
        idle, asking = await it.daemon.connect(), await it.daemon.connect()
        for client in (idle, asking):
            await client.send(get("/v1/models"))
            assert "connection" not in (await client.reply()).headers
        await until(lambda: streaming(it.daemon))
        it.daemon.signal(signal.SIGTERM)
        await it.hear("STOPPING=1")
        began_s = time.monotonic()
        await asking.send(post(CHAT, body=chat_body("a")))
        reply = await asking.reply()
        assert fault_of(reply, stream=False) is None
        assert reply.headers["connection"] == ["close"]
        assert await asking.at_eof()
        assert await idle.at_eof(), "a reset would raise"
        assert time.monotonic() - began_s < 3
        assert fault_of(await streamer.reply(), stream=True) is None
        assert await it.daemon.wait_ended() == 0


async def test_a_connection_that_never_asks_does_not_hold_the_drain(tmp_path: Path) -> None:
    """Also one that was accepted at the very moment of the stop."""
    async with retained_listener(tmp_path, {"a": {}}) as it:
        with socket.create_connection(("127.0.0.1", it.daemon.port)) as early:
            await until(lambda: waiting_in(it.listener) == 0)
            it.daemon.signal(signal.SIGTERM)
            with socket.create_connection(("127.0.0.1", it.daemon.port)):
                assert await it.daemon.wait_ended(5) == 0
            early.settimeout(1)
            assert early.recv(1) == b""


# ---- what the service manager hears --------------------------------------------------------------


async def test_the_service_manager_hears_how_the_daemon_is_from_start_to_end(
    tmp_path: Path,
) -> None:
    async with retained_listener(tmp_path, {"a": SLOW}) as it:
        assert it.heard[0] == "READY=1"
        await it.hear("STATUS=serving; no model loaded; 0 active, 0 waiting")
        streamer = await it.daemon.send_chat("a", "FX:force_tokens=200", stream=True)
        await it.hear("STATUS=serving; model a; 1 active, 0 waiting")
        it.daemon.signal(signal.SIGTERM)
        await it.hear("STATUS=draining; model a; 1 active, 0 waiting")
        assert it.heard.index("STOPPING=1") < it.heard.index("EXTEND_TIMEOUT_USEC=30000000")
        await streamer.stream.aclose()
        assert await it.daemon.wait_ended() == 0


async def signs_of_life(it: RetainedListener, for_s: float) -> int:
    it.listen()
    it.heard.clear()
    await trio.sleep(for_s)
    it.listen()
    return it.heard.count("WATCHDOG=1")


async def test_a_daemon_that_is_watched_gives_signs_of_life_also_while_it_drains(
    tmp_path: Path,
) -> None:
    async with retained_listener(tmp_path, {"a": SLOW}, start=False) as it:
        it.daemon.environment["WATCHDOG_USEC"] = "200000"
        await it.start()
        streamer = await it.daemon.send_chat("a", stream=True)
        await until(lambda: streaming(it.daemon))
        assert await signs_of_life(it, 0.35) >= 2
        it.daemon.signal(signal.SIGTERM)
        assert await signs_of_life(it, 0.35) >= 2
        await streamer.reply()
        await it.daemon.wait_ended()
