"""An exchange that is ended at any of its awaits leaves nothing behind but exactly one record.

It is ended in the three ways there are: the server cancels it, its client leaves, it is cut by the
operator or a deadline. Source: style.md 24; contract 6.5, 9; reports.md B23, B24.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import pytest
import trio
import trio.lowlevel
import trio.testing

from strata_router.core.refusal import Case
from tests.fakes.chat_path import ChatPath, Script, ServedExchange, chat_path
from tests.runtime.http.raw import RawClient, post
from tests.system.wire import CHUNKED_HEAD, chunked, events

CHAT = "/v1/chat/completions"

SSE_HEAD = b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}\n\n'
DONE = b"data: [DONE]\n\n"
ANSWER = b'{"choices":[{"message":{"content":"x"}}],"usage":{"completion_tokens":1}}'

BODY = b'{"model":"a","messages":[]}'
STREAM_BODY = b'{"model":"a","stream":true,"messages":[]}'


def _says(*parts: bytes) -> Script:
    """Send the parts one by one, each as a segment of its own."""

    async def script(stream: trio.SocketStream) -> None:
        for part in parts:
            await stream.send_all(part)
            await trio.sleep(0.002)

    return script


def _answer(status: bytes, body: bytes, content_type: bytes = b"application/json") -> bytes:
    return b"HTTP/1.0 %b\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n%b" % (
        status,
        content_type,
        len(body),
        body,
    )


async def _late_error(stream: trio.SocketStream) -> None:
    await trio.sleep(0.02)
    await stream.send_all(_answer(b"500 Oops", b'{"error":{"message":"m","type":"t"}}'))


async def _silent(stream: trio.SocketStream) -> None:
    await trio.sleep(0.01)


@dataclass(frozen=True)
class Scenario:
    """One exchange from its request to its record. reason: how it ends when nobody interferes."""

    name: str
    script: Script
    reason: str
    request: tuple[bytes, ...] = (post(CHAT, body=STREAM_BODY),)
    config: dict[str, Any] = field(default_factory=dict)


SCENARIOS = [
    Scenario("stream", _says(SSE_HEAD, TOKEN, TOKEN + TOKEN, DONE), "completed"),
    Scenario("stream in one segment", _says(SSE_HEAD + TOKEN + DONE), "completed"),
    Scenario("plain", _says(_answer(b"200 OK", ANSWER)), "completed", (post(CHAT, body=BODY),)),
    Scenario(
        "committed at once",
        _says(SSE_HEAD, TOKEN, DONE),
        "completed",
        config={"stream_commit_ms": 0},
    ),
    Scenario(
        "late error in a committed stream",
        _late_error,
        "upstream_error",
        config={"stream_commit_ms": 0},
    ),
    Scenario("stream cut between events", _says(SSE_HEAD, TOKEN), "upstream_error"),
    Scenario("stream cut inside an event", _says(SSE_HEAD, TOKEN, TOKEN[:20]), "upstream_error"),
    Scenario("no answer", _silent, "upstream_error"),
    Scenario("not JSON", _silent, "invalid_request", (post(CHAT, body=b"{"),)),
    Scenario(
        "chunked upload in pieces",
        _says(_answer(b"200 OK", ANSWER)),
        "completed",
        (CHUNKED_HEAD, *(chunked(BODY, 9)[start : start + 11] for start in range(0, 70, 11))),
    ),
    Scenario(
        "body parsed in a thread",
        _says(_answer(b"200 OK", ANSWER)),
        "completed",
        (post(CHAT, body=BODY[:-1] + b',"x":"' + b"x" * 1_100_000 + b'"}'),),
    ),
    Scenario(
        "legacy stream",
        _says(SSE_HEAD, TOKEN, DONE),
        "completed",
        config={"wait_when_busy": False, "response_ms": 5000},
    ),
    Scenario(
        "deadline after admission",
        _says(SSE_HEAD, TOKEN, DONE),
        "completed",
        config={"response_ms": 5000},
    ),
]


class Ending(StrEnum):
    """Who ends the exchange, and what its record then says."""

    SERVER = "shutdown"
    CLIENT = "client_disconnect"
    OPERATOR = "routing_off"


class AtStep(trio.abc.Instrument):
    """Calls ``act`` when a task has come to its nth await, and counts its steps."""

    def __init__(self, step: int, act: Callable[[], None]) -> None:
        self.task: trio.lowlevel.Task | None = None
        self.steps = 0
        self._step = step
        self._act = act

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self.task:
            self.steps += 1
            if self.steps == self._step:
                self._act()


@dataclass
class Outcome:
    """What came of one run. was_ended: the exchange was still running at that await."""

    was_ended: bool
    records: list[dict[str, Any]]
    reply: bytes
    cut: bool


async def _read_reply(client: RawClient, outcome: Outcome) -> None:
    try:
        reply = await client.reply()
    except (EOFError, trio.BrokenResourceError, trio.ClosedResourceError):
        outcome.cut = True
        return
    outcome.reply, outcome.cut = reply.body, reply.cut


async def _send(client: RawClient, parts: tuple[bytes, ...]) -> None:
    try:
        for part in parts:
            await client.send(part)
            await trio.sleep(0.001)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass  # ended before the whole request had come


async def _run(scenario: Scenario, ending: Ending, step: int) -> Outcome:
    async with chat_path(scenario.script, **scenario.config) as path:
        outcome = Outcome(was_ended=False, records=[], reply=b"", cut=False)
        client = await path.connect()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_send, client, scenario.request)
            served = await path.next_exchange()
            nursery.start_soon(_read_reply, client, outcome)
            outcome.was_ended = await _serve_until_step(path, served, ending, step)
        client.stream.socket.close()
        await path.expect_nothing_held()
        outcome.records = path.records()
        return outcome


async def _serve_until_step(
    path: ChatPath, served: ServedExchange, ending: Ending, step: int
) -> bool:
    """Run the exchange, ended at that step; False when it was over before."""
    scope = trio.CancelScope()
    ended = False

    def end() -> None:
        nonlocal ended
        ended = True
        match ending:
            case Ending.SERVER:
                scope.cancel()
            case Ending.CLIENT:
                assert path.watcher.gone is not None
                path.watcher.gone()
            case Ending.OPERATOR:
                served.exchange.cut(Case.ROUTING_OFF)

    instrument = AtStep(step, end)
    instrument.task = trio.lowlevel.current_task()
    trio.lowlevel.add_instrument(instrument)
    try:
        with scope:
            await served.run()
    finally:
        trio.lowlevel.remove_instrument(instrument)
    return ended


@pytest.mark.parametrize("ending", list(Ending), ids=lambda ending: ending.name.lower())
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
async def test_ended_at_any_await_it_leaves_one_record_and_nothing_else(
    scenario: Scenario, ending: Ending, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "strata_router.runtime.exchange.DEATH_NEWS_S", 0.025
    )  # a few awaits of it do
    descriptors = len(os.listdir("/proc/self/fd"))
    step, ended = 1, True
    while ended:
        outcome = await _run(scenario, ending, step)
        (record,) = outcome.records
        ended = outcome.was_ended
        # An end that comes when the outcome is settled changes nothing.
        expected = {scenario.reason, ending.value} if ended else {scenario.reason}
        assert record["reason"] in expected, (step, record)
        if not outcome.cut and outcome.reply.startswith((b"data:", b":", b"event:")):
            events(outcome.reply)  # whole events only, ours never inside one of the engine's
        if record["success"]:
            assert not outcome.cut
        step += 1
    assert step >= 2
    assert len(os.listdir("/proc/self/fd")) <= descriptors
