"""SIGTERM: accepted work ends as it would have, within drain_ms or without a bound.

Source: contract 3 (``drain_ms``), 11; reports.md B16; design, "Service deployment".
"""

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.runtime.http.raw import get, post
from tests.system.harness import CHAT, DaemonUnderTest, chat_body, daemon, until
from tests.system.wire import all_pieces, error_of, events, send_unread

BUSY = "FX:chunk_every_ms=50 FX:force_tokens=24"
"""About 1.2 seconds of answer."""


def logged(directory: Path) -> dict[str, str]:
    """Configuration of a record log, which outlives the daemon."""
    return {"request_log_path": str(directory / "records.jsonl")}


def reasons(directory: Path) -> list[str]:
    lines = (directory / "records.jsonl").read_text().splitlines()
    return [json.loads(line)["reason"] for line in lines]


async def until_queued(it: DaemonUnderTest) -> None:
    with trio.fail_after(5):
        while (await it.metrics())["queue_depth"] == 0:
            await trio.sleep(0.01)


async def test_drain_without_a_bound_serves_everything_that_was_accepted(tmp_path: Path) -> None:
    models: dict[str, dict[str, Any]] = {"a": {}, "b": {}}
    async with daemon(tmp_path, models, {"drain_ms": 0, **logged(tmp_path)}) as it:
        streaming = await it.send_chat("a", BUSY, stream=True)
        await streaming.head()
        queued = await it.send_chat("b")
        queued_stream = await it.send_chat("b", stream=True)
        await until_queued(it)
        idle, late = await it.connect(), await it.connect()
        for client in (idle, late):
            await client.send(get("/health"))
            assert (await client.reply()).status == 200
        it.signal(signal.SIGTERM)
        await until(lambda: "draining:" in it.log)
        with pytest.raises(OSError, match=r"connect|refused"):
            await it.connect()
        # What an idle connection brings in time is served, and is its last.
        await late.send(post(CHAT, body=chat_body("b")))
        with trio.fail_after(2):
            assert await idle.at_eof()
        assert (await all_pieces(streaming))[-2].data == b"data: [DONE]\n\n"
        assert (await queued.reply()).status == 200
        assert events((await queued_stream.reply()).body)[-1].data == "[DONE]"
        reply = await late.reply()
        assert (reply.status, reply.headers["connection"]) == (200, ["close"])
        for client in (streaming, queued, queued_stream, late):
            assert await client.at_eof()
        assert await it.wait_ended(5) == 0
        assert reasons(tmp_path) == ["completed"] * 4


async def test_health_says_503_while_draining_to_those_still_connected(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {}}, {"drain_ms": 0}) as it:
        streaming = await it.send_chat("a", BUSY, stream=True)
        await streaming.head()
        client = await it.connect()
        await client.send(get("/health"))
        await client.reply()
        it.signal(signal.SIGTERM)
        await until(lambda: "draining:" in it.log)
        await client.send(get("/health"))
        reply = await client.reply()
        assert reply.status == 503
        assert json.loads(reply.body)["draining"] is True
        await all_pieces(streaming)
        assert await it.wait_ended(5) == 0


async def test_b16_drain_waits_for_a_stalled_reader_until_that_is_given_up(tmp_path: Path) -> None:
    config = {"drain_ms": 0, "write_stall_ms": 1000, "shutdown_ms": 300, **logged(tmp_path)}
    async with daemon(tmp_path, {"a": {}}, config) as it:
        stalled = await send_unread(it, "FX:chunk_bytes=50000 FX:force_tokens=400")
        await stalled.head()
        it.signal(signal.SIGTERM)
        stopped_s = time.monotonic()
        assert await it.wait_ended(6) == 0
        assert time.monotonic() - stopped_s > 0.8
        assert reasons(tmp_path) == ["client_disconnect"]


async def test_b16_a_bounded_drain_ends_in_time_whatever_clients_do(tmp_path: Path) -> None:
    models: dict[str, dict[str, Any]] = {"a": {}, "b": {}}
    config = {"drain_ms": 700, "shutdown_ms": 300, "stream_commit_ms": 100, **logged(tmp_path)}
    async with daemon(tmp_path, models, config, start=False) as it:
        await it.start()
        stalled = await send_unread(it, "FX:chunk_bytes=50000 FX:force_tokens=1000")
        await stalled.head()
        queued = await it.send_chat("b")
        queued_stream = await it.send_chat("b", stream=True)
        await until_queued(it)
        uploading = await it.connect()
        await uploading.send(post(CHAT, "Content-Length: 100", body=None), b'{"model":')
        idle = await it.connect()
        await idle.send(get("/health"))
        await idle.reply()
        it.signal(signal.SIGTERM)
        stopped_s = time.monotonic()
        reply = await queued.reply()
        assert (reply.status, error_of(reply)["code"]) == (503, "shutting_down")
        assert events((await queued_stream.reply()).body)[-1].error["code"] == "shutting_down"
        assert await it.wait_ended(6) == 0
        assert 0.6 < time.monotonic() - stopped_s < 4.5
        assert reasons(tmp_path) == ["shutdown"] * 4
        assert await idle.at_eof()


async def test_a_streaming_request_is_told_in_band_that_the_drain_is_over(tmp_path: Path) -> None:
    config = {"drain_ms": 300, "shutdown_ms": 300, **logged(tmp_path)}
    async with daemon(tmp_path, {"a": {}}, config) as it:
        streaming = await it.send_chat("a", "FX:slow", stream=True)
        reply = await streaming.head()
        it.signal(signal.SIGTERM)
        reply.body = b"".join(piece.data for piece in await all_pieces(streaming))
        last = events(reply.body)[-1]
        assert (last.name, last.error["status"]) == ("error", 503)
        assert await it.wait_ended(6) == 0
        assert reasons(tmp_path) == ["shutdown"]


async def test_a_second_signal_ends_at_once_and_still_leaves_records(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {}}, {"drain_ms": 0, **logged(tmp_path)}) as it:
        streaming = await it.send_chat("a", "FX:slow", stream=True)
        await streaming.head()
        it.signal(signal.SIGTERM)
        await until(lambda: "draining:" in it.log)
        it.signal(signal.SIGTERM)
        await it.wait_ended(3)
        assert "Traceback" not in it.log
