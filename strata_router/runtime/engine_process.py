"""One engine process from start to nothing left of it.

Starts it under a guard (``runtime.guard``), tells at once when it ends, and stops it by the ladder of
contract 4.4. The guard climbs the ladder by itself, so a cancelled ``stop`` is never half done; if the
guard is killed or does not answer, this module ends what it left (``runtime.orphans``). It knows nothing
of models, ports, health or profiles: that is the coordinator's, which calls it, one engine at a time.
"""

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import inf
from signal import SIGKILL, Signals

import trio

from strata_router.runtime import orphans
from strata_router.runtime.guard_link import GuardLink
from strata_router.runtime.launch import Launch, SpawnFailed, encode, engine_environment
from strata_router.runtime.orphans import Identity
from strata_router.runtime.procfs import Process, processes, read_process

__all__ = [
    "Bounds",
    "EngineProcess",
    "EngineStuck",
    "Launch",
    "SpawnFailed",
    "Stopped",
    "ending",
    "engine_environment",
    "start_engine",
]

LEAVE_S = 2.0
"""How long a cancelled nursery is held up for its engine's death; SIGKILL needs some milliseconds."""
SLACK_S = 0.5
"""The guard's own deadlines come first; this is how much later ours may notice that they have not."""
OUT_OF_MEMORY = "out of memory? see dmesg"
"""What to think of first when an engine was killed by SIGKILL."""
ROUND_S = 0.01
"""Pause between rounds of killing what a dead guard left."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long to wait for whom; the defaults are the product's, others are for tests.

    survivors_ms: what an engine leaves behind may live this much longer. Source: contract 4.4.
    stuck_ms: SIGKILL without effect for this long is a failure that is told. Source: contract 4.4.
    deaf_ms: a guard that has not answered for this long is taken for dead. It answers in under a
        millisecond; a host that swaps while a model loads may need seconds, and to be wrong here kills
        an engine that was to end in order.
    """

    survivors_ms: int = 2000
    stuck_ms: int = 10_000
    deaf_ms: int = 5000


@dataclass(frozen=True, slots=True)
class Stopped:
    """How it ended.

    exit_status: exit code, or minus the signal.
    killed: SIGKILL was needed for the engine itself.
    survivors_killed: how many other processes of it were ended by SIGKILL.
    """

    exit_status: int
    killed: bool
    survivors_killed: int


def ending(exit_status: int) -> str:
    """How a process that nobody has asked to end did so, for the operator; goes on after its name.

    exit_status: exit code, or minus the signal.
    """
    if exit_status >= 0:
        return f"ended by itself with status {exit_status}"
    try:
        name = Signals(-exit_status).name
    except ValueError:  # the real-time ones between the first and the last have no names
        name = f"signal {-exit_status}"
    return f"was killed by {name}" + (f" ({OUT_OF_MEMORY})" if exit_status == -SIGKILL else "")


class EngineStuck(Exception):
    """SIGKILL has had no effect on ``pid`` yet; ``wait_gone`` tells when it has."""

    def __init__(self, pid: int) -> None:
        super().__init__(f"process {pid} has been killed and is still there")
        self.pid = pid


async def start_engine(
    launch: Launch, nursery: trio.Nursery, bounds: Bounds | None = None
) -> "EngineProcess":
    """Start it; returns when the program runs (not: is ready). Raises SpawnFailed.

    The nursery owns the engine: when it is cancelled, everything is killed. When this call is cancelled,
    nothing is left of the engine on return (unless SIGKILL has no effect within ``LEAVE_S``).
    """
    process: EngineProcess = await nursery.start(_oversee, launch, bounds or Bounds())
    return process


async def _oversee(
    launch: Launch,
    bounds: Bounds,
    task_status: "trio.TaskStatus[EngineProcess]" = trio.TASK_STATUS_IGNORED,
) -> None:
    """The engine's task: ends when nothing is left of it, or at last ``LEAVE_S`` after its nursery."""
    order = encode(launch, bounds.survivors_ms)
    try:
        link = GuardLink.start()
    except OSError as error:
        raise SpawnFailed(f"the guard process cannot be started ({_words(error.errno)})") from error
    process = EngineProcess(link, bounds)
    try:
        await link.send(order)
        await process._follow(task_status)
    finally:
        if not process.is_gone:
            # Cancelled: the engine must not outlive its nursery, and a new one must not meet it. The
            # shield ends by its deadline; SIGKILL to the guard is the kernel's way for the engine.
            link.hang_up()
            with trio.move_on_after(LEAVE_S, shield=True):
                await process._follow(task_status)
        if not process.is_gone:
            link.kill()
            with trio.move_on_after(SLACK_S, shield=True):  # as above
                await link.wait_dead()
        link.close()
    if process._refusal is not None:
        raise SpawnFailed(process._refusal)


