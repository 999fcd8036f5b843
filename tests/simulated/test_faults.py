"""Every knob of a request at least once, by profile or by marker, as bytes on the wire."""

import json
import signal
import socket
import time

import pytest

from tests.simulated.harness import Engine, Reply, Yard, parse_reply


def finish_reasons(reply: Reply) -> list[str]:
    choices = [choice for chunk in reply.chunks() for choice in chunk.get("choices", [])]
    return [choice["finish_reason"] for choice in choices if choice["finish_reason"]]


@pytest.mark.parametrize(
    ("usage", "where"),
    [
        ("final", [4]),
        ("last_content", [3]),
        ("inline", [1, 2, 3]),
        ("separate", [5]),
        ("none", []),
        ("asked", []),
    ],
)
def test_b22_usage_can_be_in_many_places(plain: Engine, usage: str, where: list[int]) -> None:
    chunks = plain.chat(f"FX:tokens=3 FX:usage={usage}", stream=True).chunks()
    assert [index for index, chunk in enumerate(chunks) if "usage" in chunk] == where
    if usage == "separate":
        assert chunks[-1]["choices"] == []


def test_usage_comes_when_asked_for(yard: Yard) -> None:
    engine = yard.start(usage="asked")
    chunks = engine.chat(stream=True, stream_options={"include_usage": True}).chunks()
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["total_tokens"] > 0


def test_accounting_values_can_be_dictated(yard: Yard) -> None:
    engine = yard.start(usage_values={"prompt_tokens": 7}, timings_values={"prompt_ms": 1.25})
    final = engine.chat(stream=True).chunks()[-1]
    assert (final["usage"], final["timings"]) == ({"prompt_tokens": 7}, {"prompt_ms": 1.25})


def test_timings_can_be_absent(yard: Yard) -> None:
    engine = yard.start(timings=False)
    assert "timings" not in engine.chat(stream=True).chunks()[-1]
    assert "timings" not in engine.chat().json()


def test_nofinish_and_missing_done(plain: Engine) -> None:
    reply = plain.chat("FX:nofinish", stream=True)
    assert finish_reasons(reply) == []
    assert reply.events()[-1] == b"data: [DONE]"
    assert b"[DONE]" not in plain.chat("FX:done=false", stream=True).body
    assert finish_reasons(plain.chat("FX:finish_as=weird", stream=True)) == ["weird"]


def test_neginf_is_strict_or_literal(plain: Engine) -> None:
    strict = plain.chat("FX:neginf", stream=True, logprobs=True)
    assert b'"logprob":-9999.0' in strict.body
    literal = plain.chat("FX:neginf=literal", stream=True, logprobs=True)
    assert b'"logprob":-Infinity' in literal.body
    assert b"-Infinity" in plain.chat("FX:neginf=literal", logprobs=True).body
    assert b"logprob" not in plain.chat("FX:neginf", stream=True).body


def test_error_before_any_token_is_the_only_event_behind_the_role(plain: Engine) -> None:
    reply = plain.chat("FX:error-before", stream=True)
    assert reply.text() == ""
    assert [event[:14] for event in reply.events()[1:]] == [b'data: {"error"', b"data: [DONE]"]


def test_slow_is_200_tokens_whatever_the_limit(plain: Engine) -> None:
    peer = plain.open_chat("FX:slow", stream=True, max_tokens=16)
    began = time.monotonic()
    peer.until(b"data:", 12)
    assert 0.3 < time.monotonic() - began < 2
    peer.close()
    assert (
        plain.chat("FX:slow FX:chunk_every_ms=0", max_tokens=1).json()["usage"]["completion_tokens"]
        == 201
    )


def test_b18_paced_chunks_arrive_one_by_one(yard: Yard) -> None:
    engine = yard.start(chunk_every_ms=40, answer_tokens=8)
    peer = engine.open_chat(stream=True)
    arrivals = []
    while data := peer.socket.recv(65536):
        arrivals.append(data.count(b'"content":"') - data.count(b'"content":""'))
    peer.close()
    assert sum(arrivals) == 8
    assert max(arrivals) <= 2


def test_chunk_bytes_and_long_line(plain: Engine) -> None:
    reply = plain.chat("FX:chunk_bytes=1000 FX:tokens=3", stream=True)
    assert [len(delta["content"]) for delta in reply.deltas()[1:-1]] == [1000] * 3
    reply = plain.chat("FX:long_line_bytes=307200 FX:tokens=2", stream=True)
    assert len(reply.deltas()[1]["content"]) == 307_200
    assert max(map(len, reply.events())) > 300 * 1024


def test_a_blast_is_complete(plain: Engine) -> None:
    reply = plain.chat("FX:chunk_bytes=20000 FX:force_tokens=500", stream=True)
    assert len(reply.text()) == 10_000_000


def test_crlf_events(plain: Engine) -> None:
    reply = plain.chat("FX:newline=crlf", stream=True)
    assert plain.chat("FX:crlf", stream=True).body.endswith(b"\r\n")
    assert reply.body.endswith(b"data: [DONE]\r\n\r\n")
    assert reply.body.count(b"\n") == reply.body.count(b"\r\n")


def test_one_byte_per_segment_is_the_same_stream(plain: Engine) -> None:
    peer = plain.open_chat("FX:segment_bytes=1 FX:segment_gap_ms=0.01 FX:tokens=2", stream=True)
    reads = 0
    while data := peer.socket.recv(65536):
        peer.received += data
        reads += 1
    peer.close()
    reply = parse_reply(peer.received)
    assert reads > 100
    assert reply.events()[-1] == b"data: [DONE]"


