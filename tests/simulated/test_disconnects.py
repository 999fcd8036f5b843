"""Clients that leave. Source: facts about Strata's server, section 5."""

import socket
import struct
import threading
import time
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from tests.simulated.harness import Engine, Yard, chat_body, request_bytes, wait_until

LONG = "FX:chunk_every_ms=20 FX:force_tokens=2000"


def test_a_closed_stream_is_noticed_and_frees_the_engine(yard: Yard) -> None:
    engine = yard.start()
    peer = engine.open_chat(LONG, stream=True)
    peer.until(b"data:", 4)
    left_at = time.monotonic()
    peer.close()
    assert engine.stamped("disconnect").at - left_at < 0.8
    engine.stamped("done")
    assert engine.requests()[0].finish == "disconnect"
    assert engine.get("/status").json()["busy"] is False


def test_a_reset_is_noticed(yard: Yard) -> None:
    engine = yard.start()
    peer = engine.open_chat(LONG, stream=True)
    peer.until(b"data:", 2)
    peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()
    engine.stamped("disconnect")


def test_a_client_of_a_plain_answer_is_watched_too(yard: Yard) -> None:
    engine = yard.start(disconnect_poll_s=0.1)
    peer = engine.open_chat(LONG)
    engine.stamped("request")
    time.sleep(0.1)
    peer.close()
    assert engine.stamped("disconnect").facts["how"] == "eof"
    engine.stamped("done")
    assert engine.chat().status == 200


def test_a_half_close_cuts_the_answer_which_looks_like_a_success(yard: Yard) -> None:
    engine = yard.start()
    peer = engine.open_chat(LONG, stream=True)
    peer.until(b"data:", 2)
    peer.socket.shutdown(socket.SHUT_WR)
    began = time.monotonic()
    tail = peer.rest()
    peer.close()
    assert time.monotonic() - began < 0.8
    assert b'"finish_reason":"stop"' in tail
    assert tail.endswith(b"data: [DONE]\n\n")
    assert engine.stamped("disconnect").facts["how"] == "eof"


def test_bytes_behind_the_body_blind_the_watcher(yard: Yard) -> None:
    engine = yard.start(disconnect_poll_s=0.1)
    peer = engine.open_chat("FX:chunk_every_ms=50 FX:force_tokens=12")
    engine.stamped("request")
    time.sleep(0.05)
    peer.send(b"\r\n")
    peer.close()
    engine.stamped("done")
    assert "disconnect" not in engine.events()
    assert engine.requests()[0].finish == "stop"


def test_bytes_that_come_with_the_body_are_swallowed(yard: Yard) -> None:
    engine = yard.start(disconnect_poll_s=0.1)
    peer = engine.connect()
    peer.send(request_bytes("POST", "/v1/chat/completions", chat_body(LONG)) + b"\r\n")
    engine.stamped("request")
    time.sleep(0.05)
    peer.close()
    engine.stamped("disconnect")


def test_a_client_that_leaves_the_queue_still_costs_its_turn(yard: Yard) -> None:
    engine = yard.start(disconnect_poll_s=0.05)
    first = engine.open_chat("FX:hang_after_chunks=1", stream=True)
    engine.stamped("first_chunk")
    second = engine.open_chat("FX:prefill=0.4 FX:prompt_chunk_s=0.2", stream=True)
    second.until(b'"role"')
    second.close()
    engine.stamped("disconnect")
    assert "done" not in engine.events()
    freed_at = time.monotonic()
    first.close()
    engine.stamped("done", count=2)
    assert engine.requests()[1].finish == "disconnect"
    # One prompt chunk of the queued request was read, after its client had long gone.
    assert 0.2 <= time.monotonic() - freed_at < 0.6


