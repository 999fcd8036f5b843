"""Serves everything but the chat path: runs an ASGI app in-process, through Hypercorn's stream layer.

Hypercorn's ``HTTPStream`` translates between HTTP events and ASGI; its server, which owns connections
in a way that breaks our promises (facts/http-stack.md section 3), is not used. In particular the app
never sees ``http.disconnect`` because a response has ended, only when the client has left.
"""

import logging
from collections.abc import Awaitable, Callable

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.protocol import events
from hypercorn.protocol.http_stream import HTTPStream
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import (
    AppWrapper,
    ASGIFramework,
    ASGIReceiveEvent,
    ASGISendEvent,
    ConnectionState,
    Scope,
)

from strata_router.core.http.request_head import RequestHead
from strata_router.core.http.response_head import Headers
from strata_router.core.refusal import Case, Refusal
from strata_router.runtime.http.connection import BodyFault, ClientConnection
from strata_router.runtime.http.server import refuse
from strata_router.runtime.http.sockets import PeerGone
from strata_router.runtime.http.watcher import DisconnectWatcher

log = logging.getLogger(__name__)

BODY_LIMIT_BYTES = 1024 * 1024
"""No route of the app takes a body; one that comes is read over, up to this, to keep the connection."""

_FRAMING = (b"content-length", b"transfer-encoding", b"connection", b"date", b"server")


class AppBridge:
    """Runs one ASGI app for many connections."""

    def __init__(self, app: ASGIFramework, watcher: DisconnectWatcher) -> None:
        self._app = ASGIWrapper(app)
        self._config = Config()
        self._context = WorkerContext(None)
        self._watcher = watcher

    async def serve(self, connection: ClientConnection, head: RequestHead) -> None:
        """Answer one request. Raises PeerGone, BodyFault."""
        await _read_over_body(connection)
        async with trio.open_nursery() as nursery:
            answer = _Answer(connection)
            stream = HTTPStream(
                self._app,
                self._config,
                self._context,
                _AppTasks(nursery),  # type: ignore[arg-type]  # the two methods that HTTPStream calls
                ssl=False,
                client=None,
                server=None,
                send=answer.take,
                stream_id=1,
            )
            self._watcher.watch(connection.sock, nursery.cancel_scope.cancel)
            try:
                target = head.path.encode("ascii") + (b"?" + head.query if head.query else b"")
                await stream.handle(
                    events.Request(
                        stream_id=1,
                        headers=list(head.headers),
                        http_version=head.version,
                        method=head.method,
                        raw_path=target,
                        state=ConnectionState({}),
                    )
                )
                await stream.handle(events.EndBody(stream_id=1))
                await answer.over.wait()
            finally:
                self._watcher.forget(connection.sock)
        if answer.client_left or not answer.over.is_set():
            raise PeerGone
        if answer.failed:
            await refuse(connection, Refusal(Case.INTERNAL_ERROR))


async def _read_over_body(connection: ClientConnection) -> None:
    taken_bytes = 0
    while piece := await connection.read_body_piece():
        taken_bytes += len(piece)
        if taken_bytes > BODY_LIMIT_BYTES:
            raise BodyFault(Refusal(Case.REQUEST_TOO_LARGE))


class _Answer:
    """Turns HTTPStream's events into writes on the connection."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._started: events.Response | None = None
        self.over = trio.Event()
        self.client_left = False
        self.failed = False

    async def take(self, event: events.Event) -> None:
        # An exception here would surface inside the app, as if it were its own.
        try:
            await self._take(event)
        except PeerGone:
            self.client_left = True
            self.over.set()

    async def _take(self, event: events.Event) -> None:
        if self.client_left or self.over.is_set():
            return
        match event:
            case events.Response():
                if event.status_code >= 500 and not _has_body(event):
                    # HTTPStream's own bare 500: the app raised before it answered.
                    self.failed = True
                else:
                    self._begin(event)
            case events.Body(data=data):
                await self._connection.send_body(bytes(data))
            case events.EndBody():
                if not self.failed:
                    await self._connection.end_response()
                self.over.set()
            case events.StreamClosed():
                self.over.set()
            case _:
                pass  # trailers and pushes are not offered to HTTP/1.1

    def _begin(self, event: events.Response) -> None:
        headers: Headers = [(name, value) for name, value in event.headers if name not in _FRAMING]
        lengths = [int(value) for name, value in event.headers if name == b"content-length"]
        self._connection.begin_response(event.status_code, headers, lengths[0] if lengths else None)


def _has_body(event: events.Response) -> bool:
    return not any(name == b"content-length" and value == b"0" for name, value in event.headers)


class _AppTasks:
    """What HTTPStream needs of Hypercorn's TaskGroup: run the app in our nursery."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery

    async def spawn_app(
        self,
        app: AppWrapper,
        config: Config,
        scope: Scope,
        send: Callable[[ASGISendEvent | None], Awaitable[None]],
    ) -> Callable[[ASGIReceiveEvent], Awaitable[None]]:
        to_app, from_client = trio.open_memory_channel[ASGIReceiveEvent](10)
        self._nursery.start_soon(_run_app, app, scope, from_client.receive, send)
        return to_app.send


async def _run_app(
    app: AppWrapper,
    scope: Scope,
    receive: Callable[[], Awaitable[ASGIReceiveEvent]],
    send: Callable[[ASGISendEvent | None], Awaitable[None]],
) -> None:
    try:
        await app(scope, receive, send, trio.to_thread.run_sync, trio.from_thread.run)
    except Exception as exc:  # the top of the app's task: the request fails, the daemon goes on
        log.error("a page or API route failed: %s", type(exc).__name__)
    await send(None)
