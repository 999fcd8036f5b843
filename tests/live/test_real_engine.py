"""A real llama-server with a real (small) model, owned by the real daemon: ``make test-live``."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from strata_router import demo
from tests.system.harness import DaemonUnderTest, daemon, pid_exists, sse_events

pytestmark = pytest.mark.live


@asynccontextmanager
async def real_daemon(directory: Path) -> AsyncIterator[DaemonUnderTest]:
    try:
        config = demo.real_config(directory)
    except demo.NoRealEngine as missing:
        pytest.skip(str(missing))
    kept = {key: config[key] for key in ("engines", "models", "aliases")}
    async with daemon(directory, {}, {**kept, "startup_ms": 60_000}) as it:
        yield it


async def test_a_stream_has_real_tokens_and_the_engines_own_timings_in_its_record(
    tmp_path: Path,
) -> None:
    async with real_daemon(tmp_path) as it:
        reply = await it.chat("smollm2-a", "Say hello.", stream=True)
        assert reply.status == 200
        events = sse_events(reply.body)
        assert events[-1] == "[DONE]"
        texts = [
            choice["delta"].get("content") or ""
            for event in events[:-1]
            for choice in json.loads(event)["choices"]
        ]
        assert "".join(texts).strip()
        record = await it.record_of(reply)
        assert record["success"]
        assert record["predicted_n"] > 0
        assert record["predicted_per_second"] > 0
        assert record["ttft_ms"] is not None
        assert record["completion_tokens"] is None  # llama-server reports usage only when asked


async def test_usage_is_recorded_when_the_client_asks_for_it(tmp_path: Path) -> None:
    async with real_daemon(tmp_path) as it:
        reply = await it.chat(
            "smollm2-a", "Say hello.", stream=True, stream_options={"include_usage": True}
        )
        record = await it.record_of(reply)
        assert record["completion_tokens"] == record["predicted_n"]
        plain = await it.chat("smollm2-a", "Say hello.")
        assert (await it.record_of(plain))["completion_tokens"] > 0


async def test_ten_switches_leave_one_engine_at_most(tmp_path: Path) -> None:
    async with real_daemon(tmp_path) as it:
        previous: int | None = None
        for turn in range(10):
            model = "smollm2-a" if turn % 2 == 0 else "smollm2-b"
            reply = await it.chat(model, "Hi", max_tokens=2)
            assert reply.status == 200
            assert json.loads(reply.body)["model"] == model
            status = await it.status()
            assert status["loaded"] == model
            assert previous is None or not pid_exists(previous)
            previous = status["child_pid"]
            assert len(it.engine_pids()) == 1
        assert await it.stop() == 0
        assert not it.engine_pids()


async def test_a_client_that_leaves_frees_the_real_engine(tmp_path: Path) -> None:
    async with real_daemon(tmp_path) as it:
        client = await it.send_chat(
            "smollm2-a", "Count to a thousand.", stream=True, max_tokens=2000
        )
        await client.until(b"data:")
        client.stream.socket.close()

        with trio.fail_after(2):
            while not await it.records():
                await trio.sleep(0.02)
        assert (await it.metrics())["in_flight"] == 0
        assert (await it.records())[-1]["reason"] == "client_disconnect"
