"""Paths, methods, hosts and origins: what the listener answers besides chat requests.

Source: contract 5; reports.md; facts/cliproxyapi.md sections 0, 2 and 3.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from tests.runtime.http.raw import get, post
from tests.system.harness import CHAT, DaemonUnderTest, chat_body, daemon
from tests.system.shared import running, visiting
from tests.system.wire import error_of

READ_ONLY = [
    "/v1/models",
    "/v1/models/a",
    "/health",
    "/metrics",
    "/requests",
    "/queue",
    "/openapi.json",
]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonUnderTest]:
    config = {
        "allowed_hosts": ["strata.lan"],
        "allowed_origins": ["https://chat.example"],
        "header_ms": 300,
        "request_log_capacity": 1000,
    }
    with running(tmp_path_factory.mktemp("surface"), {"a": {}}, config) as it:
        yield it


@pytest.mark.parametrize("path", READ_ONLY)
@pytest.mark.parametrize("slash", ["", "/"])
async def test_read_only_paths_answer_get_and_head_alike(
    shared: DaemonUnderTest, path: str, slash: str
) -> None:
    async with visiting(shared) as it:
        client = await it.connect()
        await client.send(get(path + slash), get(path + slash, method="HEAD"), get("/health"))
        reply = await client.reply()
        assert reply.status == 200
        assert reply.headers["content-type"] == ["application/json"]
        assert json.loads(reply.body)
        head = await client.reply(no_body=True)
        assert (head.status, head.headers.keys()) == (200, reply.headers.keys())
        assert (await client.reply()).status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "TRACE", "FOO"])
@pytest.mark.parametrize("path", [*READ_ONLY, "/health/"])
async def test_another_method_on_a_known_path_is_405(
    shared: DaemonUnderTest, path: str, method: str
) -> None:
    async with visiting(shared) as it:
        client = await it.connect()
        await client.send(get(path, method=method))
        reply = await client.reply()
        assert (reply.status, error_of(reply)["code"]) == (405, "method_not_allowed")
        (allow,) = reply.headers["allow"]
        assert {"GET", "HEAD"} <= set(allow.split(", ")) <= {"GET", "HEAD", "OPTIONS"}


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE"])
@pytest.mark.parametrize("path", [CHAT, CHAT + "/"])
async def test_the_chat_path_takes_only_post(
    shared: DaemonUnderTest, path: str, method: str
) -> None:
    async with visiting(shared) as it:
        before = (await it.metrics())["request_log"]["next_seq"]
        client = await it.connect()
        await client.send(get(path, method=method), get("/health"))
        reply = await client.reply(no_body=method == "HEAD")
        assert reply.status == 405
        assert "POST" in reply.headers["allow"][0].split(", ")
        assert "x-strata-request-id" not in reply.headers
        assert (await client.reply()).status == 200
        assert (await it.metrics())["request_log"]["next_seq"] == before


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "HEAD"])
@pytest.mark.parametrize(
    "path", ["/nope", "/v1", "/v1/responses", "/v1/messages/count_tokens", "/v1/models/a/b", "/%ff"]
)
async def test_an_unknown_path_is_404_as_json_and_leaves_no_record(
    shared: DaemonUnderTest, path: str, method: str
) -> None:
    async with visiting(shared) as it:
        before = (await it.metrics())["request_log"]["next_seq"]
        client = await it.connect()
        await client.send(get(path, method=method), get("/health"))
        reply = await client.reply(no_body=method == "HEAD")
        assert reply.status == 404
        if method != "HEAD":
            error = error_of(reply)
            assert (error["type"], error["code"]) == ("invalid_request_error", "not_found")
        assert (await client.reply()).status == 200
        assert (await it.metrics())["request_log"]["next_seq"] == before


@pytest.mark.parametrize("path", [CHAT, CHAT + "/", CHAT + "?api-version=1"])
async def test_a_trailing_slash_and_a_query_lead_to_the_chat_path(
    shared: DaemonUnderTest, path: str
) -> None:
    async with visiting(shared) as it:
        client = await it.connect()
        await client.send(post(path, body=chat_body("a")))
        reply = await client.reply()
        assert reply.status == 200
        assert (await it.record_of(reply))["endpoint"] == CHAT


@pytest.mark.parametrize(
    "path",
    ["/v1//chat/completions", "//v1/chat/completions", "/chat/completions", f"/v1{CHAT}"],
)
async def test_a_misspelt_chat_path_is_answered_with_the_right_one(
    shared: DaemonUnderTest, path: str
) -> None:
    async with visiting(shared) as it:
        client = await it.connect()
        await client.send(post(path, body=chat_body("a")))
        reply = await client.reply()
        assert reply.status == 404
        assert error_of(reply)["message"].endswith(f"did you mean {CHAT}?")
        assert "location" not in reply.headers


async def test_a_path_like_none_is_told_of_every_path(shared: DaemonUnderTest) -> None:
    async with visiting(shared) as it:
        client = await it.connect()
        await client.send(get("/v2/zzz"))
        message = error_of(await client.reply())["message"]
        for path in {*READ_ONLY, CHAT} - {"/v1/models/a"}:
            assert path in message


async def test_options_is_answered_at_once_and_grants_nothing(shared: DaemonUnderTest) -> None:
    async with visiting(shared) as it:
        client = await it.connect()
        for path in (CHAT, "/v1/models", "*"):
            await client.send(
                get(
                    path,
                    "Origin: http://evil.example",
                    "Access-Control-Request-Method: POST",
                    "Access-Control-Request-Private-Network: true",
                    method="OPTIONS",
                )
            )
            reply = await client.reply()
            assert reply.status == 204
            assert "allow" in reply.headers
            framing = ("content-length", "transfer-encoding")
            assert not any(name.startswith("access-control-") for name in reply.headers)
            assert not any(name in reply.headers for name in framing)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:1", 200),
        ("app.localhost", 200),
        ("127.0.0.1:8088", 200),
        ("127.9.9.9", 200),
        ("[::1]:8088", 200),
        ("strata.lan:80", 200),
        ("evil.example", 403),
        ("localhost.evil.example", 403),
        ("192.168.0.1", 403),
        ("[::2]", 403),
        ("0.0.0.0", 403),
        ("localhost:x", 403),
    ],
)
async def test_hosts_that_are_not_ours_are_refused_everywhere(
    shared: DaemonUnderTest, host: str, status: int
) -> None:
    async with visiting(shared) as it:
        for path in ("/v1/models", "/health", "/requests"):
            client = await it.connect()
            request = get(path).replace(b"Host: localhost", b"Host: " + host.encode())
            await client.send(request)
            assert (await client.reply()).status == status


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("https://chat.example", 200),
        ("http://localhost:3000", 200),
        ("http://127.0.0.1", 200),
        ("http://strata.lan", 200),
        ("http://chat.example", 403),
        ("https://chat.example.evil.example", 403),
        ("null", 403),
        ("file://", 403),
    ],
)
async def test_origins_that_are_not_ours_may_not_post(
    shared: DaemonUnderTest, origin: str, status: int
) -> None:
    async with visiting(shared) as it:
        client = await it.connect()
        await client.send(post(CHAT, f"Origin: {origin}", body=chat_body("a")))
        reply = await client.reply()
        assert reply.status == status
        assert not any(name.startswith("access-control-") for name in reply.headers)


async def test_b16_a_slow_head_is_408_and_leaves_no_record(shared: DaemonUnderTest) -> None:
    async with visiting(shared) as it:
        before = (await it.metrics())["request_log"]["next_seq"]
        client = await it.connect()
        await client.send(post(CHAT, body=None)[:40])
        with trio.fail_after(3):
            reply = await client.reply()
        assert (reply.status, error_of(reply)["code"]) == (408, "request_timeout")
        assert await client.at_eof()
        assert (await it.metrics())["request_log"]["next_seq"] == before


@pytest.mark.parametrize(
    "framing",
    [
        ("Content-Length: 2", "Transfer-Encoding: chunked"),
        ("Content-Length: 2", "Content-Length: 3"),
        ("Content-Length: s3cr3t",),
        ("Transfer-Encoding: gzip, chunked",),
    ],
)
async def test_conflicting_framing_is_400_without_a_record(
    shared: DaemonUnderTest, framing: tuple[str, ...]
) -> None:
    async with visiting(shared) as it:
        before = (await it.metrics())["request_log"]["next_seq"]
        client = await it.connect()
        await client.send(post(CHAT, *framing, body=None), b"{}")
        reply = await client.reply()
        assert (reply.status, error_of(reply)["code"]) == (400, "bad_request")
        assert b"s3cr3t" not in reply.body
        assert await client.at_eof()
        assert (await it.metrics())["request_log"]["next_seq"] == before


async def test_requests_for_discovery_never_wake_an_engine_or_redirect(
    shared: DaemonUnderTest,
) -> None:
    async with visiting(shared) as it:
        client = await it.connect()
        starts = len(it.stamps("start"))
        for path in (*READ_ONLY, "//v1/models", "/v1/models//", "/v1/models?x=1"):
            await client.send(get(path))
            reply = await client.reply()
            assert reply.status in (200, 404)
            assert "location" not in reply.headers
            assert reply.headers["content-type"] == ["application/json"]
        assert len(it.stamps("start")) == starts


async def test_with_no_model_enabled_the_list_is_empty_and_not_null(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {}}, {"enabled_models": []}) as it:
        assert await it.get_json("/v1/models") == {"object": "list", "data": []}
        reply = await it.chat("a")
        assert (reply.status, error_of(reply)["code"]) == (404, "model_not_found")
