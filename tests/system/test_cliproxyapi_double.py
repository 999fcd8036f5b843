"""Chat through CLIProxyAPI: its scripted double always, the program itself where CLIPROXYAPI_BIN names it.

The double (``cliproxyapi_double.py``) shows what CLIProxyAPI makes of our answers and which connections it
can use again. Its reading of streams is tested here, too, so that the double cannot be too lenient.
"""

import json
import os
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
import yaml

from strata_router.runtime.http import server
from tests.system.cliproxyapi_double import (
    IDLE_S,
    CLIProxyAPIDouble,
    FrameReader,
    Outcome,
    UpstreamFailed,
)
from tests.system.harness import DaemonUnderTest, chat_body, free_ports, sse_events, until
from tests.system.shared import running, visiting
from tests.system.wire import BLACKOUT_PHRASES, next_piece

CONFIG = {"stream_commit_ms": 100, "keepalive_ms": 500}
MODELS: dict[str, dict[str, Any]] = {
    "a": {"disconnect_poll_s": 0.05},
    "b": {"load_s": 0.4},
}

LATE_ERROR = "FX:header_delay_s=0.4 FX:answer=json500"
"""An error reply of the engine that comes after the router has committed its stream."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonUnderTest]:
    with running(tmp_path_factory.mktemp("cliproxyapi"), MODELS, CONFIG) as it:
        yield it


@asynccontextmanager
async def proxied(
    shared: DaemonUnderTest,
) -> AsyncIterator[tuple[DaemonUnderTest, CLIProxyAPIDouble]]:
    """A visit with model a loaded, and a double in front that has no connection yet."""
    async with visiting(shared) as it:
        assert (await it.chat("a")).status == 200
        double = CLIProxyAPIDouble(it.port)
        try:
            yield it, double
        finally:
            double.close()


def expect_whole(outcome: Outcome) -> None:
    """A stream that its reader takes for a success, and that the engine ended."""
    assert (outcome.status, outcome.error) == (200, None)
    assert outcome.done
    assert not outcome.invented
    assert outcome.text.startswith("This is the simulated engine")


# ---- the double itself --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stream", "status"),
    [
        ('data: {"error": {"status": 503, "code": 1}}\n\n', 503),
        ('event: error\ndata: {"error": {"message": "m", "status": 429}}\n\n', 429),
        ('event: error\ndata: {"error": {"message": "m", "code": 429}}\n\n', 502),
        ('data: {"code": "x", "message": "m"}\n\n', 502),
        ("event: error\n\n", 502),
        ('data: {"a": NaN}\n\n', 502),
        ('data: {"a": 1}\ndata: [DONE]\n\n', 502),
        ('{"error": {}}\n', 502),
    ],
)
def test_the_double_takes_for_an_error_what_cliproxyapi_does(stream: str, status: int) -> None:
    reader = FrameReader()
    with pytest.raises(UpstreamFailed) as failed:
        list(map(reader.feed, stream.split("\n")))
    assert failed.value.status == status


def test_the_double_skips_comments_ids_and_null_errors() -> None:
    reader = FrameReader()
    lines = [": keepalive", "", "id: 1", "retry: 5", "", 'data: {"error": null}', ""]
    assert [frame for line in lines if (frame := reader.feed(line))] == ['{"error": null}']
    assert reader.comments == 1


# ---- chat ---------------------------------------------------------------------------------------


async def test_plain_and_streamed_chat_pass_through(shared: DaemonUnderTest) -> None:
    async with proxied(shared) as (_, double):
        plain = await double.chat(chat_body("a"))
        assert plain.status == 200
        assert plain.frames[0]["choices"][0]["message"]["content"]
        stream = await double.chat(chat_body("a", stream=True))
        expect_whole(stream)
        for outcome in (plain, stream):
            assert outcome.headers["x-strata-request-id"]
            assert "content-encoding" not in outcome.headers


async def test_heartbeats_of_a_queued_stream_are_swallowed(shared: DaemonUnderTest) -> None:
    async with proxied(shared) as (it, double):
        busy = await it.send_chat("a", "FX:chunk_every_ms=40 FX:force_tokens=20", stream=True)
        await busy.head()
        await next_piece(busy)
        outcome = await double.chat(chat_body("b", stream=True))
        expect_whole(outcome)
        assert outcome.comments >= 2
        assert {frame["object"] for frame in outcome.frames} == {"chat.completion.chunk"}


async def test_a_client_of_the_proxy_that_leaves_frees_the_engine(shared: DaemonUnderTest) -> None:
    """It closes its connection, also while it waits for our head."""
    async with proxied(shared) as (it, double):
        left = len(it.stamps("disconnect"))
        with trio.move_on_after(0.3):
            await double.chat(chat_body("a", "FX:prefill=30"))
        await until(lambda: len(it.stamps("disconnect")) == left + 1, 1)
        expect_whole(await double.chat(chat_body("a", stream=True)))


# ---- failures -----------------------------------------------------------------------------------


async def test_a_failure_before_the_first_frame_becomes_an_http_status(
    shared: DaemonUnderTest,
) -> None:
    """The stream was committed with 200; CLIProxyAPI's own client sees the engine's 500 all the same."""
    async with proxied(shared) as (_, double):
        outcome = await double.chat(chat_body("a", LATE_ERROR, stream=True))
        assert outcome.headers["content-type"] == ["text/event-stream"]
        assert outcome.status == 500
        assert outcome.error["error"]["status"] == 500
        assert not outcome.frames


async def test_a_failure_after_frames_is_an_error_and_never_a_success(
    shared: DaemonUnderTest,
) -> None:
    async with proxied(shared) as (_, double):
        outcome = await double.chat(chat_body("a", "FX:die", stream=True))
        assert outcome.frames
        assert outcome.error["error"]["status"] == 502
        assert not outcome.done


@pytest.mark.parametrize(
    ("body", "status"),
    [(chat_body("no-such", stream=True), 404), (b'{"stream": true, "model": 1}', 400)],
    ids=["unknown model", "bad request"],
)
async def test_a_refusal_reaches_its_client_and_blocks_nothing(
    shared: DaemonUnderTest, body: bytes, status: int
) -> None:
    """A request error by its type, without a phrase that would take the model out for hours."""
    async with proxied(shared) as (_, double):
        outcome = await double.chat(body)
        assert outcome.status == status
        assert outcome.error["error"]["type"] == "invalid_request_error"
        assert not BLACKOUT_PHRASES.search(json.dumps(outcome.error))


# ---- the next request ---------------------------------------------------------------------------


async def test_the_connection_is_used_again_after_each_success(shared: DaemonUnderTest) -> None:
    """[DONE] and the last chunk are one write: else the proxy, which closes at [DONE], has to dial."""
    async with proxied(shared) as (_, double):
        for turn in range(6):
            outcome = await double.chat(chat_body("a", stream=True))
            expect_whole(outcome)
            assert outcome.reused == (turn > 0)
        assert double.opened == 1


@pytest.mark.parametrize("text", [LATE_ERROR, "FX:die"], ids=["before frames", "after frames"])
async def test_route_and_connection_are_used_again_after_an_error_in_band(
    shared: DaemonUnderTest, text: str
) -> None:
    async with proxied(shared) as (_, double):
        assert (await double.chat(chat_body("a", text, stream=True))).error
        outcome = await double.chat(chat_body("a", stream=True))
        expect_whole(outcome)
        assert outcome.reused


async def test_route_and_connection_are_used_again_after_a_refusal(shared: DaemonUnderTest) -> None:
    async with proxied(shared) as (_, double):
        assert (await double.chat(chat_body("no-such", stream=True))).status == 404
        outcome = await double.chat(chat_body("a", stream=True))
        expect_whole(outcome)
        assert outcome.reused


async def test_a_burst_is_served_and_two_connections_are_kept(shared: DaemonUnderTest) -> None:
    """It has no limit of its own: each parallel request dials, and all but two are closed after."""
    async with proxied(shared) as (it, double):
        outcomes: list[Outcome] = []

        async def ask() -> None:
            outcomes.append(await double.chat(chat_body("a", stream=True)))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(ask)
        assert len(outcomes) == double.opened == 5
        for outcome in outcomes:
            expect_whole(outcome)
        assert double.idle == 2
        assert (await double.chat(chat_body("a"))).reused
        assert (await it.metrics())["in_flight"] == 0


def test_an_idle_connection_outlives_the_proxys_own_limit() -> None:
    """A POST that is written to a dying connection is not sent again, so the proxy must close first."""
    assert server.IDLE_S > IDLE_S + 10


# ---- the program itself -------------------------------------------------------------------------

CLIENT_KEY = {"Authorization": "Bearer example-client-key"}
PROGRAM_START_S = 20.0
CONTRIB_CONFIG = Path(__file__).parents[2] / "contrib" / "cliproxyapi" / "config.yaml"


@contextmanager
def program(directory: Path, router_port: int) -> Iterator[str]:
    """CLIProxyAPI with the configuration that we recommend, for the models a and b; its base URL."""
    binary = os.environ.get("CLIPROXYAPI_BIN")
    if not binary:
        pytest.skip("CLIPROXYAPI_BIN names no CLIProxyAPI program")
    (port,) = free_ports(1)
    config = yaml.safe_load(CONTRIB_CONFIG.read_text())
    config["port"] = port
    (provider,) = config["openai-compatibility"]
    provider["base-url"] = f"http://127.0.0.1:{router_port}/v1"
    provider["models"] = [{"name": name, "alias": name} for name in MODELS]
    path = directory / "cliproxyapi.yaml"
    path.write_text(yaml.safe_dump(config))
    # Nothing outside can be reached through that proxy, and its own calls to loopback use none.
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(directory),
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "HTTP_PROXY": "http://127.0.0.1:9",
    }
    log_path = directory / "cliproxyapi.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [binary, "-config", str(path), "-local-model"],
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        _wait_listening(port, process, log_path)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_listening(port: int, process: subprocess.Popen[bytes], log_path: Path) -> None:
    """Wait until the models are listed: the listener comes a moment before the provider."""
    end_s = time.monotonic() + PROGRAM_START_S
    url = f"http://127.0.0.1:{port}/v1/models"
    while time.monotonic() < end_s:
        assert process.poll() is None, log_path.read_text()
        try:
            listed = httpx.get(url, headers=CLIENT_KEY, trust_env=False).json().get("data", [])
        except httpx.TransportError:
            listed = []
        if {"a", "b"} <= {model["id"] for model in listed}:
            return
        time.sleep(0.05)
    raise AssertionError(log_path.read_text())


@asynccontextmanager
async def through_the_program(
    shared: DaemonUnderTest, directory: Path
) -> AsyncIterator[tuple[DaemonUnderTest, httpx.AsyncClient]]:
    """A visit with model a loaded, and a client of the program in front."""
    async with visiting(shared) as it:
        with program(directory, it.port) as url:
            assert (await it.chat("a")).status == 200
            async with httpx.AsyncClient(
                base_url=url, headers=CLIENT_KEY, trust_env=False, timeout=20
            ) as client:
                yield it, client


def chat_text(reply: httpx.Response) -> str:
    """The text of a chat stream that ended with [DONE]."""
    events = sse_events(reply.content)
    assert events[-1] == "[DONE]", reply.text
    choices = [choice for event in events[:-1] for choice in json.loads(event)["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


async def test_the_program_passes_chat_responses_and_messages(
    shared: DaemonUnderTest, tmp_path: Path
) -> None:
    async with through_the_program(shared, tmp_path) as (_, client):
        reply = await client.post("/v1/chat/completions", content=chat_body("a", stream=True))
        assert chat_text(reply).startswith("This is the simulated engine")
        assert reply.headers["x-strata-request-id"]
        reply = await client.post("/v1/responses", json={"model": "a", "input": "hello"})
        assert reply.status_code == 200, reply.text
        assert "This is the simulated engine" in reply.text
        messages = [{"role": "user", "content": "hello"}]
        reply = await client.post(
            "/v1/messages", json={"model": "a", "max_tokens": 50, "messages": messages}
        )
        assert reply.status_code == 200, reply.text
        assert reply.json()["content"][0]["text"].startswith("This is the simulated engine")


async def test_the_program_waits_in_the_queue_and_goes_on_after_failures(
    shared: DaemonUnderTest, tmp_path: Path
) -> None:
    async with through_the_program(shared, tmp_path) as (it, client):
        path = "/v1/chat/completions"
        busy = await it.send_chat("a", "FX:chunk_every_ms=40 FX:force_tokens=20", stream=True)
        await busy.head()
        await next_piece(busy)
        queued = await client.post(path, content=chat_body("b", stream=True))
        assert chat_text(queued).startswith("This is the simulated engine")
        for text, status in ((LATE_ERROR, 500), ("FX:die", 200)):
            failed = await client.post(path, content=chat_body("a", text, stream=True))
            assert failed.status_code == status, failed.text
            assert "[DONE]" not in failed.text
            assert "error" in failed.text
            after = await client.post(path, content=chat_body("a", stream=True))
            assert chat_text(after).startswith("This is the simulated engine")
