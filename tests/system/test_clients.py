"""What real clients have stumbled over elsewhere, and the openai library from end to end.

Each test stands for public bug reports about agents and UIs in front of local engines. Where one of
them asks for what the contract leaves to the engine, the test says so.
"""

import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any, TypeVar

import openai
import pytest
import trio

from tests.runtime.http.raw import Reply, get, post
from tests.system.harness import CHAT, DaemonUnderTest, chat_body, until
from tests.system.shared import running, visiting
from tests.system.wire import (
    BLACKOUT_PHRASES,
    CHUNKED_HEAD,
    Leaving,
    all_pieces,
    chunked,
    error_of,
    events,
    leave,
    next_piece,
)

KEEPALIVE_S = 0.5
IMPATIENT_S = 1.5

Result = TypeVar("Result")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonUnderTest]:
    config = {
        "stream_commit_ms": 100,
        "keepalive_ms": int(KEEPALIVE_S * 1000),
        "aliases": {"test": {"allowed_models": ["a", "b"]}},
    }
    models: dict[str, dict[str, Any]] = {
        "a": {"usage": "asked", "disconnect_poll_s": 0.05},
        "b": {"load_s": 0.8},
    }
    with running(tmp_path_factory.mktemp("clients"), models, config) as it:
        yield it


@asynccontextmanager
async def ready(shared: DaemonUnderTest) -> AsyncIterator[DaemonUnderTest]:
    """A visit with model a loaded."""
    async with visiting(shared) as it:
        assert (await it.chat("a")).status == 200
        yield it


def strict_json(text: str | bytes) -> Any:
    def refuse(constant: str) -> None:
        raise ValueError(f"not JSON: {constant}")

    return json.loads(text, parse_constant=refuse)


def chunks(reply: Reply) -> list[dict[str, Any]]:
    """The JSON of every data event but [DONE]."""
    return [strict_json(event.data) for event in events(reply.body) if event.data != "[DONE]"]


# ---- waiting ------------------------------------------------------------------------------------


async def test_a_long_prefill_never_leaves_the_client_without_bytes(
    shared: DaemonUnderTest,
) -> None:
    """Agents give up after five silent minutes and send the same again."""
    async with ready(shared) as it:
        client = await it.send_chat("a", "FX:prefill=2", stream=True)
        await client.head()
        times = [piece.at_s for piece in await all_pieces(client)]
        gaps = [later - earlier for earlier, later in pairwise(times)]
        assert max(gaps) < KEEPALIVE_S + 0.3


async def test_a_repeated_request_is_not_queued_behind_its_abandoned_copy(
    shared: DaemonUnderTest,
) -> None:
    async with ready(shared) as it:
        first = await it.send_chat("a", "FX:prefill=30", stream=True)
        await first.head()
        leave(first, Leaving.FIN)
        asked_s = time.monotonic()
        assert (await it.chat("a", stream=True)).status == 200
        assert time.monotonic() - asked_s < 2


async def test_an_agent_that_hangs_up_frees_the_engine(shared: DaemonUnderTest) -> None:
    async with ready(shared) as it:
        client = await it.send_chat("a", "FX:slow", stream=True)
        await client.head()
        await client.until(b'"content":"This')
        assert (await it.metrics())["in_flight"] == 1
        left = len(it.stamps("disconnect"))
        leave(client, Leaving.FIN)
        await until(lambda: len(it.stamps("disconnect")) == left + 1, 1)
        assert (await it.metrics())["in_flight"] == 0


# ---- what a stream holds ------------------------------------------------------------------------


async def test_a_usage_chunk_comes_when_asked_for_and_is_the_last(shared: DaemonUnderTest) -> None:
    """Whether there is one is the engine's affair: the router neither adds nor strips it (contract 9)."""
    async with ready(shared) as it:
        for options, positions in ((None, 0), ({"include_usage": True}, 1)):
            found = chunks(await it.chat("a", stream=True, stream_options=options))
            empty = [index for index, chunk in enumerate(found) if chunk["choices"] == []]
            assert empty == [len(found) - 1] * positions
            if positions:
                assert found[-1]["usage"]["total_tokens"] > 0


