"""What the operator sees, line by line: the real command, the real daemon, a real engine (issue 5).

Times and process ids are replaced; everything else is compared to the letter.
"""

import json
import os
import re
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.system.harness import DaemonUnderTest, daemon, until

CONTROL_DOC = Path(__file__).parents[2] / "docs" / "control.md"

COMMAND = (sys.executable, "-m", "strata_router")


class Run:
    """One run of the command line against a daemon's socket."""

    def __init__(self, it: DaemonUnderTest, *words: str) -> None:
        verb, *rest = words
        flags = [word for word in rest if word.startswith("--")]
        models = [word for word in rest if not word.startswith("--")]
        self.process = subprocess.Popen(
            [*COMMAND, verb, *flags, it.config["control_socket"], *models],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    async def ended(self) -> "Run":
        out, err = await trio.to_thread.run_sync(partial(self.process.communicate, timeout=40))
        self.status = self.process.returncode
        self.said = [plain(line) for line in err.splitlines()]
        self.event: dict[str, Any] = json.loads(out) if out.strip() else {}
        return self


def plain(line: str) -> str:
    """Without times and process ids."""
    line = re.sub(r"^\[ *\d+\.\ds\]", "[T]", line)
    return re.sub(r"pid \d+", "pid N", line)


async def run(it: DaemonUnderTest, *words: str) -> Run:
    return await Run(it, *words).ended()


def kept(said: list[str]) -> list[str]:
    """Without the lines that only say that time passes."""
    return [line for line in said if "still wait" not in line and "working on it" not in line]


async def test_every_field_of_status_is_in_the_documentation(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {}}) as it:
        document = CONTROL_DOC.read_text()
        rows = "".join(line.split(" | ")[0] for line in document.splitlines() if line[:2] == "| ")
        fields = set(re.findall(r"`(\w+)`", rows))
        assert set(await it.status()) - fields == set()


async def test_off_with_nothing_to_wait_for(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {}}) as it:
        await it.chat("a")
        off = await run(it, "off")
        assert off.status == 0
        assert kept(off.said) == [
            "[T] routing disabled: new and queued requests get 503",
            "[T] unloading model a",
            "[T] stopping backend pid N",
            "[T] backend pid N exited, memory released",
            "off: model unloaded, routing disabled",
        ]
        assert off.event["ok"]
        assert off.event["loaded"] is None
        assert off.event["child_pid"] is None
        assert not it.engine_pids()
        again = await run(it, "off")
        assert again.status == 0
        assert kept(again.said)[-1] == "off: no model was loaded, routing disabled"


async def test_off_waits_for_an_active_request_which_ends_whole(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {"chunk_every_ms": 50}}) as it:
        client = await it.send_chat("a", stream=True, max_tokens=16)
        await client.until(b'"content"')
        off = Run(it, "off")
        reply_body = b""
        async for piece in client.stream:
            reply_body += piece
            if b"[DONE]" in reply_body:
                break
        await off.ended()
        assert off.status == 0
        assert kept(off.said)[:3] == [
            "[T] routing disabled: new and queued requests get 503",
            "[T] 1 active request, waiting for it to finish (use --now to interrupt)",
            "[T] unloading model a",
        ]
        refused = await it.chat("a")
        assert refused.status == 503
        assert json.loads(refused.body)["error"]["code"] == "routing_off"


async def test_off_now_interrupts(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {}}) as it:
        client = await it.send_chat("a", "FX:slow", stream=True)
        await client.until(b'"content"')
        off = await run(it, "off", "--now")
        assert off.status == 0
        assert "[T] 1 active request, interrupting" in off.said
        assert kept(off.said)[-1] == "off: model unloaded, routing disabled"
        with trio.fail_after(2):
            assert b"event: error" in await client.until(b"0\r\n\r\n")
        await until(lambda: not it.engine_pids())
        record = (await it.records())[-1]
        assert record["reason"] == "routing_off"


