"""Sends each request where it belongs: the chat path to an exchange, the rest to the app.

The only place that compares a path with the chat path.
"""

from strata_router.core.config.schema import Config
from strata_router.core.http.access import check_access
from strata_router.core.http.request_head import RequestHead
from strata_router.core.refusal import Case, Refusal
from strata_router.core.vocabulary import CHAT_PATH
from strata_router.runtime.exchange import Exchange, Services
from strata_router.runtime.http.app_bridge import AppBridge
from strata_router.runtime.http.connection import ClientConnection
from strata_router.runtime.http.server import refuse


class Front:
    """The server's handler."""

    def __init__(self, config: Config, services: Services, app: AppBridge) -> None:
        self._config = config
        self._services = services
        self._app = app

    async def handle(self, connection: ClientConnection, head: RequestHead) -> None:
        """Answer one request. Raises PeerGone, BodyFault."""
        is_chat = head.path.rstrip("/") == CHAT_PATH
        if is_chat and head.method == "POST":
            await Exchange(self._services, connection, head).run()
            return
        refusal = check_access(head, self._config.allowed_hosts, self._config.allowed_origins)
        if refusal is not None:
            await refuse(connection, refusal)
        elif head.method == "OPTIONS":
            # Answered at once and granting nothing: a browser then keeps foreign pages out (contract 5).
            allow = b"POST, OPTIONS" if is_chat else b"GET, HEAD, OPTIONS"
            await connection.respond(204, [(b"allow", allow)], b"")
        elif is_chat:
            await refuse(
                connection, Refusal(Case.METHOD_NOT_ALLOWED), [(b"allow", b"POST, OPTIONS")]
            )
        else:
            await self._app.serve(connection, head)
