"""One chat request from its head to its record.

    reading --> queued --> loading (engine, then its headers) --> generating --> over
       any of these --client gone, cut, fault--> over

``run`` returns when the response is over (or the client is), having left exactly one record, no
ticket or lease, and no connection to the engine. Clean-up is synchronous.
Source: contract 6; design, "Per-request accounting".
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import trio

from strata_router.core.admission.ticket import Ticket
from strata_router.core.catalog import Catalog, Resolution
from strata_router.core.chat_request import ChatRequest, read_chat_request
from strata_router.core.config.schema import Config
from strata_router.core.http.access import check_access
from strata_router.core.http.request_head import RequestHead
from strata_router.core.http.response_head import UpstreamHead
from strata_router.core.moment import Moment
from strata_router.core.refusal import Case, Refusal
from strata_router.core.tap import BodyKind, ResponseTap, body_kind, upstream_error_event
from strata_router.core.vocabulary import DisconnectPhase, ModelId, Reason, TicketId
from strata_router.runtime.clock import moment
from strata_router.runtime.coordinator import Coordinator, Place, ReadyEngine
from strata_router.runtime.http.body_budget import CHUNKED_STEP_BYTES, BodyBudget
from strata_router.runtime.http.connection import BodyFault, ClientConnection
from strata_router.runtime.http.sockets import PeerGone
from strata_router.runtime.http.watcher import DisconnectWatcher
from strata_router.runtime.ledger import Ledger
from strata_router.runtime.reply import Reply
from strata_router.runtime.timers import Timer, Timers
from strata_router.runtime.upstream import UpstreamBroken, UpstreamExchange, request_bytes

log = logging.getLogger(__name__)

HOLD_S = 0.05
"""How long ``[DONE]`` waits for the engine's EOF, to leave in one write with the end of the body: Go
clients reuse the connection only then (facts/cliproxyapi.md section 3; contract 6.4)."""

PARSE_IN_THREAD_BYTES = 1024 * 1024

LAST_WORDS_S = 1.0
"""How long the last bytes of a cut exchange may take to be handed over."""

ERROR_BODY_LIMIT_BYTES = 256 * 1024
"""How much of the engine's error reply is read to put it in-band."""


@dataclass(frozen=True, slots=True)
class Services:
    """What exchanges share; each belongs to the task that its module names."""

    config: Config
    catalog: Catalog
    coordinator: Coordinator
    ledger: Ledger
    timers: Timers
    watcher: DisconnectWatcher
    budget: BodyBudget