class EngineProcess:
    """A started engine. Any task may call any method, any number of times, at any time.

    pid: of the engine itself, never of the guard.
    exit_status: exit code, or minus the signal; None while it runs.
    log_problem: why its output is discarded although a log was asked for; None otherwise.
    guard_was_lost: the guard was killed from outside or did not answer, and the engine ended with it.
    """

    def __init__(self, link: GuardLink, bounds: Bounds) -> None:
        """For ``start_engine`` only."""
        self.pid = 0
        self.exit_status: int | None = None
        self.log_problem: str | None = None
        self.guard_was_lost = False
        self._link = link
        self._bounds = bounds
        self._identity: Identity | None = None  # known from "started" on
        self._refusal: str | None = None  # why nothing was started
        self._ended = False  # the guard has said that nothing is left
        self._is_gone = False  # the same, and the guard is gone too
        self._survivors = 0
        self._survivors_killed = 0
        self._killing_since: float | None = None
        self._was_killed = False
        self._stuck_pid: int | None = None
        self._changed = trio.Event()  # replaced whenever one of the above changes
        self._patience = trio.CancelScope()  # its deadline is when an unanswered guard is given up

    @property
    def guard_pid(self) -> int:
        """The process between us and the engine, for debug logs and tests."""
        return self._link.guard_pid

    @property
    def is_gone(self) -> bool:
        """The engine is reaped and no process of its group, session or tree is left."""
        return self._is_gone

    async def wait_exited(self) -> int:
        """Return the exit status of the engine itself, at once when it ends."""
        await self._until(lambda: self.exit_status is not None)
        assert self.exit_status is not None
        return self.exit_status

    async def wait_gone(self) -> None:
        """Return when nothing of it is left; has no bound of its own."""
        await self._until(lambda: self._is_gone)

    def terminate(self) -> None:
        """SIGTERM to the engine itself, the first time; never a second one (contract 4.4)."""
        self._order("term")

    def kill(self) -> None:
        """SIGKILL to everything; does not wait."""
        self._order("kill")

    async def stop(self, shutdown_ms: int, report: Callable[[str], None] | None = None) -> Stopped:
        """SIGTERM, ``shutdown_ms`` for the engine, then some for its survivors, SIGKILL: contract 4.4.

        Returns when nothing is left; raises EngineStuck. Cancelling this call does not stop the stopping.
        Calls may overlap: the earliest deadline holds.
        report: takes one line per step, for people; not called for the end.
        """
        say = report or _say_nothing
        if not self._is_gone:
            self._order(f"stop {shutdown_ms}")
            say(f"stopping backend pid {self.pid}")
        with trio.move_on_after(shutdown_ms / 1000 + SLACK_S):
            await self._until(lambda: self.exit_status is not None or self._is_killing)
        if self.exit_status is None:
            say(f"killing backend pid {self.pid}")
        else:
            await self._wait_for_survivors(say)
        return await self._finish()

    async def _wait_for_survivors(self, say: Callable[[str], None]) -> None:
        with trio.move_on_after(self._bounds.survivors_ms / 1000 + SLACK_S):
            await self._until(lambda: self._survivors > 0 or self._is_killing)
            if not self._is_killing:
                say(f"backend pid {self.pid} exited, waiting for what it left ({self._survivors})")
                await self._until(lambda: self._is_killing)
        if not self._is_gone:
            say(f"killing what backend pid {self.pid} left")

    async def force_stop(self) -> Stopped:
        """SIGKILL to everything at once; returns when nothing is left, or raises EngineStuck."""
        self.kill()
        return await self._finish()

    async def _finish(self) -> Stopped:
        """The last rung, which the guard has reached by itself unless it is deaf."""
        if not self._is_gone:
            if self._killing_since is None:
                self.kill()
            since = self._killing_since or trio.current_time()
            with trio.move_on_at(since + self._bounds.stuck_ms / 1000):
                await self.wait_gone()
            if not self._is_gone:
                raise EngineStuck(self._stuck_pid or self.pid)
        assert self.exit_status is not None
        return Stopped(self.exit_status, self._was_killed, self._survivors_killed)

    @property
    def _is_killing(self) -> bool:
        return self._killing_since is not None or self._is_gone

    async def _until(self, holds: Callable[[], bool]) -> None:
        await trio.lowlevel.checkpoint()
        while not holds():
            await self._changed.wait()

    def _note_change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _order(self, line: str) -> None:
        if not self._is_gone:
            self._link.order(line)
            self._expect_a_sign_of_life()

    def _expect_a_sign_of_life(self) -> None:
        due = trio.current_time() + self._bounds.deaf_ms / 1000
        self._patience.deadline = min(self._patience.deadline, due)

    async def _follow(self, task_status: "trio.TaskStatus[EngineProcess]") -> None:
        """Take the guard's reports until it has ended; then, if it did not say "end", end the rest."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_engine)
            with trio.CancelScope() as self._patience:
                await self._take_reports(task_status)
            if self._patience.cancelled_caught:
                self._link.kill()
                await self._take_reports(task_status)
            nursery.cancel_scope.cancel()
        await self._link.wait_dead()
        if not self._ended:
            await self._end_leftovers()
        self._is_gone = True
        self._note_change()

    async def _take_reports(self, task_status: "trio.TaskStatus[EngineProcess]") -> None:
        while (line := await self._link.next_line()) is not None:
            self._patience.deadline = inf
            self._take(line, task_status)

    def _take(self, line: bytes, task_status: "trio.TaskStatus[EngineProcess]") -> None:
        match line.decode().split():
            case ["heard"]:
                return
            case ["log", number]:
                self.log_problem = f"the log cannot be opened ({_words(int(number))})"
            case ["started", pid, start_ticks]:
                self.pid = int(pid)
                self._identity = Identity(self.pid, int(start_ticks))
                task_status.started(self)
            case ["refused", stage, number]:
                self._refusal = f"{_STAGES[stage]} ({_words(int(number))})"
            case ["exited", status]:
                self._note_exit(int(status))
            case ["survivors", count]:
                self._survivors = int(count)
            case ["killing"]:
                self._killing_since = trio.current_time()
            case ["stuck", pid]:
                self._stuck_pid = int(pid)
            case ["end", count]:
                self._survivors_killed = int(count)
                self._ended = True
            case _:
                raise AssertionError("the guard said what its docstring does not define")
        self._note_change()

    def _note_exit(self, status: int) -> None:
        self.exit_status = status
        self._was_killed = self._killing_since is not None and status == -SIGKILL
        self._note_change()

    async def _watch_engine(self) -> None:
        """See the engine end with our own eyes: a guard that does not tell then is deaf."""
        await self._until(lambda: self._identity is not None)
        assert self._identity is not None
        # OSError: gone already, or no descriptor is left; then the guard's word has to do.
        with suppress(OSError):
            pidfd = os.pidfd_open(self._identity.pid)
            try:
                now = read_process(self._identity.pid)
                if now is not None and now.start_ticks == self._identity.start_ticks:
                    await trio.lowlevel.wait_readable(pidfd)
                    if self.exit_status is None:
                        self._expect_a_sign_of_life()
            finally:
                os.close(pidfd)

    async def _end_leftovers(self) -> None:
        """The guard was killed: do its work. The engine itself is already dying by the kernel's hand."""
        if self._refusal is None and self._identity is None:
            self._refusal = "the guard process ended before the engine was started"
        self.guard_was_lost = True
        self._killing_since = self._killing_since or trio.current_time()
        self._note_change()
        killed: set[Identity] = set()
        find = partial(
            orphans.left_behind,
            daemon=os.getpid(),
            leader=self._identity,
            since_ticks=self._link.guard_start_ticks,
        )
        while True:
            try:
                left = self._reap(find(await trio.to_thread.run_sync(processes)).values())
            except OSError:  # no descriptor is left to look with: one will come free
                await trio.sleep(ROUND_S)
                continue
            if not left:
                break
            for process in left:
                orphans.kill(process)
                if process.pid != self.pid:
                    killed.add(Identity(process.pid, process.start_ticks))
            self._stuck_pid = left[0].pid
            await trio.sleep(ROUND_S)
        self._survivors_killed = len(killed)
        if self._identity is not None and self.exit_status is None:
            # Reaped by another (we are no subreaper): it died of its parent-death signal, or before it
            # by a status that nobody can know any more.
            self._note_exit(-SIGKILL)

    def _reap(self, found: Iterable[Process]) -> list[Process]:
        """Collect the ended ones; returns those still alive."""
        for process in found:
            status = orphans.reap(process)
            if status is not None and process.pid == self.pid:
                self._note_exit(status)
        return [process for process in found if process.is_alive]


_STAGES = {
    "fork": "no process can be made for the engine",
    "prepare": "the engine's process cannot be prepared",
    "chdir": "the engine's working directory cannot be entered",
    "exec": "the engine's program cannot be executed",
}


def _words(number: int | None) -> str:
    """An errno in words, which name no file."""
    return os.strerror(number or 0).lower()


def _say_nothing(_: str) -> None:
    pass
