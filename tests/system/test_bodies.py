"""Request bodies: limits, framing, exact forwarding, memory. And answers that are encoded.

Source: contract 3 (``max_buffered_body_bytes``), 5 and 6.1; reports.md B19.
"""

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from tests.runtime.http.raw import RawClient, Reply, post
from tests.system.harness import CHAT, DaemonUnderTest, chat_body, daemon, until
from tests.system.proc_figures import MIB, resident_bytes
from tests.system.shared import running, visiting
from tests.system.wire import CHUNKED_HEAD, chunked, error_of

LIMIT_BYTES = MIB


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonUnderTest]:
    config = {"max_request_body_bytes": LIMIT_BYTES}
    models = {"a": {"record_bodies": True, "hash_responses": True}}
    with running(tmp_path_factory.mktemp("bodies"), models, config) as it:
        yield it


def body_of(size_bytes: int, model: str = "a", text: str = "hello") -> bytes:
    """A chat body of exactly this size; the bulk is a field that the engine ignores."""
    empty = chat_body(model, text, x="")
    return empty[:-2] + b"x" * (size_bytes - len(empty)) + empty[-2:]


async def exchange(it: DaemonUnderTest, *parts: bytes) -> tuple[RawClient, Reply]:
    """Send while reading: the answer may come before everything is sent."""
    client = await it.connect()
    async with trio.open_nursery() as nursery:

        async def send() -> None:
            with trio.move_on_after(10):
                try:
                    for part in parts:
                        await client.send(part)
                except trio.BrokenResourceError:
                    pass  # refused; the reply says why

        nursery.start_soon(send)
        reply = await client.reply()
        nursery.cancel_scope.cancel()
    return client, reply


# ---- the limit ----------------------------------------------------------------------------------


async def test_b19_a_body_of_exactly_the_limit_is_accepted(shared: DaemonUnderTest) -> None:
    async with visiting(shared) as it:
        body = body_of(LIMIT_BYTES)
        for request in (post(CHAT, body=body), CHUNKED_HEAD + chunked(body, 65536)):
            _, reply = await exchange(it, request)
            assert reply.status == 200


async def test_b19_one_byte_more_is_413_by_either_framing(shared: DaemonUnderTest) -> None:
    async with visiting(shared) as it:
        body = body_of(LIMIT_BYTES + 1)
        asked = len(it.stamps("request"))
        for request in (post(CHAT, body=body), CHUNKED_HEAD + chunked(body, 65536)):
            client, reply = await exchange(it, request)
            assert (reply.status, error_of(reply)["code"]) == (413, "request_too_large")
            assert str(LIMIT_BYTES) in error_of(reply)["message"]
            assert (await it.record_of(reply))["reason"] == "invalid_request"
            # By chunks the end may have been read with the byte too many; the connection then lives on.
            if "connection" in reply.headers:
                assert await client.at_eof()
        assert len(it.stamps("request")) == asked


async def test_b19_an_endless_chunked_body_is_refused_with_bounded_memory(
    shared: DaemonUnderTest,
) -> None:
    async with visiting(shared) as it:
        before = resident_bytes(it.pid)
        piece = b"100000\r\n" + b"x" * MIB + b"\r\n"
        _, reply = await exchange(it, CHUNKED_HEAD, *[piece] * 100)
        assert reply.status == 413
        assert resident_bytes(it.pid) - before < 12 * MIB


async def test_b19_an_early_refusal_of_30_mb_reaches_the_client(shared: DaemonUnderTest) -> None:
    async with visiting(shared) as it:
        before = resident_bytes(it.pid)
        for _ in range(4):
            client, reply = await exchange(it, post(CHAT, body=b"x" * 30_000_000))
            assert (reply.status, error_of(reply)["status"]) == (413, 413)
            assert reply.headers["connection"] == ["close"]
            assert (await it.record_of(reply))["total_ms"] < 1000
            assert await client.at_eof()
        assert resident_bytes(it.pid) - before < 12 * MIB


# ---- framing ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 7, 100_000])
@pytest.mark.parametrize("extension", [b"", b";ext=1", b' ; a="b c"'])
async def test_b19_a_chunked_body_is_forwarded_with_its_length(
    shared: DaemonUnderTest, size: int, extension: bytes
) -> None:
    async with visiting(shared) as it:
        sent = chat_body("a", service_tier="flex", speed="standard")
        client = await it.connect()
        request = CHUNKED_HEAD + chunked(sent, size, extension)
        await client.send(request, post(CHAT, body=sent))
        for _ in range(2):  # the connection is still in step
            assert (await client.reply()).status == 200
        by_chunks, by_length = it.stamps("request")[-2:]
        assert by_chunks.facts["body"] == by_length.facts["body"]
        headers = {name.lower(): value for name, value in by_chunks.facts["headers"]}
        assert int(headers["content-length"]) == by_chunks.facts["body_bytes"]
        assert "transfer-encoding" not in headers
        forwarded = json.loads(by_chunks.facts["body"])
        assert forwarded.keys().isdisjoint({"service_tier", "speed"})
        assert forwarded["model"] == "upstream-a"


