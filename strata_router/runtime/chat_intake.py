"""Takes one chat request in: what its head alone decides, its body within all bounds, what it asks for.

Called once per exchange, before there is a ticket; holds nothing afterwards but the body's reservation,
which is the exchange's. Source: contract 5, 6.1; reliability.md, "Bounds".
"""

import trio

from strata_router.core.chat_request import ChatRequest, read_chat_request
from strata_router.core.config.schema import Config
from strata_router.core.http.access import check_access
from strata_router.core.http.request_head import RequestHead
from strata_router.core.refusal import Case, Refusal
from strata_router.runtime.http.body_budget import CHUNKED_STEP_BYTES, BodyReservation
from strata_router.runtime.http.connection import BodyFault, ClientConnection

PARSE_IN_THREAD_BYTES = 1024 * 1024
"""Below this a scan takes less than handing it to a thread and back is worth."""


async def read_request(
    config: Config, connection: ClientConnection, head: RequestHead, reservation: BodyReservation
) -> ChatRequest | Refusal:
    """The request, or why it is refused. Raises PeerGone when the client leaves while uploading."""
    refusal = _refusal_by_head(config, head)
    if refusal is not None:
        return refusal
    try:
        body = await _read_body(config, connection, head, reservation)
    except BodyFault as fault:
        return fault.refusal
    if body is None:
        return _too_large(config)
    if len(body) > PARSE_IN_THREAD_BYTES:
        return await trio.to_thread.run_sync(read_chat_request, body)
    return read_chat_request(body)


def _refusal_by_head(config: Config, head: RequestHead) -> Refusal | None:
    """What the head alone decides, before a byte of the body is read."""
    refusal = check_access(head, config.allowed_hosts, config.allowed_origins)
    if refusal is not None:
        return refusal
    for encoding in head.header_list(b"content-encoding"):
        if encoding.strip().lower() not in (b"", b"identity"):
            return Refusal(Case.UNSUPPORTED_ENCODING)
    if (head.content_length or 0) > config.max_request_body_bytes:
        return _too_large(config)
    return None


def _too_large(config: Config) -> Refusal:
    limit = config.max_request_body_bytes
    return Refusal(Case.REQUEST_TOO_LARGE, f"The request body is larger than {limit} bytes.")


async def _read_body(
    config: Config, connection: ClientConnection, head: RequestHead, reservation: BodyReservation
) -> bytearray | None:
    """The whole body, within the shared budget; None when it is over the limit."""
    if head.content_length is not None:
        await reservation.reserve(head.content_length)
    # One growing buffer: a list of pieces would be twice the memory when joined.
    body = bytearray()
    while piece := await connection.read_body_piece():
        if len(body) + len(piece) > config.max_request_body_bytes:
            return None
        body += piece
        if head.chunked:
            steps = -(-len(body) // CHUNKED_STEP_BYTES)
            await reservation.reserve(steps * CHUNKED_STEP_BYTES)
    reservation.whole()
    return body
