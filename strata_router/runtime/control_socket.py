"""Serves the control socket: reads one command per connection and has the Operator carry it out.

::

    accept -> read one line -> status, on, off (words)  -> one line back, end
                            -> on, off (objects)        -> take turns -> progress... done, end
                            -> anything else            -> {"error":...}, end

This module decides nothing about models. It keeps the promises a connection has: the turn of one
operation at a time, a first line at once and another every two seconds, exactly one ``done``,
cancellation when the client leaves, bounds on lines and connections. Claiming the path is
``runtime.control_endpoint``'s business; ``runtime.daemon`` starts ``ControlServer.serve`` and the
coordinator implements ``Operator``. Source: design document, "Control the existing daemon".
"""

import errno
import logging
import socket
from typing import Protocol, assert_never

import trio

from strata_router.core.control import (
    JSON,
    Command,
    Done,
    Finished,
    Off,
    On,
    Op,
    Progress,
    Rejected,
    Report,
    SetRouting,
    Status,
    read_command,
    routing_line,
    status_line,
)
from strata_router.runtime.control_connection import (
    FLUSH_S,
    Outbox,
    read_line,
    say_goodbye,
    wait_until_gone,
)

IDLE_CONNECTIONS = 256
"""Connections that have not sent their line yet; the oldest gives way to one more."""

IDLE_S = 30.0
"""How long a connection may take to send its line. Commands are sent by programs, not typed."""

WAITING_OPERATIONS = 16
"""Operations that may wait for their turn; far more than there are operators."""

FIRST_LINE_S = 0.025
"""Silence after which an operation's first line is ours. Promised to the client: 50 ms."""

SILENCE_S = 2.05
"""Silence after which we say that we still wait. Promised: 2 s. The excess lets an Operator that
reports every 2.0 s speak for itself, instead of each line coming twice."""

NO_RESOURCES_PAUSE_S = 0.1
"""Pause before accepting again when the process has no descriptor or memory for a connection."""

_OUT_OF_RESOURCES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}

_CUT_SHORT = Done(ok=False, message="the daemon is shutting down")
"""The end of an operation that was cancelled: by its client, who is not there to read it, or by the
daemon's end."""

_log = logging.getLogger("strata_router.control")


class Operator(Protocol):
    """What the daemon does on an operator's behalf. ``off`` and ``on`` never run at the same time."""

    def status(self) -> dict[str, JSON]:
        """How things stand, without waiting: pid, child_pid, loaded, last_startup_error, routing,
        draining, busy at least. The server adds ``operation`` and its own share of ``busy``."""

    def set_routing(self, on: bool) -> None:
        """Set the routing flag only."""

    async def off(self, now: bool, report: Report) -> Done:
        """Free the engine's memory. Cancelled: routing stays off."""

    async def on(self, model: str | None, report: Report) -> Done:
        """Load and verify a model. Cancelled: the load is ended, routing as before."""