async def test_an_answer_cut_short_is_an_error_and_never_a_finish(shared: DaemonUnderTest) -> None:
    async with ready(shared) as it:
        reply = await it.chat("a", "FX:die", stream=True)
        found = events(reply.body)
        assert found[-1].name == "error"
        assert found[-1].error["status"] == 502
        assert all(event.data != "[DONE]" for event in found)
        choices = [choice for chunk in chunks(reply) for choice in chunk.get("choices", [])]
        assert len(choices) >= 3
        assert all(choice["finish_reason"] is None for choice in choices)


async def test_an_error_before_the_first_token_is_one_framed_event(shared: DaemonUnderTest) -> None:
    """The engine's stream is at 200 by then; its error frame passes as it came, with its [DONE]."""
    async with ready(shared) as it:
        reply = await it.chat("a", "FX:error-before", stream=True)
        assert reply.status == 200
        assert reply.headers["content-type"] == ["text/event-stream"]
        errors = [chunk["error"] for chunk in chunks(reply) if chunk.get("error")]
        assert len(errors) == 1
        assert errors[0]["message"]
        assert errors[0]["type"] == "server_error"
        assert not (await it.record_of(reply))["success"]
        plain = await it.chat("a", "FX:error-before")
        assert plain.status == 400
        assert strict_json(plain.body)["error"]["message"]


async def test_a_missing_finish_reason_is_not_made_up(shared: DaemonUnderTest) -> None:
    """Clients want one, but only the engine knows it (contract 6.4); ids and objects are its own, too."""
    async with ready(shared) as it:
        for text, finishes in (("FX:nofinish", 0), ("hello", 1)):
            found = chunks(await it.chat("a", text, stream=True))
            choices = [choice for chunk in found for choice in chunk["choices"]]
            assert sum(choice["finish_reason"] is not None for choice in choices) == finishes
            assert {chunk["object"] for chunk in found} == {"chat.completion.chunk"}
            assert len({chunk["id"] for chunk in found}) == 1


async def test_logprobs_stay_strict_json(shared: DaemonUnderTest) -> None:
    """From an engine that writes them strictly; NaN in a request is the client's fault."""
    async with ready(shared) as it:
        wanted: dict[str, Any] = {"logprobs": True, "top_logprobs": 5}
        strict_json((await it.chat("a", "FX:neginf", **wanted)).body)
        found = chunks(await it.chat("a", "FX:neginf", stream=True, **wanted))
        assert any(choice.get("logprobs") for chunk in found for choice in chunk["choices"])
        reply = await it.chat("a", temperature=float("nan"))
        assert (reply.status, error_of(reply)["code"]) == (400, "invalid_json")


TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "parameters": {"type": "object", "properties": {"word": {"type": "string"}}},
        },
    }
]


async def test_tool_call_deltas_keep_index_id_and_name(shared: DaemonUnderTest) -> None:
    async with ready(shared) as it:
        reply = await it.chat(
            "a", "FX:tool_calls=2", stream=True, tools=TOOLS, tool_choice="required", max_tokens=200
        )
        calls: dict[int, dict[str, str]] = {}
        for chunk in chunks(reply):
            for choice in chunk["choices"]:
                for part in choice["delta"].get("tool_calls", []):
                    call = calls.setdefault(part["index"], {"id": "", "name": "", "arguments": ""})
                    call["id"] += part.get("id", "")
                    call["name"] += part["function"].get("name", "")
                    call["arguments"] += part["function"]["arguments"]
        assert sorted(calls) == [0, 1]
        assert {call["name"] for call in calls.values()} == {"look_up"}
        assert len({call["id"] for call in calls.values()}) == 2
        assert all(isinstance(strict_json(call["arguments"]), dict) for call in calls.values())
        assert (await it.record_of(reply))["finish_reason"] == "tool_calls"


# ---- what a proxy in front concludes ------------------------------------------------------------


async def test_no_refusal_talks_a_proxy_into_taking_the_model_out(shared: DaemonUnderTest) -> None:
    """A busy engine's 503 is the engine's own text; all others are ours (facts/cliproxyapi.md)."""
    async with ready(shared) as it:
        client = await it.connect()
        for request in (
            post(CHAT, body=b"{"),
            post(CHAT, body=chat_body("no-such")),
            post(CHAT, body=chat_body("a", "FX:busy")),
            get("/nope"),
            get(CHAT),
        ):
            await client.send(request)
            reply = await client.reply()
            error = strict_json(reply.body)["error"]
            assert not BLACKOUT_PHRASES.search(reply.body.decode())
            assert reply.status < 500 or reply.status == 503
            if reply.status < 500:
                assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "path",
    [
        "/v1/messages/count_tokens",
        "/v1/responses/compact",
        "/v1/responses",
        "/v1/embeddings",
        "/api/hello",
    ],
)
async def test_optional_routes_are_missing_in_a_harmless_way(
    shared: DaemonUnderTest, path: str
) -> None:
    async with visiting(shared) as it:
        client = await it.connect()
        await client.send(post(path, body=b"{}"))
        reply = await client.reply()
        assert reply.status == 404
        assert error_of(reply)["type"] == "invalid_request_error"


