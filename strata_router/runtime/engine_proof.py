"""Proves that a started engine is ready, is the process we started, and is the model it should be.

Asks the outside world until ``core.engine`` says Verified or Mismatch; the engine's death ends the
asking at once. Starts and stops nothing: that is ``runtime.engine_supervisor``, which calls it.
Source: contract 4.2.
"""

import os
from collections.abc import Callable, Collection
from contextlib import suppress

import trio

from strata_router.core.engine.kinds import EngineKind
from strata_router.core.engine.readiness import (
    READY_FILE_LIMIT_BYTES,
    Mismatch,
    NotYet,
    Verdict,
    Verified,
    read_ready_file,
)
from strata_router.runtime import engine_control, procfs
from strata_router.runtime.engine_process import EngineProcess

POLL_S = 0.05
"""Between looks at a readiness file or a port; a load takes seconds at least."""

ANSWER_S = 5.0
"""One control question. An engine that needs longer is asked again while startup_ms lasts."""

WAITING_REPORT_S = 2.0
"""How often a long load says that it is still waiting."""

PORT_FREE_S = 1.0
"""After the last process of an engine is gone, its port follows at once; this is for a stranger's."""


class LoadFault(Exception):
    """A load cannot go on; the text is short, generic and ours.

    advice: where the operator finds more, which may hold paths of the configuration; or None.
    """

    def __init__(self, reason: str, advice: str | None = None) -> None:
        super().__init__(reason)
        self.advice = advice


