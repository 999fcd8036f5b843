"""A real daemon and the descriptors that the kernel allows it: plenty, few, and none left.

Source: reliability.md, "Bounds" and "Faults to survive", Host.
"""

import json
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import trio

from tests.runtime.http.raw import RawClient, get, post
from tests.system import proc_figures
from tests.system.harness import CHAT, DaemonUnderTest, chat_body, daemon, sse_events, until
from tests.system.wire import error_of

LOW_SOFT = ("sh", "-c", 'ulimit -Sn 256 && exec "$@"', "sh")
LOW_HARD = ("sh", "-c", 'ulimit -n 128 && exec "$@"', "sh")
ROOM = 32
"""Connections that 128 descriptors allow."""


async def test_a_low_soft_limit_is_raised_to_the_hard_one_at_the_start(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {}}, start=False) as it:
        it.launch(*LOW_SOFT)
        await it.wait_serving()
        assert (await it.chat("a")).status == 200  # a listening daemon may not be quite there yet
        (line,) = (
            line
            for line in Path(f"/proc/{it.pid}/limits").read_text().splitlines()
            if line.startswith("Max open files")
        )
        soft, hard = line.split()[3:5]
        assert soft == hard != "256"


async def test_beyond_what_the_hard_limit_has_room_for_accepting_pauses_and_all_else_works(
    tmp_path: Path,
) -> None:
    """max_connections is far higher; idle clients must not take what a load or an operator needs."""
    async with daemon(tmp_path, {"a": {}, "b": {}}, start=False) as it:
        it.launch(*LOW_HARD)
        await it.wait_serving()
        await until(lambda: f"accepting pauses at {ROOM} connections" in it.log)
        inside = [await it.connect() for _ in range(ROOM)]
        for client in inside:
            assert await answers(client)
        outside = [await it.connect() for _ in range(100)]
        for client in outside:
            await client.send(get("/health"))
        for model, client in zip("abab", inside, strict=False):
            assert await answers(client)
            assert await chat_on(client, model) == 200
            assert (await it.status())["loaded"] == model
        assert proc_figures.descriptors(it.pid) < 128
        assert "cannot accept" not in it.log
        for client in inside:
            await client.stream.aclose()
        for client in outside:
            assert (await client.reply()).status == 200
            await client.stream.aclose()


async def test_without_a_descriptor_what_runs_goes_on_and_what_needs_one_fails_alone(
    tmp_path: Path,
) -> None:
    async with daemon(tmp_path, {"a": {}, "b": {}}) as it:
        streaming = await it.send_chat("a", "FX:chunk_every_ms=50 FX:force_tokens=60", stream=True)
        await streaming.until(b"data: ")  # the head may have left while the model was being loaded
        kept = [await it.connect() for _ in range(3)]
        for client in kept:
            assert await answers(client)
        async with no_descriptor_left(it, operators=0, for_good=True):
            assert await answers(kept[0])
            assert await chat_on(kept[0], "a") == 502
            late = await it.connect()
            await late.send(get("/health"))
            await until(lambda: "cannot accept connections: EMFILE" in it.log)
        assert (await late.reply()).status == 200
        await until(lambda: "connections are accepted again" in it.log)
        assert it.log.count("cannot accept connections") == 1, "once, and not at every try"
        body = b""
        while b"[DONE]" not in body:
            body += await streaming.stream.receive_some(65536)
        for model, client in zip("aba", kept, strict=True):
            assert await chat_on(client, model) == 200
        records = await it.records()
        assert [record["status"] for record in records] == [502, 200, 200, 200, 200]


async def test_without_a_descriptor_an_idle_operator_makes_room_for_one_who_asks(
    tmp_path: Path,
) -> None:
    async with daemon(tmp_path, {"a": {}}) as it:
        idle = await trio.open_unix_socket(it.config["control_socket"])
        await until_operators_are(1, it)
        # What the idle one gives back must lie below the limit, so no number below it may be free.
        while (numbers := used_by(it)) != set(range(len(numbers))):
            assert await answers(await it.connect())
        async with idle, no_descriptor_left(it, operators=1):
            assert (await it.status())["pid"] == it.pid


async def test_a_load_without_a_descriptor_fails_with_the_reason_and_the_next_one_works(
    tmp_path: Path,
) -> None:
    async with daemon(tmp_path, {"a": {}, "b": {}}, {"cooldown_ms": 1}) as it:
        client = await it.connect()
        assert await chat_on(client, "a") == 200
        async with no_descriptor_left(it, operators=0):
            await client.send(post(CHAT, body=chat_body("b")))
            reply = await client.reply()
            assert (reply.status, error_of(reply)["code"]) == (503, "model_load_failed")
            await client.send(get("/health"))
            assert b'"status":"ok"' in (await client.reply()).body
        status = await it.status()
        assert status["loaded"] is None
        assert "too many open files" in status["last_startup_error"]
        assert await chat_on(client, "b") == 200
        assert it.overlaps() == []


async def test_an_engine_that_stops_without_a_descriptor_takes_nothing_else_along(
    tmp_path: Path,
) -> None:
    """Its port cannot be asked about, so it is not said to be free; the daemon lives on."""
    async with daemon(tmp_path, {"a": {}}) as it:
        assert (await it.chat("a")).status == 200
        operator = await trio.open_unix_socket(it.config["control_socket"])
        async with operator, no_descriptor_left(it, operators=1, for_good=True):
            await operator.send_all(b'{"cmd":"off","now":false}\n')
            lines = b"".join([piece async for piece in operator]).splitlines()
        done = json.loads(lines[-1])
        assert not done["ok"]
        assert "nobody can tell whether port" in done["message"]
        assert "(too many open files)" in done["message"]
        assert (await it.off())["ok"]
        assert (await it.on("a"))["ok"]
        assert it.overlaps() == []


@asynccontextmanager
async def no_descriptor_left(
    it: DaemonUnderTest, *, operators: int, for_good: bool = False
) -> AsyncIterator[None]:
    """As if somebody else had taken them all: every number below the limit is in use.

    operators: control connections that stay open; one that just ends would give its descriptor back later.
    for_good: what the daemon closes it cannot open again either.
    """
    await until_operators_are(operators, it)
    before = resource.prlimit(it.pid, resource.RLIMIT_NOFILE)
    used = used_by(it)
    first_free = next(number for number in count() if number not in used)
    resource.prlimit(it.pid, resource.RLIMIT_NOFILE, (0 if for_good else first_free, before[1]))
    try:
        yield
    finally:
        resource.prlimit(it.pid, resource.RLIMIT_NOFILE, before)


async def until_operators_are(count: int, it: DaemonUnderTest) -> None:
    """So many control connections are open, and what others used is given back."""
    conversation = "strata_router.runtime.control_socket.ControlServer._converse"
    with trio.fail_after(10):
        while (await it.task_names()).count(conversation) != count:
            await trio.sleep(0.01)


def used_by(it: DaemonUnderTest) -> set[int]:
    """The numbers of its descriptors."""
    return {int(entry.name) for entry in Path(f"/proc/{it.pid}/fd").iterdir()}


async def answers(client: RawClient) -> bool:
    await client.send(get("/health"))
    return (await client.reply()).status == 200


async def chat_on(client: RawClient, model: str) -> int:
    """The status of one whole exchange on this connection."""
    await client.send(post(CHAT, body=chat_body(model, stream=True)))
    reply = await client.reply()
    assert reply.status != 200 or sse_events(reply.body)[-1] == "[DONE]"
    return reply.status
