"""runtime.http: the connection loop on real sockets (contract 1, 5; reports.md B15, B16, B19)."""

import math
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
import trio
import trio.lowlevel
import trio.testing

from strata_router.core.http.framing import CHUNK_LINE_LIMIT_BYTES
from strata_router.core.http.request_head import HEAD_LIMIT_BYTES, RequestHead
from strata_router.runtime.http import sockets
from strata_router.runtime.http.connection import ClientConnection, Limits
from strata_router.runtime.http.server import Server
from strata_router.runtime.http.sockets import PeerGone
from tests.runtime.http.raw import GENEROUS, RawClient, get, post, serving
from tests.runtime.http.test_watcher import tcp_pair


async def echo(connection: ClientConnection, head: RequestHead) -> None:
    """Answer with what was asked: method, path, and the body."""
    body = b""
    while piece := await connection.read_body_piece():
        body += piece
    answer = b"%b %b %b" % (head.method.encode(), head.path.encode(), body)
    await connection.respond(200, [(b"content-type", b"text/plain")], answer)


async def test_a_connection_serves_many_requests() -> None:
    async with serving(echo) as serving_:
        client = await serving_.connect()
        for number in range(3):
            await client.send(post(f"/{number}", body=b"x" * number))
            reply = await client.reply()
            assert reply.status == 200
            assert reply.body == b"POST /%d %b" % (number, b"x" * number)
            assert "connection" not in reply.headers


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with serving(echo) as serving_:
        client = await serving_.connect()
        await client.send(post("/1", body=b"a"), post("/2", body=b"b"), get("/3"))
        bodies = [(await client.reply()).body for _ in range(3)]
        assert bodies == [b"POST /1 a", b"POST /2 b", b"GET /3 "]


@pytest.mark.parametrize("pipelined", [True, False], ids=["pipelined", "one_by_one"])
async def test_a_connection_whose_next_request_is_always_there_leaves_the_others_their_turn(
    pipelined: bool,
) -> None:
    """Nothing in serving it ever has to wait, so it must wait of its own accord."""
    count, served, quick = 50, [], get("/quick")
    other_end = socket.socket()

    async def at_once(connection: ClientConnection, head: RequestHead) -> None:
        served.append(head.path)
        if not pipelined and len(served) < count:
            other_end.send(quick)  # in the kernel's buffer before this connection looks for it
        await connection.respond(200, [], b"")

    async with serving(at_once) as serving_:
        busy, patient = await serving_.connect(), await serving_.connect()
        other_end.close()
        other_end = busy.stream.socket._sock  # type: ignore[attr-defined]  # no public way
        await trio.testing.wait_all_tasks_blocked()
        await busy.send(quick * (count if pipelined else 1))
        await patient.send(get("/patient"))
        assert (await patient.reply()).status == 200
        for _ in range(count):
            await busy.reply()
    assert served.index("/patient") < 10


async def test_blank_lines_before_a_request_are_ignored() -> None:
    async with serving(echo) as serving_:
        client = await serving_.connect()
        await client.send(b"\r\n\n", post("/1", body=b"a"), b"\r\n", get("/2"))
        assert (await client.reply()).body == b"POST /1 a"
        assert (await client.reply()).body == b"GET /2 "


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"use http://"),
        (b"\r\n\x16", b"use http://"),
        (b"\x00\x00", b"does not begin with a method"),
        (b"\xff", b"does not begin with a method"),
    ],
)
async def test_what_cannot_become_a_request_is_refused_without_waiting_for_the_rest(
    sent: bytes, words: bytes
) -> None:
    """Waiting would end in a 408."""
    async with serving(echo) as serving_:
        client = await serving_.connect()
        await client.send(sent)
        reply = await client.reply()
        assert (reply.status, reply.headers["connection"]) == (400, ["close"])
        assert words in reply.body
        assert await client.at_eof()


async def test_a_head_that_comes_byte_by_byte_is_waited_for() -> None:
    async with serving(echo) as serving_:
        client = await serving_.connect()
        for byte in b"\r\n" + get("/slow"):
            await client.send(bytes([byte]))
            await trio.testing.wait_all_tasks_blocked()
        assert (await client.reply()).body == b"GET /slow "


