"""Those who do things to the daemon: clients good and bad, an operator, and fate.

Each draws from the soak's one seeded source, does something bounded, and reports it to the Books.
"""

import os
import random
import resource
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

import trio

from tests.runtime.http.raw import RawClient, get, post
from tests.soak.books import ANSWER_S, Books, Breach
from tests.system.failing_disk import FailingDisk
from tests.system.harness import CHAT, DaemonUnderTest, chat_body, pid_exists
from tests.system.wire import Leaving, leave

MODELS = ("a", "b", "c")
TIERS = ("default", "default", "default", "priority", "flex")

ENGINE_FAULTS = (
    "FX:die",
    "FX:die_at=headers",
    "FX:die_at=final",
    "FX:die_at=done",
    "FX:engine_dies_after_chunks=2",
    "FX:error-before",
    "FX:error_after_chunks=2",
    "FX:cut_after_chunks=2",
    "FX:cut_after_chunks=2 FX:cut=reset",
    "FX:cut_after_chunks=2 FX:cut=mid_event",
    "FX:answer=html500",
    "FX:answer=json500",
    "FX:answer=json400",
    "FX:answer=busy",
    "FX:answer=empty200",
    "FX:answer=headers_only",
    "FX:answer=broken_head",
    "FX:answer=short_body",
    "FX:answer=nothing",
)

ODDITIES = (
    "FX:newline=crlf",
    "FX:segment_bytes=1",
    "FX:events_per_segment=5",
    "FX:long_line_bytes=300000",
    "FX:gzip",
    "FX:usage=none",
    "FX:usage=inline",
    "FX:close_delay_s=0.2",
)

REQUEST_S = 60.0
"""No exchange of the soak takes longer, load and queue included; one that does is stuck."""


class Stuck(AssertionError):
    """A request got no end."""


