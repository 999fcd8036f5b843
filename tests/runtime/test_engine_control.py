"""runtime.engine_control: whatever answers on the engine's port, a question ends in a value."""

import socket

import pytest
import trio

from strata_router.runtime.engine_control import Answer, NoAnswer, ask


async def asked(reply: bytes) -> Answer | NoAnswer:
    """What ``ask`` makes of a server that says this and closes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        acceptor = trio.socket.from_stdlib_socket(listener.dup())

        async def answer() -> None:
            client, _ = await acceptor.accept()
            with client:
                await client.recv(65536)
                await client.send(reply)

        with acceptor:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(answer)
                outcome = await ask(port, "/health", 5)
        return outcome


async def test_an_answer_is_given_whole() -> None:
    reply = b"HTTP/1.1 503 Busy\r\nContent-Length: 2\r\n\r\nok"
    assert await asked(reply) == Answer(503, b"ok")


@pytest.mark.parametrize("location", [b"http:0", b"t:h7", b"http://[", b"/else"])
async def test_a_strange_redirect_is_no_reason_to_fall_over(location: bytes) -> None:
    outcome = await asked(
        b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: " + location + b"\r\n\r\n"
    )
    assert outcome in (NoAnswer(refused=False), Answer(302, b""))


@pytest.mark.parametrize("reply", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Le"])
async def test_what_is_not_http_is_no_answer(reply: bytes) -> None:
    assert await asked(reply) == NoAnswer(refused=False)


async def test_nobody_there_is_told_apart() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert await ask(port, "/health", 5) == NoAnswer(refused=True)
