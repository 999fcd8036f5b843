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
from dataclasses import dataclass, replace

import trio

from strata_router.core.admission.ticket import Ticket
from strata_router.core.catalog import Catalog, Resolution
from strata_router.core.chat_request import ChatRequest
from strata_router.core.config.schema import Config
from strata_router.core.http.request_head import RequestHead
from strata_router.core.http.response_head import UpstreamHead
from strata_router.core.moment import Moment
from strata_router.core.refusal import Case, Refusal
from strata_router.core.tap import (
    KEEPALIVE,
    BodyKind,
    ResponseTap,
    body_kind,
    keepalive_with_place,
    upstream_error_event,
)
from strata_router.core.vocabulary import DisconnectPhase, ModelId, Reason, TicketId
from strata_router.runtime.chat_intake import read_request
from strata_router.runtime.clock import moment
from strata_router.runtime.coordinator import Coordinator, Place, ReadyEngine
from strata_router.runtime.http.body_budget import BodyBudget
from strata_router.runtime.http.connection import ClientConnection
from strata_router.runtime.http.pump import Pump
from strata_router.runtime.http.sockets import PeerGone
from strata_router.runtime.http.watcher import DisconnectWatcher
from strata_router.runtime.ledger import Ledger
from strata_router.runtime.relay import Relay
from strata_router.runtime.reply import Reply
from strata_router.runtime.timers import Timer, Timers
from strata_router.runtime.upstream import (
    EngineGone,
    UpstreamBroken,
    UpstreamExchange,
    request_pieces,
)

log = logging.getLogger(__name__)