async def test_a_chunked_body_with_extensions_and_trailers_leaves_the_connection_usable() -> None:
    async with serving(echo) as serving_:
        client = await serving_.connect()
        await client.send(post("/", "Transfer-Encoding: chunked", body=None))
        await client.send(b"3;ext=1\r\nab")
        await client.send(b"c\r\n2\r\nde\r\n0\r\nX-Trailer: y\r\n\r\n", get("/next"))
        assert (await client.reply()).body == b"POST / abcde"
        assert (await client.reply()).body == b"GET /next "


async def test_100_continue_is_sent_at_once_when_the_body_is_wanted() -> None:
    async with serving(echo) as serving_:
        client = await serving_.connect()
        await client.send(post("/", "Expect: 100-continue", "Content-Length: 3", body=None))
        with trio.fail_after(2):
            assert (await client.head()).status == 100
        await client.send(b"abc")
        assert (await client.reply()).body == b"POST / abc"


async def test_100_continue_is_not_sent_when_the_body_is_already_here() -> None:
    async with serving(echo) as serving_:
        client = await serving_.connect()
        await client.send(post("/", "Expect: 100-continue", body=b"abc"))
        assert (await client.head()).status == 200


async def test_100_continue_is_not_sent_before_a_refusal() -> None:
    async def refuse(connection: ClientConnection, head: RequestHead) -> None:
        await connection.respond(413, [], b"no")

    async with serving(refuse) as serving_:
        client = await serving_.connect()
        await client.send(post("/", "Expect: 100-continue", "Content-Length: 9", body=None))
        reply = await client.head()
        assert reply.status == 413
        assert reply.headers["connection"] == ["close"]


@pytest.mark.parametrize("connection_header", ["Connection: keep-alive", "X: y"])
async def test_http_1_0_is_answered_and_closed(connection_header: str) -> None:
    async with serving(echo) as serving_:
        client = await serving_.connect()
        await client.send(post("/", connection_header, body=b"a", version="1.0"))
        reply = await client.reply()
        assert reply.body == b"POST / a"
        assert reply.headers["connection"] == ["close"]
        assert await client.at_eof()


async def stream_three(connection: ClientConnection, head: RequestHead) -> None:
    connection.begin_response(200, [], None)
    for _ in range(3):
        await connection.send_body(b"tick ")
        await trio.sleep(0.01)
    await connection.end_response(b"end")


async def test_a_body_of_unknown_length_is_chunked_for_http_1_1() -> None:
    async with serving(stream_three) as serving_:
        client = await serving_.connect()
        await client.send(get("/"), get("/"))
        for _ in range(2):
            reply = await client.reply()
            assert reply.headers["transfer-encoding"] == ["chunked"]
            assert reply.body == b"tick tick tick end"


async def test_a_body_of_unknown_length_ends_at_the_close_for_http_1_0() -> None:
    async with serving(stream_three) as serving_:
        client = await serving_.connect()
        await client.send(get("/", version="1.0"))
        reply = await client.reply()
        assert "transfer-encoding" not in reply.headers
        assert reply.body == b"tick tick tick end"


async def test_head_gets_the_headers_and_no_body() -> None:
    async def respond(connection: ClientConnection, head: RequestHead) -> None:
        await connection.respond(200, [], b"12345")

    async with serving(respond) as serving_:
        client = await serving_.connect()
        await client.send(get("/", method="HEAD"), get("/"))
        reply = await client.reply(no_body=True)
        assert reply.headers["content-length"] == ["5"]
        assert (await client.reply()).body == b"12345"


async def cut_in_the_middle(connection: ClientConnection, head: RequestHead) -> None:
    connection.begin_response(200, [], None)
    await connection.send_body(b"half")


async def test_a_response_without_its_end_is_visibly_cut() -> None:
    async with serving(cut_in_the_middle) as serving_:
        client = await serving_.connect()
        await client.send(get("/"))
        reply = await client.reply()
        assert reply.cut


async def test_a_response_without_its_end_is_a_reset_for_http_1_0() -> None:
    async with serving(cut_in_the_middle) as serving_:
        client = await serving_.connect()
        await client.send(get("/", version="1.0"))
        with pytest.raises(trio.BrokenResourceError):
            await client.reply()


