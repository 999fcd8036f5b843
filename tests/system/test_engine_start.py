"""How an engine is started, and what it must prove before it sees a request (contract 4.1-4.3).

Most tests share a daemon and have a model of their own, so that one model's cooldown is no other's.
"""

import json
import os
import socket
import stat
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from strata_router import simulated
from strata_router.simulated.events import Stamp
from tests.system.harness import DaemonUnderTest, can_bind, daemon, until
from tests.system.shared import running, visiting

ANOTHER_MODEL = "backend reports another model than the profile names"
NO_HEALTH = "backend's health check does not answer as Strata does"

WRONG_BY_FILE: dict[str, tuple[dict[str, Any], str]] = {
    "file-of-another-process": (
        {"ready_file": "wrong_pid"},
        "the readiness file names another process than the one started",
    ),
    "file-of-another-model": ({"ready_file": "wrong_model"}, ANOTHER_MODEL),
    "file-without-object": (
        {"ready_file": "not_object"},
        "the readiness file is not the JSON that it should be",
    ),
    "file-right-health-wrong": ({"health": {"model": "secret-name"}}, ANOTHER_MODEL),
}
WRONG_BY_HEALTH: dict[str, tuple[dict[str, Any], str]] = {
    "another-model": ({"wrong_model": "secret-name"}, ANOTHER_MODEL),
    "another-of-ours": ({"wrong_model": "upstream-plain"}, f"{ANOTHER_MODEL}: upstream-plain"),
    "not-loaded": (
        {"health": {"loaded": False}},
        "backend listens but reports that its model is not loaded",
    ),
    "garbage": ({"health_raw": "<html>secret-name</html>"}, NO_HEALTH),
    "broken": ({"health_status": 500}, NO_HEALTH),
    "failing-load": ({"fail_load": 1}, "backend exited with status 1 before it was ready"),
    "killed-while-loading": (
        {"hang_load": True, "die_loading_after_s": 0.1, "workers": 2, "worker_linger_s": -1},
        "backend was killed by signal 9 before it was ready",
    ),
}
NEVER_READY: dict[str, dict[str, Any]] = {
    "hangs": {"hang_load": True},
    "file-never": {"ready_file": "never"},
    "file-half-written": {"ready_file": "garbage"},
    "health-too-late": {"health_delay_s": 30},
    "loading-for-ever": {"early_listener": True, "hang_load": True},
}
RIGHT: dict[str, dict[str, Any]] = {
    "plain": {},
    "slow-health": {"health_delay_s": 0.3},
    "early-listener": {"early_listener": True, "load_s": 0.4},
    "file-late": {"ready_file_delay_s": 0.4},
    "file-too-early": {"ready_file": "before_load", "load_s": 0.4},
}
OTHERS: dict[str, dict[str, Any]] = {
    "slow": {"load_s": 1},
    "slow-too": {"load_s": 1},
    "changed": {},
}

STARTUP_MS = 500

HOW_IT_ENDS = {
    "exit0": "backend exited with status 0 before it was ready",
    "exit1": "backend exited with status 1 before it was ready",
    "exit2": "backend exited with status 2 before it was ready",
    "exit127": "backend exited with status 127 before it was ready",
    "signal2": "backend was killed by signal 2 before it was ready",
    "signal6": "backend was killed by signal 6 before it was ready",
    "signal15": "backend was killed by signal 15 before it was ready",
}
"""Statuses of facts/strata-server.md section 1 (and the interpreter's own), by the model's name."""

ENDING_INTERPRETER = """#!/bin/sh
all="$*"; how=${all##*strata-}; how=${how%%.json*}
case $how in
exit*) exit ${how#exit};;
signal*) kill -${how#signal} $$; sleep 60;;
esac
"""


def _knobs(table: dict[str, tuple[dict[str, Any], str]]) -> dict[str, dict[str, Any]]:
    return {name: knobs for name, (knobs, _) in table.items()}


