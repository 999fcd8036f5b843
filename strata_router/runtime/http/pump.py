"""Moves the bytes of all running streams in one task, without waking the task of each.

A task of trio that waits for a socket pays, per token, for its coroutine chain, a reschedule and a new
one-shot registration: half of what a token costs the exchange. Here every stream stays registered with
one epoll instance, level-triggered, which is itself watched through trio; a wake-up calls the step of
each stream that has something, and the stream's own task is woken only when its step wants it: at the
end, at a failure, or for a client that takes no more. Measured: RESEARCH.md, "The hot path".
"""

import select
import socket
from collections.abc import Callable
from dataclasses import dataclass

import trio

Step = Callable[[], bool]
"""Takes what a socket has, without waiting; False ends the pumping. What it raises is its task's."""

CROWD = 16
GATHER_S = 0.001
"""After a turn that so many streams had something for, the next may gather for a millisecond: what comes
meanwhile shares reads, wake-ups and writes. Streams at a token's pace meet rarely and are never kept waiting;
in a blast the millisecond is less than what looking at once for single tokens costs everybody."""


@dataclass(slots=True)
class _Stream:
    step: Step
    task: trio.lowlevel.Task
    failure: Exception | None = None


class Pump:
    """Calls the steps of readable sockets; one task per daemon runs ``run``."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._streams: dict[int, _Stream] = {}

    async def while_readable(self, sock: socket.socket, step: Step) -> None:
        """Have ``step`` called whenever ``sock`` has bytes, an end or an error, until it says False.

        Steps run in the pump's task; the socket stays open until this returns. Raises what ``step``
        raises. Cancelled, it is not called again.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        fd = sock.fileno()
        self._epoll.register(fd, select.EPOLLIN)
        stream = self._streams[fd] = _Stream(step, trio.lowlevel.current_task())

        def abort(_: object) -> trio.lowlevel.Abort:
            self._forget(fd)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)
        if stream.failure is not None:
            raise stream.failure

    def release(self, sock: socket.socket) -> None:
        """End ``while_readable`` of this socket as if its step had said False. Idempotent."""
        stream = self._streams.get(sock.fileno())
        if stream is not None:
            self._forget(sock.fileno())
            trio.lowlevel.reschedule(stream.task)

    def _take_step(self, fd: int, stream: "_Stream") -> None:
        try:
            if stream.step():
                return
        except Exception as exc:  # not the pump's: handed to the task whose step it is
            stream.failure = exc
        if self._streams.get(fd) is stream:  # else the step has had its own task cancelled
            self._forget(fd)
            trio.lowlevel.reschedule(stream.task)

    def _forget(self, fd: int) -> None:
        del self._streams[fd]
        if not self._epoll.closed:  # at the daemon's end a stream may outlive ``run`` by a moment
            self._epoll.unregister(fd)

    async def run(self) -> None:
        """Pump until cancelled."""
        try:
            fd = self._epoll.fileno()
            while True:
                await trio.lowlevel.wait_readable(fd)
                ready = self._epoll.poll(0)
                for engine_fd, _ in ready:
                    stream = self._streams.get(engine_fd)
                    if stream is not None:
                        self._take_step(engine_fd, stream)
                if len(ready) >= CROWD:
                    await trio.sleep(GATHER_S)
        finally:
            self._epoll.close()

    @property
    def streams(self) -> int:
        """How many are being pumped now."""
        return len(self._streams)