async def test_b19_an_early_refusal_of_a_big_body_reaches_the_client_as_its_answer() -> None:
    async def refuse(connection: ClientConnection, head: RequestHead) -> None:
        await connection.respond(413, [], b"too big")

    async with serving(refuse) as serving_:
        for _ in range(6):
            client = await serving_.connect()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.send, post("/", body=b"x" * 30_000_000))
                reply = await client.reply()
            assert (reply.status, reply.body) == (413, b"too big")
            assert await client.at_eof()


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (
            b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            400,
        ),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (
            b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1;"
            + b"x" * CHUNK_LINE_LIMIT_BYTES,
            400,
        ),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * HEAD_LIMIT_BYTES, 431),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * HEAD_LIMIT_BYTES + b"\r\n\r\n", 431),
    ],
)
async def test_broken_requests_get_a_json_error_and_the_end(
    request_bytes: bytes, status: int
) -> None:
    async with serving(echo) as serving_:
        client = await serving_.connect()
        await client.send(request_bytes)
        reply = await client.reply()
        assert reply.status == status
        assert reply.headers["content-type"] == ["application/json"]
        assert b'"type":"invalid_request_error"' in reply.body
        assert await client.at_eof()


@pytest.mark.parametrize("pause_every", [1, 7, 1000])
async def test_b16_a_head_of_20_kb_passes_whole_and_dribbled(pause_every: int) -> None:
    request = get("/", "X: " + "x" * 20_000)
    async with serving(echo) as serving_:
        client = await serving_.connect()
        step = len(request) // pause_every + 1 if pause_every > 1 else len(request)
        for start in range(0, len(request), step):
            await client.send(request[start : start + step])
            await trio.lowlevel.checkpoint()
        assert (await client.reply()).status == 200


@asynccontextmanager
async def one_connection(limits: Limits) -> AsyncIterator[RawClient]:
    """A client of a connection served over a socket pair: virtual time jumps past a TCP handshake."""
    ours, theirs = socket.socketpair()
    listener = socket.socket()
    server = Server(listener, echo, limits, 1)
    stream = trio.SocketStream(trio.socket.from_stdlib_socket(theirs))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.serve, ClientConnection(sockets.adopt(ours), limits))
        yield RawClient(stream)
        theirs.close()
        nursery.cancel_scope.cancel()
    listener.close()


async def test_a_slow_head_is_answered_with_408(autojump_clock: trio.abc.Clock) -> None:
    async with one_connection(Limits(130, 30, 60, math.inf)) as client:
        await client.send(b"GET / HTTP/1.1\r\nHost: x\r\n")
        started = trio.current_time()
        reply = await client.reply()
        assert reply.status == 408
        assert 30 <= trio.current_time() - started < 31