@pytest.fixture(scope="module")
def by_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonUnderTest]:
    """A checkout that offers ``--ready-file``."""
    models = _knobs(WRONG_BY_FILE) | _knobs(WRONG_BY_HEALTH) | RIGHT | OTHERS
    with running(tmp_path_factory.mktemp("file"), models) as it:
        yield it


def _use_public_checkout(it: DaemonUnderTest) -> None:
    it.config["strata_dir"] = str(simulated.strata_dir())


@pytest.fixture(scope="module")
def by_health(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonUnderTest]:
    """A checkout like public Strata's, which does not."""
    models = _knobs(WRONG_BY_HEALTH) | RIGHT | OTHERS
    with running(tmp_path_factory.mktemp("health"), models, prepare=_use_public_checkout) as it:
        yield it


def _use_health_for_some(it: DaemonUnderTest) -> None:
    it.config["engines"] = {"asked": {"kind": "strata", "readiness": "health"}}
    for name in ("health-too-late", "loading-for-ever"):
        it.config["models"][name]["engine"] = "asked"


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonUnderTest]:
    """A daemon that is not patient with engines."""
    directory = tmp_path_factory.mktemp("hasty")
    config = {"startup_ms": STARTUP_MS}
    with running(directory, NEVER_READY, config, _use_health_for_some) as it:
        yield it


@pytest.fixture(scope="module")
def ending(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonUnderTest]:
    """A daemon whose interpreter ends by the status or signal that the profile's name says."""
    directory = tmp_path_factory.mktemp("ending")
    interpreter = directory / "python"
    interpreter.write_text(ENDING_INTERPRETER)
    interpreter.chmod(0o700)
    models: dict[str, dict[str, Any]] = {name: {} for name in HOW_IT_ENDS}
    with running(directory, models, {"python": str(interpreter)}) as it:
        yield it


def _stamps_of(it: DaemonUnderTest, model: str, event: str) -> list[Stamp]:
    return [stamp for stamp in it.stamps(event) if stamp.model == f"upstream-{model}"]


async def _expect_failed_load(it: DaemonUnderTest, model: str, reason: str) -> None:
    """The client learns that the load failed, the operator why, and nothing is left of it."""
    reply = await it.chat(model)
    assert reply.status == 503
    error = json.loads(reply.body)["error"]
    assert error["code"] == "model_load_failed"
    assert reason not in error["message"]
    assert it.engine_pids() == []
    assert can_bind(it.backend_port)
    status = await it.status()
    assert status["last_startup_error"] == reason
    assert status["loaded"] is None
    assert status["child_pid"] is None
    assert status["engine_state"] == "stopped"
    assert "secret-name" not in it.log + json.dumps(status)
    record = await it.record_of(reply)
    assert (record["reason"], record["status"]) == ("model_load_error", 503)
    assert record["model_load_ms"] is not None
    assert _stamps_of(it, model, "request") == []
    assert it.overlaps() == []


async def _expect_answer(it: DaemonUnderTest, model: str) -> None:
    reply = await it.chat(model)
    assert reply.status == 200, it.log
    status = await it.status()
    assert (status["loaded"], status["last_startup_error"]) == (model, None)
    (ready,), (request,) = (_stamps_of(it, model, event) for event in ("ready", "request"))
    assert ready.at < request.at
    assert status["child_pid"] == ready.pid
    assert it.overlaps() == []


# ---- readiness and identity --------------------------------------------------------------------


@pytest.mark.parametrize("model", RIGHT)
async def test_a_request_is_forwarded_once_file_and_health_agree(
    by_file: DaemonUnderTest, model: str
) -> None:
    async with visiting(by_file) as it:
        await _expect_answer(it, model)


@pytest.mark.parametrize("model", RIGHT)
async def test_without_a_readiness_file_port_owner_and_health_are_proof_enough(
    by_health: DaemonUnderTest, model: str
) -> None:
    async with visiting(by_health) as it:
        await _expect_answer(it, model)


