"""Answers that are not chat completions, and the mark of a connection that is cut on purpose."""

from .event_stream import SSE_HEADERS
from .http_wire import Reply


class ConnectionCut(Exception):
    """A fault that ends the connection while the server lives on; by a reset if so marked."""

    def __init__(self, *, by_reset: bool) -> None:
        super().__init__("the connection is cut on purpose")
        self.by_reset = by_reset


def answer_instead(reply: Reply, how: str) -> None:
    """Send the answer that the knob ``answer`` names. Raises ClientGone."""
    match how:
        case "html500":
            reply.page(500)
        case "json500":
            reply.error(500, "the simulated engine was told to fail", "server_error")
        case "json400":
            reply.error(400, "the simulated engine was told to refuse", "invalid_request_error")
        case "busy":
            reply.error(503, "the GPU is busy; try again later", "server_error")
        case "empty200":
            reply.whole(200, "application/json", b"")
        case "headers_only":
            reply.head(200, *SSE_HEADERS)
        case "broken_head":
            reply.raw(b"HTP/1.0 two hundred\r\nno colon here\r\n\r\n")
        case "broken_chunk":
            reply.head(200, *SSE_HEADERS, ("Transfer-Encoding", "chunked"), version="HTTP/1.1")
            reply.body(b"12\r\ndata: {}\n\ndata: {}\r\nxyz\r\nno size\r\n")
        case "short_body":
            reply.head(200, ("Content-Type", "application/json"), ("Content-Length", "1000"))
            reply.body(b'{"choices":')
        case "nothing":
            pass