class ControlServer:
    """All connections of one control socket, and the turn that their operations take."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self._turn = trio.Lock()
        self._running: Op | None = None
        # Insertion order is age: the oldest is the first.
        self._idle: dict[trio.CancelScope, None] = {}

    async def serve(self, listener: socket.socket) -> None:
        """Serve until cancelled; operations under way then end with a ``done`` that says so.

        listener: a ``ControlEndpoint``'s; stays the caller's to close.
        """
        acceptor = trio.socket.from_stdlib_socket(listener)
        async with trio.open_nursery() as nursery:
            while True:
                client = await self._accept(acceptor)
                if client is not None:
                    nursery.start_soon(self._converse, client)

    async def _accept(self, acceptor: trio.socket.SocketType) -> trio.socket.SocketType | None:
        try:
            client, _ = await acceptor.accept()
        except OSError as failure:
            if failure.errno not in _OUT_OF_RESOURCES:
                raise
            # The waiting connection stays in the backlog; an idle one makes room for it.
            self._drop_oldest_idle()
            await trio.sleep(NO_RESOURCES_PAUSE_S)
            return None
        return client

    async def _converse(self, client: trio.socket.SocketType) -> None:
        with client:
            try:
                command = await self._await_command(client)
                if command is not None:
                    await self._answer(client, command)
                    await say_goodbye(client)
            except Exception:
                _log.exception("control connection failed; it is closed, the daemon runs on")

    async def _await_command(self, client: trio.socket.SocketType) -> Command | Rejected | None:
        """None: the connection is over without a command."""
        with trio.move_on_after(IDLE_S) as patience:
            if len(self._idle) >= IDLE_CONNECTIONS:
                self._drop_oldest_idle()
            self._idle[patience] = None
            try:
                line = await read_line(client)
            finally:
                self._idle.pop(patience, None)
            return None if line is None else read_command(line)
        outbox = Outbox(client)
        outbox.put(Rejected("no command came in time, the connection is closed").to_line())
        outbox.send_at_once()
        return None

    def _drop_oldest_idle(self) -> None:
        oldest = next(iter(self._idle), None)
        if oldest is not None:
            del self._idle[oldest]
            oldest.cancel()

    async def _answer(self, client: trio.socket.SocketType, command: Command | Rejected) -> None:
        outbox = Outbox(client)
        match command:
            case Status():
                outbox.put(status_line(self._status()))
            case SetRouting(on):
                self._operator.set_routing(on)
                outbox.put(routing_line(on))
            case Rejected():
                outbox.put(command.to_line())
            case Off() | On():
                await self._operate(client, outbox, command)
            case _:
                assert_never(command)
        outbox.end()
        with trio.move_on_after(FLUSH_S):
            await outbox.run()

    def _status(self) -> dict[str, JSON]:
        status = self._operator.status()
        status["busy"] = bool(status.get("busy")) or self._running is not None
        status["operation"] = self._running
        return status

    async def _operate(
        self, client: trio.socket.SocketType, outbox: Outbox, command: Off | On
    ) -> None:
        """Carry the operation out, its end included; afterwards ``outbox`` holds the ``done``."""
        account = _Account(command.op, outbox)
        done = _CUT_SHORT
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_cancel_when_gone, client, nursery.cancel_scope)
                nursery.start_soon(outbox.run)
                nursery.start_soon(account.break_silence)
                done = await self._in_turn(command, account)
                nursery.cancel_scope.cancel()
        finally:
            # Cut short: either the client left, and nobody reads this, or the daemon stops, and
            # there is no time left to wait in.
            account.finish(done, self._status())
            outbox.send_at_once()
            outcome = "cancelled" if done is _CUT_SHORT else "done" if done.ok else "failed"
            _log.info("%s %s after %d ms", command.op, outcome, account.elapsed_ms())

    async def _in_turn(self, command: Off | On, account: "_Account") -> Done:
        if self._turn.statistics().tasks_waiting >= WAITING_OPERATIONS:
            return Done(ok=False, message="too many operations are waiting already")
        if self._turn.locked():
            account.report(
                "queued", f"waiting for the running {self._running or 'operation'} to finish"
            )
        async with self._turn:
            self._running = command.op
            try:
                return await self._carry_out(command, account.report)
            except Exception:
                _log.exception("%s failed by a fault of the daemon", command.op)
                return Done(ok=False, message="internal error; the daemon's log has the details")
            finally:
                self._running = None

    async def _carry_out(self, command: Off | On, report: Report) -> Done:
        match command:
            case Off(now):
                return await self._operator.off(now, report)
            case On(model):
                return await self._operator.on(model, report)
        assert_never(command)


class _Account:
    """What one operation has told its client so far, and when the next word is due."""

    def __init__(self, op: Op, outbox: Outbox) -> None:
        self._op = op
        self._outbox = outbox
        self._started_s = trio.current_time()
        self._due_s = self._started_s + FIRST_LINE_S
        self._phase = "accepted"
        self._is_finished = False

    def elapsed_ms(self) -> int:
        return round((trio.current_time() - self._started_s) * 1000)

    def report(self, phase: str, message: str) -> None:
        """The ``Report`` that the Operator gets; after the end it does nothing."""
        if self._is_finished:
            return
        self._phase = phase
        self._due_s = trio.current_time() + SILENCE_S
        progress = Progress(self._op, phase, message, self.elapsed_ms())
        self._outbox.put_if_room(progress.to_line())

    def finish(self, done: Done, status: dict[str, JSON]) -> None:
        self._is_finished = True
        finished = Finished(self._op, done.ok, done.message, self.elapsed_ms(), status)
        self._outbox.put(finished.to_line())

    async def break_silence(self) -> None:
        """Speak whenever the Operator has not; runs until cancelled."""
        while True:
            await trio.sleep_until(self._due_s)
            if trio.current_time() < self._due_s:
                continue  # it has reported meanwhile
            waited_s = self.elapsed_ms() // 1000
            message = f"still waiting ({waited_s}s so far)" if waited_s else "working on it"
            self.report(self._phase, message)


async def _cancel_when_gone(client: trio.socket.SocketType, scope: trio.CancelScope) -> None:
    await wait_until_gone(client)
    scope.cancel()