@pytest.mark.parametrize(("model", "reason"), [(m, r) for m, (_, r) in WRONG_BY_FILE.items()])
async def test_a_wrong_readiness_file_fails_the_load(
    by_file: DaemonUnderTest, model: str, reason: str
) -> None:
    async with visiting(by_file) as it:
        await _expect_failed_load(it, model, reason)


@pytest.mark.parametrize(("model", "reason"), [(m, r) for m, (_, r) in WRONG_BY_HEALTH.items()])
async def test_a_wrong_engine_fails_the_load_and_is_told_to_the_operator_alone(
    by_health: DaemonUnderTest, model: str, reason: str
) -> None:
    async with visiting(by_health) as it:
        await _expect_failed_load(it, model, reason)


@pytest.mark.parametrize("model", ["not-loaded", "broken", "killed-while-loading"])
async def test_a_wrong_engine_fails_the_load_whatever_its_readiness_file_says(
    by_file: DaemonUnderTest, model: str
) -> None:
    async with visiting(by_file) as it:
        await _expect_failed_load(it, model, WRONG_BY_HEALTH[model][1])


@pytest.mark.parametrize("model", NEVER_READY)
async def test_startup_ms_bounds_a_load_whatever_the_engine_does(
    hasty: DaemonUnderTest, model: str
) -> None:
    async with visiting(hasty) as it:
        reason = f"backend was not ready within startup_ms ({STARTUP_MS} ms)"
        await _expect_failed_load(it, model, reason)
        (record,) = [r for r in await it.records() if r["model_requested"] == model]
        assert STARTUP_MS <= record["model_load_ms"] < STARTUP_MS + 1500


@pytest.mark.parametrize("model", HOW_IT_ENDS)
async def test_every_way_in_which_a_server_ends_before_it_is_ready_fails_the_load_at_once(
    ending: DaemonUnderTest, model: str
) -> None:
    async with visiting(ending) as it:
        await _expect_failed_load(it, model, HOW_IT_ENDS[model])
        assert (await it.records())[-1]["model_load_ms"] < 3000


# ---- strangers on the port ---------------------------------------------------------------------


def _us(port: int) -> str:
    """What is said of this process when it holds the port."""
    name = Path("/proc/self/comm").read_text().rstrip("\n")
    return f"port {port} is held by pid {os.getpid()} ({name})"


async def _unload(it: DaemonUnderTest) -> None:
    assert (await it.off())["ok"]
    await it.control("on")


async def test_a_stranger_on_the_port_is_named_before_anything_is_started(
    by_health: DaemonUnderTest,
) -> None:
    async with visiting(by_health) as it:
        await _unload(it)
        with socket.create_server(("127.0.0.1", it.backend_port)):
            assert (await it.chat("changed")).status == 503
            status = await it.status()
            assert status["last_startup_error"] == _us(it.backend_port)
            assert _stamps_of(it, "changed", "start") == []
        done = await it.on("changed")
        assert (done["ok"], done["loaded"]) == (True, "changed")


@asynccontextmanager
async def _stranger(port: int, model: str, seen: list[bytes]) -> AsyncIterator[None]:
    """A process (this one) that answers on the port as the engine of ``model`` would."""
    health = json.dumps({"status": "ok", "loaded": True, "model": f"upstream-{model}"}).encode()

    async def answer(stream: trio.SocketStream) -> None:
        seen.append(await stream.receive_some(65536))
        await stream.send_all(b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % len(health))
        await stream.send_all(health)
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        await nursery.start(partial(trio.serve_tcp, answer, port, host="127.0.0.1"))
        yield
        nursery.cancel_scope.cancel()


