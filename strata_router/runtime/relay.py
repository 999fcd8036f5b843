"""Passes one answer from the engine to the client as it comes: one read is one write.

Made by an exchange when the engine's response head is there; knows neither tickets nor records. The
tap listens, and says what may be held back: ``[DONE]`` for the end of the body, and a stream's head for
its first event, each for HOLD_S at most. Source: contract 6.4.

The bytes pass in the pump's task. The exchange's own is woken for the end, for a failure, for a client
that does not take what was sent, and for what has been held long enough.
"""

from strata_router.core.http.response_head import UpstreamHead
from strata_router.core.tap import ResponseTap
from strata_router.runtime.clock import moment
from strata_router.runtime.http.pump import Pump
from strata_router.runtime.http.sockets import READS_PER_YIELD
from strata_router.runtime.reply import Reply
from strata_router.runtime.timers import Timer, Timers
from strata_router.runtime.upstream import UpstreamBroken, UpstreamExchange

HOLD_S = 0.05
"""How long ``[DONE]`` waits for the engine's EOF, to leave in one write with the end of the body: Go
clients reuse the connection only then (facts/cliproxyapi.md section 3; contract 6.4). A stream's head
waits as long for its first event, so that an engine that dies there still gets an honest status."""


class Relay:
    """One answer on its way. ``run`` once; the end of the client's body is left to the caller."""

    def __init__(
        self,
        head: UpstreamHead,
        upstream: UpstreamExchange,
        reply: Reply,
        tap: ResponseTap,
        pump: Pump,
        timers: Timers,
    ) -> None:
        self._head = head
        self._upstream = upstream
        self._reply = reply
        self._tap = tap
        self._pump = pump
        self._timers = timers
        self._opening = tap.is_stream and not reply.started  # the head waits for the first event
        self._hold: Timer | None = None
        self._held_long_enough = False
        self._passed = False  # at least a byte of the body
        self._ended = False

    async def run(self) -> None:
        """Pass everything on. Raises PeerGone, and UpstreamBroken unless the answer was whole."""
        try:
            while not self._ended:
                if self._held_long_enough:
                    self._held_long_enough = self._opening = False
                    self._reply.let_go(moment().monotonic_s)
                elif self._step():
                    await self._pump.while_readable(self._upstream.sock, self._step)
                await self._reply.flush()
        finally:
            self._end_hold()
        if not self._is_whole:
            raise UpstreamBroken("the engine's answer ended too early")

    def _step(self) -> bool:
        """Pass on what the engine's socket has. False: the client must be waited for, or all is done."""
        for _ in range(READS_PER_YIELD):
            data = self._upstream.read_now()
            if data is None:
                break
            self._take(data)
            if self._ended or self._reply.has_unsent:
                return False
            if self._upstream.emptied:
                break
        if self._hold is None and (self._opening or self._reply.held):
            self._hold = self._timers.at(moment().monotonic_s + HOLD_S, self._hold_is_over)
        return True

    def _take(self, data: bytes) -> None:
        """One read's bytes, b"" for the end; a counted or chunked body says itself that it is over."""
        self._ended = self._upstream.ended or not data
        if not data:
            return
        self._passed = True
        now = moment()
        reply, tap = self._reply, self._tap
        tap.feed(data, now)
        forward, reply.held = tap.hold_done(reply.held + data)
        if forward:
            # What is held from here on came just now and waits its own time.
            self._opening = False
            self._end_hold()
            reply.forward(forward, now.monotonic_s)

    # ---- what waits for what follows -----------------------------------------------------------

    def _hold_is_over(self) -> None:
        self._hold = None
        self._held_long_enough = True
        self._pump.release(self._upstream.sock)

    def _end_hold(self) -> None:
        self._held_long_enough = False
        if self._hold is not None:
            self._hold.cancel()
            self._hold = None

    @property
    def _is_whole(self) -> bool:
        """A 200 without a body is no answer; a stream is whole only with its [DONE]: Strata's end at the
        close of the connection, so a killed engine looks like an end (contract 6.4)."""
        if self._head.status != 200:
            return True
        self._tap.close()  # a last line without its line end counts, too
        return self._tap.saw_done if self._tap.is_stream else self._passed
