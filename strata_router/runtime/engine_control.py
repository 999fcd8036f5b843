"""Control questions to the engine over HTTP: is it ready, who is it. Never an exchange's bytes.

httpx does this work (contract section 1), one client per question, so no pooled connection outlives an
engine; no environment proxies, every timeout explicit.
"""

import socket
import struct
from dataclasses import dataclass

import httpx

ANSWER_LIMIT_BYTES = 1024 * 1024

CLOSE_BY_RESET = (socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
"""Engines close first; without our reset their port would be in TIME_WAIT for a minute, and one that binds
without SO_REUSEADDR could not follow on it (reports.md B07)."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer; body is cut at ANSWER_LIMIT_BYTES, which no honest one reaches."""

    status: int
    body: bytes


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """Nothing usable came back.

    refused: nobody listens (yet), as opposed to an answer that is broken or late.
    """

    refused: bool


async def ask(
    port: int, path: str, timeout_s: float, body: bytes | None = None
) -> Answer | NoAnswer:
    """GET (or, with a body, POST as JSON) one path of the engine on 127.0.0.1."""
    headers = {"content-type": "application/json"} if body is not None else {}
    # verify=False: making a TLS context takes 20 ms of the event loop, for plain HTTP on loopback.
    transport = httpx.AsyncHTTPTransport(
        trust_env=False, verify=False, socket_options=[CLOSE_BY_RESET]
    )
    try:
        async with (
            httpx.AsyncClient(trust_env=False, timeout=timeout_s, transport=transport) as client,
            client.stream(
                "GET" if body is None else "POST",
                f"http://127.0.0.1:{port}{path}",
                content=body,
                headers={**headers, "connection": "close"},
            ) as response,
        ):
            content = bytearray()
            async for piece in response.aiter_bytes():
                content += piece
                if len(content) > ANSWER_LIMIT_BYTES:
                    break
            return Answer(response.status_code, bytes(content[:ANSWER_LIMIT_BYTES]))
    except httpx.ConnectError:
        return NoAnswer(refused=True)
    except (httpx.HTTPError, httpx.InvalidURL):
        # InvalidURL: httpx builds the request that a redirect asks for, even where it follows none.
        return NoAnswer(refused=False)
