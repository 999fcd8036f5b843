"""Every row of the error table as a client, the openai library and the records see it.

Source: contract 5 (the table); reports.md B21; facts/cliproxyapi.md sections 0 and 5.
"""

import ast
import json
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
import trio

import strata_router
from tests.runtime.http.raw import RawClient, Reply, post
from tests.system.harness import CHAT, DaemonUnderTest, chat_body, daemon, until
from tests.system.openai_sdk import sdk_error
from tests.system.shared import running, visiting
from tests.system.wire import BLACKOUT_PHRASES, all_pieces, error_of, events

LIMIT_BYTES = 4096


def expect_refusal(
    reply: Reply, status: int, kind: str, code: str, *, request_id: bool = True
) -> dict[str, Any]:
    """A refusal in its JSON form, complete in every respect; its error object."""
    assert (reply.status, reply.cut) == (status, False)
    error = error_of(reply)
    assert sorted(error) == ["code", "message", "status", "type"]
    assert (error["status"], error["type"], error["code"]) == (status, kind, code)
    assert isinstance(error["message"], str)
    assert error["message"].endswith(".")
    assert not BLACKOUT_PHRASES.search(reply.body.decode())
    assert ("x-strata-request-id" in reply.headers) is request_id
    seen = sdk_error(reply)
    assert isinstance(seen, openai.APIStatusError)
    assert (seen.status_code, seen.type, seen.code) == (status, kind, code)
    assert seen.body == error
    return error


def expect_in_band(reply: Reply, status: int, kind: str, code: str) -> dict[str, Any]:
    """The same refusal inside a committed stream: one error event, the end, no [DONE]."""
    assert (reply.status, reply.cut) == (200, False)
    assert reply.headers["content-type"] == ["text/event-stream"]
    assert reply.body.startswith(b": keepalive\n\n")
    found = events(reply.body)
    assert [event.name for event in found if event.name] == ["error"]
    assert reply.body.count(b"[DONE]") == 0
    error = found[-1].error
    assert (error["status"], error["type"], error["code"]) == (status, kind, code)
    assert not BLACKOUT_PHRASES.search(reply.body.decode())
    seen = sdk_error(reply, stream=True)
    assert not isinstance(seen, openai.APIStatusError)
    assert (seen.type, seen.code) == (kind, code)
    return error


async def expect_record(
    it: DaemonUnderTest, reply: Reply, reason: str, **fields: Any
) -> dict[str, Any]:
    """The exchange's record says so, and that it was no success."""
    record = await it.record_of(reply)
    assert (record["reason"], record["success"]) == (reason, False)
    assert record["status"] == reply.status
    if not reply.cut:
        assert record["response_bytes"] == len(reply.body)
    assert record["disconnect_phase"] is None
    assert {name: record[name] for name in fields} == fields
    return record


# ---- faults of the client -----------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """One request that can only be refused, and what the refusal says besides invalid_request_error."""

    name: str
    status: int
    code: str
    body: bytes = b"{}"
    headers: tuple[str, ...] = ()
    reason: str = "invalid_request"
    asked: str | None = None  # the record's model_requested


def _fields(**fields: Any) -> bytes:
    return json.dumps({"model": "a", "messages": [], **fields}).encode()


def _model(name: str) -> bytes:
    return chat_body(name, stream=True)