class EngineProof:
    """What is asked of every engine on one port.

    startup_ms: only told; the caller bounds ``demand``. configured_names: model names that may be
    shown. progress: (phase, message). reported_ready: called when the engine says that it is ready.
    """

    def __init__(
        self,
        port: int,
        startup_ms: int,
        configured_names: Collection[str],
        progress: Callable[[str, str], None],
        reported_ready: Callable[[], None],
    ) -> None:
        self._port = port
        self._startup_ms = startup_ms
        self._configured_names = configured_names
        self._progress = progress
        self._reported_ready = reported_ready

    def demand_free_port(self) -> None:
        """Raises LoadFault naming who holds the port."""
        if not procfs.port_is_free(self._port):
            raise LoadFault(held_text(self._port))

    async def why_port_is_not_free(self) -> str | None:
        """PORT_FREE_S after an engine has ended at the latest: None, or who is on its port.

        A host that lets nobody ask (no descriptor left) is no answer, and asked again while there is time.
        """
        with trio.move_on_after(PORT_FREE_S):
            while not self._is_known_to_be_free():  # noqa: ASYNC110 - the kernel sets no event
                await trio.sleep(POLL_S)
            return None
        try:
            return None if procfs.port_is_free(self._port) else held_text(self._port)
        except OSError as error:
            return f"nobody can tell whether port {self._port} is free ({_words(error)})"

    def _is_known_to_be_free(self) -> bool:
        try:
            return procfs.port_is_free(self._port)
        except OSError:
            return False

    async def holds(self, kind: EngineKind, upstream_model: str) -> bool:
        """Does the engine answer now, and as this model? Asked once."""
        for path in kind.identity_paths:
            answer = await engine_control.ask(self._port, path, ANSWER_S)
            if isinstance(answer, engine_control.NoAnswer):
                return False
            verdict = kind.judge(
                path, answer.status, answer.body, upstream_model, self._configured_names
            )
            if not isinstance(verdict, Verified):
                return False
        return True

    async def demand(
        self, process: EngineProcess, kind: EngineKind, upstream_model: str, ready_file: str | None
    ) -> None:
        """Wait until the engine is ready and is what it should be; its death ends the wait at once."""
        fault: LoadFault | None = None
        exit_status: int | None = None
        async with trio.open_nursery() as nursery:

            async def end_on_exit() -> None:
                nonlocal exit_status
                exit_status = await process.wait_exited()
                nursery.cancel_scope.cancel()

            nursery.start_soon(end_on_exit)
            nursery.start_soon(self._report_waiting)
            try:
                await self._prove_living(process, kind, upstream_model, ready_file)
            except LoadFault as exc:
                fault = exc
            except OSError as exc:  # caught here too: the nursery would wrap it
                fault = LoadFault(refused_by_host(exc))
            nursery.cancel_scope.cancel()
        if fault is not None:
            raise fault
        if exit_status is not None:
            raise LoadFault(self._exit_text(process, exit_status))

    async def _report_waiting(self) -> None:
        started_s = trio.current_time()
        allowed_s = self._startup_ms / 1000
        while True:
            await trio.sleep(WAITING_REPORT_S)
            waited_s = trio.current_time() - started_s
            self._progress(
                "waiting",
                f"still waiting for readiness ({waited_s:.0f}s of {allowed_s:.0f}s allowed)",
            )

    async def _prove_living(
        self, process: EngineProcess, kind: EngineKind, upstream_model: str, ready_file: str | None
    ) -> None:
        if ready_file is not None:
            await self._await_ready_file(ready_file, process.pid, upstream_model)
        else:
            await self._await_listener(process.pid)
            await self._await_identity(kind.identity_paths[0], kind, upstream_model)
        self._progress("checking", "backend reported ready, running health check")
        self._reported_ready()
        for path in kind.identity_paths:
            await self._await_identity(path, kind, upstream_model)
        # Whoever answered must be the child: a stranger on the port is never adopted.
        if not procfs.listener_belongs_to(self._port, process.pid):
            raise LoadFault(f"port {self._port} is answered by another process")
        self._progress("checked", "health check passed, model identity verified")

    async def _await_ready_file(self, path: str, pid: int, upstream_model: str) -> None:
        while True:
            content = b""
            with suppress(FileNotFoundError):
                content = await trio.to_thread.run_sync(_read_bounded, path)
            if _settled(read_ready_file(content, pid, upstream_model)):
                return
            await trio.sleep(POLL_S)

    async def _await_listener(self, pid: int) -> None:
        port = self._port
        while not procfs.listener_belongs_to(port, pid):
            if not procfs.port_is_free(port):
                # Somebody listens; between the child's bind and our look at /proc it may still be the child.
                await trio.sleep(POLL_S)
                if procfs.listener_belongs_to(port, pid):
                    return
                if not procfs.port_is_free(port):
                    self.demand_free_port()
            await trio.sleep(POLL_S)

    async def _await_identity(self, path: str, kind: EngineKind, upstream_model: str) -> None:
        while True:
            answer = await engine_control.ask(self._port, path, ANSWER_S)
            if isinstance(answer, engine_control.Answer):
                verdict = kind.judge(
                    path, answer.status, answer.body, upstream_model, self._configured_names
                )
                if _settled(verdict):
                    return
            await trio.sleep(POLL_S)

    def _exit_text(self, process: EngineProcess, status: int) -> str:
        """How the engine ended; and who holds its port, if somebody else does: a common cause."""
        how = f"was killed by signal {-status}" if status < 0 else f"exited with status {status}"
        text = f"backend {how} before it was ready"
        port = self._port
        if procfs.port_is_free(port) or procfs.listener_belongs_to(port, process.pid):
            return text
        return f"{text}; {held_text(port)}"


def _settled(verdict: Verdict) -> bool:
    match verdict:
        case Verified():
            return True
        case NotYet():
            return False
        case Mismatch(reason):
            raise LoadFault(reason)


def held_text(port: int) -> str:
    holder = procfs.port_holder(port)
    if holder is None:
        # An engine that binds without SO_REUSEADDR leaves its closed connections behind for a minute.
        return (
            f"port {port} cannot be bound although nobody listens on it; it may be free in a minute"
        )
    return f"port {port} is held by {holder}"


def refused_by_host(error: OSError) -> str:
    """Without the error's file name: paths are not shown."""
    return f"the host refused what a start needs ({_words(error)})"


def _words(error: OSError) -> str:
    return os.strerror(error.errno).lower() if error.errno else "no reason given"


def _read_bounded(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(READY_FILE_LIMIT_BYTES)