# ---- how requests are sent ----------------------------------------------------------------------


async def test_chunked_requests_are_read_and_leave_the_connection_in_step(
    shared: DaemonUnderTest,
) -> None:
    async with ready(shared) as it:
        body = chat_body("a")
        trailers = chunked(body, 11).removesuffix(b"\r\n") + b"X-Trailer: y\r\n\r\n"
        client = await it.connect()
        for request in (
            CHUNKED_HEAD + chunked(body, 7, b";ext=1"),
            CHUNKED_HEAD + trailers,
            post(CHAT, body=body),
        ):
            await client.send(request)
            assert (await client.reply()).status == 200


@pytest.mark.parametrize("escape", [rb"\ud83d", rb"\udc00\ud83d", rb"\u0000"])
async def test_lone_surrogates_are_the_engines_affair(
    shared: DaemonUnderTest, escape: bytes
) -> None:
    async with ready(shared) as it:
        client = await it.connect()
        body = chat_body("a", "hi").replace(b'"hi"', b'"a' + escape + b'b"')
        await client.send(post(CHAT, body=body))
        reply = await client.reply()
        assert reply.status in (200, 400)
        strict_json(reply.body)
        assert (await it.record_of(reply))["upstream_status"] == reply.status


async def test_bytes_that_are_no_utf_8_are_a_clients_fault(shared: DaemonUnderTest) -> None:
    async with visiting(shared) as it:
        client = await it.connect()
        await client.send(post(CHAT, body=chat_body("a", "hi").replace(b"hi", b"\xff\xfe")))
        assert (await client.reply()).status == 400


async def test_newer_fields_are_no_reason_to_refuse(shared: DaemonUnderTest) -> None:
    async with ready(shared) as it:
        reply = await it.chat(
            "a",
            store=False,
            prompt_cache_key="k",
            service_tier="auto",
            speed="standard",
            reasoning_effort="low",
            parallel_tool_calls=True,
            metadata={"a": "b"},
            verbosity="low",
            safety_identifier="x",
            max_completion_tokens=16,
            x_future={"y": [1]},
            messages=[
                {"role": "developer", "content": "d"},
                {"role": "assistant", "content": "", "reasoning_content": "r"},
                {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            ],
        )
        assert reply.status == 200, reply.body


async def test_a_browsers_preflight_is_answered_and_grants_nothing(
    shared: DaemonUnderTest,
) -> None:
    async with visiting(shared) as it:
        client = await it.connect()
        await client.send(
            get(
                CHAT,
                "Origin: http://evil.example",
                "Access-Control-Request-Method: POST",
                "Access-Control-Request-Headers: authorization,content-type",
                "Access-Control-Request-Private-Network: true",
                method="OPTIONS",
            )
        )
        reply = await client.reply()
        assert reply.status == 204
        assert not [name for name in reply.headers if name.startswith("access-control-")]


async def test_bursts_of_head_requests_are_answered_without_bodies_or_log_lines(
    shared: DaemonUnderTest,
) -> None:
    async with visiting(shared) as it:
        logged = len(it.log)
        client = await it.connect()
        for path in ("/", "/api/hello", "/v1/models", "/healthz"):
            await client.send(get(path, method="HEAD"))
            assert (await client.reply(no_body=True)).status in (200, 404)
        await client.send(get("/v1/models"))
        assert strict_json((await client.reply()).body)["object"] == "list"
        assert len(it.log) == logged


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (CHAT + "/", 200),
        (CHAT + "?api-version=1", 200),
        ("/v1//chat/completions", 404),
        ("//v1/chat/completions", 404),
        ("/chat/completions", 404),
        (f"/v1{CHAT}", 404),
    ],
)
async def test_badly_joined_urls_are_served_or_corrected_but_never_redirected(
    shared: DaemonUnderTest, path: str, status: int
) -> None:
    async with ready(shared) as it:
        client = await it.connect()
        await client.send(post(path, body=chat_body("a")))
        reply = await client.reply()
        assert reply.status == status
        if status == 404:
            assert CHAT in error_of(reply)["message"]