DEATH_NEWS_S = 0.25
DEATH_LOOK_S = 0.01
"""How long, and how often it looks, a broken answer waits for the news that the engine has died. It keeps
its lease meanwhile: whoever comes next, the same client again or the head of the queue, would be sent to
the dead engine's socket otherwise, and fail as well (reports.md B20)."""

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
    pump: Pump
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
            self._keepalive,
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
        self._broken = False  # the engine failed; what remains is to say so
        self._cut_for: Case | None = None
        self._outcome: Reason | None = None

    async def run(self) -> None:
        """Serve to the end. Raises nothing but cancellation."""
        try:
            try:
                self._services.watcher.watch(self._connection.sock, self._client_gone)
                with self._scope:
                    await self._serve()
                if self._gone:
                    self._outcome = self._outcome or self._outcome_of_leaving()
                elif self._cut_for is not None and self._outcome is None:
                    await self._end_with(Refusal(self._cut_for))
            except PeerGone:
                self._outcome = self._outcome or self._outcome_of_leaving()
            except Exception as exc:
                self._log_mistake(exc)
                try:
                    await self._apologise()
                except Exception as again:
                    self._log_mistake(again)  # the connection's end says the rest
        finally:
            self._finish()

    # ---- ways to end it from outside -----------------------------------------------------------

    def _client_gone(self) -> None:
        """The client's side is closed."""
        self._gone = True
        if self._place is not None and self._phase is DisconnectPhase.QUEUED:
            # Not by our own task, which the coordinator's may overtake: it would admit who is gone.
            self._place.leave()
        self._scope.cancel()

    def cut(self, case: Case) -> None:
        """From the coordinator, or a deadline: end now and say ``case``."""
        if self._cut_for is None:
            self._cut_for = case
            self._scope.cancel()

    def commit(self, model: ModelId) -> None:
        """From the coordinator: the stream's head leaves now and names ``model``."""
        ends = self._gone or self._broken or self._cut_for is not None
        if ends or self._reply.started or self._phase is DisconnectPhase.GENERATING:
            return
        self._resolved(model)
        try:
            self._reply.commit()
        except PeerGone:
            self._client_gone()

    # ---- what others see of it ----------------------------------------------------------------

    @property
    def sse_events(self) -> int | None:
        """For the coordinator's view of the leases."""
        return self._tap.events if self._tap is not None and self._tap.is_stream else None

    def _keepalive(self) -> bytes:
        """The comment for the client now; with its place while it waits, if the operator wants that."""
        if self._services.config.keepalive_details and self._place is not None:
            position = self._place.position()
            if position is not None:
                return keepalive_with_place(*position)
        return KEEPALIVE

    # ---- the way of a request ------------------------------------------------------------------

    async def _serve(self) -> None:
        request = await read_request(
            self._services.config, self._connection, self._head, self._body
        )
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
        # An idle engine's lease would be had at once, without a turn in which the watcher could speak.
        self._services.watcher.look()
        await trio.lowlevel.checkpoint_if_cancelled()
        may_commit = request.stream and config.wait_when_busy
        self._place = self._enter(request, resolution)
        del request  # the place has it, so that the body is gone once it is the engine's
        if may_commit:
            self._at(config.stream_commit_ms, self._request_commit)
        try:
            engine = await self._reach_engine(self._place)
            if isinstance(engine, Refusal):
                await self._refuse(engine)
            else:
                await self._ask_engine(engine)
        except UpstreamBroken:
            self._broken = True
            if not self._was_whole:
                await self._await_news_of_death(self._place)
            await self._end_with(Refusal(Case.UPSTREAM_ERROR))

    def _enter(self, request: ChatRequest, resolution: Resolution) -> Place:
        self._reply.tier = request.tier
        if len(resolution.accepts) == 1:
            self._resolved(resolution.accepts[0])
        ticket = Ticket(
            id=TicketId(self._account.arrival_seq),
            tier=request.tier,
            accepts=resolution.accepts,
            preferred=resolution.preferred,
            arrived_s=trio.current_time(),  # its upload was no wait for a place
        )
        return self._services.coordinator.enter(ticket, request, self)

    def _request_commit(self) -> None:
        if self._place is not None:
            self._place.request_commit()

    async def _reach_engine(self, place: Place, *, again: bool = False) -> ReadyEngine | Refusal:
        """Get a lease, an engine that answers for it, and a connection. Raises UpstreamBroken."""
        config = self._services.config
        admission = await place.admitted()
        if place.left:
            await trio.lowlevel.checkpoint_if_cancelled()  # gone in the instant of its admission
        if isinstance(admission, Refusal):
            return admission
        self._phase = DisconnectPhase.LOADING
        self._resolved(admission.model)
        self._record.admitted(admission.at, admission.model_switch)
        if config.response_ms and config.wait_when_busy:
            self._at(config.response_ms, self._time_is_over)
        engine = await place.ready()
        if place.load_ms is not None:
            self._record.loaded(place.load_ms)
        if isinstance(engine, Refusal):
            return engine
        if config.response_ms and not config.wait_when_busy:
            self._at(config.response_ms, self._time_is_over)
        snapshot = self._services.coordinator.snapshot
        try:
            self._upstream = await UpstreamExchange.connect(
                engine.port, lambda: snapshot().loaded == admission.model
            )
        except EngineGone:
            if again:
                raise
            # It died, and that was not known yet. Nothing was sent, so nothing is repeated by asking the
            # engine that the next load brings up (reports.md B20); once, or a crash loop would go on here.
            return await self._reach_engine(self._enter_again(place, admission.model), again=True)
        return engine

    async def _await_news_of_death(self, place: Place) -> None:
        """Return when the engine is known to be gone, or lives on after DEATH_NEWS_S."""
        assert place.admission is not None
        model, snapshot = place.admission.model, self._services.coordinator.snapshot
        with trio.move_on_after(DEATH_NEWS_S):
            while snapshot().loaded == model:  # noqa: ASYNC110 - no event of the coordinator says this
                await trio.sleep(DEATH_LOOK_S)

    def _enter_again(self, place: Place, model: ModelId) -> Place:
        """Queue once more, as old as before, for the model that the reply may have named already."""
        request = place.request
        assert request is not None, "it is given up when it is sent"
        place.leave()
        ticket = replace(place.ticket, accepts=(model,), preferred=model)
        self._place = self._services.coordinator.enter(ticket, request, self)
        return self._place

    def _time_is_over(self) -> None:
        self.cut(Case.UPSTREAM_TIMEOUT)

    def _resolved(self, model: ModelId) -> None:
        self._reply.model = model
        self._record.resolved(model, self._services.catalog.upstream_model(model))

    def _at(self, delay_ms: int, callback: Callable[[], None]) -> None:
        when = trio.current_time() + delay_ms / 1000
        self._timers.append(self._services.timers.at(when, callback))

    async def _ask_engine(self, engine: ReadyEngine) -> None:
        """Send the request and see the answer through. Raises UpstreamBroken, PeerGone."""
        place, upstream = self._place, self._upstream
        assert place is not None
        assert upstream is not None
        await upstream.send(self._take_request(place, engine))
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

    def _take_request(self, place: Place, engine: ReadyEngine) -> list[bytes | memoryview]:
        """The request for the engine; nothing here holds the body from then on."""
        request, place.request = place.request, None
        assert request is not None, "there is one request per place"
        assert place.admission is not None
        body = request.forwarded_parts(self._services.catalog.upstream_model(place.admission.model))
        accept = b", ".join(self._head.header_list(b"accept")) or None
        return request_pieces(engine.kind.chat_path, engine.port, accept, body)

    # ---- the answer ----------------------------------------------------------------------------

    async def _relay(self, head: UpstreamHead, kind: BodyKind, upstream: UpstreamExchange) -> None:
        """Pass the answer on as it comes, to its end. Raises UpstreamBroken, PeerGone."""
        tap = self._tap = ResponseTap(kind)
        self._reply.begin(head, kind, tap)
        services = self._services
        await Relay(head, upstream, self._reply, tap, services.pump, services.timers).run()
        self._leave()
        await self._reply.end()
        self._outcome = _outcome_of_answer(tap) if _is_2xx(head) else Reason.UPSTREAM_ERROR

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
            await self._reply.end(upstream_error_event(bytes(body), head.status))

    # ---- ends ----------------------------------------------------------------------------------

    async def _refuse(self, refusal: Refusal) -> None:
        self._outcome = refusal.row.reason
        self._leave()
        await self._reply.refuse(refusal)

    async def _end_with(self, refusal: Refusal) -> None:
        """Nothing more will come; say so if that is still possible, soon or not at all."""
        tap = self._tap if self._was_whole else None
        self._outcome = _outcome_of_answer(tap) if tap else refusal.row.reason
        self._leave()
        with trio.move_on_after(LAST_WORDS_S):
            await (self._reply.end() if tap else self._reply.refuse(refusal))

    @property
    def _was_whole(self) -> bool:
        """A stream that has had its [DONE] only lacks its end, whatever happens after that."""
        return self._tap is not None and self._tap.saw_done and not self._connection.torn

    def _log_mistake(self, exc: Exception) -> None:
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

    async def _apologise(self) -> None:
        refusal = Refusal(Case.INTERNAL_ERROR)
        self._outcome = refusal.row.reason
        self._leave()
        if not self._reply.ended:
            with suppress(PeerGone), trio.move_on_after(LAST_WORDS_S):
                await self._reply.refuse(refusal)

    def _outcome_of_leaving(self) -> Reason:
        """Leaving after [DONE] is how some clients say thank you (facts/cliproxyapi.md section 3)."""
        tap = self._tap
        if tap is not None and self._was_whole and self._reply.all_sent:
            return _outcome_of_answer(tap)
        return Reason.CLIENT_DISCONNECT

    def _leave(self) -> None:
        """The lease ends here, and with it the engine's connection."""
        if self._place is not None:
            self._place.leave()
        if self._upstream is not None:
            self._upstream.close()

    def _finish(self) -> None:
        """Synchronous: whatever happened, nothing is held and there is one record."""
        try:
            for timer in self._timers:
                timer.cancel()
            self._leave()
            self._body.release()
            self._reply.abort()
            self._services.watcher.forget(self._connection.sock)
        finally:
            self._close_account()

    def _close_account(self) -> None:
        if self._tap is not None:
            self._record.accounting(self._tap.close())
        outcome = self._outcome or Reason.SHUTDOWN
        phase = self._phase if outcome is Reason.CLIENT_DISCONNECT else None
        end: Moment = moment()
        finished = self._record.finish(end, outcome, disconnect_phase=phase)
        self._services.ledger.close(finished, self._reply.tier)


def _is_2xx(head: UpstreamHead) -> bool:
    return 200 <= head.status < 300


def _outcome_of_answer(tap: ResponseTap) -> Reason:
    """Of one that came to its end: Strata's [DONE] follows error frames, too (contract 9)."""
    return Reason.UPSTREAM_ERROR if tap.saw_error else Reason.COMPLETED


def _kind_of(head: UpstreamHead) -> BodyKind:
    if head.encoded:
        return BodyKind.OPAQUE
    return body_kind(head.content_type, b"")