async def test_on_with_a_model_then_again(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {"load_s": 0.3}, "b": {}}) as it:
        on = await run(it, "on", "a")
        assert on.status == 0
        assert kept(on.said) == [
            "[T] routing enabled",
            "[T] starting backend for model a",
            "[T] backend pid N started, waiting for readiness (loading model a)",
            "[T] backend reported ready, running health check",
            "[T] health check passed, model identity verified",
            "on: model a loaded and healthy, routing enabled",
        ]
        assert on.event["loaded"] == "a"
        again = await run(it, "on")
        assert again.status == 0
        assert kept(again.said) == ["on: already on"]
        other = await run(it, "on", "b")
        assert other.status == 0
        assert other.event["loaded"] == "b"
        assert kept(other.said)[1:5] == [
            "[T] unloading model a",
            "[T] stopping backend pid N",
            "[T] backend pid N exited, memory released",
            "[T] starting backend for model b",
        ]
        assert it.overlaps() == []


async def test_on_without_a_model_takes_the_last_one_that_was_loaded(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {}, "b": {}}) as it:
        first = await run(it, "on")
        assert first.event["loaded"] == "a"
        await it.chat("b")
        await run(it, "off")
        assert (await run(it, "on")).event["loaded"] == "b"


async def test_a_failing_load_says_why_and_leaves_routing_as_it_was(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {"fail_load": 3}}) as it:
        await run(it, "off")
        on = await run(it, "on", "a")
        assert on.status == 1
        assert on.said[-1] == (
            "on failed: a: backend exited with status 3 before it was ready; "
            "set engine_log_path to keep the engine's output"
        )
        status = await it.status()
        assert not status["routing"]
        assert status["last_startup_error"] == "backend exited with status 3 before it was ready"
        assert status["last_startup_model"] == "a"
        assert status["last_startup_advice"] == "set engine_log_path to keep the engine's output"


async def test_a_failing_load_says_where_the_engine_s_own_words_are(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    config = {"engine_log_path": str(log)}
    async with daemon(tmp_path, {"a": {"fail_load": 3}}, config) as it:
        on = await run(it, "on", "a")
        assert on.said[-1].endswith(f"before it was ready; the engine's output is in {log}")
        assert "a: backend exited with status 3 before it was ready; the engine's" in it.log
        reply = await it.chat("a")
        assert str(log).encode() not in reply.body


async def test_an_interpreter_that_is_missing_is_named_at_the_start_and_by_on(
    tmp_path: Path,
) -> None:
    gone = str(tmp_path / "gone" / "python")
    async with daemon(tmp_path, {"a": {}}, {"python": gone}) as it:
        on = await run(it, "on", "a")
        assert on.said[-1].startswith(
            "on failed: a: the engine's program cannot be executed (no such file or directory); "
            f"it was to run {gone} in "
        )
        assert f"WARNING strata_router.runtime.daemon: python: {gone} is no program" in it.log


async def test_a_model_that_calls_itself_something_else_is_not_on(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {"wrong_model": "other"}}, ready_file=False) as it:
        on = await run(it, "on", "a")
        assert on.status == 1
        assert on.said[-1].startswith(
            "on failed: a: backend reports another model than the profile names; "
        )
        assert not it.engine_pids()


@pytest.mark.parametrize("name", ["nope", "a\x1b[31m"])
async def test_an_unknown_model_is_answered_with_those_that_there_are(
    tmp_path: Path, name: str
) -> None:
    async with daemon(tmp_path, {"a": {}, "b": {}}) as it:
        on = await run(it, "on", name)
        assert on.status == 1
        assert on.said[-1].endswith("there are: a, b")
        assert "\x1b" not in on.said[-1]


async def test_an_alias_with_nothing_prepared_is_refused(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {}}, start=False) as it:
        it.config["models"]["a"]["installed"] = False
        it.config["aliases"] = {"test": {"allowed_models": ["a"]}}
        await it.start()
        on = await run(it, "on", "test")
        assert on.status == 1
        assert on.said[-1].startswith("on failed: test stands for a, and a is not_installed: set ")


async def test_a_model_without_its_profile_is_refused_with_the_reason(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {}, "b": {}}, start=False) as it:
        profile = it.profile("a")
        profile.unlink()
        await it.start()
        on = await run(it, "on", "a")
        assert on.status == 1
        assert on.said[-1].startswith("on failed: a is missing_profile: profile ")
        assert "No such file" in on.said[-1]
        assert "WARNING strata_router.runtime.daemon: a is missing_profile: " in it.log
        reply = await it.chat("a")
        assert reply.status == 404
        for told in (*on.said, it.log, reply.body.decode()):
            assert (
                str(profile) not in told
            )  # reliability.md, "Privacy"; check says which file it is