@dataclass
class Cast:
    """What all actors share."""

    it: DaemonUnderTest
    books: Books
    chance: random.Random
    disk: FailingDisk | None
    """The log's; None where none can be made to fail."""

    # ---- clients -------------------------------------------------------------------------------

    async def client(self) -> None:
        """One request of a random kind, by a client of its own."""
        kinds: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (50, self._ask),
            (15, self._ask_for_trouble),
            (15, self._leave_somewhere),
            (8, self._send_nonsense),
            (4, self._upload_and_leave),
            (3, self._read_slowly),
            (5, self._send_big),
        ]
        weights = [weight for weight, _ in kinds]
        (_, act) = self.chance.choices(kinds, weights)[0]
        # A daemon that is being killed resets connections; that is fate's doing, and counted there.
        with suppress(OSError, EOFError, trio.BrokenResourceError, trio.ClosedResourceError):
            with trio.move_on_after(REQUEST_S) as bound:
                await act()
            if bound.cancelled_caught:
                raise Stuck(f"{act.__name__}: no end within {REQUEST_S} s")

    async def _send(self, text: str, *, stream: bool, **fields: object) -> RawClient:
        client = await RawClient.connect(self.it.port)
        body = chat_body(
            self.chance.choice((*MODELS, "soak")),
            text,
            stream=stream,
            service_tier=self.chance.choice(TIERS),
            **fields,
        )
        self.books.posted()
        await client.send(post(CHAT, body=body))
        return client

    async def _ask(self) -> None:
        text = self.chance.choice((f"hello {self.chance.random()}", *ODDITIES))
        stream = self.chance.random() < 0.7
        client = await self._send(text, stream=stream, max_tokens=self.chance.randint(1, 12))
        async with client.stream:
            reply = await client.reply()
            if reply.status == 200 and not reply.cut and b'"error"' not in reply.body:
                self.books.got_whole(reply.body)

    async def _ask_for_trouble(self) -> None:
        fault = self.chance.choice(ENGINE_FAULTS)
        self.books.fault(f"engine {fault}")
        client = await self._send(fault, stream=self.chance.random() < 0.7, max_tokens=8)
        async with client.stream:
            await client.reply()

    async def _leave_somewhere(self) -> None:
        how = self.chance.choice(tuple(Leaving))
        self.books.fault(f"client leaves by {how}")
        text = self.chance.choice(("FX:slow", "FX:header_delay_s=5", "FX:prefill_s=5", "hi"))
        client = await self._send(text, stream=self.chance.random() < 0.7)
        async with client.stream:
            await trio.sleep(self.chance.random() ** 3 * 2)
            leave(client, how)
            if how is Leaving.HALF_CLOSE:
                await client.reply()

    async def _send_nonsense(self) -> None:
        body = self.chance.choice(
            (b"", b"{", b"[]", b'{"model":1}', b'{"model":"a","stream":"yes"}', chat_body("nobody"))
        )
        self.books.fault("client sends nonsense")
        client = await RawClient.connect(self.it.port)
        async with client.stream:
            self.books.posted()
            await client.send(post(CHAT, body=body))
            reply = await client.reply()
            assert reply.status in (400, 404, 503), reply.status

    async def _upload_and_leave(self) -> None:
        self.books.fault("client leaves while uploading")
        client = await RawClient.connect(self.it.port)
        async with client.stream:
            self.books.posted()
            await client.send(post(CHAT, "Content-Length: 5000", body=None), b'{"model":')
            await trio.sleep(self.chance.random() * 0.2)

    async def _read_slowly(self) -> None:
        self.books.fault("client reads slowly")
        client = await self._send("FX:chunk_bytes=20000", stream=True, max_tokens=30)
        async with client.stream:
            await trio.sleep(self.chance.random() * 2)
            await client.reply()

    async def _send_big(self) -> None:
        size = self.chance.choice((100_000, 2_000_000, 8_000_000))
        client = await self._send("x" * size, stream=False, max_tokens=1)
        async with client.stream:
            await client.reply()

    # ---- the operator --------------------------------------------------------------------------

    async def operate(self) -> None:
        """One command; an ``off`` is followed by an ``on``, so that work goes on."""
        act = self.chance.choice(("status", "garbage", "on", "off", "off now", "interrupted"))
        self.books.fault(f"operator: {act}")
        with suppress(OSError, ValueError, trio.BrokenResourceError):
            match act:
                case "status":
                    await self.it.status()
                case "garbage":
                    await self.it.control("\x00{" * 50)
                case "on":
                    await self.it.on(self.chance.choice(MODELS))
                case "interrupted":
                    with trio.move_on_after(self.chance.random()):
                        await self.it.on(self.chance.choice(MODELS))
                case _:
                    done = await self.it.off(now=act == "off now")
                    if done["ok"] and (left := self.it.engine_pids()):
                        raise Stuck(f"off said done, but {left} live")
                    await self.it.control("on")

    # ---- fate ----------------------------------------------------------------------------------

    async def strike_engine(self) -> None:
        """Something happens to the engine from outside."""
        pid = (await self.it.status())["child_pid"]
        if pid is None or not pid_exists(pid):
            return
        act = self.chance.choice(("SIGKILL", "SIGSTOP", "SIGSEGV"))
        self.books.fault(f"engine gets {act}")
        with suppress(ProcessLookupError):
            os.kill(pid, signal.Signals[act])
            if act == "SIGSTOP":
                await trio.sleep(self.chance.random() * 2)
                os.kill(pid, signal.SIGCONT)

    async def strike_log(self) -> None:
        """The log's directory or its disk fails, and is well again."""
        modes = ("full 700", "full 0", "read-only", "slow 0.05", "hung") if self.disk else ()
        act = self.chance.choice(("renamed", "removed", *modes))
        if act in ("renamed", "removed"):
            self.books.fault(f"log directory {act}")
            await self._take_log_away(back=act == "renamed")
            return
        self.books.fault(f"log disk {act.partition(' ')[0]}")
        disk = self.disk
        assert disk is not None
        try:
            await disk.becomes(act)
            await trio.sleep(self.chance.random() * 2)
        finally:
            with trio.CancelScope(shield=True):  # at once; and a hung disk would hold up the end
                await disk.becomes("well")

    async def _take_log_away(self, *, back: bool) -> None:
        """As if removed: the files are kept elsewhere, for the books. The writer makes no directory."""
        log = self.books.log_directory
        away = log.with_name(f"log.{self.chance.random()}")
        log.rename(away)
        await trio.sleep(self.chance.random())
        if back:
            away.rename(log)
        else:
            log.mkdir(mode=0o700)

    async def take_descriptors(self) -> None:
        """Somebody has taken all descriptors: what is open goes on, and nothing can be opened."""
        kept = await RawClient.connect(self.it.port)
        async with kept.stream:
            await self._expect_health(kept, "before anything was taken")
            self.books.fault("no descriptor left")
            before = resource.prlimit(self.it.pid, resource.RLIMIT_NOFILE)
            with self.books.no_descriptors():
                resource.prlimit(self.it.pid, resource.RLIMIT_NOFILE, (0, before[1]))
                try:
                    await trio.sleep(self.chance.random())
                    await self._expect_health(kept, "while no descriptor was left")
                finally:
                    resource.prlimit(self.it.pid, resource.RLIMIT_NOFILE, before)

    async def _expect_health(self, kept: RawClient, when: str) -> None:
        with trio.move_on_after(ANSWER_S) as scope:
            try:
                await kept.send(get("/health"))
                assert (await kept.reply()).status == 200
            except (EOFError, trio.BrokenResourceError) as exc:
                raise Breach(f"an open connection was closed {when}") from exc
        if scope.cancelled_caught:
            raise Breach(f"/health on an open connection took over {ANSWER_S} s {when}")