def test_several_events_per_segment(plain: Engine) -> None:
    peer = plain.open_chat(
        "FX:events_per_segment=100 FX:tokens=20 FX:chunk_every_ms=5", stream=True
    )
    peer.until(b"\r\n\r\n")
    body_reads = []
    while data := peer.socket.recv(1 << 20):
        body_reads.append(data.count(b"data:"))
    peer.close()
    # Comments flush what was gathered: role and comment come first, then all tokens together.
    assert max(body_reads) >= 20


@pytest.mark.parametrize(
    ("answer", "status", "body"),
    [
        ("html500", 500, b"<!DOCTYPE HTML>"),
        ("json500", 500, b'{"error": {"type": "server_error"'),
        ("json400", 400, b'{"error": {"type": "invalid_request_error"'),
        ("busy", 503, b'{"error": {"type": "server_error"'),
        ("empty200", 200, b""),
        ("headers_only", 200, b""),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_answers_that_are_no_chat_completions(
    plain: Engine, answer: str, status: int, body: bytes, stream: bool
) -> None:
    reply = plain.chat(f"FX:answer={answer}", stream=stream)
    assert reply.status == status
    assert reply.body.startswith(body)


def test_answers_that_are_no_http(plain: Engine) -> None:
    assert plain.chat("FX:answer=broken_head").status_line == "HTP/1.0 two hundred"
    chunked = plain.chat("FX:answer=broken_chunk", stream=True)
    assert chunked.headers["transfer-encoding"] == "chunked"
    assert b"no size" in chunked.body
    short = plain.chat("FX:answer=short_body")
    assert len(short.body) < int(short.headers["content-length"])
    peer = plain.open_chat("FX:answer=nothing")
    assert peer.rest() == b""
    peer.close()


def test_busy_is_a_shorthand(plain: Engine) -> None:
    assert plain.chat("FX:busy").status == 503


@pytest.mark.parametrize(
    ("marker", "expected"),
    [
        ("FX:cut_after_chunks=0", 1),
        ("FX:cut_after_chunks=2", 3),
        ("FX:cut_after_chunks=2 FX:cut=mid_event", 4),
    ],
)
def test_a_cut_stream_ends_and_the_server_lives(plain: Engine, marker: str, expected: int) -> None:
    reply = plain.chat(marker, stream=True)
    assert reply.body.count(b"data: ") == expected
    assert b"[DONE]" not in reply.body
    assert reply.body.endswith(b"\n\n") is ("mid_event" not in marker)
    assert plain.chat().status == 200


def test_a_cut_can_be_a_reset(plain: Engine) -> None:
    peer = plain.open_chat("FX:cut_after_chunks=2 FX:cut=reset FX:chunk_every_ms=30", stream=True)
    with pytest.raises(ConnectionResetError):
        peer.rest()
    peer.close()


@pytest.mark.parametrize(
    ("marker", "role", "texts", "usage", "done"),
    [
        ("FX:die_at=headers", False, 0, False, False),
        ("FX:die_at=role", True, 0, False, False),
        ("FX:die_after_chunks=0", True, 0, False, False),
        ("FX:die", True, 3, False, False),
        ("FX:die_after_chunks=5 FX:tokens=5", True, 5, False, False),
        ("FX:die_at=final FX:tokens=5", True, 5, True, False),
        ("FX:die_at=done FX:tokens=5", True, 5, True, True),
    ],
)
def test_b20_the_server_can_die_anywhere_in_a_stream(
    yard: Yard, marker: str, role: bool, texts: int, usage: bool, done: bool
) -> None:
    engine = yard.start()
    peer = engine.open_chat(marker, stream=True)
    raw = peer.rest()
    peer.close()
    assert engine.ends() == -signal.SIGKILL
    assert (b'"role":"assistant"' in raw) is role
    assert len(parse_reply(raw).text().split()) == texts if raw else texts == 0
    assert (b'"usage"' in raw) is usage
    assert (b"[DONE]" in raw) is done
    assert "exit" not in engine.events()


def test_the_server_can_die_in_a_plain_answer_with_a_status_of_choice(yard: Yard) -> None:
    engine = yard.start(die_exit=7)
    peer = engine.open_chat("FX:die")
    assert peer.rest() == b""
    peer.close()
    assert engine.ends() == 7


def test_the_server_can_die_inside_an_event(yard: Yard) -> None:
    peer = yard.start(die_after_chunks=1, cut="mid_event").open_chat(stream=True)
    raw = peer.rest()
    peer.close()
    assert not raw.endswith(b"\n\n")


def test_a_close_can_come_late(yard: Yard) -> None:
    engine = yard.start(close_delay_s=0.2)
    peer = engine.open_chat(stream=True)
    peer.until(b"[DONE]\n\n")
    began = time.monotonic()
    peer.rest()
    peer.close()
    assert time.monotonic() - began > 0.1


@pytest.mark.parametrize("marker", ["FX:nope", "FX:usage=sometimes", "FX:tokens=many", "FX:done=1"])
def test_a_marker_that_cannot_be_obeyed_is_400(plain: Engine, marker: str) -> None:
    reply = plain.chat(marker)
    assert reply.status == 400
    assert "simulated" in json.dumps(reply.json())


def test_only_the_last_user_message_is_searched_for_markers(plain: Engine) -> None:
    messages = [
        {"role": "user", "content": "FX:busy"},
        {"role": "assistant", "content": "FX:busy"},
        {"role": "user", "content": "hello"},
    ]
    body = json.dumps({"messages": messages}).encode()
    assert plain.post("/v1/chat/completions", body).status == 200


def test_small_writes_are_not_held_back(plain: Engine) -> None:
    """TCP_NODELAY: the gap between role chunk and text must be the engine's, not the kernel's."""
    times = []
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", plain.port)):
            began = time.monotonic()
            plain.chat(stream=True, max_tokens=2)
            times.append(time.monotonic() - began)
    assert min(times) < 0.03