async def test_100_continue_comes_before_the_body_and_never_before_a_refusal(
    shared: DaemonUnderTest,
) -> None:
    async with visiting(shared) as it:
        body = chat_body("a")
        length = f"Content-Length: {len(body)}"
        client = await it.connect()
        await client.send(post(CHAT, "Expect: 100-continue", length, body=None))
        with trio.fail_after(2):
            assert (await client.head()).status == 100
        await client.send(body)
        assert (await client.reply()).status == 200
        for status, headers in (
            (413, ("Content-Length: 2000000",)),
            (415, (length, "Content-Encoding: gzip")),
            (403, (length, "Origin: http://evil.example")),
        ):
            client = await it.connect()
            await client.send(post(CHAT, "Expect: 100-continue", *headers, body=None))
            reply = await client.head()
            assert reply.status == status
            assert reply.headers["connection"] == ["close"]


# ---- size and memory ----------------------------------------------------------------------------


async def test_60_mb_arrive_byte_for_byte_and_are_let_go_once_sent(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {}}) as it:
        await it.chat("a")
        before = resident_bytes(it.pid)
        body = body_of(60_000_000, text="FX:slow")
        members = [
            f"{json.dumps(key)}: {json.dumps(value)}" for key, value in json.loads(body).items()
        ]
        expected = b'{"model":"upstream-a",' + ",".join(members[1:]).encode() + b"}"
        client = await it.connect()
        await client.send(post(CHAT, body=body))
        await until(lambda: len(it.stamps("request")) == 2)
        facts = it.stamps("request")[-1].facts
        assert facts["body_bytes"] == len(expected)
        assert facts["body_sha256"] == hashlib.sha256(expected).hexdigest()
        # While the engine works nothing of the body is kept.
        await until(lambda: resident_bytes(it.pid) - before < 12 * MIB, 5)
        client.reset()


BUDGET = {"max_request_body_bytes": MIB, "max_buffered_body_bytes": MIB}


async def test_bodies_over_the_shared_budget_wait_for_the_older_ones(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {}}, BUDGET) as it:
        await it.chat("a")
        body = body_of(700_000)
        oldest = await it.connect()
        await oldest.send(post(CHAT, body=body)[:350_000])
        answered: list[str] = []

        async def ask(name: str, request: bytes) -> None:
            _, reply = await exchange(it, request)
            assert reply.status == 200
            answered.append(name)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, "by length", post(CHAT, body=body))
            nursery.start_soon(ask, "by chunks", CHUNKED_HEAD + chunked(body, 10_000))
            await trio.sleep(0.4)  # that nothing happens cannot be waited for
            assert answered == []
            assert (await it.chat("a")).status == 200  # small ones still fit
            await oldest.send(post(CHAT, body=body)[350_000:])
            assert (await oldest.reply()).status == 200
        assert sorted(answered) == ["by chunks", "by length"]


async def test_a_waiting_body_is_read_when_an_older_client_leaves(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {}}, BUDGET) as it:
        body = body_of(700_000)
        oldest = await it.connect()
        await oldest.send(post(CHAT, body=body)[:350_000])
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def ask() -> None:
                _, reply = await exchange(it, post(CHAT, body=body))
                assert reply.status == 200

            await trio.sleep(0.2)
            oldest.reset()


async def test_the_oldest_reader_may_exceed_the_shared_budget(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {}}, {**BUDGET, "max_buffered_body_bytes": 1000}) as it:
        for request in (
            post(CHAT, body=body_of(700_000)),
            CHUNKED_HEAD + chunked(body_of(700_000), 9999),
        ):
            _, reply = await exchange(it, request)
            assert reply.status == 200


# ---- encoded answers ----------------------------------------------------------------------------


async def test_b19_an_encoded_answer_passes_untouched_and_unaccounted(
    shared: DaemonUnderTest,
) -> None:
    async with visiting(shared) as it:
        await it.chat("a")
        for stream in (False, True):
            reply = await it.chat("a", "FX:gzip", stream=stream)
            assert reply.headers["content-encoding"] == ["gzip"]
            count = len(it.stamps("request"))
            await until(lambda count=count: len(it.stamps("done")) == count)  # type: ignore[misc]  # bound early
            sent = it.stamps("done")[-1].facts["response_sha256"]
            assert hashlib.sha256(reply.body).hexdigest() == sent
            plain = gzip.decompress(reply.body) if not stream else _inflated(reply.body)
            assert plain.startswith(b"data: " if stream else b'{"id"')
            record = await it.record_of(reply)
            assert record["completion_tokens"] is None
            assert record["prompt_n"] is None
            assert record["first_token_at"] is None
            assert record["reason"] == "completed"


def _inflated(body: bytes) -> bytes:
    return zlib.decompressobj(wbits=31).decompress(body)
