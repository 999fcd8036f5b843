"""What one client is told: the head, keep-alives while it waits, the answer, or why there is none.

Knows the connection and the in-band forms, not tickets or engines. The exchange's task writes;
``commit`` and the keep-alive timer write between its writes, never inside an event.

    nothing sent --commit--> committed (200, SSE, ours) --+--> ended
         |                                                |
         +--begin--> passing (the engine's own head) -----+--> aborted (the body is visibly cut)
"""

from collections.abc import Callable

import trio

from strata_router.core.http.response_head import Headers, UpstreamHead
from strata_router.core.refusal import Refusal
from strata_router.core.tap import BodyKind, ResponseTap, error_event
from strata_router.core.vocabulary import ModelId, Tier
from strata_router.runtime.http.connection import ClientConnection
from strata_router.runtime.http.sockets import PeerGone
from strata_router.runtime.ledger import Account
from strata_router.runtime.timers import Timer, Timers

SSE_HEADERS: Headers = [
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class Reply:
    """One exchange's reply. ``gone`` is called when a timer finds that the client has left.

    keepalive: gives the comment to send now; a whole event, never empty.
    """

    def __init__(
        self,
        connection: ClientConnection,
        account: Account,
        timers: Timers,
        keepalive_s: float | None,
        keepalive: Callable[[], bytes],
        gone: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._request_id = account.request_id
        self._record = account.record
        self._timers = timers
        self._keepalive_s = keepalive_s  # None: never (legacy mode passes streams through)
        self._keepalive = keepalive
        self._gone = gone
        self._timer: Timer | None = None
        self._last_write_s = 0.0
        self._tap: ResponseTap | None = None
        self._head: UpstreamHead | None = None  # begun, not yet sent
        self._event_stream = False
        self.held = b""  # [DONE], for a moment: it should leave with the end of the body
        self._unsent_bytes = 0  # forwarded, but not all of it taken by the client yet
        self.model: ModelId | None = None
        self.tier: Tier | None = None
        self.committed = False
        self.ended = False

    @property
    def started(self) -> bool:
        """A head has left, or will with the next bytes."""
        return self._connection.response_started

    @property
    def all_sent(self) -> bool:
        """Nothing that the engine said waits here for the client."""
        return not self.held and not self._unsent_bytes

    @property
    def has_unsent(self) -> bool:
        """There is something to ``flush``: bytes of the answer, its head, a keep-alive."""
        return self._connection.has_unsent

    def _own_headers(self) -> Headers:
        headers: Headers = [(b"x-strata-request-id", self._request_id.encode("ascii"))]
        if self.model is not None:
            headers.append((b"x-strata-concrete-model", self.model.encode("ascii")))
        if self.tier is not None:
            headers.append((b"x-strata-service-tier", self.tier.encode("ascii")))
        return headers

    # ---- a stream that waits -------------------------------------------------------------------

    def commit(self) -> None:
        """From the coordinator's task: 200 and SSE now, the rest in-band. Raises PeerGone."""
        self.committed = self._event_stream = True
        self._record.client_status(200)
        self._connection.begin_response(
            200,
            [(b"content-type", b"text/event-stream"), *SSE_HEADERS, *self._own_headers()],
            None,
        )
        self._interject_keepalive()
        self._arm_keepalive()

    def _interject_keepalive(self) -> None:
        comment = self._keepalive()
        if self._connection.interject(comment):
            self._record.forwarded(len(comment))
            self._last_write_s = trio.current_time()

    def _arm_keepalive(self) -> None:
        if self._keepalive_s is not None:
            self._last_write_s = trio.current_time()
            self._timer = self._timers.at(
                self._last_write_s + self._keepalive_s, self._keepalive_due
            )

    def _keepalive_due(self) -> None:
        assert self._keepalive_s is not None
        if self.ended:
            return
        now = trio.current_time()
        due = self._last_write_s + self._keepalive_s
        if due <= now:
            if self._at_boundary:
                try:
                    self._interject_keepalive()
                except PeerGone:
                    self._gone()
                    return
            due = now + self._keepalive_s
        self._timer = self._timers.at(due, self._keepalive_due)

    @property
    def _at_boundary(self) -> bool:
        """Bytes of ours may follow what the client has been sent."""
        if self._head is not None or self.held:
            return False  # the tap is ahead of the client
        return self._tap is None or self._tap.at_event_boundary

    # ---- the engine's answer -------------------------------------------------------------------

    def begin(self, head: UpstreamHead, kind: BodyKind, tap: ResponseTap) -> None:
        """The engine's answer follows; uncommitted, its own head will leave with the first bytes."""
        self._tap = tap
        if not self.committed:
            self._head = head
            self._event_stream = kind is BodyKind.SSE
            if self._event_stream:
                self._arm_keepalive()

    def forward(self, data: bytes, now: float) -> None:
        """Pass bytes on, untouched; what the client does not take at once is left to ``flush``.

        Raises PeerGone.
        """
        self._start_passing()
        self._last_write_s = now
        self._unsent_bytes += len(data)
        if self._connection.send_body_now(data):
            self._all_taken()

    async def flush(self) -> None:
        """Wait until the client has taken all that was forwarded. Raises PeerGone."""
        if self._connection.has_unsent:
            await self._connection.flush()
            self._all_taken()

    def _all_taken(self) -> None:
        self._record.forwarded(self._unsent_bytes)
        self._unsent_bytes = 0

    def let_go(self, now: float) -> None:
        """Forward what waits: the head, or what is held. Raises PeerGone."""
        self.forward(self.held, now)
        self.held = b""  # not before: a client that is gone has not had it

    async def end(self, data: bytes = b"") -> None:
        """What is held, the last bytes and the end of the body, in one write. Raises PeerGone."""
        self._start_passing()
        data, self.held = self.held + data, b""
        self._unsent_bytes += len(data)
        await self._connection.end_response(data)
        self._all_taken()
        self._over()

    def _start_passing(self) -> None:
        head, self._head = self._head, None
        if head is None:
            return
        headers = list(head.headers)
        if self._event_stream:
            named = {name for name, _ in SSE_HEADERS}
            headers = [item for item in headers if item[0] not in named] + SSE_HEADERS
        self._record.client_status(head.status)
        # An event stream promises no length: keep-alives and the error event are not the engine's.
        length = None if self._event_stream else head.content_length
        self._connection.begin_response(head.status, headers + self._own_headers(), length)

    # ---- no answer -----------------------------------------------------------------------------

    async def refuse(self, refusal: Refusal) -> None:
        """Say why there is no (whole) answer, in the form that is still possible.

        Nothing sent: the status and JSON. An event stream between events: the error event and the
        end, no [DONE]. Else the body is cut. Raises PeerGone.
        """
        if self._head is not None or not self.started:
            self._head = None
            self._record.client_status(refusal.row.status)
            headers: Headers = [(b"content-type", b"application/json"), *self._own_headers()]
            if refusal.retry_after_s is not None:
                headers.append((b"retry-after", b"%d" % refusal.retry_after_s))
            body = refusal.json_body()
            self._record.forwarded(len(body))
            await self._connection.respond(refusal.row.status, headers, body)
            self._over()
        elif self._can_speak_in_band:
            await self.end(error_event(refusal))
        else:
            self.abort()

    @property
    def _can_speak_in_band(self) -> bool:
        return (
            self._event_stream
            and self._keepalive_s is not None
            and self._at_boundary
            and not self._connection.torn
        )

    def abort(self) -> None:
        """Leave the body without its end, so that no client takes it for whole. Idempotent."""
        self._over()

    def _over(self) -> None:
        self.ended = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