async def test_a_stranger_that_takes_the_port_during_a_load_is_never_adopted(
    by_health: DaemonUnderTest,
) -> None:
    async with visiting(by_health) as it:
        await _unload(it)
        seen: list[bytes] = []
        client = await it.send_chat("slow")
        await until(lambda: _stamps_of(it, "slow", "native_start"))
        async with _stranger(it.backend_port, "slow", seen):
            assert (await client.reply()).status == 503
            assert (await it.status())["last_startup_error"] == _us(it.backend_port)
        assert not [request for request in seen if request.startswith(b"POST")]
        assert it.engine_pids() == []


async def test_an_engine_that_finds_its_port_taken_is_told_by_the_ports_holder(
    by_file: DaemonUnderTest,
) -> None:
    async with visiting(by_file) as it:
        await _unload(it)
        seen: list[bytes] = []
        client = await it.send_chat("slow-too")
        await until(lambda: _stamps_of(it, "slow-too", "native_start"))
        async with _stranger(it.backend_port, "slow-too", seen):
            assert (await client.reply()).status == 503
            reason = "backend exited with status 1 before it was ready; " + _us(it.backend_port)
            assert (await it.status())["last_startup_error"] == reason
        assert seen == []
        assert it.engine_pids() == []


# ---- profiles ----------------------------------------------------------------------------------


async def test_a_profile_is_checked_again_at_every_start(by_file: DaemonUnderTest) -> None:
    """One that was good when the daemon started may have been changed since."""
    async with visiting(by_file) as it:
        await _unload(it)
        it.set_knobs("changed", {}, lazy_load=True, api_key="secret-name")
        reason = (
            "the model's profile is refused: lazy_load must be false: the router decides when to "
            "load; api_key must not be set: the engine serves this router only; remove it"
        )
        await _expect_failed_load(it, "changed", reason)
        assert _stamps_of(it, "changed", "start") == []
        it.set_knobs("changed", {})
        assert (await it.on("changed"))["ok"]


# ---- the process -------------------------------------------------------------------------------

