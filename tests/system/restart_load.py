"""Clients that go on asking while the daemon restarts, and a note of everything that went wrong for them.

They know an address and nothing else, so the same ones serve every way of restarting: a retained
descriptor, or a real systemd. What must hold for each of them: its connection is never refused and
never reset, its stream is whole, and a connection that it leaves idle ends in order.
"""

import hashlib
import json
from collections import Counter
from dataclasses import dataclass, field

import trio

from tests.runtime.http.raw import RawClient, Reply, get, post
from tests.system.harness import CHAT, chat_body
from tests.system.wire import events, without_keepalives

PAUSE_S = 0.02
"""Between two requests of one client: some hundred connections per restart from a handful of them."""


def instance_of(reply: Reply) -> str:
    """Which daemon process answered: the request id without its number."""
    return reply.headers["x-strata-request-id"][0].rpartition("-")[0]


def fault_of(reply: Reply, *, stream: bool) -> str | None:
    """Why this is not a whole answer; None when it is."""
    if reply.status != 200 or reply.cut:
        return f"status {reply.status}, cut {reply.cut}: {reply.body[-200:]!r}"
    if not stream:
        return None if json.loads(reply.body)["choices"][0]["message"]["content"] else "no content"
    found = events(reply.body)
    if any(event.name == "error" for event in found):
        return f"error in the stream: {reply.body[-200:]!r}"
    return None if found and found[-1].data == "[DONE]" else f"no [DONE]: {reply.body[-200:]!r}"


@dataclass
class RestartLoad:
    """failures: one sentence each. served: whole answers per daemon process. closed_idle: connections
    that a daemon ended in order while they were idle. hashes: of the answers, as the engine sent them."""

    port: int
    failures: list[str] = field(default_factory=list)
    served: Counter[str] = field(default_factory=Counter)
    closed_idle: int = 0
    hashes: Counter[str] = field(default_factory=Counter)
    _over: bool = False

    @property
    def answers(self) -> int:
        return self.served.total()

    def stop(self) -> None:
        """Every client finishes what it has begun and asks no more."""
        self._over = True

    async def asker(self, model: str, *, stream: bool, text: str = "hello") -> None:
        """Asks again and again, each time on a new connection."""
        while not self._over:
            await self.ask(model, stream=stream, text=text)
            await trio.sleep(PAUSE_S)

    async def ask(self, model: str, *, stream: bool, text: str = "hello") -> None:
        """One request on a new connection."""
        try:
            client = await RawClient.connect(self.port)
        except OSError as exc:
            self.failures.append(f"connect: {exc!r}")
            return
        try:
            async with client.stream:
                await client.send(post(CHAT, body=chat_body(model, text, stream=stream)))
                reply = await client.reply()
        except (trio.BrokenResourceError, EOFError, OSError) as exc:
            self.failures.append(f"exchange: {exc!r} after {exc.__cause__!r}")
            return
        self._note(reply, stream=stream)

    def _note(self, reply: Reply, *, stream: bool) -> None:
        fault = fault_of(reply, stream=stream)
        if fault is not None:
            self.failures.append(fault)
            return
        self.served[instance_of(reply)] += 1
        self.hashes[hashlib.sha256(without_keepalives(reply.body)).hexdigest()] += 1

    async def idler(self) -> None:
        """Uses a connection once, keeps it, and waits for its end; then opens the next."""
        while not self._over:
            try:
                client = await RawClient.connect(self.port)
                async with client.stream:
                    await client.send(get("/v1/models"))
                    await client.reply()
                    await self._idle(client)
            except (trio.BrokenResourceError, EOFError, OSError) as exc:
                self.failures.append(f"idle connection: {exc!r} after {exc.__cause__!r}")

    async def _idle(self, client: RawClient) -> None:
        while not self._over:
            with trio.move_on_after(0.2):
                data = await client.stream.receive_some(1)
                if data:
                    self.failures.append("bytes on an idle connection")
                self.closed_idle += 1
                return