FAULTS = [
    Fault("empty body", 400, "invalid_json", b""),
    Fault("not JSON", 400, "invalid_json", b"{"),
    Fault("not an object", 400, "invalid_json", b'["model"]'),
    Fault("NaN", 400, "invalid_json", b'{"model":"a","temperature":NaN}'),
    Fault("Infinity", 400, "invalid_json", b'{"model":"a","messages":[-Infinity]}'),
    Fault("not UTF-8", 400, "invalid_json", b'{"model":"\xff\xfe"}'),
    Fault("trailing text", 400, "invalid_json", b'{"model":"a"} x'),
    Fault("nested deeply", 400, "invalid_json", b'{"model":' + b"[" * 3000),
    Fault("no model", 400, "missing_required_parameter", b'{"messages":[]}'),
    Fault("null model", 400, "missing_required_parameter", b'{"model":null}'),
    Fault("model of the wrong type", 400, "invalid_value", b'{"model":5}'),
    Fault("stream of the wrong type", 400, "invalid_value", _fields(stream="yes")),
    Fault("unknown tier", 400, "invalid_value", _fields(service_tier="gold")),
    Fault("tier of the wrong type", 400, "invalid_value", _fields(service_tier=["flex"])),
    Fault("unknown speed", 400, "invalid_value", _fields(speed="slow")),
    Fault("model twice", 400, "invalid_value", b'{"model":"a","mod\\u0065l":"a"}'),
    Fault("too large by Content-Length", 413, "request_too_large", _fields(x="x" * LIMIT_BYTES)),
    Fault("compressed", 415, "unsupported_encoding", headers=("Content-Encoding: gzip",)),
    Fault("zstd", 415, "unsupported_encoding", headers=("content-encoding: identity, zstd",)),
    Fault("foreign Host", 403, "forbidden_host", _model("a"), ("Host: evil.example",)),
    Fault("rebound Host", 403, "forbidden_host", _model("a"), ("Host: 127.0.0.1.evil.example",)),
    Fault("foreign Origin", 403, "forbidden_origin", _model("a"), ("Origin: http://evil.example",)),
    Fault("null Origin", 403, "forbidden_origin", _model("a"), ("Origin: null",)),
    Fault("unknown model", 404, "model_not_found", _model("no-such")),
    Fault("disabled model", 404, "model_not_found", _model("disabled"), asked="disabled"),
    Fault("alias without a model", 404, "model_not_found", _model("hollow"), asked="hollow"),
    Fault(
        "not installed",
        404,
        "model_not_prepared",
        _model("absent"),
        reason="model_not_prepared",
        asked="absent",
    ),
    Fault(
        "incompatible",
        404,
        "model_not_prepared",
        _model("unfit"),
        reason="model_not_prepared",
        asked="unfit",
    ),
    Fault(
        "no profile",
        404,
        "model_not_prepared",
        _model("bare"),
        reason="model_not_prepared",
        asked="bare",
    ),
    Fault(
        "refused profile",
        404,
        "model_not_prepared",
        _model("lazy"),
        reason="model_not_prepared",
        asked="lazy",
    ),
    Fault(
        "alias of nothing prepared",
        404,
        "model_not_prepared",
        _model("unready"),
        reason="model_not_prepared",
        asked="unready",
    ),
]


def _with_unusable_models(it: DaemonUnderTest) -> None:
    """Beside the usable model ``a``, one model for each way not to be offered or prepared."""
    models = it.config["models"]
    usable = models["a"]
    for name in ("disabled", "absent", "unfit", "bare", "lazy"):
        models[name] = {**usable, "upstream_model": f"upstream-{name}"}
    models["disabled"]["family"] = "hollow"
    models["absent"] |= {"installed": False, "family": "unready"}
    models["unfit"]["compatible"] = False
    models["bare"]["profile"] = str(it.directory / "no-such.json")
    lazy = json.loads(Path(usable["profile"]).read_text())
    lazy |= {"lazy_load": True, "model_name": "upstream-lazy"}
    (it.directory / "lazy.json").write_text(json.dumps(lazy))
    models["lazy"]["profile"] = str(it.directory / "lazy.json")
    it.config["enabled_models"] = ["a", "absent", "unfit", "bare", "lazy"]
    it.config["aliases"] = {
        "hollow": {"allowed_models": ["disabled"]},
        "unready": {"allowed_models": ["absent"]},
    }


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonUnderTest]:
    config = {"max_request_body_bytes": LIMIT_BYTES, "body_ms": 300, "stream_commit_ms": 100}
    directory = tmp_path_factory.mktemp("errors")
    with running(directory, {"a": {}}, config, _with_unusable_models) as it:
        yield it