ADOPTER = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ["LISTEN_PID"] = str(os.getpid())
os.execv(sys.argv[2], sys.argv[2:])
"""
"""Passes a listening socket as a service manager does: descriptor 3, and the pid of who may have it."""

OURS_ALONE = {
    "STRATA_API_KEY": "secret",
    "LISTEN_FDS": "1",
    "LISTEN_FDNAMES": "http",
    "WATCHDOG_USEC": "30000000",
    "WATCHDOG_PID": "1",
}


async def test_the_engine_inherits_nothing_that_is_the_daemons_alone(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {}}, {"idle_ms": 0}, start=False) as it:
        notifications = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        with notifications, socket.create_server(("127.0.0.1", it.port)) as listener:
            notifications.bind(str(tmp_path / "notify"))
            it.environment = {**OURS_ALONE, "NOTIFY_SOCKET": str(tmp_path / "notify"), "MINE": "1"}
            it.config["request_log_path"] = str(tmp_path / "records.jsonl")
            adopt = (sys.executable, "-c", ADOPTER, str(listener.fileno()))
            it.launch(*adopt, pass_fds=(listener.fileno(),))
            assert (await it.chat("a")).status == 200
            (start,) = it.stamps("start")
            facts = start.facts
            assert facts["descriptors"] == {"0": "/dev/null", "1": "/dev/null", "2": "/dev/null"}
            names = set(facts["environment"])
            assert "MINE" in names
            assert not names & {*OURS_ALONE, "NOTIFY_SOCKET", "LISTEN_PID"}
            assert facts["sid"] == facts["pgid"] == start.pid != it.pid
            assert facts["cwd"] == it.config["strata_dir"]


def _expected_argv(it: DaemonUnderTest, model: str) -> list[str]:
    return [
        *(sys.executable, "-m", "serve.server", "--engine", "strata"),
        *("--config", str(it.profile(model)), "--host", "127.0.0.1"),
        *("--port", str(it.backend_port), "--idle-unload", "0"),
    ]


async def test_auto_uses_the_readiness_file_where_the_help_offers_it(
    by_file: DaemonUnderTest, by_health: DaemonUnderTest
) -> None:
    async with visiting(by_file) as with_option, visiting(by_health) as without:
        for it in (with_option, without):
            assert (await it.on("plain"))["ok"]
        asked = _stamps_of(with_option, "plain", "start")[-1].facts["argv"]
        assert asked[:-2] == _expected_argv(with_option, "plain")
        assert asked[-2] == "--ready-file"
        # Private to this start, and gone once it has been read.
        assert not Path(asked[-1]).parent.exists()
        assert list(with_option.temporary_directory.iterdir()) == []
        plain = _stamps_of(without, "plain", "start")[-1].facts["argv"]
        assert plain == _expected_argv(without, "plain")


async def test_health_can_be_demanded_of_a_server_that_offers_a_file(tmp_path: Path) -> None:
    config = {"engines": {"strata": {"kind": "strata", "readiness": "health"}}}
    async with daemon(tmp_path, {"a": {"ready_file": "never"}}, config) as it:
        await _expect_answer(it, "a")
        assert it.stamps("start")[0].facts["argv"] == _expected_argv(it, "a")


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("python", "the engine's program cannot be executed (no such file or directory)"),
        (
            "strata_dir",
            "the engine's working directory cannot be entered (no such file or directory)",
        ),
    ],
)
async def test_a_checkout_or_interpreter_that_has_gone_fails_the_load(
    tmp_path: Path, key: str, reason: str
) -> None:
    async with daemon(tmp_path, {"a": {}}, {key: str(tmp_path / "gone")}) as it:
        await _expect_failed_load(it, "a", reason)


async def test_the_engines_output_goes_to_a_private_file_that_each_start_begins_anew(
    tmp_path: Path,
) -> None:
    log, earlier = tmp_path / "engine.log", tmp_path / "engine.log.1"
    async with daemon(tmp_path, {"a": {}, "b": {}}, {"engine_log_path": str(log)}) as it:
        assert (await it.chat("a")).status == 200
        (start,) = it.stamps("start")
        assert start.facts["descriptors"] == {"0": "/dev/null", "1": str(log), "2": str(log)}
        assert stat.S_IMODE(log.stat().st_mode) == 0o600
        assert "ready: http://" in log.read_text()
        assert "stopped" not in log.read_text()
        assert (await it.chat("b")).status == 200
        assert "[strata] stopped" in earlier.read_text()
        assert stat.S_IMODE(earlier.stat().st_mode) == 0o600
        assert "[strata] stopped" not in log.read_text()


async def test_a_log_that_cannot_be_had_does_not_keep_an_engine_from_starting(
    tmp_path: Path,
) -> None:
    async with daemon(tmp_path, {"a": {}}, {"engine_log_path": str(tmp_path)}) as it:
        assert (await it.chat("a")).status == 200
        assert "the engine starts without its log: is not a regular file" in it.log


@contextmanager
def _unwritable_temporary_directory(it: DaemonUnderTest) -> Iterator[None]:
    """No private folder can be made: TMPDIR is a file."""
    it.temporary_directory.rmdir()
    it.temporary_directory.touch()
    try:
        yield
    finally:
        it.temporary_directory.unlink()
        it.temporary_directory.mkdir()


async def test_a_host_without_room_for_a_private_folder_fails_the_load_and_not_the_daemon(
    by_file: DaemonUnderTest,
) -> None:
    async with visiting(by_file) as it:
        assert (await it.on("plain"))[
            "ok"
        ]  # Python settles on TMPDIR when it first makes a folder there
        await _unload(it)
        with _unwritable_temporary_directory(it):
            done = await it.on("plain")
        assert not done["ok"]
        assert done["last_startup_error"].startswith("the host refused what a start needs (")
        assert done["message"] == f"plain: {done['last_startup_error']}"
        await it.control("on")
        assert (await it.on("plain"))["ok"]