async def test_the_list_of_models_has_the_shape_that_uis_expect(shared: DaemonUnderTest) -> None:
    async with visiting(shared) as it:
        listing = await it.get_json("/v1/models")
        assert listing["object"] == "list"
        assert {entry["id"] for entry in listing["data"]} == {"a", "b", "test"}
        for entry in listing["data"]:
            assert entry["object"] == "model"
            assert isinstance(entry["created"], int)
            assert isinstance(entry["owned_by"], str)


# ---- the openai library -------------------------------------------------------------------------


async def metrics_until(it: DaemonUnderTest, holds: Callable[[dict[str, Any]], bool]) -> None:
    """A client that left is noticed within a second."""
    with trio.fail_after(1):
        while not holds(await it.metrics()):
            await trio.sleep(0.01)


async def with_sdk(it: DaemonUnderTest, use: Callable[[openai.OpenAI], Result]) -> Result:
    """Run ``use`` with a client of this daemon; the library blocks, so in a thread."""

    def run() -> Result:
        url = f"http://127.0.0.1:{it.port}/v1"
        with openai.OpenAI(api_key="none", base_url=url, max_retries=0) as client:
            return use(client)

    return await trio.to_thread.run_sync(run)


USER: Any = [{"role": "user", "content": "hello"}]


def _user(text: str) -> Any:
    return [{"role": "user", "content": text}]


async def test_the_library_reads_a_plain_answer_and_its_headers(shared: DaemonUnderTest) -> None:
    async with ready(shared) as it:
        raw = await with_sdk(
            it,
            lambda sdk: sdk.chat.completions.with_raw_response.create(model="test", messages=USER),
        )
        assert raw.headers["x-strata-concrete-model"] == "a"
        assert raw.headers["x-strata-request-id"]
        answer = raw.parse()
        assert answer.choices[0].message.content
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage is not None
        assert answer.usage.total_tokens > 0


async def test_the_library_reads_a_stream(shared: DaemonUnderTest) -> None:
    def use(sdk: openai.OpenAI) -> list[Any]:
        with sdk.chat.completions.create(
            model="a", messages=USER, stream=True, stream_options={"include_usage": True}
        ) as stream:
            return list(stream)

    async with ready(shared) as it:
        found = await with_sdk(it, use)
        text = "".join(c.choices[0].delta.content or "" for c in found if c.choices)
        assert text.startswith("This is the simulated engine")
        assert [c.choices[0].finish_reason for c in found if c.choices][-1] == "stop"
        assert found[-1].usage.completion_tokens > 0


async def test_the_library_reads_a_stream_that_waited_with_heartbeats(
    shared: DaemonUnderTest,
) -> None:
    def use(sdk: openai.OpenAI) -> list[Any]:
        with sdk.chat.completions.create(model="b", messages=USER, stream=True) as stream:
            return list(stream)

    async with ready(shared) as it:
        busy = await it.send_chat("a", "FX:chunk_every_ms=50 FX:force_tokens=20", stream=True)
        await busy.head()
        await next_piece(busy)
        found = await with_sdk(it, use)
        assert found[-1].choices[0].finish_reason == "stop"
        record = (await it.records())[-1]
        assert record["response_bytes"] > 0
        assert record["queue_wait_ms"] > 500
        await it.chat("a")


@pytest.mark.parametrize("queued", [True, False], ids=["queued", "active"])
async def test_the_librarys_own_timeout_frees_what_it_waited_for(
    shared: DaemonUnderTest, queued: bool
) -> None:
    """Without a stream nothing tells the library that its request is alive."""

    def use(sdk: openai.OpenAI) -> None:
        model, text = ("b", "hello") if queued else ("a", "FX:prefill=30")
        sdk.chat.completions.create(model=model, messages=_user(text), timeout=IMPATIENT_S)

    async with ready(shared) as it:
        if queued:
            busy = await it.send_chat("a", "FX:slow", stream=True)
            await busy.head()
            await next_piece(busy)
        asked, left = len(it.stamps("request")), len(it.stamps("disconnect"))
        recorded = (await it.metrics())["request_log"]["next_seq"]
        with pytest.raises(openai.APITimeoutError):
            await with_sdk(it, use)
        held = "queue_depth" if queued else "in_flight"
        await metrics_until(
            it,
            lambda metrics: (
                metrics[held] == 0 and metrics["request_log"]["next_seq"] == recorded + 1
            ),
        )
        assert (await it.records())[-1]["reason"] == "client_disconnect"
        if queued:
            assert len(it.stamps("request")) == asked
        else:
            await until(lambda: len(it.stamps("disconnect")) == left + 1, 1)


