"""Steps of admission tests: requests that arrive one after the other, and a generation that stands
still until the test lets it go on.

    crowd = Crowd(it)
    await crowd.send("busy", "a")
    with frozen(it):
        await crowd.send("A1", "a")
        await crowd.send("B1", "b")
    replies = await crowd.replies()
    assert engine_texts(it) == ["busy", "A1", "B1"]

A request's name is its only message, so the engine's stamps tell the order in which it saw them
(knob ``record_bodies``).
"""

import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import trio

from strata_router.simulated import events
from tests.runtime.http.raw import RawClient, Reply
from tests.system.harness import DaemonUnderTest

QUICK: Mapping[str, Any] = {"record_bodies": True, "disconnect_poll_s": 0.02}
"""Knobs: bodies are stamped; the engine notices a client's leaving at once, not after half a second."""

SEEN_S = 5.0
"""A busy machine may need this long for what takes milliseconds."""


@contextmanager
def frozen(it: DaemonUnderTest) -> Iterator[None]:
    """Generation of the running engine stands still; its server goes on taking requests.

    What it was asked ends normally afterwards, which no client's leaving would give.
    """
    native = it.stamps("native_loaded")[-1].pid
    os.kill(native, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(native, signal.SIGCONT)


@dataclass
class Crowd:
    """Requests under way, by name, in their order of arrival."""

    it: DaemonUnderTest
    clients: dict[str, RawClient] = field(default_factory=dict)

    async def send(self, name: str, model: str, **fields: Any) -> RawClient:
        """Send a request and wait until the scheduler knows of it."""
        known = await self._known()
        client = await self.start(name, model, **fields)
        with trio.fail_after(SEEN_S):
            while await self._known() <= known:
                await trio.sleep(0.003)
        return client

    async def start(self, name: str, model: str, **fields: Any) -> RawClient:
        """Send a request, without waiting for anything."""
        client = await self.it.send_chat(model, name, **fields)
        self.clients[name] = client
        return client

    async def leave(self, name: str) -> None:
        """Go away, and wait until that is known."""
        known = await self._known()
        self.clients.pop(name).stream.socket.close()
        with trio.fail_after(SEEN_S):
            while await self._known() >= known:
                await trio.sleep(0.003)

    async def replies(self) -> dict[str, Reply]:
        """Every reply, in whatever order they come."""
        found: dict[str, Reply] = {}

        async def take(name: str, client: RawClient) -> None:
            found[name] = await client.reply()
            await client.stream.aclose()

        async with trio.open_nursery() as nursery:
            for name, client in self.clients.items():
                nursery.start_soon(take, name, client)
        return found

    async def served(self) -> dict[str, dict[str, Any]]:
        """Every record, by name, once all are answered with 200."""
        replies = await self.replies()
        assert {name: reply.status for name, reply in replies.items()} == dict.fromkeys(
            replies, 200
        )
        return {name: await self.it.record_of(reply) for name, reply in replies.items()}

    async def _known(self) -> int:
        metrics = await self.it.metrics()
        return int(metrics["in_flight"]) + int(metrics["queue_depth"])


async def metrics_until(
    it: DaemonUnderTest, holds: Callable[[dict[str, Any]], Any], within_s: float = SEEN_S
) -> dict[str, Any]:
    """Ask for the metrics until they are as they should be, with a bound; return those."""
    metrics = await it.metrics()
    with trio.move_on_after(within_s):
        while not holds(metrics):
            await trio.sleep(0.005)
            metrics = await it.metrics()
    assert holds(metrics), metrics
    return metrics


def request_text(stamp: events.Stamp) -> str:
    """The last message of a ``request`` stamp's body."""
    text: str = json.loads(stamp.facts["body"])["messages"][-1]["content"]
    return text


def engine_texts(it: DaemonUnderTest) -> list[str]:
    """The requests' names in the order in which engines saw them."""
    return [request_text(stamp) for stamp in it.stamps("request")]


def unix_s(timestamp: str) -> float:
    """Seconds of a record's timestamp."""
    return datetime.fromisoformat(timestamp).timestamp()


def between_s(earlier: str, later: str) -> float:
    """Seconds between two timestamps of records."""
    return unix_s(later) - unix_s(earlier)


def starts(it: DaemonUnderTest) -> list[str]:
    """The models of all engines that were started, in order."""
    return [stamp.model.removeprefix("upstream-") for stamp in it.stamps("start")]


def start_of(it: DaemonUnderTest, model: str) -> float:
    """When the last engine for the model was started: CLOCK_MONOTONIC seconds."""
    found = [stamp.at for stamp in it.stamps("start") if stamp.model == f"upstream-{model}"]
    return found[-1]


def finish_of(it: DaemonUnderTest, name: str) -> float:
    """When the engine had done with the request of this name."""
    (asked,) = [stamp for stamp in it.stamps("request") if request_text(stamp) == name]
    (done,) = [
        stamp
        for stamp in it.stamps("finish")
        if (stamp.pid, stamp.facts["seq"]) == (asked.pid, asked.facts["seq"])
    ]
    return done.at
