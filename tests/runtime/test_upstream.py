"""runtime.upstream: a request reaches the engine byte for byte, in few writes and without copies."""

import json
import socket

import pytest
import trio

from strata_router.core.chat_request import ChatRequest, read_chat_request
from strata_router.runtime.upstream import LARGE_PART_BYTES, UpstreamExchange, request_pieces

LARGE = "x" * LARGE_PART_BYTES


def pieces_of(**fields: object) -> list[bytes | memoryview]:
    request = read_chat_request(json.dumps({"model": "alias", **fields}).encode())
    assert isinstance(request, ChatRequest)
    return request_pieces("/v1/chat", 4711, b"text/event-stream", request.forwarded_parts("real"))


def expect_request(raw: bytes, **fields: object) -> None:
    head, _, body = raw.partition(b"\r\n\r\n")
    assert head.split(b"\r\n") == [
        b"POST /v1/chat HTTP/1.1",
        b"Host: 127.0.0.1:4711",
        b"Content-Type: application/json",
        b"Content-Length: %d" % len(body),
        b"Accept: text/event-stream",
    ]
    assert json.loads(body) == {"model": "real", **fields}


def test_a_small_request_is_one_piece() -> None:
    (piece,) = pieces_of(messages=["hello"], n=1)
    expect_request(bytes(piece), messages=["hello"], n=1)


@pytest.mark.parametrize(
    "fields",
    [{"a": LARGE}, {"a": LARGE, "b": LARGE}, {"a": 1, "b": LARGE, "c": 2, "d": LARGE, "e": 3}],
    ids=["one", "two_in_a_row", "among_small_ones"],
)
def test_large_parts_are_views_of_the_body_between_pieces_of_what_is_small(
    fields: dict[str, object],
) -> None:
    pieces = pieces_of(**fields)
    large = sum(value == LARGE for value in fields.values())
    assert [isinstance(piece, memoryview) for piece in pieces] == [False, *[True, False] * large]
    expect_request(b"".join(pieces), **fields)


async def test_an_engine_that_reads_slowly_gets_a_large_request_whole() -> None:
    fields = {"a": "y" * 5_000_000, "b": 1, "c": "z" * 3_000_000}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        upstream = await UpstreamExchange.connect(listener.getsockname()[1], lambda: True)
        engine, _ = listener.accept()
        received = bytearray()

        def read_all() -> None:
            while data := engine.recv(50_000):
                received.extend(data)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, read_all)
            await upstream.send(pieces_of(**fields))
            upstream.sock.shutdown(socket.SHUT_WR)
        upstream.close()
        engine.close()
    expect_request(bytes(received), **fields)