async def test_an_engine_that_was_killed_is_told_in_the_log_and_by_status(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {}}) as it:
        assert (await it.status())["last_engine_death"] is None
        await run(it, "on", "a")
        pid = (await it.status())["child_pid"]
        os.kill(pid, signal.SIGKILL)
        status = await it.status_until(lambda status: status["last_engine_death"])
        death = status["last_engine_death"]
        how = "was killed by SIGKILL (out of memory? see dmesg)"
        assert (death["model"], death["pid"], death["how"]) == ("a", pid, how)
        assert f"engine pid {pid} (a) {how}" in it.log
        assert f"engine pid {pid} started for a" in it.log


async def test_ctrl_c_during_a_load_ends_the_load(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {"load_s": 30}}) as it:
        on = Run(it, "on", "a")
        await until(lambda: it.stamps("start"))
        on.process.send_signal(signal.SIGINT)
        await on.ended()
        assert on.status == 130
        await it.status_until(lambda status: status["engine_state"] == "stopped")
        await until(lambda: not it.engine_pids())


async def test_ctrl_c_during_off_leaves_routing_off_and_the_answer_running(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {}}) as it:
        client = await it.send_chat("a", "FX:slow", stream=True)
        await client.until(b'"content"')
        off = Run(it, "off")
        await it.status_until(lambda status: not status["routing"])
        off.process.send_signal(signal.SIGINT)
        await off.ended()
        assert off.status == 130
        status = await it.status()
        assert not status["routing"]
        assert status["in_flight"] == 1
        assert (await run(it, "off", "--now")).status == 0


async def test_on_during_off_waits_its_turn(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {"chunk_every_ms": 40}}) as it:
        client = await it.send_chat("a", stream=True, max_tokens=16)
        await client.until(b'"content"')
        off = Run(it, "off")
        await it.status_until(lambda status: not status["routing"])
        on = Run(it, "on")
        await off.ended()
        await on.ended()
        assert (off.status, on.status) == (0, 0)
        assert any("waiting for" in line for line in on.said)
        assert (await it.status())["loaded"] == "a"


async def test_on_is_refused_at_once_by_a_daemon_that_drains(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {"chunk_every_ms": 40}, "b": {}}) as it:
        client = await it.send_chat("a", "FX:slow", stream=True)
        await client.until(b'"content"')
        it.signal(signal.SIGTERM)
        await it.status_until(lambda status: status["draining"])
        on = await run(it, "on", "b")
        assert on.status == 1
        assert on.said == ["on failed: the daemon is shutting down and loads nothing any more"]
        assert (on.event["loaded"], on.event["in_flight"]) == ("a", 1)
        await client.stream.aclose()
        assert await it.wait_ended() == 0


async def test_off_during_a_load_waits_for_it_or_cuts_it(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {"load_s": 1.0}}) as it:
        client = await it.send_chat("a", stream=True)
        await until(lambda: it.stamps("start"))
        off = await run(it, "off", "--now")
        assert off.status == 0
        assert not it.engine_pids()
        reply = await client.reply()
        assert b"routing_off" in reply.body


async def test_the_daemon_is_not_there(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {}}) as it:
        await it.stop()
        for words in (("status",), ("on",), ("off",)):
            outcome = await run(it, *words)
            assert outcome.status == 3
            assert len(outcome.said) == 1
        os.close(os.open(it.config["control_socket"], os.O_CREAT))
        assert (await run(it, "status")).status == 3


async def test_fifty_rounds_of_on_and_off_under_load_lose_no_record(tmp_path: Path) -> None:
    rounds = 5 * int(os.environ.get("ROUNDS", "1"))
    async with daemon(tmp_path, {"a": {}, "b": {}}) as it:
        posts = 0
        stop = trio.Event()

        async def ask(model: str) -> None:
            nonlocal posts
            while not stop.is_set():
                posts += 1
                reply = await it.chat(model, stream=True, max_tokens=4)
                assert reply.status in (200, 503)

        async with trio.open_nursery() as nursery:
            for model in ("a", "b", "a"):
                nursery.start_soon(ask, model)
            for turn in range(rounds):
                done = await it.off(now=turn % 2 == 0)
                assert done["ok"], done
                assert not it.engine_pids()
                done = await it.on("ab"[turn % 2])
                assert done["ok"], done
            stop.set()
        assert (await it.metrics())["request_log"]["next_seq"] == posts + 1
        assert it.overlaps() == []
        assert (await it.chat("a")).status == 200