async def test_heartbeats_outlast_the_librarys_own_timeout(shared: DaemonUnderTest) -> None:
    def use(sdk: openai.OpenAI) -> list[Any]:
        impatient = sdk.with_options(timeout=IMPATIENT_S)
        messages = _user("FX:prefill=3.5")
        with impatient.chat.completions.create(model="a", messages=messages, stream=True) as stream:
            return list(stream)

    async with ready(shared) as it:
        assert (await with_sdk(it, use))[-1].choices[0].finish_reason == "stop"
        assert (await it.records())[-1]["ttft_ms"] > 2 * 1000 * IMPATIENT_S


async def test_the_library_reads_tool_calls(shared: DaemonUnderTest) -> None:
    def use(sdk: openai.OpenAI) -> Any:
        return sdk.chat.completions.create(
            model="a", messages=USER, tools=TOOLS, tool_choice="required"
        )

    async with ready(shared) as it:
        answer = await with_sdk(it, use)
        (call,) = answer.choices[0].message.tool_calls
        assert call.function.name == "look_up"
        assert isinstance(strict_json(call.function.arguments), dict)


async def test_the_library_lists_and_retrieves_models(shared: DaemonUnderTest) -> None:
    async with visiting(shared) as it:
        models = await with_sdk(it, lambda sdk: list(sdk.models.list()))
        assert [model.id for model in models] == ["a", "b", "test"]
        assert (await with_sdk(it, lambda sdk: sdk.models.retrieve("b"))).owned_by
        with pytest.raises(openai.NotFoundError):
            await with_sdk(it, lambda sdk: sdk.models.retrieve("no-such"))


@pytest.mark.parametrize(
    ("model", "text", "error"),
    [
        ("no-such", "hello", openai.NotFoundError),
        ("a", "FX:answer=json400", openai.BadRequestError),
        ("a", "FX:answer=json500", openai.InternalServerError),
        ("a", "FX:answer=nothing", openai.InternalServerError),
        ("a", "FX:busy", openai.InternalServerError),
    ],
)
async def test_the_library_maps_errors_to_its_own(
    shared: DaemonUnderTest, model: str, text: str, error: type[openai.APIStatusError]
) -> None:
    async with ready(shared) as it:
        for stream in (False, True):
            with pytest.raises(error) as caught:
                await with_sdk(
                    it,
                    lambda sdk, stream=stream: sdk.chat.completions.create(  # type: ignore[misc]  # bound early
                        model=model, messages=_user(text), stream=stream
                    ),
                )
            assert caught.value.response.headers["x-strata-request-id"]


async def test_the_library_raises_for_an_error_inside_a_stream(shared: DaemonUnderTest) -> None:
    def use(sdk: openai.OpenAI) -> None:
        messages = _user("FX:header_delay_s=0.4 FX:answer=json500")
        for _ in sdk.chat.completions.create(model="a", messages=messages, stream=True):
            pass

    async with ready(shared) as it:
        with pytest.raises(openai.APIError) as caught:
            await with_sdk(it, use)
        assert caught.value.type == "server_error"


async def test_the_asynchronous_library_serves_many_at_once(shared: DaemonUnderTest) -> None:
    """It runs on asyncio here, in a thread: its trio support is an option that nobody uses."""
    import asyncio

    async def ask_all(port: int) -> list[str]:
        url = f"http://127.0.0.1:{port}/v1"
        async with openai.AsyncOpenAI(api_key="none", base_url=url, max_retries=0) as sdk:

            async def ask(number: int) -> str:
                stream = await sdk.chat.completions.create(
                    model="test", messages=_user(f"question {number}"), stream=True
                )
                parts = [chunk.choices[0].delta.content or "" async for chunk in stream]
                return "".join(parts)

            return await asyncio.gather(*(ask(number) for number in range(8)))

    async with ready(shared) as it:
        answers = await trio.to_thread.run_sync(lambda: asyncio.run(ask_all(it.port)))
        assert len(answers) == 8
        assert all(answers)
