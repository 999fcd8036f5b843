"""``status``, ``off`` and ``on`` as a person or a script runs them: a real process, a real socket."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
import trio

from strata_router.cli import control_client
from strata_router.cli.control_client import fetch_status
from strata_router.cli.outcome import CommandFailedError, ExitStatus
from strata_router.cli.socket_choice import Choice
from strata_router.core.control import Done, Report
from tests.cli.commands import (
    BOUND_S,
    answers,
    command_line,
    odd_daemon,
    run,
    run_on_terminal,
    running,
)
from tests.fakes.scripted_operator import ScriptedOperator, control_daemon

PROGRESS = re.compile(r"\[ *\d+\.\ds\] ")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    directory = tmp_path / "strata-router"
    directory.mkdir(mode=0o700)
    return directory / "control.sock"


async def unload(report: Report) -> Done:
    report("routing", "routing disabled: new and queued requests get 503")
    await trio.sleep(0.05)
    report("stop", "backend pid 4713 exited, memory released")
    return Done(True, "model unloaded, routing disabled")


async def fail_to_load(report: Report) -> Done:
    report("start", "starting backend for model model-a")
    return Done(False, "backend exited with status 2 before it was ready")


async def never(report: Report) -> Done:
    report("wait", "1 active request, waiting for it to finish (use --now to interrupt)")
    await trio.sleep_forever()
    raise AssertionError("unreachable")


def without_times(stderr: str) -> list[str]:
    return [PROGRESS.sub("[] ", line) for line in stderr.splitlines()]


# --- status ---


def test_status_in_a_pipe_is_one_line_of_json(path: Path) -> None:
    operator = ScriptedOperator()
    with control_daemon(path, operator):
        ran = run("status", path)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.count("\n") == 1
    assert json.loads(ran.stdout) == operator.facts | {"operation": None}


def test_status_on_a_terminal_is_a_short_table(path: Path) -> None:
    operator = ScriptedOperator()
    operator.facts |= {"last_startup_error": "port 8089 is held by pid 4711 (python3)"}
    with control_daemon(path, operator):
        status, shown = run_on_terminal("status", path)
    assert status == 0
    assert shown.splitlines() == [
        f"daemon            pid {os.getpid()}",
        "routing           on",
        "draining          no",
        "model             model-a",
        "engine            pid 4713",
        "busy              no",
        "requests          -",
        "last start error  port 8089 is held by pid 4711 (python3)",
    ]


def test_status_with_json_is_json_on_a_terminal_too(path: Path) -> None:
    with control_daemon(path, ScriptedOperator()):
        _, shown = run_on_terminal("status", "--json", path)
    assert json.loads(shown)["loaded"] == "model-a"


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_nothing_that_the_daemon_says_can_act_on_the_terminal(
    path: Path, options: list[str]
) -> None:
    operator = ScriptedOperator()
    operator.facts["loaded"] = "\x1b]0;title\x07\x9b31m\u202e"
    with control_daemon(path, operator):
        _, shown = run_on_terminal("status", *options, path)
    assert r"\u001b]0;title\u0007\u009b31m\u202e" in shown
    assert shown.replace("\n", "").isprintable()


# --- which daemon ---


def test_every_command_works_bare_with_the_runtime_directory(path: Path) -> None:
    operator = ScriptedOperator()
    with control_daemon(path, operator):
        for words in (["status"], ["on"], ["on", "model-b"], ["off", "--now"]):
            assert run(*words, XDG_RUNTIME_DIR=path.parent.parent).returncode == 0
    assert operator.asked == [("on", None), ("on", "model-b"), ("off", True)]


def test_the_environments_socket_beats_the_default_and_an_argument_beats_both(path: Path) -> None:
    with control_daemon(path, ScriptedOperator()):
        assert run("status", XDG_RUNTIME_DIR="/nowhere", STRATA_ROUTER_SOCKET=path).returncode == 0
        assert run("status", path, STRATA_ROUTER_SOCKET="/nowhere/s").returncode == 0
        assert run("status", STRATA_ROUTER_SOCKET="/nowhere/s").returncode == 3


@pytest.mark.parametrize("order", ["socket first", "model first", "option between"])
def test_socket_and_model_may_stand_in_any_order(path: Path, order: str) -> None:
    operator = ScriptedOperator()
    words: list[str | Path] = [path, "model-b"]
    if order == "model first":
        words.reverse()
    if order == "option between":
        words.insert(1, "--json")
    with control_daemon(path, operator):
        assert run("on", *words).returncode == 0
    assert operator.asked == [("on", "model-b")]


# --- off and on ---


def test_off_shows_progress_on_stderr_and_the_final_event_on_stdout(path: Path) -> None:
    with control_daemon(path, ScriptedOperator(off=unload)):
        ran = run("off", path)
    assert ran.returncode == 0
    assert ran.stderr.startswith("[   0.0s] routing disabled: new and queued requests get 503\n")
    assert without_times(ran.stderr)[1:] == [
        "[] backend pid 4713 exited, memory released",
        "off: model unloaded, routing disabled",
    ]
    assert ran.stdout.count("\n") == 1
    final = json.loads(ran.stdout)
    assert (final["event"], final["ok"]) == ("done", True)
    assert final["message"] == "model unloaded, routing disabled"
    assert final["pid"] == os.getpid()


def test_off_on_a_terminal_reads_as_the_document_shows_it(path: Path) -> None:
    with control_daemon(path, ScriptedOperator(off=unload)):
        status, shown = run_on_terminal("off", path)
    assert status == 0
    assert without_times(shown) == [
        "[] routing disabled: new and queued requests get 503",
        "[] backend pid 4713 exited, memory released",
        "off: model unloaded, routing disabled",
    ]


def test_json_brings_the_final_event_to_a_terminal_too(path: Path) -> None:
    with control_daemon(path, ScriptedOperator(off=unload)):
        _, shown = run_on_terminal("off", "--json", path)
    assert json.loads(shown.splitlines()[-1])["event"] == "done"


def test_already_on_is_one_line(path: Path) -> None:
    async def already(report: Report) -> Done:
        return Done(True, "already on")

    with control_daemon(path, ScriptedOperator(on=already)):
        ran = run("on", path)
    assert (ran.returncode, ran.stderr) == (0, "on: already on\n")


def test_a_load_that_fails_exits_with_1_and_the_startup_error(path: Path) -> None:
    with control_daemon(path, ScriptedOperator(on=fail_to_load)):
        ran = run("on", path)
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1] == (
        "on failed: backend exited with status 2 before it was ready"
    )
    assert json.loads(ran.stdout)["ok"] is False


def test_b11_a_command_waits_as_long_as_the_operation_takes(path: Path) -> None:
    """And says so meanwhile: nobody has to guess whether it hangs."""

    async def slow(report: Report) -> Done:
        report("wait", "1 active request, waiting for it to finish")
        await trio.sleep(2.3)
        return Done(True, "model unloaded, routing disabled")

    with control_daemon(path, ScriptedOperator(off=slow)):
        ran = run("off", path)
    assert ran.returncode == 0
    assert "[] still waiting (2s so far)" in without_times(ran.stderr)


@pytest.mark.parametrize(
    ("command", "last_words"),
    [
        ("off", "run 'strata-router off --now' or 'strata-router on' next"),
        ("on", "on: interrupted, the wait or load is cancelled"),
    ],
)
def test_ctrl_c_cancels_the_operation_with_one_line(
    path: Path, command: str, last_words: str
) -> None:
    operator = ScriptedOperator(off=never, on=never)
    with control_daemon(path, operator):
        with running(command, path) as process:
            assert process.stderr is not None
            assert "1 active request" in process.stderr.readline()
            process.send_signal(signal.SIGINT)
            stdout, stderr = process.communicate()
        assert process.returncode == 130
        assert stdout == ""
        [line] = stderr.splitlines()
        assert line.endswith(last_words)
        deadline_s = time.monotonic() + 5
        while operator.ended != ["cancelled"]:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)


def test_ctrl_c_in_status_is_one_line_too(path: Path) -> None:
    asked = threading.Event()

    def hang(client: socket.socket) -> None:
        client.recv(65536)
        asked.set()
        client.recv(65536)

    with odd_daemon(path, hang), running("status", path) as process:
        assert asked.wait(BOUND_S)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate()
    assert (process.returncode, stderr) == (130, "status: interrupted\n")


def test_a_progress_stream_that_nobody_reads_does_not_end_the_operation(path: Path) -> None:
    async def chatty(report: Report) -> Done:
        for number in range(50):
            report("wait", f"step {number}")
            await trio.sleep(0.01)
        return Done(True, "finished")

    operator = ScriptedOperator(off=chatty)
    with control_daemon(path, operator), running("off", path) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        process.stderr.readline()
        process.stderr.close()
        assert json.loads(process.stdout.read())["ok"] is True
    assert operator.ended == ["done"]


def test_output_that_nobody_reads_is_no_traceback(path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with control_daemon(path, ScriptedOperator()):
        ran = subprocess.run(
            command_line("status", path), stdout=writer, stderr=subprocess.PIPE, check=False
        )
    os.close(writer)
    assert (ran.returncode, ran.stderr) == (1, b"")


def test_a_full_disk_behind_the_output_is_named(path: Path) -> None:
    with control_daemon(path, ScriptedOperator()), open("/dev/full", "wb") as full:
        ran = subprocess.run(
            command_line("status", path), stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert ran.returncode == 1
    assert ran.stderr == b"strata-router status: cannot write the result: No space left on device\n"


def test_a_closed_output_does_not_matter_to_the_operation(path: Path) -> None:
    operator = ScriptedOperator()
    with control_daemon(path, operator):
        shell = " ".join(command_line("off", path)) + " >&- 2>&-"
        assert subprocess.run(["/bin/sh", "-c", shell], check=False).returncode == 0
    assert operator.ended == ["done"]


# --- no daemon, or not the right one ---


def failed(*words: str | Path) -> tuple[int, str]:
    """Exit status and the one line that a failing command prints."""
    ran = run(*words)
    assert ran.stdout == ""
    [line] = ran.stderr.splitlines()
    return ran.returncode, line.removeprefix(f"strata-router {words[0]}: ")


@pytest.mark.parametrize("command", ["status", "off", "on"])
def test_without_a_socket_the_daemon_is_not_running(path: Path, command: str) -> None:
    assert failed(command, path) == (
        3,
        f"the daemon is not running: there is no control socket {path}",
    )


def test_the_default_socket_that_is_missing_hints_at_another_one(path: Path) -> None:
    ran = run("status", XDG_RUNTIME_DIR=path.parent.parent)
    assert ran.returncode == 3
    assert "STRATA_ROUTER_SOCKET" in ran.stderr or "/run/strata-router/" in ran.stderr


@pytest.mark.parametrize("command", ["status", "off", "on"])
def test_b27_a_stale_socket_means_a_killed_daemon(path: Path, command: str) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
    status, line = failed(command, path)
    assert status == 3
    assert f"control socket {path} is stale" in line
    assert "make sure that it is dead" in line
    assert path.is_socket()


def test_a_path_that_is_no_socket_is_named_so(path: Path) -> None:
    path.write_text("")
    assert failed("off", path) == (
        3,
        f"{path} is not a control socket; name the daemon's own",
    )
    assert failed("off", path / "below")[0] == 3


def test_a_path_that_cannot_be_one_is_named_so(tmp_path: Path) -> None:
    status, line = failed("off", tmp_path / ("x" * 200))
    assert status == 3
    assert "path too long" in line


@pytest.mark.parametrize("command", ["off", "on"])
def test_an_older_daemon_is_told_from_a_refusal(path: Path, command: str) -> None:
    with odd_daemon(path, answers(b'{"error":"unknown control command"}\n')):
        status, line = failed(command, path)
    assert status == 1
    assert f"older than this command and does not know '{command}'" in line
    assert "restart" in line


@pytest.mark.parametrize("command", ["status", "off", "on"])
def test_another_refusal_is_passed_on(path: Path, command: str) -> None:
    with odd_daemon(path, answers(b'{"error":"not today \\u001b[31m"}\n')):
        status, line = failed(command, path)
    assert status == 1
    assert line.endswith(r"not today \u001b[31m")


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b'{"event":"done"',
        b'{"event":"progress","op":"off","phase":"a","message":"b","elapsed_ms":1}\n',
        b'{"event":"of a newer daemon"}\n',
    ],
)
def test_an_end_without_final_event_is_a_failure(path: Path, reply: bytes) -> None:
    with odd_daemon(path, answers(reply)):
        ran = run("off", path)
    assert ran.returncode == 1
    assert ran.stdout == ""
    assert "closed the connection before 'off' was finished" in ran.stderr.splitlines()[-1]


def test_a_connection_that_is_reset_is_an_end_too(path: Path) -> None:
    with odd_daemon(path, lambda client: None):
        status, line = failed("on", path)
    assert status == 1
    assert "closed the connection before 'on' was finished" in line


def test_a_daemon_that_stops_meanwhile_says_so_and_the_command_fails(path: Path) -> None:
    with (
        control_daemon(path, ScriptedOperator(off=never)) as stop,
        running("off", path) as process,
    ):
        assert process.stderr is not None
        process.stderr.readline()
        stop()
        stdout, stderr = process.communicate()
    assert process.returncode == 1
    assert stderr == "off failed: the daemon is shutting down\n"
    assert json.loads(stdout)["ok"] is False


@pytest.mark.parametrize("reply", [b"", b"HTTP/1.1 400 Bad Request\r\n", b"[]\n", b"\xff\n"])
def test_status_of_something_else_is_a_failure(path: Path, reply: bytes) -> None:
    with odd_daemon(path, answers(reply)):
        status, line = failed("status", path)
    assert status == 1
    assert "does not answer like a strata-router daemon" in line


def test_status_does_not_wait_for_a_daemon_that_hangs(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_client, "STATUS_S", 0.2)
    with socket.socket(socket.AF_UNIX) as stopped:
        stopped.bind(str(path))
        stopped.listen(0)
        choice = Choice(str(path), is_default=False, model=None)
        with pytest.raises(CommandFailedError, match="did not answer within") as failure:
            fetch_status(choice)
        assert failure.value.status is ExitStatus.UNREACHABLE
        # That connection still waits to be accepted, and fills the backlog.
        with pytest.raises(CommandFailedError, match="accepts no connection") as failure:
            fetch_status(choice)
        assert failure.value.status is ExitStatus.UNREACHABLE


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_without_permission_the_right_user_is_named() -> None:
    with tempfile.TemporaryDirectory() as parent:
        os.chmod(parent, 0o755)
        path = Path(parent, "strata-router", "control.sock")
        path.parent.mkdir(mode=0o700)
        choice = Choice(str(path), is_default=False, model=None)
        with control_daemon(path, ScriptedOperator()):
            os.seteuid(65534)
            try:
                with pytest.raises(CommandFailedError, match="no permission") as failure:
                    fetch_status(choice)
            finally:
                os.seteuid(0)
    assert failure.value.status is ExitStatus.UNREACHABLE
    assert f"sudo -u root strata-router status {path}" in str(failure.value)


# --- at once ---


@pytest.mark.parametrize("words", [["--help"], ["off", "--help"], ["--version"], ["status"]])
def test_no_command_of_the_operator_loads_the_daemons_libraries(
    path: Path, words: list[str]
) -> None:
    script = """
import sys
from strata_router.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
loaded = {"trio", "httpx", "quart", "hypercorn", "h11", "yaml"} & set(sys.modules)
print("loaded:", sorted(loaded), file=sys.stderr)
"""
    with control_daemon(path, ScriptedOperator()):
        ran = subprocess.run(
            [sys.executable, "-c", script, *words],
            env=os.environ | {"STRATA_ROUTER_SOCKET": str(path)},
            capture_output=True,
            text=True,
            check=True,
        )
    assert ran.stderr == "loaded: []\n"


@pytest.mark.parametrize("command", ["--help", "status"])
def test_the_command_line_starts_within_150_ms_of_cpu_time(path: Path, command: str) -> None:
    def cpu_s() -> float:
        process = subprocess.Popen(
            command_line(command),
            env=os.environ | {"STRATA_ROUTER_SOCKET": str(path)},
            stdout=subprocess.DEVNULL,
        )
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        return used.ru_utime + used.ru_stime

    with control_daemon(path, ScriptedOperator()):
        # The best of five: other work on the machine makes the same start cost more.
        assert min(cpu_s() for _ in range(5)) < 0.150
