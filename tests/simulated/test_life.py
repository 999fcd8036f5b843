"""Start, readiness, exit statuses and stop. Source: facts about Strata's server, sections 1 and 2."""

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from strata_router.simulated import strata_dir
from tests.simulated.harness import Engine, Yard, free_port, is_alive, wait_until


def error_text(engine: Engine) -> str:
    stream = engine.process.stderr
    assert stream is not None
    return stream.read().decode()


def is_refused(port: int) -> bool:
    with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
        return False
    return True


def test_nothing_listens_while_the_model_loads(yard: Yard) -> None:
    engine = yard.spawn(yard.profile(load_s=0.3))
    engine.stamped("native_start")
    assert is_refused(engine.port)
    ready = engine.stamped("ready")
    assert ready.at - engine.stamped("native_start").at >= 0.3
    engine.wait_ready()


def test_the_ready_line_is_printed_after_the_port_is_open(yard: Yard) -> None:
    engine = yard.spawn(yard.profile(), output=subprocess.PIPE)
    assert engine.process.stdout is not None
    lines = [engine.process.stdout.readline() for _ in range(2)]
    assert lines == [
        b"loading the model ...\n",
        f"ready: http://127.0.0.1:{engine.port}/v1\n".encode(),
    ]
    assert engine.get("/health").status == 200
    engine.process.terminate()
    assert engine.process.stdout.read() == b"[strata] stopped\n"
    assert engine.ends() == 0


def test_a_start_is_fast(yard: Yard) -> None:
    """The fastest of five: a busy machine must not fail this, a slow import should."""
    times = []
    for _ in range(5):
        began = time.monotonic()
        engine = yard.spawn(yard.profile())
        times.append(engine.stamped("listening").at - began)
        engine.process.kill()
        engine.ends()
    assert min(times) < 0.12


def test_a_taken_port_is_status_2_before_anything_is_loaded(yard: Yard) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        engine = yard.spawn(yard.profile(load_s=30), port=taken.getsockname()[1])
        assert engine.ends() == 2
    assert "is already in use" in error_text(engine)
    assert "native_start" not in engine.events()


def test_a_port_that_cannot_be_bound_says_so(yard: Yard) -> None:
    engine = yard.spawn(yard.profile(), arguments=("--host", "203.0.113.1"))
    assert engine.ends() == 2
    assert "cannot listen on" in error_text(engine)


def test_missing_config_is_status_2(yard: Yard) -> None:
    command = [sys.executable, "-m", "serve.server", "--engine", "strata"]
    ended = subprocess.run(command, cwd=strata_dir(), capture_output=True, check=False)
    assert ended.returncode == 2


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"engine_silence_s": "soon"}', '{"simulated": {"x": 1}}']
)
def test_a_profile_that_cannot_be_used_is_status_1(yard: Yard, text: str) -> None:
    profile = yard.folder / "bad.json"
    profile.write_text(text)
    engine = yard.spawn(profile)
    assert engine.ends() == 1
    assert str(profile) in error_text(engine)


def test_a_profile_may_begin_with_a_byte_order_mark(yard: Yard) -> None:
    profile = yard.profile()
    profile.write_text("\ufeff" + profile.read_text())
    yard.spawn(profile).wait_ready()


def test_an_empty_api_key_is_status_2_after_the_load(yard: Yard) -> None:
    engine = yard.spawn(yard.profile(), environment={"STRATA_API_KEY": " "})
    assert engine.ends() == 2
    assert "native_start" in engine.events()


def test_a_failed_load_is_status_1_with_the_reason_on_standard_error(yard: Yard) -> None:
    engine = yard.spawn(yard.profile(fail_load=1, load_s=0.1))
    assert engine.ends() == 1
    assert "LoadFailed" in error_text(engine)
    assert engine.events()[-1] == "exit"


@pytest.mark.parametrize("status", [0, 3, -signal.SIGSEGV])
def test_a_load_can_fail_with_any_status(yard: Yard, status: int) -> None:
    assert yard.spawn(yard.profile(fail_load=status)).ends() == status


def test_a_native_engine_killed_while_loading_is_status_1(yard: Yard) -> None:
    engine = yard.spawn(yard.profile(load_s=5))
    os.kill(engine.stamped("native_start").pid, signal.SIGKILL)
    assert engine.ends() == 1
    assert "exit code -9" in error_text(engine)


