"""Wait-first scheduling as a client of the service meets it, one short scene per promise of the design.

tests/waiting.py runs this file. The rules themselves are tested one by one in tests/core/test_admission_*.
Source: design, "Wait-first scheduling".
"""

import signal
from collections.abc import Iterator

import pytest
import trio

from tests.runtime.http.raw import RawClient
from tests.system.harness import DaemonUnderTest, until
from tests.system.restart_load import fault_of
from tests.system.shared import running, visiting
from tests.system.wire import KEEPALIVE, all_pieces, events

MAX_PENDING = 2
GRACE_S = 0.4

BUSY = "FX:chunk_every_ms=25 FX:force_tokens=10"
"""A quarter of a second of answer."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonUnderTest]:
    keys = {"max_pending": MAX_PENDING, "model_grace_ms": int(GRACE_S * 1000), "keepalive_ms": 500}
    with running(tmp_path_factory.mktemp("daemon"), {"a": {}, "b": {}, "c": {}}, keys) as it:
        yield it


async def until_engine_saw(it: DaemonUnderTest, requests: int) -> None:
    await until(lambda: len(it.stamps("request")) >= requests)


async def whole(clients: list[RawClient]) -> None:
    """Every one of these streams is whole."""
    for client in clients:
        assert fault_of(await client.reply(), stream=True) is None


async def test_more_clients_than_places_all_get_their_answer(shared: DaemonUnderTest) -> None:
    async with visiting(shared) as it:
        texts = ["FX:chunk_every_ms=25 FX:force_tokens=40"] * MAX_PENDING + [BUSY] * 2 * MAX_PENDING
        clients = [await it.send_chat("a", text, stream=True) for text in texts]
        full = (MAX_PENDING, 2 * MAX_PENDING)
        await it.status_until(lambda status: (status["in_flight"], status["queue_depth"]) == full)
        await whole(clients)


async def test_a_delayed_response_head_keeps_nobody_of_the_same_model_waiting(
    shared: DaemonUnderTest,
) -> None:
    async with visiting(shared) as it:
        slow = await it.send_chat("a", "FX:header_delay_s=1")
        await it.status_until(lambda status: status["in_flight"] == 1)
        assert fault_of(await it.chat("a"), stream=False) is None
        assert (await it.status())["in_flight"] == 1, "the slow one is still waiting for its head"
        assert fault_of(await slow.reply(), stream=False) is None


async def test_waiting_requests_are_served_model_by_model(shared: DaemonUnderTest) -> None:
    """A is busy; A B A B A wait: the engine sees A A A B B after it, and there is one switch."""
    async with visiting(shared) as it:
        assert fault_of(await it.chat("a"), stream=False) is None
        before = len(it.engine_order())
        first = [await it.send_chat("a", BUSY, stream=True) for _ in range(MAX_PENDING)]
        await until_engine_saw(it, before + MAX_PENDING)
        rest = [await it.send_chat(model, stream=True) for model in "ababa"]
        await whole(first + rest)
        seen = "".join(name.removeprefix("upstream-") for name in it.engine_order()[before:])
        assert seen == "a" * MAX_PENDING + "aaabb"
        assert it.overlaps() == []


async def test_a_tool_gap_within_the_grace_keeps_the_model(shared: DaemonUnderTest) -> None:
    async with visiting(shared) as it:
        assert fault_of(await it.chat("a"), stream=False) is None
        before = len(it.engine_order())
        other = await it.send_chat("b", stream=True)
        await it.status_until(lambda status: status["queue_depth"] == 1)
        await trio.sleep(GRACE_S / 2)
        assert fault_of(await it.chat("a", "the tool's result"), stream=False) is None
        await whole([other])
        assert it.engine_order()[before:] == ["upstream-a", "upstream-b"]


async def test_a_client_that_leaves_the_queue_never_reaches_the_engine(
    shared: DaemonUnderTest,
) -> None:
    async with visiting(shared) as it:
        busy = await it.send_chat("b", BUSY, stream=True)
        await it.status_until(lambda status: status["loaded"] == "b" and status["in_flight"] == 1)
        leaving = await it.send_chat("c", stream=True)
        await it.status_until(lambda status: status["queue_depth"] == 1)
        await leaving.stream.aclose()
        await it.status_until(lambda status: status["queue_depth"] == 0, 1.0)
        await whole([busy])
        assert "upstream-c" not in it.engine_order()


async def test_a_queued_stream_is_kept_alive_and_hears_of_errors_in_band(
    shared: DaemonUnderTest,
) -> None:
    """And the next request is served at once: nothing cools down."""
    async with visiting(shared) as it:
        busy = [await it.send_chat("b", BUSY + "0", stream=True) for _ in range(MAX_PENDING)]
        await it.status_until(lambda status: status["in_flight"] == MAX_PENDING)
        failing = await it.send_chat("b", "FX:answer=json500", stream=True)
        assert (await failing.head()).status == 200, "committed while it waits"
        for client in busy:
            await client.stream.aclose()
        body = b"".join([piece.data for piece in await all_pieces(failing)])
        assert body.startswith(KEEPALIVE)
        (event,) = events(body)
        assert (event.name, event.error["status"]) == ("error", 500)
        assert fault_of(await it.chat("b"), stream=False) is None


async def test_a_shutdown_serves_the_whole_queue_of_both_models(shared: DaemonUnderTest) -> None:
    """It ends the daemon."""
    async with visiting(shared) as it:
        clients = [
            await it.send_chat(model, BUSY, stream=True)
            for model in "ab"
            for _ in range(MAX_PENDING)
        ]
        await it.status_until(lambda status: status["queue_depth"] + status["in_flight"] == 4)
        it.signal(signal.SIGTERM)
        await whole(clients)
        assert await it.wait_ended() == 0
        assert it.overlaps() == []
