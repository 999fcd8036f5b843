"""Streamed answers on the wire: commit, keep-alives, untouched bytes, in-band errors, the end.

Source: contract 6.3, 6.4; reports.md B18, B20, B21, B22; facts/cliproxyapi.md sections 3 and 4.
"""

import hashlib
import json
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.runtime.http.raw import RawClient, Reply, get, post
from tests.system.harness import CHAT, DaemonUnderTest, chat_body, daemon, until
from tests.system.shared import running, visiting
from tests.system.wire import (
    KEEPALIVE,
    all_pieces,
    error_of,
    events,
    next_piece,
    without_keepalives,
)

COMMIT_MS = 250
KEEPALIVE_MS = 500
SLACK_S = 0.3
"""What a busy machine may add to a timer."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonUnderTest]:
    """Wait-first, one model that is loaded once and for all."""
    config = {"stream_commit_ms": COMMIT_MS, "keepalive_ms": KEEPALIVE_MS}
    with running(tmp_path_factory.mktemp("streams"), {"a": {"hash_responses": True}}, config) as it:
        yield it


@pytest.fixture(scope="module")
def legacy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonUnderTest]:
    """The same without waiting first."""
    config = {"wait_when_busy": False, "stream_commit_ms": 100, "keepalive_ms": KEEPALIVE_MS}
    with running(tmp_path_factory.mktemp("legacy"), {"a": {"hash_responses": True}}, config) as it:
        yield it


async def sent_by_engine(it: DaemonUnderTest, reply: Reply) -> str:
    """SHA-256 of the body bytes that the engine sent for the only request that is being served."""
    asked = it.stamps("request")[-1]

    def answered() -> list[str]:
        return [
            stamp.facts["response_sha256"]
            for stamp in it.stamps("done")
            if (stamp.pid, stamp.facts["seq"]) == (asked.pid, asked.facts["seq"])
        ]

    await until(answered)
    return answered()[0]


def sha256(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


async def stream(it: DaemonUnderTest, text: str, **fields: Any) -> Reply:
    return await it.chat("a", text, stream=True, **fields)


# ---- commit -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "status"), [("json400", 400), ("json500", 500), ("busy", 503), ("html500", 500)]
)
async def test_a_status_that_is_known_in_time_is_passed_on_with_its_body(
    shared: DaemonUnderTest, how: str, status: int
) -> None:
    async with visiting(shared) as it:
        await it.chat("a")
        for streamed in (True, False):
            reply = await it.chat("a", f"FX:answer={how}", stream=streamed)
            assert reply.status == status
            assert sha256(reply.body) == await sent_by_engine(it, reply)
            assert reply.headers["x-strata-concrete-model"] == ["a"]
            assert "server" not in reply.headers
            assert "date" not in reply.headers
            record = await it.record_of(reply)
            assert (record["status"], record["upstream_status"]) == (status, status)
            assert (record["reason"], record["success"]) == ("upstream_error", False)


async def test_a_status_that_comes_later_finds_a_committed_stream(shared: DaemonUnderTest) -> None:
    async with visiting(shared) as it:
        await it.chat("a")
        client = await it.send_chat("a", "FX:header_delay_s=0.7", stream=True)
        sent_s = time.monotonic()
        head = await client.head()
        assert head.status == 200
        assert head.headers["content-type"] == ["text/event-stream"]
        assert head.headers["cache-control"] == ["no-cache"]
        assert head.headers["x-accel-buffering"] == ["no"]
        assert head.headers["transfer-encoding"] == ["chunked"]
        first = await next_piece(client)
        assert first.data == KEEPALIVE
        assert COMMIT_MS / 1000 - 0.02 <= first.at_s - sent_s < COMMIT_MS / 1000 + SLACK_S
        body = b"".join(piece.data for piece in await all_pieces(client))
        assert events(body)[-1].data == "[DONE]"


async def test_a_plain_request_keeps_the_engines_status_however_late(
    shared: DaemonUnderTest,
) -> None:
    async with visiting(shared) as it:
        reply = await it.chat("a", "FX:answer=json400 FX:header_delay_s=0.8")
        assert reply.status == 400
        assert reply.body == b'{"error": {"type": "invalid_request_error", "message": ' + (
            b'"the simulated engine was told to refuse"}}'
        )
        reply = await it.chat("a", "FX:header_delay_s=0.8")
        assert reply.status == 200
        assert reply.body.startswith(b"{")  # nothing of ours in front of it


async def test_a_commit_pins_the_model_that_its_head_named(tmp_path: Path) -> None:
    aliases = {"test": {"allowed_models": ["b", "a"]}}
    config = {"stream_commit_ms": 100, "max_pending": 1, "aliases": aliases}
    async with daemon(tmp_path, {"a": {}, "b": {}}, config) as it:
        busy = await it.send_chat("a", "FX:chunk_every_ms=50 FX:force_tokens=20", stream=True)
        await busy.head()
        # The alias would load b; while a is loaded, a is what it stands for.
        waiting = await it.send_chat("test", stream=True)
        head = await waiting.head()
        assert head.headers["x-strata-concrete-model"] == ["a"]
        await it.send_chat("b", service_tier="priority")
        await all_pieces(busy)
        await all_pieces(waiting)
        assert it.engine_order() == ["upstream-a", "upstream-b", "upstream-a"]


# ---- keep-alives --------------------------------------------------------------------------------


def gaps_s(times: list[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(times)]


async def arrivals(client: RawClient) -> tuple[bytes, list[float]]:
    """The body and when its pieces came, from now on."""
    started_s = time.monotonic()
    found = await all_pieces(client)
    return b"".join(piece.data for piece in found), [started_s, *(piece.at_s for piece in found)]


@pytest.mark.parametrize(
    "text",
    ["FX:header_delay_s=1.7", "FX:prefill=1.7", "FX:chunk_every_ms=1700 FX:force_tokens=1"],
    ids=["header wait", "prefill", "between tokens"],
)
async def test_keepalives_fill_every_silence_of_the_engine(
    shared: DaemonUnderTest, text: str
) -> None:
    async with visiting(shared) as it:
        await it.chat("a")
        client = await it.send_chat("a", text, stream=True)
        await client.head()
        body, times = await arrivals(client)
        assert max(gaps_s(times)) < KEEPALIVE_MS / 1000 + SLACK_S
        assert 3 <= body.count(KEEPALIVE) <= 5
        assert events(body)[-1].data == "[DONE]"


async def test_keepalives_go_on_while_queued_and_while_loading(tmp_path: Path) -> None:
    config = {"stream_commit_ms": 100, "keepalive_ms": KEEPALIVE_MS}
    async with daemon(tmp_path, {"a": {}, "b": {"load_s": 1.2}}, config) as it:
        busy = await it.send_chat("a", "FX:chunk_every_ms=60 FX:force_tokens=20", stream=True)
        await busy.head()
        client = await it.send_chat("b", stream=True)
        head = await client.head()
        body, times = await arrivals(client)
        assert max(gaps_s(times)) < KEEPALIVE_MS / 1000 + SLACK_S
        assert body.count(KEEPALIVE) >= 5
        record = await it.record_of(head)
        assert record["queue_wait_ms"] > 1000
        assert record["model_load_ms"] > 1000
        assert record["response_bytes"] == len(body)


async def test_legacy_streams_are_passed_on_without_a_byte_of_ours(
    legacy: DaemonUnderTest,
) -> None:
    async with visiting(legacy) as it:
        reply = await stream(it, "FX:header_delay_s=0.6 FX:prefill=1.2")
        assert sha256(reply.body) == await sent_by_engine(it, reply)
        assert reply.headers["x-accel-buffering"] == ["no"]


@pytest.mark.parametrize(
    "text",
    [
        "FX:tokens=2 FX:events_per_segment=9 FX:segment_bytes=450 FX:segment_gap_ms=700",
        "FX:tokens=1 FX:events_per_segment=9 FX:segment_bytes=450 FX:segment_gap_ms=700 FX:crlf",
    ],
    ids=["lf", "crlf"],
)
async def test_a_keepalive_never_goes_into_an_event(shared: DaemonUnderTest, text: str) -> None:
    async with visiting(shared) as it:
        reply = await stream(it, text)
        assert sha256(without_keepalives(reply.body)) == await sent_by_engine(it, reply)
        normal = reply.body.replace(b"\r\n", b"\n")
        for block in normal.split(b"\n\n"):
            assert b": keepalive" not in block or block == b": keepalive"


async def test_nothing_is_added_to_an_encoded_stream(shared: DaemonUnderTest) -> None:
    async with visiting(shared) as it:
        await it.chat("a")
        reply = await stream(it, "FX:gzip FX:chunk_every_ms=700 FX:force_tokens=2")
        assert reply.headers["content-encoding"] == ["gzip"]
        assert sha256(reply.body) == await sent_by_engine(it, reply)


async def test_the_engines_own_comments_pass_and_make_ours_unnecessary(tmp_path: Path) -> None:
    config = {"stream_commit_ms": 2000, "keepalive_ms": KEEPALIVE_MS}
    async with daemon(tmp_path, {"a": {"keepalive_s": 0.2, "hash_responses": True}}, config) as it:
        reply = await stream(it, "FX:prefill=1.1")
        assert reply.body.count(b": keep-alive\n\n") >= 3
        assert KEEPALIVE not in reply.body
        assert sha256(reply.body) == await sent_by_engine(it, reply)


# ---- untouched bytes and their pace -------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "FX:tokens=400",
        "FX:tokens=40 FX:segment_bytes=1",
        "FX:tokens=40 FX:events_per_segment=7",
        "FX:tokens=40 FX:crlf",
        "FX:tokens=3 FX:long_line_bytes=307200",
        "FX:tokens=40 FX:reasoning_tokens=5 FX:usage=inline",
        "FX:nofinish",
        "FX:usage=none FX:timings=false",
    ],
)
async def test_b22_the_stream_is_byte_for_byte_the_engines(
    shared: DaemonUnderTest, text: str
) -> None:
    async with visiting(shared) as it:
        reply = await stream(it, text, max_tokens=1000)
        assert sha256(without_keepalives(reply.body)) == await sent_by_engine(it, reply)
        record = await it.record_of(reply)
        assert (record["reason"], record["success"]) == ("completed", True)
        assert record["response_bytes"] == len(reply.body)


async def test_b18_tokens_are_passed_on_as_they_come(shared: DaemonUnderTest) -> None:
    async with visiting(shared) as it:
        await it.chat("a")
        client = await it.send_chat("a", "FX:chunk_every_ms=100 FX:force_tokens=10", stream=True)
        await client.head()
        received = await all_pieces(client)
        tokens = [piece for piece in received if b'"content":"' in piece.data]
        assert max(piece.data.count(b"data: ") for piece in tokens) <= 2
        assert len(tokens) >= 9
        stamps = {stamp.event: stamp.at for stamp in it.stamps()}
        first = next(piece for piece in received if b'"content":' in piece.data)
        assert first.at_s - stamps["first_chunk"] < 0.1
        assert 0.7 < tokens[-1].at_s - tokens[0].at_s < 1.5


async def test_the_first_byte_does_not_wait_for_the_second(shared: DaemonUnderTest) -> None:
    async with visiting(shared) as it:
        await it.chat("a")
        started_s = time.monotonic()
        client = await it.send_chat("a", "FX:prefill=5", stream=True)
        await client.head()
        first = await next_piece(client)
        assert b'"role":"assistant"' in first.data
        assert first.at_s - started_s < 0.2
        client.reset()


async def test_http_1_0_clients_get_the_stream_up_to_the_close(shared: DaemonUnderTest) -> None:
    async with visiting(shared) as it:
        for text in ("hello", "FX:header_delay_s=0.5"):
            client = await it.connect()
            await client.send(post(CHAT, body=chat_body("a", text, stream=True), version="1.0"))
            reply = await client.reply()
            assert reply.headers["connection"] == ["close"]
            assert "transfer-encoding" not in reply.headers
            assert events(reply.body)[-1].data == "[DONE]"


# ---- the end ------------------------------------------------------------------------------------


@pytest.mark.parametrize("close_delay_s", [0.0, 0.03])
async def test_done_leaves_in_one_write_with_the_end_of_the_body(
    tmp_path: Path, close_delay_s: float
) -> None:
    async with daemon(tmp_path, {"a": {"close_delay_s": close_delay_s}}) as it:
        client = await it.connect()
        for _ in range(10):
            await client.send(post(CHAT, body=chat_body("a", stream=True)))
            await client.head()
            done = (await all_pieces(client))[-2]
            assert done.data == b"data: [DONE]\n\n"
            assert done.is_last


async def test_done_waits_no_longer_than_50_ms_but_the_lease_until_the_end(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {"close_delay_s": 0.8}}) as it:
        await it.chat("a")
        client = await it.send_chat("a", stream=True)
        head = await client.head()
        usage = done = await next_piece(client)
        while done.data != b"data: [DONE]\n\n":
            usage, done = done, await next_piece(client)
        assert not done.is_last
        assert 0.045 <= done.at_s - usage.at_s < 0.05 + SLACK_S
        assert (await it.metrics())["in_flight"] == 1
        end = await next_piece(client)
        assert end.data == b""
        assert end.at_s - done.at_s > 0.5
        assert (await it.metrics())["in_flight"] == 0
        assert (await it.record_of(head))["reason"] == "completed"


# ---- errors of the engine -----------------------------------------------------------------------


@pytest.mark.parametrize(("how", "status"), [("json400", 400), ("json500", 500), ("busy", 503)])
async def test_b21_a_late_error_of_the_engine_goes_in_band_with_its_status(
    shared: DaemonUnderTest, how: str, status: int
) -> None:
    async with visiting(shared) as it:
        await it.chat("a")
        reply = await stream(it, f"FX:answer={how} FX:header_delay_s=0.5")
        assert (reply.status, reply.cut) == (200, False)
        (event,) = events(reply.body)
        assert event.name == "error"
        kind = "invalid_request_error" if how == "json400" else "server_error"
        assert sorted(event.error) == ["message", "status", "type"]
        assert (event.error["type"], event.error["status"]) == (kind, status)
        assert reply.body.startswith(KEEPALIVE)
        record = await it.record_of(reply)
        assert (record["status"], record["upstream_status"]) == (200, status)
        assert (record["reason"], record["success"]) == ("upstream_error", False)
        assert record["response_bytes"] == len(reply.body)


@pytest.mark.parametrize("how", ["html500", "empty200"])
async def test_b21_a_late_answer_that_is_no_json_error_becomes_the_generic_one(
    shared: DaemonUnderTest, how: str
) -> None:
    async with visiting(shared) as it:
        await it.chat("a")
        reply = await stream(it, f"FX:answer={how} FX:header_delay_s=0.5")
        (event,) = events(reply.body)
        assert event.name == "error"
        assert (event.error["code"], event.error["status"]) == ("upstream_error", 502)
        assert b"html" not in reply.body.lower()


async def test_an_error_frame_of_the_engine_passes_and_is_no_success(
    shared: DaemonUnderTest,
) -> None:
    async with visiting(shared) as it:
        for after in (0, 3):
            reply = await stream(it, f"FX:error_after_chunks={after}")
            assert sha256(without_keepalives(reply.body)) == await sent_by_engine(it, reply)
            found = events(reply.body)
            assert json.loads(found[-2].data)["error"]["type"] == "server_error"
            assert found[-1].data == "[DONE]"
            record = await it.record_of(reply)
            assert (record["reason"], record["success"]) == ("upstream_error", False)
            assert (record["status"], record["upstream_status"]) == (200, 200)


DEATHS = [
    ("FX:die_after_chunks=0", "boundary"),
    ("FX:die_after_chunks=3", "boundary"),
    ("FX:die_after_chunks=3 FX:cut=mid_event", "inside"),
    ("FX:die_at=role", "boundary"),
    ("FX:die_at=final", "boundary"),
    ("FX:cut_after_chunks=2", "boundary"),
    ("FX:cut_after_chunks=2 FX:cut=reset", "boundary"),
    ("FX:cut_after_chunks=2 FX:cut=mid_event", "inside"),
    ("FX:done=false", "boundary"),
]


def _finishes(body: bytes) -> bool:
    return b'"finish_reason":"' in body


@pytest.mark.parametrize(("text", "where"), DEATHS, ids=[text for text, _ in DEATHS])
async def test_b20_a_stream_without_done_is_no_success(
    shared: DaemonUnderTest, text: str, where: str
) -> None:
    async with visiting(shared) as it:
        await it.chat("a")
        starts = len(it.stamps("start"))
        for late in ("", " FX:header_delay_s=0.4"):  # the engine's own head, and ours
            reply = await stream(it, text + late)
            assert reply.status == 200
            assert b"[DONE]" not in reply.body
            invented = _finishes(reply.body) and "final" not in text and "done" not in text
            assert not invented
            if where == "boundary":
                assert not reply.cut
                last = events(reply.body)[-1]
                assert (last.name, last.error["status"]) == ("error", 502)
            else:
                assert reply.cut
                assert b"event: error" not in reply.body
            record = await it.record_of(reply)
            assert (record["reason"], record["success"]) == ("upstream_error", False)
            assert record["upstream_status"] == 200
        # Each death is followed by a load as soon as somebody asks.
        assert (await it.chat("a")).status == 200
        assert len(it.stamps("start")) - starts == (2 if "die" in text else 0)
        assert it.overlaps() == []


@pytest.mark.parametrize(
    "text", ["FX:die_after_chunks=3", "FX:cut_after_chunks=0", "FX:done=false"]
)
async def test_b20_legacy_mode_leaves_the_body_without_its_end(
    legacy: DaemonUnderTest, text: str
) -> None:
    async with visiting(legacy) as it:
        reply = await stream(it, text)
        assert (reply.status, reply.cut) == (200, True)
        assert b"event: error" not in reply.body
        assert b": keepalive" not in reply.body
        record = await it.record_of(reply)
        assert (record["reason"], record["success"]) == ("upstream_error", False)


async def test_b20_a_plain_answer_from_a_dying_engine_is_502(
    shared: DaemonUnderTest, legacy: DaemonUnderTest
) -> None:
    for mode in (shared, legacy):
        async with visiting(mode) as it:
            reply = await it.chat("a", "FX:die_after_chunks=3")
            assert (reply.status, error_of(reply)["code"]) == (502, "upstream_error")
            assert (await it.record_of(reply))["reason"] == "upstream_error"
            assert (await it.chat("a")).status == 200


async def test_an_answer_that_was_complete_when_the_engine_died_is_a_success(
    shared: DaemonUnderTest,
) -> None:
    async with visiting(shared) as it:
        reply = await stream(it, "FX:die_at=done")
        assert events(reply.body)[-1].data == "[DONE]"
        assert not reply.cut
        assert (await it.record_of(reply))["success"]
        # Whoever comes before its death is known would be sent to it.
        await it.status_until(lambda status: status["child_pid"] is None)


async def test_b20_to_an_http_1_0_client_a_cut_stream_is_a_reset(shared: DaemonUnderTest) -> None:
    async with visiting(shared) as it:
        client = await it.connect()
        body = chat_body("a", "FX:cut_after_chunks=2 FX:cut=mid_event", stream=True)
        await client.send(post(CHAT, body=body, version="1.0"))
        with pytest.raises(trio.BrokenResourceError):
            await client.reply()


async def test_response_ms_ends_a_stream_in_band_or_by_a_cut(tmp_path: Path) -> None:
    for number, mode in enumerate((True, False)):
        directory = tmp_path / str(number)
        directory.mkdir()
        config = {"wait_when_busy": mode, "response_ms": 700}
        async with daemon(directory, {"a": {}}, config) as it:
            await it.control('{"cmd":"on","model":"a"}')
            started_s = time.monotonic()
            reply = await stream(it, "FX:slow")
            assert 0.65 < time.monotonic() - started_s < 0.7 + 2 * SLACK_S
            assert reply.status == 200
            assert reply.cut is not mode
            if mode:
                assert events(reply.body)[-1].error["status"] == 504
            record = await it.record_of(reply)
            assert (record["reason"], record["success"]) == ("timeout", False)
            await until(lambda it=it: bool(it.stamps("disconnect")))  # type: ignore[misc]  # bound early
            assert (await it.metrics())["in_flight"] == 0


async def test_a_connection_goes_on_after_a_stream_that_ended_in_an_error(
    shared: DaemonUnderTest,
) -> None:
    async with visiting(shared) as it:
        client = await it.connect()
        for text in ("FX:cut_after_chunks=2", "FX:header_delay_s=0.4 FX:answer=json500", "hello"):
            await client.send(post(CHAT, body=chat_body("a", text, stream=True)))
            assert not (await client.reply()).cut
        await client.send(get("/health"))
        assert (await client.reply()).status == 200