def test_stop_waits_for_the_prompt_chunk_that_is_being_read(yard: Yard) -> None:
    engine = yard.start(disconnect_poll_s=0.05)
    peer = engine.open_chat("FX:prefill=3 FX:prompt_chunk_s=0.6", stream=True)
    peer.until(b'"role"')
    time.sleep(0.1)
    peer.close()
    left = engine.stamped("disconnect")
    assert engine.stamped("done").at - left.at >= 0.3


def test_a_silent_prefill_ends_at_once_with_its_client(yard: Yard) -> None:
    engine = yard.start(disconnect_poll_s=0.1)
    peer = engine.open_chat("FX:prefill_s=30", stream=True)
    peer.until(b'"role"')
    peer.close()
    engine.stamped("done")
    assert engine.chat(max_tokens=1).status == 200


def test_b14_clients_that_leave_before_the_head_are_seen(yard: Yard) -> None:
    engine = yard.start()
    peers = [engine.open_chat("FX:header_delay_s=20", stream=stream) for stream in (True, False)]
    engine.stamped("request", 2)
    time.sleep(0.1)
    left_at = time.monotonic()
    for peer in peers:
        peer.close()
    assert engine.stamped("disconnect", 2).at - left_at < 0.8
    engine.stamped("done", 2)


def test_a_header_delay_holds_the_head_back(plain: Engine) -> None:
    began = time.monotonic()
    peer = plain.open_chat("FX:header_delay_s=0.3", stream=True)
    peer.until(b"HTTP/1.0")
    assert time.monotonic() - began >= 0.3
    peer.close()


def test_nobody_is_watched_while_a_request_waits_for_a_load(yard: Yard) -> None:
    engine = yard.start(reload_s=0.4, disconnect_poll_s=0.05)
    engine.post("/unload")
    peer = engine.open_chat(LONG)
    engine.stamped("reload")
    peer.close()
    left_at = time.monotonic()
    assert engine.stamped("disconnect").at - left_at > 0.2
    engine.stamped("done")


def test_hang_after_chunks_is_silence_until_the_client_leaves(yard: Yard) -> None:
    engine = yard.start(disconnect_poll_s=0.1)
    peer = engine.open_chat("FX:hang_after_chunks=3", stream=True)
    peer.until(b"data:", 4)
    peer.socket.settimeout(0.2)
    with pytest.raises(TimeoutError):
        peer.until(b"data:", 5)
    peer.close()
    engine.stamped("done")
    assert engine.requests()[0].chunks == 3


def test_a_client_that_leaves_after_done_has_not_left_early(yard: Yard) -> None:
    engine = yard.start(close_delay_s=0.15, disconnect_poll_s=0.02)
    peer = engine.open_chat(stream=True)
    peer.until(b"[DONE]")
    peer.close()
    engine.stamped("done")
    assert "disconnect" not in engine.events()


def test_b24_impatient_clients_leave_the_engine_as_it_was(yard: Yard) -> None:
    """With a fixed seed: 80 clients at once, of which most leave; none ends another's request."""
    engine = yard.start("m", {"parallel": 4}, disconnect_poll_s=0.05)
    patience = Random(24)

    def visit(text: str, patience_s: float, stream: bool) -> None:
        peer = engine.open_chat(text, stream=stream)
        peer.socket.settimeout(patience_s)
        with suppress(TimeoutError):
            peer.rest()
        peer.close()

    visitors = []
    for number in range(80):
        text = f"FX:chunk_every_ms=1 FX:tokens={patience.randrange(1, 60)}"
        arguments = (text, patience.uniform(0.001, 0.6), number % 2 == 0)
        visitors.append(threading.Thread(target=visit, args=arguments))
    for visitor in visitors:
        visitor.start()
    for visitor in visitors:
        visitor.join()
    engine.stamped("done", 80)
    assert {request.finish for request in engine.requests()} == {"stop", "disconnect"}
    status = Path(f"/proc/{engine.process.pid}/status")
    wait_until(lambda: "Threads:\t2\n" in status.read_text())
    assert engine.chat().status == 200