async def test_a_body_that_pauses_too_long_is_answered_with_408(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with one_connection(Limits(130, 30, 60, math.inf)) as client:
        await client.send(post("/", "Content-Length: 10", body=None), b"12345")
        await trio.sleep(59)  # the pause counts, not the whole
        await client.send(b"678")
        started = trio.current_time()
        reply = await client.reply()
        assert reply.status == 408
        assert 60 <= trio.current_time() - started < 61


async def test_an_idle_connection_is_kept_for_two_minutes_and_then_closed(
    autojump_clock: trio.abc.Clock,
) -> None:
    async with one_connection(Limits(130, 30, 60, math.inf)) as client:
        await client.send(get("/1"))
        assert (await client.reply()).status == 200
        await trio.sleep(120)
        await client.send(get("/2"))
        assert (await client.reply()).status == 200
        started = trio.current_time()
        assert await client.at_eof()
        assert 130 <= trio.current_time() - started < 131


async def test_b16_a_client_that_stops_reading_is_given_up_after_the_stall_limit() -> None:
    outcome: list[str] = []
    over = trio.Event()

    async def flood(connection: ClientConnection, head: RequestHead) -> None:
        connection.begin_response(200, [], None)
        try:
            while True:
                await connection.send_body(b"x" * 65536)
                await trio.lowlevel.checkpoint()
        except PeerGone:
            outcome.append("given up")
            raise
        finally:
            over.set()

    async with serving(flood, Limits(30, 30, 30, write_stall_s=0.3)) as serving_:
        client = await serving_.connect()
        await client.send(get("/"))
        with trio.fail_after(10):
            await over.wait()
        assert outcome == ["given up"]


async def test_a_slow_but_steady_reader_is_not_given_up() -> None:
    total = 40 * 65536

    async def flood(connection: ClientConnection, head: RequestHead) -> None:
        await connection.respond(200, [], b"x" * total)

    async with serving(flood, Limits(30, 30, 30, write_stall_s=0.5)) as serving_:
        client = await serving_.connect()
        client.stream.setsockopt(1, 8, 16384)  # SOL_SOCKET, SO_RCVBUF: make the server wait
        await client.send(get("/"))
        await client.head()
        taken = len(client.buffer)
        while taken < total:
            taken += len(await client.stream.receive_some(32768))
            await trio.sleep(0.01)


async def test_a_cut_write_leaves_the_connection_torn() -> None:
    torn: list[bool] = []
    over = trio.Event()

    async def flood(connection: ClientConnection, head: RequestHead) -> None:
        with trio.move_on_after(0.2):
            await connection.respond(200, [], b"x" * 30_000_000)
        torn.append(connection.torn)
        over.set()

    async with serving(flood) as serving_:
        client = await serving_.connect()
        await client.send(get("/"))
        await over.wait()
        assert torn == [True]
        reply = await client.reply()
        assert reply.cut


async def test_interjections_go_between_writes_and_never_into_one() -> None:
    said: list[bool] = []

    async def answer(connection: ClientConnection, head: RequestHead) -> None:
        connection.begin_response(200, [], None)
        said.append(connection.interject(b"first "))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connection.send_body, b"x" * 20_000_000)
            await trio.sleep(0.1)
            said.append(connection.interject(b"never "))
        await connection.end_response(b" last")

    async with serving(answer) as serving_:
        client = await serving_.connect()
        await client.send(get("/"))
        await trio.sleep(0.3)
        reply = await client.reply()
        assert said == [True, False]
        assert reply.body == b"first " + b"x" * 20_000_000 + b" last"


async def test_beyond_max_connections_accepting_pauses_and_goes_on() -> None:
    async with serving(echo, max_connections=2) as serving_:
        first = await serving_.connect()
        second = await serving_.connect()
        for client in (first, second):
            await client.send(get("/"))
            await client.reply()
        third = await serving_.connect()
        await third.send(get("/third"))
        with trio.move_on_after(0.2) as waited:
            await third.head()
        assert waited.cancelled_caught
        assert serving_.server.connections == 2
        await first.stream.aclose()
        assert (await third.reply()).body == b"GET /third "


async def test_drain_serves_what_comes_on_open_connections_and_closes_idle_ones() -> None:
    async def slow(connection: ClientConnection, head: RequestHead) -> None:
        await trio.sleep(0.3)
        await echo(connection, head)

    async with serving(slow) as serving_:
        busy, idle, late = [await serving_.connect() for _ in range(3)]
        for client in (idle, late):
            await client.send(get("/first"))
            await client.reply()
        await busy.send(get("/busy"))
        await trio.sleep(0.1)
        serving_.server.stop_accepting(take_waiting=True)
        await late.send(get("/late"))
        reply = await late.reply()
        assert reply.body == b"GET /late "
        assert reply.headers["connection"] == ["close"]
        assert (await busy.reply()).headers["connection"] == ["close"]
        with trio.fail_after(2):
            assert await idle.at_eof()
            await serving_.done.wait()
        with pytest.raises(OSError, match="all attempts to connect"):
            await serving_.connect()


async def test_drain_takes_in_the_backlog_of_a_listener_of_its_own() -> None:
    async with serving(echo, max_connections=1) as serving_:
        holder = await serving_.connect()
        await holder.send(get("/"))
        await holder.reply()
        waiting = await serving_.connect()
        await waiting.send(get("/waiting"))
        serving_.server.stop_accepting(take_waiting=True)
        assert (await waiting.reply()).body == b"GET /waiting "