def _request(fault: Fault) -> bytes:
    request = post(CHAT, *fault.headers, body=fault.body)
    if any(line.startswith("Host:") for line in fault.headers):
        request = request.replace(b"Host: localhost\r\n", b"", 1)
    return request


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
async def test_b21_a_clients_fault_is_refused_as_its_own(
    shared: DaemonUnderTest, fault: Fault
) -> None:
    async with visiting(shared) as it:
        client = await it.connect()
        await client.send(_request(fault))
        reply = await client.reply()
        expect_refusal(reply, fault.status, "invalid_request_error", fault.code)
        await expect_record(
            it,
            reply,
            fault.reason,
            model_requested=fault.asked,
            upstream_status=None,
            lease_at=None,
        )


async def test_nothing_of_what_was_sent_is_shown_or_recorded(shared: DaemonUnderTest) -> None:
    secret = "s3cr3t-word"
    async with visiting(shared) as it:
        for body in (
            f'{{"model": "{secret}"}}',
            f'{{"model": "a", "service_tier": "{secret}"}}',
            f'{{"model": "a", "{secret}"',
        ):
            client = await it.connect()
            await client.send(post(f"{CHAT}?key={secret}", f"X-Key: {secret}", body=body.encode()))
            reply = await client.reply()
            assert reply.status in (400, 404)
            assert secret not in str(reply.headers)
            assert secret.encode() not in reply.body
            assert secret not in json.dumps(await it.record_of(reply))
        assert secret not in it.log


async def test_a_body_that_stalls_is_408(shared: DaemonUnderTest) -> None:
    async with visiting(shared) as it:
        client = await it.connect()
        await client.send(post(CHAT, "Content-Length: 100", body=None), b'{"model":')
        reply = await client.reply()
        expect_refusal(reply, 408, "invalid_request_error", "request_timeout")
        await expect_record(it, reply, "invalid_request", stream=False, model_requested=None)
        assert await client.at_eof()


async def test_a_chunked_body_over_the_limit_is_413(shared: DaemonUnderTest) -> None:
    async with visiting(shared) as it:
        client = await it.connect()
        head = post(CHAT, "Transfer-Encoding: chunked", body=None)
        await client.send(head, b"1001\r\n" + b"x" * (LIMIT_BYTES + 1))
        reply = await client.reply()
        expect_refusal(reply, 413, "invalid_request_error", "request_too_large")
        await expect_record(it, reply, "invalid_request")


async def test_broken_chunked_framing_is_400(shared: DaemonUnderTest) -> None:
    async with visiting(shared) as it:
        client = await it.connect()
        await client.send(post(CHAT, "Transfer-Encoding: chunked", body=None), b"zz\r\n")
        reply = await client.reply()
        expect_refusal(reply, 400, "invalid_request_error", "bad_request")
        await expect_record(it, reply, "invalid_request")
        assert await client.at_eof()


async def test_an_error_leaves_the_connection_usable(shared: DaemonUnderTest) -> None:
    async with visiting(shared) as it:
        client = await it.connect()
        for body in (b"{", chat_body("no-such"), b"null"):
            await client.send(post(CHAT, body=body))
            assert (await client.reply()).status in (400, 404)
        await client.send(post(CHAT, body=chat_body("a")))
        assert (await client.reply()).status == 200


# ---- the operator and the daemon's end ----------------------------------------------------------


async def _queued_behind_another_model(
    it: DaemonUnderTest, *, stream: bool
) -> tuple[RawClient, RawClient]:
    """Model a answers slowly, a request for b waits; a committed stream has had its first comment."""
    busy = await it.send_chat("a", "FX:slow", stream=True)
    await busy.head()
    waiting = await it.send_chat("b", stream=stream)
    await until_queued(it, 1)
    return busy, waiting


