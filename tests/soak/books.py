"""What must hold, kept independently of the daemon: the invariants of reliability.md.

Actors report each POST before its last head byte leaves, each body they got whole, and each fault they
caused. ``settle`` is called when all of them pause: nothing may be left of anything then.
"""

import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from tests.system.harness import DaemonUnderTest, until

KEEPALIVE = b": keepalive\n\n"

ANSWER_S = 1.0
"""/health and status must answer; 100 ms is the promise on a machine that does nothing else, and this
one also runs the engines and the attackers, so the soak reports the worst and only judges this."""

SETTLE_S = 30.0
MEMORY_SLACK = 1.10
MEMORY_SLACK_BYTES = 8 * 1024 * 1024
"""Ten percent of the idle figure (reliability.md), and what the allocator keeps of large bodies."""


class Breach(AssertionError):
    """An invariant does not hold."""


@dataclass
class Figures:
    """What one daemon process uses when nothing happens."""

    descriptors: int
    threads: int
    resident_bytes: int


@dataclass
class Books:
    """Counts since the soak began; ``posts`` since the current daemon did."""

    it: DaemonUnderTest
    log_directory: Path
    posts: int = 0
    posts_before: int = 0
    whole: set[str] = field(default_factory=set)
    faults: Counter[str] = field(default_factory=Counter)
    worst_health_s: float = 0.0
    worst_memory_bytes: int = 0
    settled: int = 0
    untold: int = 0
    starved: bool = False
    starvations: int = 0
    lines: int = 0
    lines_before: int = 0
    drops: int = 0
    drops_before: int = 0
    idle: Figures | None = None

    # ---- reports of the actors -----------------------------------------------------------------

    def posted(self) -> None:
        """A complete request head is about to be sent on the chat path."""
        self.posts += 1

    def fault(self, kind: str) -> None:
        self.faults[kind] += 1

    def got_whole(self, body: bytes) -> None:
        """A 2xx body arrived with its end: the engine must have sent exactly this, keep-alives apart."""
        self.whole.add(hashlib.sha256(body.replace(KEEPALIVE, b"")).hexdigest())

    def new_daemon(self) -> None:
        """The daemon was replaced; its records start again."""
        self.posts_before += self.posts
        self.lines_before += self.lines
        self.drops_before += self.drops
        self.posts = self.lines = self.drops = 0
        self.idle = None

    @contextmanager
    def no_descriptors(self) -> Iterator[None]:
        """The daemon has no descriptor for a new connection: nobody who comes is answered meanwhile."""
        self.starved = True
        self.starvations += 1
        try:
            yield
        finally:
            self.starved = False

    # ---- judging -------------------------------------------------------------------------------

    async def check_running(self) -> None:
        """Every second, while everything happens."""
        if self.starved:
            return
        begun, starvations = time.monotonic(), self.starvations
        health, status = {}, {}
        with trio.move_on_after(ANSWER_S) as scope:
            try:
                health = await self.it.get_json("/health")
                status = await self.it.status()
            except (OSError, EOFError, ValueError, trio.BrokenResourceError) as exc:
                if self.starvations == starvations:
                    raise Breach(f"/health or status broke off: {exc!r}") from exc
        if self.starvations != starvations:
            return  # without descriptors, new connections wait, or make room for others
        if scope.cancelled_caught:
            raise Breach(f"/health and status took over {ANSWER_S} s")
        self.worst_health_s = max(self.worst_health_s, time.monotonic() - begun)
        if health["status"] != "ok" or status["pid"] != self.it.pid:
            raise Breach(f"unexpected health {health}, status {status}")
        self._expect_one_engine()

    def _expect_one_engine(self) -> None:
        if found := self.it.overlaps():
            raise Breach(f"two engines at once: {found[0]}")

    async def settle(self) -> None:
        """Nobody is connected: no ticket, lease, connection, descriptor, thread or memory is held."""
        try:
            await self._settle()
        except (AssertionError, trio.TooSlowError) as exc:
            raise Breach(f"after everybody left: {exc}") from exc
        self.settled += 1

    async def _settle(self) -> None:
        with trio.fail_after(SETTLE_S):
            while True:
                metrics = await self.it.metrics()
                page = await self.it.get_json("/requests?limit=1")
                ended = page["next_seq"] if page["records"] else 0
                if not metrics["in_flight"] and not metrics["queue_depth"] and ended == self.posts:
                    break
                if ended > self.posts:
                    raise Breach(f"{ended} records for {self.posts} POSTs")
                await trio.sleep(0.05)
        await self._expect_permutations()
        await self._expect_log_lines()
        self._expect_bytes()
        self._expect_one_engine()
        await self._expect_idle_figures()

    async def _expect_permutations(self) -> None:
        records: list[dict[str, Any]] = []
        after = 0
        while True:
            page = await self.it.get_json(f"/requests?after={after}&limit=1000")
            if page["dropped"]:
                raise Breach("the soak's ring is too small for its records")
            if not page["records"]:
                break
            records += page["records"]
            after = page["next_seq"]
        numbers = list(range(1, self.posts + 1))
        assert [record["seq"] for record in records] == numbers
        assert sorted(record["arrival_seq"] for record in records) == numbers

    async def _expect_log_lines(self) -> None:
        """Whole lines, and of this daemon as many as records less the drops that it has counted."""
        with trio.move_on_after(SETTLE_S):
            while True:
                figures = (await self.it.metrics())["request_log"]
                told = Counter(self._instances_in_log())
                self.lines, self.drops = told[figures["instance_id"]], figures["write_drops"]
                if self.lines + self.drops == self.posts:
                    break
                await trio.sleep(0.05)
        assert self.lines + self.drops == self.posts, (
            f"{self.lines} lines and {self.drops} counted drops of {self.posts} records"
        )
        # A killed daemon may lose what it had not written; it never writes more than there was.
        assert sum(told.values()) <= self.posts_before + self.posts

    def _instances_in_log(self) -> Iterator[str]:
        """The daemon's instance of each line, wherever fate has put the file."""
        root = self.log_directory.parent
        for file in root.glob(f"{self.log_directory.name}*/requests.jsonl*"):
            if file.suffix != ".lock":
                content = file.read_bytes()
                # The last line may be on its way.
                for line in content.split(b"\n")[:-1]:
                    yield json.loads(line)["request_id"].rpartition("-")[0]

    def _expect_bytes(self) -> None:
        stamps = self.it.stamps()
        done = [stamp for stamp in stamps if stamp.event == "done"]
        sent = {stamp.facts.get("response_sha256") for stamp in done}
        strangers = self.whole - sent
        # An engine that is killed between its last byte and its stamp cannot tell what it sent.
        told = {(stamp.pid, stamp.facts["seq"]) for stamp in done}
        asked = {(stamp.pid, stamp.facts["seq"]) for stamp in stamps if stamp.event == "request"}
        self.untold += len(strangers)
        assert self.untold <= len(asked - told), f"{len(strangers)} bodies that no engine sent"
        self.whole.clear()

    async def _expect_idle_figures(self) -> None:
        now = self.figures()
        self.worst_memory_bytes = max(self.worst_memory_bytes, now.resident_bytes)
        if self.idle is None:
            self.idle = now
            return
        idle = self.idle
        await until(lambda: self.figures().descriptors <= idle.descriptors + 1)
        # trio's worker threads go after ten seconds without work.
        await until(lambda: self.figures().threads <= idle.threads, within_s=15)
        allowed = idle.resident_bytes * MEMORY_SLACK + MEMORY_SLACK_BYTES
        assert now.resident_bytes <= allowed, (
            f"{now.resident_bytes} bytes, idle {idle.resident_bytes}"
        )

    def figures(self) -> Figures:
        proc = f"/proc/{self.it.pid}"
        status = dict(
            line.split(":", 1)
            for line in Path(proc, "status").read_text().splitlines()
            if ":" in line
        )
        return Figures(
            descriptors=len(os.listdir(f"{proc}/fd")),
            threads=int(status["Threads"]),
            resident_bytes=int(status["VmRSS"].split()[0]) * 1024,
        )
