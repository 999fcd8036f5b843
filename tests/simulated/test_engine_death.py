"""Deaths of the native engine under a server that lives. Source: facts, section 6."""

import os
import signal
import time

from tests.simulated.harness import Yard, wait_until

STOPPED = (
    b'{"error": {"type": "server_error", "message": "the engine stopped unexpectedly (exit code -9)'
)


def test_a_stream_gets_an_error_frame_and_done(yard: Yard) -> None:
    reply = yard.start().chat("FX:engine_dies_after_chunks=3", stream=True)
    assert reply.events()[-2].startswith(b"data: " + STOPPED)
    assert reply.events()[-1] == b"data: [DONE]"
    assert not any(c["choices"][0]["finish_reason"] for c in reply.chunks() if "choices" in c)


def test_a_plain_answer_is_503(yard: Yard) -> None:
    reply = yard.start().chat("FX:engine_dies_after_chunks=0")
    assert reply.status == 503
    error = reply.json()["error"]
    assert error["type"] == "server_error"
    assert error["message"].endswith("; the next request restarts it")


def test_meanwhile_health_is_ok_but_not_loaded_and_the_next_request_loads(yard: Yard) -> None:
    engine = yard.start(reload_s=0.3)
    os.kill(engine.stamped("native_start").pid, signal.SIGKILL)
    engine.stamped("native_gone")
    health = engine.get("/health")
    assert (health.status, health.json()["status"], health.json()["loaded"]) == (200, "ok", False)
    assert engine.get("/v1/models").json()["data"] == []
    assert (engine.get("/slots").json(), engine.get("/props").status) == ([], 503)
    began = time.monotonic()
    peer = engine.open_chat(stream=True)
    peer.until(b"HTTP/1.0")
    assert time.monotonic() - began >= 0.3
    peer.close()


def test_a_restart_that_fails_three_times_closes_without_a_response(yard: Yard) -> None:
    engine = yard.start(fail_reload=True, restart_pause_s=0.05)
    os.kill(engine.stamped("native_start").pid, signal.SIGKILL)
    engine.stamped("native_gone")
    for stream in (True, False):
        peer = engine.open_chat(stream=stream)
        assert peer.rest() == b""
        peer.close()
    assert engine.events().count("reload") == 6


def test_an_engine_that_says_nothing_is_killed(yard: Yard) -> None:
    engine = yard.start("m", {"engine_silence_s": 0.3})
    reply = engine.chat("FX:hang_after_chunks=2", stream=True)
    assert b"the engine said nothing for 0.3 s during the request" in reply.body
    assert reply.events()[-1] == b"data: [DONE]"
    assert engine.stamped("native_gone").facts["exit_code"] == -signal.SIGKILL


def test_an_engine_error_is_a_frame_in_a_stream_and_400_without(yard: Yard) -> None:
    engine = yard.start()
    reply = engine.chat("FX:error_after_chunks=2", stream=True)
    assert b'{"error": {"type": "server_error"' in reply.events()[-2]
    assert len(reply.text().split()) == 2
    plain = engine.chat("FX:error-before")
    assert (plain.status, plain.json()["error"]["type"]) == (400, "invalid_request_error")
    assert engine.get("/health").json()["loaded"] is True


def test_the_native_engine_can_die_idle(yard: Yard) -> None:
    engine = yard.start(engine_dies_idle_after_s=0.2)
    engine.stamped("native_gone")
    assert engine.get("/health").json()["loaded"] is False
    assert engine.process.poll() is None


def test_the_server_can_die_idle_but_not_while_it_works(yard: Yard) -> None:
    engine = yard.start(die_idle_after_s=0.2)
    peer = engine.open_chat("FX:chunk_every_ms=50 FX:force_tokens=8", stream=True)
    assert peer.rest().endswith(b"[DONE]\n\n")
    peer.close()
    assert engine.ends() == -signal.SIGKILL
    assert engine.stamped("dies").at - engine.stamped("finish").at >= 0.19


def test_the_server_can_die_while_it_loads(yard: Yard) -> None:
    engine = yard.spawn(yard.profile(load_s=0.4, die_loading_after_s=0.1))
    assert engine.ends() == -signal.SIGKILL
    assert "listening" not in engine.events()
    engine.stamped("native_loaded")


def test_a_frozen_native_engine_is_ended_by_the_ladder(yard: Yard) -> None:
    engine = yard.start(ladder_s=0.2)
    native = engine.stamped("native_start").pid
    os.kill(native, signal.SIGSTOP)
    engine.process.terminate()
    assert engine.ends() == 0
    wait_until(lambda: engine.stamped("native_gone").facts["exit_code"] == -signal.SIGKILL)