async def until_queued(it: DaemonUnderTest, count: int) -> None:
    with trio.fail_after(5):
        while (await it.metrics())["queue_depth"] != count:
            await trio.sleep(0.01)


TWO: dict[str, dict[str, Any]] = {"a": {}, "b": {}}


async def test_routing_off_is_503_before_and_in_a_committed_stream(tmp_path: Path) -> None:
    async with daemon(tmp_path, TWO, {"stream_commit_ms": 0}) as it:
        busy, queued = await _queued_behind_another_model(it, stream=True)
        plain = await it.send_chat("b")
        await until_queued(it, 2)
        await it.control("off")
        reply = await plain.reply()
        expect_refusal(reply, 503, "service_unavailable", "routing_off")
        await expect_record(it, reply, "routing_off", stream=False, lease_at=None)
        reply = await queued.reply()
        expect_in_band(reply, 503, "service_unavailable", "routing_off")
        await expect_record(it, reply, "routing_off", stream=True, lease_at=None)
        for stream in (False, True):
            reply = await it.chat("a", stream=stream)
            expect_refusal(reply, 503, "service_unavailable", "routing_off")
            await expect_record(it, reply, "routing_off")
        busy.reset()


async def test_work_cut_by_off_now_has_the_reason_routing_off(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {}}, {"shutdown_ms": 300}) as it:
        plain = await it.send_chat("a", "FX:header_delay_s=30")
        await until(lambda: len(it.stamps("request")) == 1)
        stream = await it.send_chat("a", "FX:slow", stream=True)
        started = await stream.head()
        assert started.status == 200
        await it.control('{"cmd":"off","now":true}')
        reply = await plain.reply()
        expect_refusal(reply, 503, "service_unavailable", "routing_off")
        await expect_record(it, reply, "routing_off", upstream_status=None)
        started.body = b"".join(piece.data for piece in await all_pieces(stream))
        assert events(started.body)[-1].error["code"] == "routing_off"
        await expect_record(it, started, "routing_off", upstream_status=200)


async def test_shutting_down_is_503_before_and_in_a_committed_stream(tmp_path: Path) -> None:
    config = {
        "stream_commit_ms": 0,
        "drain_ms": 300,
        "shutdown_ms": 300,
        "request_log_path": str(tmp_path / "records.jsonl"),
    }
    async with daemon(tmp_path, TWO, config) as it:
        _, queued = await _queued_behind_another_model(it, stream=True)
        plain = await it.send_chat("b")
        await until_queued(it, 2)
        it.signal(signal.SIGTERM)
        expect_refusal(await plain.reply(), 503, "service_unavailable", "shutting_down")
        expect_in_band(await queued.reply(), 503, "service_unavailable", "shutting_down")
        assert await it.wait_ended() == 0
        lines = (tmp_path / "records.jsonl").read_text().splitlines()
        assert [json.loads(line)["reason"] for line in lines] == ["shutdown"] * 3


# ---- the engine ---------------------------------------------------------------------------------


async def test_a_failed_load_is_503_and_says_when_to_come_back(tmp_path: Path) -> None:
    async with daemon(
        tmp_path,
        {"a": {"fail_load": 1, "load_s": 0.4}},
        {"stream_commit_ms": 100, "cooldown_ms": 5500},
    ) as it:
        stream = await it.send_chat("a", stream=True)
        await until(lambda: bool(it.stamps("start")))
        plain = await it.send_chat("a")
        reply = await plain.reply()
        expect_refusal(reply, 503, "service_unavailable", "model_load_failed")
        assert reply.headers["retry-after"] == ["6"]
        await expect_record(it, reply, "model_load_error", lease_at=None, model_load_ms=None)
        reply = await stream.reply()
        expect_in_band(reply, 503, "service_unavailable", "model_load_failed")
        record = await expect_record(it, reply, "model_load_error", model_switch=True)
        assert record["model_load_ms"] >= 300
        for streamed in (False, True):
            reply = await it.chat("a", stream=streamed)
            expect_refusal(reply, 503, "service_unavailable", "model_load_failed")
            assert reply.headers["retry-after"] in (["6"], ["5"])
            await expect_record(it, reply, "model_load_error", lease_at=None)
        assert len(it.stamps("start")) == 1