class Exchange:
    """One POST on the chat path. Made when its head is complete; ``run`` once."""

    def __init__(self, services: Services, connection: ClientConnection, head: RequestHead) -> None:
        self._services = services
        self._connection = connection
        self._head = head
        self._account = services.ledger.open(*services.coordinator.depths())
        self._record = self._account.record
        self._reply = Reply(
            connection,
            self._account,
            services.timers,
            services.config.keepalive_ms / 1000 if services.config.wait_when_busy else None,
            self._client_gone,
        )
        self._scope = trio.CancelScope()
        self._body = services.budget.open()
        self._place: Place | None = None
        self._upstream: UpstreamExchange | None = None
        self._tap: ResponseTap | None = None
        self._timers: list[Timer] = []
        self._phase = DisconnectPhase.QUEUED
        self._gone = False
        self._cut_for: Case | None = None
        self._done_sent = False
        self._outcome: Reason | None = None

    async def run(self) -> None:
        """Serve to the end. Raises nothing but cancellation."""
        self._services.watcher.watch(self._connection.sock, self._client_gone)
        try:
            try:
                with self._scope:
                    await self._serve()
                if self._gone:
                    self._outcome = self._outcome or self._outcome_of_leaving()
                elif self._cut_for is not None and self._outcome is None:
                    await self._end_with(Refusal(self._cut_for))
            except PeerGone:
                self._outcome = self._outcome or self._outcome_of_leaving()
            except Exception as exc:
                await self._apologise(exc)
        finally:
            self._finish()

    # ---- ways to end it from outside -----------------------------------------------------------

    def _client_gone(self) -> None:
        """The client's side is closed."""
        self._gone = True
        self._scope.cancel()

    def cut(self, case: Case) -> None:
        """From the coordinator, or a deadline: end now and say ``case``."""
        if self._cut_for is None:
            self._cut_for = case
            self._scope.cancel()

    def commit(self, model: ModelId) -> None:
        """From the coordinator: the stream's head leaves now and names ``model``."""
        if self._reply.started or self._phase is DisconnectPhase.GENERATING or self._gone:
            return
        self._resolved(model)
        try:
            self._reply.commit()
        except PeerGone:
            self._client_gone()

    # ---- the way of a request ------------------------------------------------------------------

    async def _serve(self) -> None:
        request = self._refusal_by_head() or await self._read_request()
        if isinstance(request, Refusal):
            await self._refuse(request)
            return
        config, catalog = self._services.config, self._services.catalog
        self._record.parsed(
            request.stream, request.model if catalog.is_known_name(request.model) else None
        )
        resolution = catalog.resolve(request.model)
        if isinstance(resolution, Refusal):
            await self._refuse(resolution)
            return
        place = self._enter(request, resolution)
        if request.stream and config.wait_when_busy:
            self._at(config.stream_commit_ms, place.request_commit)
        admission = await place.admitted()
        if isinstance(admission, Refusal):
            await self._refuse(admission)
            return
        self._phase = DisconnectPhase.LOADING
        self._resolved(admission.model)
        self._record.admitted(admission.at, admission.model_switch)
        if config.response_ms and config.wait_when_busy:
            self._at(config.response_ms, lambda: self.cut(Case.UPSTREAM_TIMEOUT))
        engine = await place.ready()
        if place.load_ms is not None:
            self._record.loaded(place.load_ms)
        if isinstance(engine, Refusal):
            await self._refuse(engine)
            return
        try:
            await self._ask_engine(engine, place, request, admission.model)
        except UpstreamBroken:
            await self._end_with(Refusal(Case.UPSTREAM_ERROR))

    def _refusal_by_head(self) -> Refusal | None:
        """What the head alone decides, before a byte of the body is read."""
        config = self._services.config
        refusal = check_access(self._head, config.allowed_hosts, config.allowed_origins)
        if refusal is not None:
            return refusal
        for encoding in self._head.header_list(b"content-encoding"):
            if encoding.strip().lower() not in (b"", b"identity"):
                return Refusal(Case.UNSUPPORTED_ENCODING)
        if (self._head.content_length or 0) > config.max_request_body_bytes:
            return self._too_large()
        return None

    def _too_large(self) -> Refusal:
        limit = self._services.config.max_request_body_bytes
        return Refusal(Case.REQUEST_TOO_LARGE, f"The request body is larger than {limit} bytes.")

    async def _read_request(self) -> ChatRequest | Refusal:
        try:
            body = await self._read_body()
        except BodyFault as fault:
            return fault.refusal
        if body is None:
            return self._too_large()
        if len(body) > PARSE_IN_THREAD_BYTES:
            return await trio.to_thread.run_sync(read_chat_request, body)
        return read_chat_request(body)

    async def _read_body(self) -> bytes | None:
        """The whole body, within the shared budget; None when it is over the limit."""
        limit_bytes = self._services.config.max_request_body_bytes
        if self._head.content_length is not None:
            await self._body.reserve(self._head.content_length)
        pieces: list[bytes] = []
        total_bytes = 0
        while piece := await self._connection.read_body_piece():
            total_bytes += len(piece)
            if total_bytes > limit_bytes:
                return None
            if self._head.chunked:
                steps = -(-total_bytes // CHUNKED_STEP_BYTES)
                await self._body.reserve(steps * CHUNKED_STEP_BYTES)
            pieces.append(piece)
        self._body.whole()
        return b"".join(pieces)

    def _enter(self, request: ChatRequest, resolution: Resolution) -> Place:
        self._reply.tier = request.tier
        if len(resolution.accepts) == 1:
            self._resolved(resolution.accepts[0])
        ticket = Ticket(
            id=TicketId(self._account.arrival_seq),
            tier=request.tier,
            accepts=resolution.accepts,
            preferred=resolution.preferred,
            arrived_s=self._account.arrived.monotonic_s,
        )
        self._place = self._services.coordinator.enter(ticket, request, self)
        return self._place

    def _resolved(self, model: ModelId) -> None:
        self._reply.model = model
        self._record.resolved(model, self._services.catalog.upstream_model(model))

    def _at(self, delay_ms: int, callback: Callable[[], None]) -> None:
        when = trio.current_time() + delay_ms / 1000
        self._timers.append(self._services.timers.at(when, callback))

    async def _ask_engine(
        self, engine: ReadyEngine, place: Place, request: ChatRequest, model: ModelId
    ) -> None:
        config = self._services.config
        if config.response_ms and not config.wait_when_busy:
            self._at(config.response_ms, lambda: self.cut(Case.UPSTREAM_TIMEOUT))
        self._upstream = upstream = await UpstreamExchange.connect(engine.port)
        body = request.forwarded_body(self._services.catalog.upstream_model(model))
        place.request = None  # the one copy of the body is about to be the engine's
        del request
        accept = self._head.header(b"accept")
        await upstream.send(request_bytes(engine.kind.chat_path, engine.port, accept, body))
        del body
        self._body.release()
        head = await upstream.response_head()
        self._phase = DisconnectPhase.GENERATING
        self._record.upstream_headers(moment(), head.status)
        place.headers_arrived()
        kind = _kind_of(head)
        if self._reply.committed and (head.status != 200 or kind is not BodyKind.SSE):
            await self._put_error_in_band(head, upstream)
        else:
            await self._relay(head, kind, upstream)

    # ---- the answer ----------------------------------------------------------------------------

    async def _relay(self, head: UpstreamHead, kind: BodyKind, upstream: UpstreamExchange) -> None:
        """Pass the answer on as it comes; one read is one write. Raises UpstreamBroken, PeerGone."""
        tap = self._tap = ResponseTap(kind)
        reply = self._reply
        reply.begin(head, kind, tap)
        held = b""
        passed = False
        while True:
            # Two things may wait a moment for what follows: [DONE] for the end of the body, and a stream's
            # head for its first event, so that an engine that dies there still gets an honest status.
            waits = bool(held) or (kind is BodyKind.SSE and not reply.started)
            # A cancel scope costs more than the read it bounds, so only these two reads get one.
            data = await (_read_within_hold(upstream) if waits else upstream.read())
            if data is None:
                await reply.forward(held, trio.current_time())
                self._done_sent = bool(held)
                held = b""
                continue
            if not data:
                break
            passed = True
            now = moment()
            tap.feed(data, now)
            forward, held = tap.hold_done(held + data)
            if forward:
                await reply.forward(forward, now.monotonic_s)
        if not _is_whole(head, kind, tap, passed):
            raise UpstreamBroken("the engine's answer ended too early")
        self._leave()
        await reply.end(held)
        well = 200 <= head.status < 300 and not tap.saw_error
        self._outcome = Reason.COMPLETED if well else Reason.UPSTREAM_ERROR

    async def _put_error_in_band(self, head: UpstreamHead, upstream: UpstreamExchange) -> None:
        """The engine refuses a stream whose 200 has left already."""
        body = bytearray()
        while len(body) <= ERROR_BODY_LIMIT_BYTES and (data := await upstream.read()):
            body += data
        self._leave()
        self._outcome = Reason.UPSTREAM_ERROR
        if head.status < 400:
            await self._reply.refuse(Refusal(Case.UPSTREAM_ERROR))
        else:
            await self._reply.end_in_band(upstream_error_event(bytes(body), head.status))

    # ---- ends ----------------------------------------------------------------------------------

    async def _refuse(self, refusal: Refusal) -> None:
        self._outcome = refusal.row.reason
        self._leave()
        await self._reply.refuse(refusal)

    async def _end_with(self, refusal: Refusal) -> None:
        """The answer cannot be finished; say so if that is still possible, soon or not at all."""
        self._outcome = refusal.row.reason
        self._leave()
        with trio.move_on_after(LAST_WORDS_S) as bound:
            await self._reply.refuse(refusal)
        if bound.cancelled_caught:
            self._reply.abort()

    async def _apologise(self, exc: Exception) -> None:
        """A bug of ours. Its text may hold request content, so only its kind and place are logged."""
        trace = exc.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        where = f"{trace.tb_frame.f_code.co_qualname}:{trace.tb_lineno}" if trace else "?"
        log.error(
            "exchange %s: internal error %s in %s",
            self._account.request_id,
            type(exc).__name__,
            where,
        )
        with suppress(PeerGone):
            await self._end_with(Refusal(Case.INTERNAL_ERROR))

    def _outcome_of_leaving(self) -> Reason:
        """Leaving after [DONE] is how some clients say thank you (facts/cliproxyapi.md section 3)."""
        return Reason.COMPLETED if self._done_sent else Reason.CLIENT_DISCONNECT

    def _leave(self) -> None:
        """The lease ends here, and with it the engine's connection."""
        if self._place is not None:
            self._place.leave()
        if self._upstream is not None:
            self._upstream.close()

    def _finish(self) -> None:
        """Synchronous: whatever happened, nothing is held and there is one record."""
        for timer in self._timers:
            timer.cancel()
        self._leave()
        self._body.release()
        self._reply.abort()
        self._services.watcher.forget(self._connection.sock)
        if self._tap is not None:
            self._record.accounting(self._tap.close())
        outcome = self._outcome or Reason.SHUTDOWN
        phase = self._phase if outcome is Reason.CLIENT_DISCONNECT else None
        end: Moment = moment()
        self._services.ledger.close(self._record.finish(end, outcome, disconnect_phase=phase))


async def _read_within_hold(upstream: UpstreamExchange) -> bytes | None:
    """``upstream.read``, or None when nothing has come within HOLD_S."""
    with trio.move_on_after(HOLD_S):
        return await upstream.read()
    return None


def _is_whole(head: UpstreamHead, kind: BodyKind, tap: ResponseTap, passed: bool) -> bool:
    """A 200 without a body is no answer; a stream is whole only with its [DONE]: Strata's end at the
    close of the connection, so a killed engine looks like an end (contract 6.4)."""
    if head.status != 200:
        return True
    return tap.saw_done if kind is BodyKind.SSE else passed


def _kind_of(head: UpstreamHead) -> BodyKind:
    if head.encoded:
        return BodyKind.OPAQUE
    return body_kind(head.content_type, b"")