def test_b06_fail_first_load_fails_so_often_and_then_works(yard: Yard) -> None:
    profile = yard.profile(fail_first_load=2, fail_load_exit=5)
    assert [yard.spawn(profile).ends() for _ in range(2)] == [5, 5]
    yard.spawn(profile).wait_ready()


def test_hang_load_never_listens_and_dies_by_sigterm(yard: Yard) -> None:
    engine = yard.spawn(yard.profile(hang_load=True))
    engine.stamped("native_start")
    time.sleep(0.1)
    assert is_refused(engine.port)
    engine.process.terminate()
    assert engine.ends() == -signal.SIGTERM


def test_sigterm_while_loading_leaves_the_native_engine_to_its_load(yard: Yard) -> None:
    engine = yard.spawn(yard.profile(load_s=0.5))
    native = engine.stamped("native_start").pid
    engine.process.terminate()
    assert engine.ends() == -signal.SIGTERM
    assert is_alive(native)
    loaded = engine.stamped("native_loaded")
    assert loaded.at - engine.stamped("native_start").at >= 0.5
    # Its READY then finds nobody: the write ends it by SIGPIPE.
    wait_until(lambda: not is_alive(native))


def test_sigint_while_loading_ends_by_sigint(yard: Yard) -> None:
    engine = yard.spawn(yard.profile(load_s=5))
    engine.stamped("native_start")
    time.sleep(0.05)
    engine.process.send_signal(signal.SIGINT)
    assert engine.ends() == -signal.SIGINT


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_server_stops_with_status_0_and_takes_its_engine_along(
    yard: Yard, number: signal.Signals
) -> None:
    engine = yard.start()
    native = engine.stamped("native_start").pid
    engine.process.send_signal(number)
    assert engine.ends() == 0
    assert not is_alive(native)
    assert engine.events()[-1] == "exit"


def test_exit_s_is_a_slow_clean_exit(yard: Yard) -> None:
    engine = yard.start(exit_s=0.3)
    began = time.monotonic()
    engine.process.terminate()
    assert engine.ends() == 0
    assert 0.3 <= time.monotonic() - began < 2
    assert engine.stamped("native_exit").facts["why"] == "quit"


def test_a_stop_waits_for_the_running_answer_which_then_has_no_usage(yard: Yard) -> None:
    engine = yard.start(chunk_every_ms=40, answer_tokens=18)
    peer = engine.open_chat(stream=True)
    engine.stamped("first_chunk")
    engine.process.terminate()
    tail = peer.rest()
    peer.close()
    assert engine.ends() == 0
    assert b"I/O operation on closed file." in tail
    assert tail.endswith(b"data: [DONE]\n\n")
    assert b'"usage"' not in tail
    assert engine.stamped("native_exit").facts["why"] == "quit"


def test_a_long_answer_is_ended_by_the_ladder(yard: Yard) -> None:
    engine = yard.start(ladder_s=0.3, hang_after_chunks=1)
    peer = engine.open_chat(stream=True)
    engine.stamped("first_chunk")
    engine.process.terminate()
    assert engine.ends() == 0
    assert engine.stamped("native_gone").facts["exit_code"] == -signal.SIGTERM
    peer.close()


def test_the_ladder_ends_with_sigkill(yard: Yard) -> None:
    engine = yard.start(ladder_s=0.2, engine_ignores_quit=True, engine_ignores_sigterm=True)
    engine.process.terminate()
    assert engine.ends() == 0
    assert engine.stamped("native_gone").facts["exit_code"] == -signal.SIGKILL


def test_a_second_sigterm_kills_the_native_engine_at_once(yard: Yard) -> None:
    engine = yard.start(engine_ignores_quit=True)
    engine.process.terminate()
    engine.stamped("stopping")
    time.sleep(0.1)
    engine.process.terminate()
    assert engine.ends(2) == 0
    assert engine.stamped("native_gone").facts["exit_code"] == -signal.SIGKILL


def test_between_sigterm_and_exit_connections_are_taken_and_never_answered(yard: Yard) -> None:
    engine = yard.start(exit_s=0.3)
    engine.process.terminate()
    engine.stamped("stopping")
    with pytest.raises(ConnectionError):
        engine.get("/health")


