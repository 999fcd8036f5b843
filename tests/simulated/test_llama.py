"""The stand-in for llama.cpp's server. Source: a real one, looked at on the wire."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strata_router.simulated import write_llama_server
from tests.simulated.harness import (
    Engine,
    Peer,
    Reply,
    chat_body,
    free_port,
    parse_reply,
    request_bytes,
    wait_until,
)

CHAT = "/v1/chat/completions"


class Bench:
    """Starts llama servers in one folder."""

    def __init__(self, folder: Path) -> None:
        self.command = write_llama_server(folder / "llama-server")
        self.event_file = folder / "events.jsonl"
        self.engines: list[Engine] = []

    def spawn(self, port: int | None = None, **knobs: Any) -> Engine:
        port = free_port() if port is None else port
        simulated = json.dumps({"event_file": str(self.event_file), **knobs})
        arguments = ["-m", "weights.gguf", "--host", "127.0.0.1", "--port", str(port)]
        arguments += ["--alias", "tiny", "-c", "4096", "--simulated", simulated]
        process = subprocess.Popen(
            [str(self.command), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        engine = Engine(process, port, self.event_file)
        self.engines.append(engine)
        return engine

    def start(self, **knobs: Any) -> Engine:
        engine = self.spawn(**knobs)
        engine.stamped("ready")
        return engine


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    for engine in made.engines:
        engine.process.kill()
        engine.process.wait()


def ask(engine: Engine, method: str, path: str, body: bytes | None = None) -> Reply:
    """One request on a connection that the client does not keep."""
    peer = engine.connect()
    peer.send(request_bytes(method, path, body))
    raw = peer.until(b"\r\n\r\n")
    head = parse_reply(raw)
    while len(parse_reply(peer.received).body) < int(head.headers["content-length"]):
        peer.received += peer.socket.recv(65536)
    peer.close()
    return parse_reply(peer.received)


def stream(engine: Engine, text: str = "hello", **more: Any) -> tuple[Reply, list[bytes]]:
    """The head of a stream and its decoded chunks, read to the end of the connection."""
    peer = engine.connect()
    peer.send(request_bytes("POST", CHAT, chat_body(text, stream=True, **more)))
    raw = peer.rest()
    peer.close()
    return parse_reply(raw), dechunked(parse_reply(raw).body)


def dechunked(body: bytes) -> list[bytes]:
    """Whole chunks so far, the terminating empty one included."""
    chunks = []
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        chunks.append(body[:length])
        body = body[length + 2 :]
    return chunks


def datas(chunks: list[bytes]) -> list[Any]:
    events = [event for chunk in chunks for event in chunk.split(b"\n\n") if event]
    plain = [event.removeprefix(b"data: ") for event in events]
    return [json.loads(data) for data in plain if data != b"[DONE]"]


def test_it_listens_at_once_and_says_503_while_it_loads(bench: Bench) -> None:
    engine = bench.spawn(load_s=0.4)
    engine.stamped("listening")
    loading = ask(engine, "GET", "/health")
    assert loading.status == 503
    assert loading.json() == {
        "error": {"message": "Loading model", "type": "unavailable_error", "code": 503}
    }
    assert ask(engine, "GET", "/v1/models").status == 503
    engine.stamped("ready")
    assert ask(engine, "GET", "/health").json() == {"status": "ok"}


def test_models_lists_the_alias(bench: Bench) -> None:
    engine = bench.start()
    assert [entry["id"] for entry in ask(engine, "GET", "/v1/models").json()["data"]] == ["tiny"]
    lies = bench.spawn(wrong_model="other")
    lies.stamped("ready", 2)
    assert ask(lies, "GET", "/v1/models").json()["data"][0]["id"] == "other"


def test_plain_answers_keep_the_connection(bench: Bench) -> None:
    peer = bench.start().connect()
    for _ in range(2):
        peer.received = b""
        peer.send(request_bytes("POST", CHAT, chat_body(max_tokens=3)))
        reply = parse_reply(peer.until(b'"timings"'))
        assert reply.status_line == "HTTP/1.1 200 OK"
        assert reply.headers["keep-alive"].startswith("timeout=")
        peer.socket.settimeout(0.05)
        with pytest.raises(TimeoutError):
            peer.rest()
        peer.socket.settimeout(5)
    answer = parse_reply(peer.received).json()
    assert (answer["model"], answer["usage"]["completion_tokens"]) == ("tiny", 3)
    peer.close()


def test_a_stream_announces_keep_alive_and_closes(bench: Bench) -> None:
    reply, chunks = stream(bench.start(), max_tokens=3)
    assert reply.headers["transfer-encoding"] == "chunked"
    assert reply.headers["keep-alive"]
    assert chunks[-1] == b""
    assert chunks[-2] == b"data: [DONE]\n\n"
    events = datas(chunks)
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": None}
    assert events[-1]["choices"][0]["finish_reason"] == "length"
    assert events[-1]["timings"]["predicted_n"] == 3
    assert not any("usage" in event for event in events)


def test_asked_for_usage_comes_without_choices_and_takes_the_timings_along(bench: Bench) -> None:
    _, chunks = stream(bench.start(), max_tokens=3, stream_options={"include_usage": True})
    *_, last, usage = datas(chunks)
    assert "timings" not in last
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 3
    assert usage["timings"]["predicted_n"] == 3


def test_there_is_no_cache_lookup(bench: Bench) -> None:
    reply = ask(bench.start(), "POST", "/v1/cache/lookup", b"{}")
    assert (reply.status, reply.json()["error"]["type"]) == (404, "not_found_error")


def test_a_body_it_cannot_read_is_400(bench: Bench) -> None:
    engine = bench.start()
    assert ask(engine, "POST", CHAT, b"{}").json()["error"]["type"] == "invalid_request_error"
    assert ask(engine, "POST", CHAT, chat_body("FX:answer=json500")).status == 500


def test_a_half_close_ends_the_stream(bench: Bench) -> None:
    engine = bench.start(chunk_every_ms=20, force_tokens=1000)
    peer = engine.open_chat(stream=True)
    peer.until(b"data:", 3)
    peer.socket.shutdown(1)
    assert b"[DONE]" not in peer.rest()
    peer.close()
    engine.stamped("disconnect")
    engine.stamped("done")
    assert engine.requests()[0].finish == "disconnect"


def test_sigterm_stalls_a_stream_until_its_client_leaves(bench: Bench) -> None:
    engine = bench.start(chunk_every_ms=20, force_tokens=1000)
    peer: Peer = engine.open_chat(stream=True)
    peer.until(b"data:", 3)
    engine.process.terminate()
    engine.stamped("stopping")
    peer.socket.settimeout(0.2)
    with pytest.raises(TimeoutError):
        peer.rest()
    assert engine.process.poll() is None
    peer.close()
    assert engine.ends() == 0


def test_it_stops_at_once_when_idle(bench: Bench) -> None:
    engine = bench.start()
    began = time.monotonic()
    engine.process.terminate()
    assert engine.ends() == 0
    assert time.monotonic() - began < 1


def test_a_taken_port_is_status_1(bench: Bench) -> None:
    assert bench.spawn(bench.start().port).ends() == 1


def test_a_failing_load_and_an_unknown_knob_end_it(bench: Bench) -> None:
    assert bench.spawn(fail_load=3).ends() == 3
    assert bench.spawn(nope=1).ends() == 1


def test_it_can_die_and_hang_in_a_stream(bench: Bench) -> None:
    engine = bench.start(hang_after_chunks=2)
    peer = engine.open_chat(stream=True)
    peer.until(b"data:", 3)
    peer.socket.settimeout(0.1)
    with pytest.raises(TimeoutError):
        peer.until(b"data:", 4)
    peer.close()
    raw = engine.open_chat("FX:die_after_chunks=1", stream=True)
    assert b"[DONE]" not in raw.rest()
    raw.close()
    assert engine.ends() == -signal.SIGKILL


def test_its_command_is_executable_and_keeps_its_pid(bench: Bench) -> None:
    engine = bench.start()
    assert os.access(bench.command, os.X_OK)
    assert engine.stamped("start").pid == engine.process.pid
    wait_until(lambda: ask(engine, "HEAD", "/nope").status == 404)