BROKEN_ANSWERS = ["nothing", "broken_head", "headers_only", "short_body", "empty200"]


@pytest.mark.parametrize("how", BROKEN_ANSWERS)
async def test_an_engine_without_an_answer_is_502(shared: DaemonUnderTest, how: str) -> None:
    async with visiting(shared) as it:
        await it.chat("a")
        reply = await it.chat("a", f"FX:answer={how} FX:header_delay_s=0.3", stream=True)
        expect_in_band(reply, 502, "upstream_error", "upstream_error")
        await expect_record(it, reply, "upstream_error")
        reply = await it.chat("a", f"FX:answer={how}")
        if how == "short_body":  # its status and part of the body have left already
            assert (reply.status, reply.cut) == (200, True)
        else:
            expect_refusal(reply, 502, "upstream_error", "upstream_error")
        await expect_record(it, reply, "upstream_error")
        if how in ("headers_only", "empty200"):
            reply = await it.chat("a", f"FX:answer={how}", stream=True)
            expect_refusal(reply, 502, "upstream_error", "upstream_error")


@pytest.mark.parametrize("mode", ["wait-first", "legacy"])
async def test_no_headers_within_response_ms_is_504(tmp_path: Path, mode: str) -> None:
    config = {"wait_when_busy": mode == "wait-first", "response_ms": 500, "stream_commit_ms": 100}
    async with daemon(tmp_path, {"a": {}}, config) as it:
        await it.control('{"cmd":"on","model":"a"}')
        reply = await it.chat("a", "FX:header_delay_s=9")
        expect_refusal(reply, 504, "timeout", "upstream_timeout")
        await expect_record(it, reply, "timeout", upstream_status=None)
        reply = await it.chat("a", "FX:header_delay_s=9", stream=True)
        if mode == "wait-first":
            expect_in_band(reply, 504, "timeout", "upstream_timeout")
        else:
            expect_refusal(reply, 504, "timeout", "upstream_timeout")
        await expect_record(it, reply, "timeout", upstream_status=None)
        # Header wait: the engine starts watching once it has read the request.
        await until(lambda: len(it.stamps("disconnect")) == 2)


# ---- legacy mode --------------------------------------------------------------------------------


async def test_legacy_full_is_429(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {}}, {"wait_when_busy": False, "max_pending": 1}) as it:
        busy = await it.send_chat("a", "FX:slow", stream=True)
        await busy.head()
        for stream in (False, True):
            reply = await it.chat("a", stream=stream)
            expect_refusal(reply, 429, "rate_limit_error", "queue_full")
            await expect_record(it, reply, "queue_full", in_flight_at_arrival=1)


async def test_legacy_too_long_in_the_queue_is_504(tmp_path: Path) -> None:
    async with daemon(tmp_path, TWO, {"wait_when_busy": False, "queue_ms": 700}) as it:
        busy = await it.send_chat("a", "FX:slow", stream=True)
        await busy.head()
        for stream in (False, True):
            reply = await it.chat("b", stream=stream)
            expect_refusal(reply, 504, "timeout", "queue_timeout")
            record = await expect_record(it, reply, "queue_timeout", lease_at=None)
            assert 700 <= record["total_ms"] < 1500
        assert it.engine_order() == ["upstream-a"]


# ---- no text of ours ----------------------------------------------------------------------------


def test_no_text_of_ours_has_a_phrase_that_takes_a_model_out() -> None:
    package = Path(strata_router.__file__).parent
    sources = [path for path in package.rglob("*.py") if "simulated" not in path.parts]
    assert len(sources) > 50
    found = [
        (path.name, node.lineno, node.value)
        for path in sources
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and BLACKOUT_PHRASES.search(node.value)
    ]
    assert found == []