def test_ignore_sigterm_leaves_only_sigkill(yard: Yard) -> None:
    engine = yard.start(ignore_sigterm=True)
    engine.process.terminate()
    time.sleep(0.1)
    assert engine.get("/health").status == 200
    engine.process.kill()
    assert engine.ends() == -signal.SIGKILL


def test_a_killed_server_leaves_its_native_engine_to_end_of_file(yard: Yard) -> None:
    engine = yard.start()
    native = engine.stamped("native_start").pid
    engine.process.kill()
    engine.ends()
    assert engine.stamped("native_exit").facts["why"] == "eof"
    wait_until(lambda: not is_alive(native))


def test_a_closed_standard_output_breaks_every_request_and_the_exit_status(yard: Yard) -> None:
    engine = yard.spawn(yard.profile(), output=subprocess.PIPE)
    engine.wait_ready()
    assert engine.process.stdout is not None
    engine.process.stdout.close()
    streamed = engine.chat(stream=True)
    assert streamed.chunks()[-1]["choices"][0]["finish_reason"] is None
    assert b"[DONE]" not in streamed.body
    peer = engine.open_chat()
    assert peer.rest() == b""
    peer.close()
    engine.process.terminate()
    assert engine.ends() == 1


def test_a_full_standard_output_hangs_requests_and_status_but_not_health(yard: Yard) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 1024)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, b"x")
    os.read(reader, 4096)  # Room for the start's lines, not for many more.
    os.set_blocking(writer, True)
    engine = yard.spawn(yard.profile(), output=writer)
    os.close(writer)
    engine.wait_ready()
    stuck = []
    for _ in range(200):
        peer = engine.open_chat(max_tokens=1)
        peer.socket.settimeout(0.5)
        stuck.append(peer)
        try:
            peer.rest()
        except TimeoutError:
            break
    else:
        pytest.fail("no request hung")
    assert engine.get("/health").status == 200
    status = engine.connect()
    status.socket.settimeout(0.2)
    status.send(b"GET /status HTTP/1.1\r\n\r\n")
    with pytest.raises(TimeoutError):
        status.rest()
    for peer in (*stuck, status):
        peer.close()
    os.close(reader)


def test_lazy_load_listens_at_once_and_loads_with_the_first_request(yard: Yard) -> None:
    engine = yard.start("m", {"lazy_load": True}, load_s=0.2)
    assert engine.get("/health").json()["loaded"] is False
    assert engine.chat().status == 200
    assert engine.get("/health").json()["loaded"] is True


def test_idle_unload_is_beaten_by_the_flag_and_works_without(yard: Yard) -> None:
    profile = yard.profile(keys={"idle_unload_s": 0.1})
    kept = yard.spawn(profile)
    kept.wait_ready()
    unloads = yard.spawn(profile, arguments=("--idle-unload", "0.1"))
    unloads.wait_ready()
    wait_until(lambda: unloads.get("/health").json()["loaded"] is False)
    assert kept.get("/health").json()["loaded"] is True


def test_the_start_stamp_says_what_the_process_was_given(yard: Yard) -> None:
    engine = yard.spawn(yard.profile(), environment={"LISTEN_FDS": "1"})
    facts = engine.stamped("start").facts
    assert facts["descriptors"]["0"] == os.devnull
    assert set(facts["descriptors"]) == {"0", "1", "2"}
    assert "LISTEN_FDS" in facts["environment"]
    assert facts["cwd"] == str(strata_dir())
    assert (facts["pgid"], facts["sid"], facts["ppid"]) == (
        engine.process.pid,
        engine.process.pid,
        os.getpid(),
    )


def served_once(yard: Yard, port: int, *, reset: bool, no_reuseaddr: bool = True) -> None:
    """A life of an engine in which one connection was closed by it first."""
    engine = yard.spawn(yard.profile(no_reuseaddr=no_reuseaddr), port=port)
    engine.stamped("ready", count=1 + engine.events().count("ready"))
    peer = engine.connect()
    peer.send(b"GET /health HTTP/1.1\r\n\r\n")
    peer.rest()
    if reset:
        peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()
    engine.process.terminate()
    assert engine.ends() == 0