async def test_drain_spares_a_client_that_was_not_told_to_close() -> None:
    """It may be sending its next request at the instant at which the drain begins."""
    answered, draining = trio.Event(), trio.Event()

    async def answer_then_linger(connection: ClientConnection, head: RequestHead) -> None:
        await echo(connection, head)
        if head.path == "/first":
            answered.set()
            await draining.wait()

    async with serving(answer_then_linger) as serving_:
        client = await serving_.connect()
        await client.send(get("/first"))
        assert "connection" not in (await client.reply()).headers
        await answered.wait()
        serving_.server.stop_accepting(take_waiting=True)
        draining.set()
        await client.send(get("/second"))
        reply = await client.reply()
        assert (reply.body, reply.headers["connection"]) == (b"GET /second ", ["close"])
        with trio.fail_after(2):
            await serving_.done.wait()


async def test_drain_closes_a_connection_that_becomes_idle_only_then() -> None:
    draining = trio.Event()

    async def answer_late(connection: ClientConnection, head: RequestHead) -> None:
        connection.begin_response(200, [], None)
        await connection.send_body(b"begun ")
        await draining.wait()
        await connection.end_response(b"before the drain")

    async with serving(answer_late) as serving_:
        client = await serving_.connect()
        await client.send(get("/"))
        await client.head()
        serving_.server.stop_accepting(take_waiting=True)
        draining.set()
        with trio.fail_after(2):
            await serving_.done.wait()


@pytest.mark.parametrize("status", [204, 304])
async def test_a_status_without_a_body_has_no_framing_header(status: int) -> None:
    async def respond(connection: ClientConnection, head: RequestHead) -> None:
        await connection.respond(status, [], b"")

    async with serving(respond) as serving_:
        client = await serving_.connect()
        await client.send(get("/1"), get("/2"))
        for _ in range(2):
            reply = await client.reply()
            assert reply.status == status
            assert reply.headers.keys().isdisjoint({"content-length", "transfer-encoding"})


# ---- what the kernel does not take --------------------------------------------------------------


async def full_connection() -> tuple[ClientConnection, socket.socket]:
    """A response whose client has not read, up to the first byte that had to wait; and its client."""
    ours, theirs = tcp_pair()
    theirs.setblocking(False)
    connection = ClientConnection(sockets.adopt(ours), GENEROUS)
    theirs.send(get())
    assert await connection.next_head() is not None
    connection.begin_response(200, [], None)
    while connection.send_body_now(b"a" * 65536):
        pass
    return connection, theirs


async def read_until(theirs: socket.socket, end: bytes) -> bytes:
    got = b""
    with trio.fail_after(5):
        while not got.endswith(end):
            await trio.lowlevel.wait_readable(theirs)
            got += theirs.recv(1 << 20)
    return got


async def test_what_waits_goes_in_front_of_more_body_and_is_sent_once() -> None:
    connection, theirs = await full_connection()
    assert connection.has_unsent
    assert not connection.send_body_now(b"b" * 10)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.flush)
        got = await read_until(theirs, b"b" * 10 + b"\r\n")
    body = got.partition(b"\r\n\r\n")[2]
    pieces = body.count(b"10000\r\n")
    assert body == (b"10000\r\n" + b"a" * 65536 + b"\r\n") * pieces + b"a\r\n" + b"b" * 10 + b"\r\n"
    assert connection.send_body_now(b"c")
    assert await read_until(theirs, b"1\r\nc\r\n") == b"1\r\nc\r\n"
    connection.close()
    theirs.close()


async def test_an_interjection_goes_behind_what_waits_once_there_is_room() -> None:
    connection, theirs = await full_connection()
    assert not connection.interject(b": keepalive\n\n"), "no room"
    while not connection.interject(b": keepalive\n\n"):
        with suppress(BlockingIOError):
            theirs.recv(1 << 20)
        await trio.lowlevel.checkpoint()
    got = await read_until(theirs, b"d\r\n: keepalive\n\n\r\n")
    assert got.endswith(b"a\r\nd\r\n: keepalive\n\n\r\n")
    connection.close()
    theirs.close()
