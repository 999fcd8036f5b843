"""The main path on a real daemon: bytes in, bytes out, headers, discovery (contract 5, 6)."""

import hashlib
import json
from pathlib import Path

from tests.runtime.http.raw import get, post
from tests.system.harness import CHAT, chat_body, daemon, sse_events, until


async def test_a_stream_and_a_plain_answer_pass_untouched(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {"hash_responses": True}}) as it:
        streamed = await it.chat("a", stream=True)
        plain = await it.chat("a")
        assert streamed.status == plain.status == 200
        assert sse_events(streamed.body)[-1] == "[DONE]"
        assert json.loads(plain.body)["choices"][0]["message"]["content"]
        await until(lambda: len(it.stamps("done")) == 2)
        sent = [stamp.facts["response_sha256"] for stamp in it.stamps("done")]
        ours = streamed.body.removeprefix(b": keepalive\n\n")
        assert sent == [hashlib.sha256(body).hexdigest() for body in (ours, plain.body)]


async def test_headers_say_which_request_which_model_and_which_tier(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {}}, {"aliases": {"test": {"allowed_models": ["a"]}}}) as it:
        for stream in (True, False):
            reply = await it.chat("test", stream=stream, service_tier="flex")
            assert reply.headers["x-strata-concrete-model"] == ["a"]
            assert reply.headers["x-strata-service-tier"] == ["flex"]
            assert (await it.record_of(reply))["model_requested"] == "test"
        stream_headers = (await it.chat("a", stream=True)).headers
        assert stream_headers["content-type"] == ["text/event-stream"]
        assert stream_headers["cache-control"] == ["no-cache"]
        assert stream_headers["x-accel-buffering"] == ["no"]


async def test_the_engine_gets_the_body_and_only_the_headers_it_should(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {"record_bodies": True}}) as it:
        client = await it.connect()
        body = (
            b'{ "model":"a", "service_tier":"priority","speed":"fast" ,"max_tokens":2,\n'
            b'"messages":[{"role":"user","content":"\\ud83d \xc3\xa9"}],"seed":12345678901234567890123}'
        )
        await client.send(
            post(
                CHAT,
                "Accept: text/x-mine",
                "Authorization: Bearer secret",
                "Origin: http://localhost:3000",
                "Accept-Encoding: gzip",
                "X-Mine: 1",
                "Cookie: a=b",
                body=body,
            )
        )
        assert (await client.reply()).status == 200
        (request,) = it.stamps("request")
        assert request.facts["body"].encode() == (
            b'{"model":"upstream-a","max_tokens":2,'
            b'"messages":[{"role":"user","content":"\\ud83d \xc3\xa9"}],"seed":12345678901234567890123}'
        )
        names = sorted(name.lower() for name, _ in request.facts["headers"])
        assert names == ["accept", "content-length", "content-type", "host"]
        headers = {name.lower(): value for name, value in request.facts["headers"]}
        assert headers["host"] == f"127.0.0.1:{it.backend_port}"
        assert headers["accept"] == "text/x-mine"


async def test_discovery_answers_without_waking_an_engine(tmp_path: Path) -> None:
    async with daemon(
        tmp_path, {"a": {}, "b": {}}, {"aliases": {"test": {"allowed_models": ["b", "a"]}}}
    ) as it:
        listing = await it.get_json("/v1/models")
        assert {entry["id"]: entry["kind"] for entry in listing["data"]} == {
            "a": "concrete",
            "b": "concrete",
            "test": "alias",
        }
        assert (await it.get_json("/v1/models/test/"))["allowed_models"] == ["b", "a"]
        assert (await it.get_json("/v1/models/zzz"))["error"]["code"] == "model_not_found"
        assert (await it.get_json("/health"))["status"] == "ok"
        assert it.stamps() == []


async def test_one_client_connection_carries_many_exchanges(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {}}) as it:
        client = await it.connect()
        for stream in (True, False, True):
            await client.send(post(CHAT, body=chat_body("a", stream=stream)))
            assert (await client.reply()).status == 200
        await client.send(get("/v1/models"))
        assert (await client.reply()).status == 200