@pytest.mark.parametrize("without", [True, False])
def test_b07_time_wait_of_an_engine_without_reuseaddr_blocks_the_port(
    yard: Yard, without: bool
) -> None:
    """For a successor with SO_REUSEADDR too: Linux asks the old socket as well."""
    port = free_port()
    served_once(yard, port, reset=False)
    assert yard.spawn(yard.profile(no_reuseaddr=without), port=port).ends() == 2


def test_b07_time_wait_is_no_obstacle_between_engines_that_reuse(yard: Yard) -> None:
    port = free_port()
    for _ in range(2):
        served_once(yard, port, reset=False, no_reuseaddr=False)


def test_b07_a_client_that_resets_after_the_end_leaves_the_port_free(yard: Yard) -> None:
    port = free_port()
    served_once(yard, port, reset=True)
    served_once(yard, port, reset=True)


def test_an_early_listener_says_loading(yard: Yard) -> None:
    engine = yard.spawn(yard.profile(early_listener=True, load_s=0.4))
    engine.wait_ready()
    assert (engine.get("/health").status, engine.get("/health").json()["status"]) == (
        503,
        "loading",
    )
    assert engine.chat().status == 529
    engine.stamped("ready")
    wait_until(lambda: engine.get("/health").status == 200)
    assert engine.chat().status == 200


def test_help_offers_the_ready_file_in_one_checkout_only(yard: Yard) -> None:
    for offered in (False, True):
        command = [sys.executable, "-m", "serve.server", "--help"]
        cwd = strata_dir(ready_file=offered)
        shown = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=True).stdout
        assert ("--ready-file" in shown) is offered


def test_the_ready_file_is_written_once_the_port_is_open(yard: Yard) -> None:
    path = yard.folder / "ready.json"
    engine = yard.spawn(yard.profile("model-a"), ready_file=path)
    wait_until(path.exists)
    assert json.loads(path.read_text()) == {"pid": engine.process.pid, "model": "model-a"}
    assert engine.get("/health").status == 200


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("wrong_pid", {"pid": os.getpid(), "model": "m"}),
        ("wrong_model", {"pid": None, "model": "another-model"}),
        ("garbage", None),
        ("not_object", []),
    ],
)
def test_ready_file_faults(yard: Yard, how: str, expected: object) -> None:
    path = yard.folder / "ready.json"
    engine = yard.spawn(yard.profile(ready_file=how), ready_file=path)
    wait_until(path.exists)
    if isinstance(expected, dict) and expected["pid"] is None:
        expected = {**expected, "pid": engine.process.pid}
    if expected is None:
        with pytest.raises(ValueError, match="Expecting"):
            json.loads(path.read_text())
    else:
        assert json.loads(path.read_text()) == expected


def test_a_ready_file_that_never_comes_late_or_too_early(yard: Yard) -> None:
    def spawn(name: str, **knobs: Any) -> tuple[Engine, Path]:
        path = yard.folder / name
        return yard.spawn(yard.profile(name, **knobs), ready_file=path), path

    never, never_path = spawn("never", ready_file="never")
    late, late_path = spawn("late", ready_file_delay_s=0.3)
    early, early_path = spawn("early", ready_file="before_load", load_s=0.5)
    wait_until(early_path.exists)
    assert is_refused(early.port)
    never.wait_ready()
    late.wait_ready()
    assert not never_path.exists()
    wait_until(late_path.exists)


@pytest.mark.parametrize(
    ("knobs", "status", "body"),
    [
        ({"health": {"loaded": False}}, 200, b'"loaded": false'),
        ({"health_status": 500}, 500, b'"loaded": true'),
        ({"health_raw": "<html>"}, 200, b"<html>"),
        ({"wrong_model": "other"}, 200, b'"model": "other"'),
        ({"health_delay_s": 0.1}, 200, b'"status": "ok"'),
    ],
)
def test_health_can_lie(yard: Yard, knobs: dict[str, Any], status: int, body: bytes) -> None:
    reply = yard.start(**knobs).get("/health")
    assert reply.status == status
    assert body in reply.body


def test_wrong_model_is_told_everywhere(yard: Yard) -> None:
    engine = yard.start(wrong_model="other")
    assert engine.get("/v1/models").json()["data"][0]["id"] == "other"
    assert engine.chat().json()["model"] == "other"
