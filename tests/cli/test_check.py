"""``strata-router check`` on real files, directories and ports."""

import io
import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from strata_router.cli.check import run
from strata_router.runtime.control_endpoint import user_name
from strata_router.runtime.record_file import RecordFile, RecordLogRefused
from tests.generate_docs import ROOT

USABLE = {"family": "f", "engine": "llama", "installed": True, "compatible": True}
REFUSED = "the daemon would refuse to start: "


@pytest.fixture
def ports() -> Iterator[tuple[socket.socket, int, int]]:
    """A listener that we hold, its port, and a port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        with socket.create_server(("127.0.0.1", 0)) as other:
            free = other.getsockname()[1]
        yield held, held.getsockname()[1], free


def check(tmp_path: Path, document: object, name: str = "config.json") -> tuple[int, str, str]:
    """Exit status, standard output, standard error."""
    path = tmp_path / name
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    path.chmod(0o600)
    out, err = io.StringIO(), io.StringIO()
    return run(str(path), out, err), out.getvalue(), err.getvalue()


def report(tmp_path: Path, **keys: Any) -> str:
    """The report of one model ``a``, spaces squeezed; a problem fails the test."""
    document = {
        "models": {"a": {"family": "f"}},
        "control_socket": str(tmp_path / "run" / "control.sock"),
    }
    status, out, err = check(tmp_path, document | keys)
    assert err == ""
    assert status in (0, 1)
    return "\n".join(" ".join(line.split()) for line in out.splitlines())


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def verdict(tmp_path: Path, **keys: Any) -> tuple[int, str]:
    """Exit status and verdict for one usable model ``a``, all that it needs being there."""
    run_dir, program = tmp_path / "run", tmp_path / "llama-server"
    run_dir.mkdir(mode=0o700, exist_ok=True)
    program.touch(mode=0o700)
    document = {
        "listen": f"127.0.0.1:{free_port()}",
        "backend_port": free_port(),
        "models": {"a": USABLE},
        "engines": {"llama": {"kind": "llama-server", "command": str(program)}},
        "control_socket": str(run_dir / "control.sock"),
    }
    status, out, err = check(tmp_path, document | keys)
    assert err == ""
    *_, blank, last = out.splitlines()
    assert blank == ""
    return status, last.removeprefix("verdict: ")


def lines_of(text: str, beginning: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(beginning)]


def test_every_problem_is_a_line_on_standard_error(tmp_path: Path) -> None:
    document = {"models": {"a": {"family": "f", "profile": "x"}}, "queue_ms": 0, "max_pendng": 1}
    status, out, err = check(tmp_path, document)
    assert status == 2
    assert out == ""
    assert [line.split(": ")[0] for line in err.splitlines()] == [
        "max_pendng",
        "models.a.profile",
        "queue_ms",
    ]


@pytest.mark.parametrize("text", ["", "{", "[]", "\x00", "[" * 100_000])
@pytest.mark.parametrize("name", ["config.json", "config.yaml"])
def test_a_file_that_is_no_configuration_is_a_line(tmp_path: Path, text: str, name: str) -> None:
    status, out, err = check(tmp_path, text, name)
    assert (status, out) == (2, "")
    assert len(err.splitlines()) == 1


def test_a_file_that_is_not_there_is_a_line(tmp_path: Path) -> None:
    out, err = io.StringIO(), io.StringIO()
    missing = tmp_path / "none.json"
    assert run(missing, out, err) == 2
    assert err.getvalue().startswith(f"config file: {missing} cannot be read: No such file")


def test_the_shipped_example_can_be_checked() -> None:
    """Whether a daemon would start with it is a matter of the machine."""
    out, err = io.StringIO(), io.StringIO()
    assert run(ROOT / "config.example.json", out, err) != 2
    assert err.getvalue() == ""
    assert [line.split()[2] for line in out.getvalue().splitlines()[1:24]] == ["not_installed"] * 23


def test_warnings_go_to_standard_error_and_change_no_status(tmp_path: Path) -> None:
    document = {"models": {"a": {"family": "f", "enabled": False}}}
    status, out, err = check(tmp_path, document)
    assert status != 2
    assert out.startswith("model")
    assert err.startswith("warning: models: 1 use 'enabled'")


def test_models_are_shown_with_their_state_and_profile_problems(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps({"model_name": "prepared"}))
    bad.write_text(json.dumps({"model_name": "x", "lazy_load": True}))
    for profile in (good, bad):
        profile.chmod(0o600)
    common = {"family": "f", "installed": True}
    shown = report(
        tmp_path,
        models={
            "absent": {"family": "f", "profile": "/none"},
            "doubtful": common | {"profile": str(good), "upstream_model": "prepared"},
            "broken": common | {"profile": str(bad), "compatible": True},
            "prepared": common | {"profile": str(good), "compatible": True},
            "other": common | {"engine": "llama", "compatible": True},
        },
        engines={"llama": {"kind": "llama-server", "command": "/none"}},
        enabled_models=["prepared"],
        python="/none",
        strata_dir="/none",
    )
    assert shown.splitlines()[:6] == [
        "model family state offered profile",
        "absent f not_installed no -",
        "doubtful f incompatible no ok",
        "broken f missing_profile no lazy_load must be false: the router decides when to load; "
        "model_name differs from upstream_model 'broken' in the config: make them the same; "
        f"the profile says 'x'; the file is {bad}",
        "prepared f prepared_unverified yes ok",
        "other f prepared_unverified no none needed for engine llama",
    ]


def test_a_note_on_a_good_profile_is_shown(tmp_path: Path) -> None:
    profile = tmp_path / "p.json"
    profile.write_text(json.dumps({"model_name": "a", "idle_unload_s": 60}))
    profile.chmod(0o600)
    models = {"a": {"family": "f", "installed": True, "profile": str(profile)}}
    shown = report(tmp_path, models=models, python="/none", strata_dir="/none")
    assert "a f incompatible yes idle_unload_s is overridden by 0" in shown


def test_aliases_are_shown_in_effective_order(tmp_path: Path) -> None:
    shown = report(
        tmp_path,
        models={name: {"family": "f"} for name in "abc"} | {"d": {"family": "g"}},
        aliases={"f": {"allowed_models": ["c", "b", "a"]}, "g": {"allowed_models": ["d"]}},
        enabled_models=["a", "c"],
    )
    start = shown.splitlines().index("alias stands for, in this order")
    assert shown.splitlines()[start + 1 : start + 4] == [
        "f 1. c",
        "2. a",
        "g nothing: no model of it is enabled",
    ]


def test_without_aliases_there_is_no_table_of_them(tmp_path: Path) -> None:
    assert not lines_of(report(tmp_path), "alias")


def test_a_missing_socket_directory_comes_with_the_command_that_makes_it(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    (line,) = lines_of(report(tmp_path), "control socket")
    assert line.startswith(f"control socket {run_dir} cannot be used: No such file or directory")
    assert line.endswith(f"install -d -m 700 {run_dir}")


@pytest.mark.parametrize(
    ("mode", "said"),
    [(0o700, "is ours, and nothing is in the way"), (0o755, "has mode 0755; group and others")],
)
def test_the_socket_directory_must_be_private(tmp_path: Path, mode: int, said: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run").chmod(mode)
    (line,) = lines_of(report(tmp_path), "control socket")
    assert said in line


def test_the_socket_directory_must_be_a_directory(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    (line,) = lines_of(report(tmp_path), "control socket")
    assert "is not a directory" in line


def test_a_socket_directory_below_a_file_cannot_be_seen(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    shown = report(tmp_path, control_socket=str(tmp_path / "file/run/control.sock"))
    (line,) = lines_of(shown, "control socket")
    assert "cannot be used: Not a directory" in line


def test_the_socket_directory_must_be_the_daemons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    ours = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: ours + 1)
    (line,) = lines_of(report(tmp_path), "control socket")
    assert f"belongs to {user_name(ours)}, but the daemon runs as {user_name(ours + 1)}" in line


@pytest.mark.parametrize("key", ["request_log_path", "engine_log_path"])
def test_a_log_that_exists_must_be_a_private_file_that_can_be_written(
    tmp_path: Path, key: str
) -> None:
    label = key.removesuffix("_path").replace("_", " ")

    def state(path: Path) -> str:
        (line,) = lines_of(report(tmp_path, **{key: str(path)}), label)
        return line.removeprefix(f"{label} {path} ")

    log = tmp_path / "log"
    assert state(log).startswith("will be made, mode 0600, in a directory of mode 0")
    log.touch()
    log.chmod(0o600)
    assert state(log) == "is writable, mode 0600"
    log.chmod(0o644)
    assert state(log) == f"has mode 0644: chmod 600 {log}"
    assert state(tmp_path) == "is not a regular file; give the path of a file"
    assert state(log / "below") == "cannot be used: Not a directory"
    (tmp_path / "link").symlink_to(log)
    assert state(tmp_path / "link") == "is a symbolic link; give the path of the file itself"
    assert state(tmp_path / "none" / "log") == (
        "cannot be made: its directory: No such file or directory"
    )


def test_logs_are_off_unless_configured(tmp_path: Path) -> None:
    shown = report(tmp_path)
    assert "request log off" in shown
    assert "engine log off" in shown


def test_a_log_that_cannot_be_written_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may write everything, so the kernel's answer is replaced."""
    log = tmp_path / "log"
    log.touch()
    monkeypatch.setattr(os, "access", lambda *_: False)
    paths = {"request_log_path": str(log), "engine_log_path": str(tmp_path / "new")}
    shown = report(tmp_path, **paths)
    assert f"{log} is not writable by uid" in shown
    assert "cannot be made: its directory is not writable by uid" in shown


def test_programs_are_looked_for(tmp_path: Path) -> None:
    program, plain = tmp_path / "program", tmp_path / "plain"
    program.touch()
    program.chmod(0o700)
    plain.touch()
    (tmp_path / "serve").mkdir()
    (tmp_path / "serve" / "server.py").touch()
    shown = report(
        tmp_path,
        python=str(program),
        strata_dir=str(tmp_path),
        engines={
            "one": {"kind": "llama-server", "command": str(plain)},
            "two": {"kind": "llama-server", "command": "/none"},
        },
    )
    assert f"python {program} is executable" in shown
    assert f"strata_dir {tmp_path} has serve/server.py" in shown
    assert "engine two /none is missing" in shown
    assert f"engine one {plain} is not executable by uid" in shown


def test_a_directory_that_is_no_checkout_is_shown(tmp_path: Path) -> None:
    assert "has no serve/server.py: not a Strata checkout" in report(
        tmp_path, strata_dir=str(tmp_path)
    )


def test_ports_are_shown_free_or_with_their_holder(
    tmp_path: Path, ports: tuple[socket.socket, int, int]
) -> None:
    _, held, free = ports
    shown = report(tmp_path, listen=f"127.0.0.1:{held}", backend_port=free)
    assert f"127.0.0.1:{held} (clients) held by pid {os.getpid()} (" in shown
    assert f"127.0.0.1:{free} (engine) free" in shown


def test_a_stream_that_cannot_say_a_name_gets_it_escaped(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"models": {"a": {"family": "modèle"}}}))
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii")
    assert run(path, out, io.StringIO()) != 2
    out.flush()
    assert b"mod\\xe8le" in raw.getvalue()


def test_a_reader_that_went_away_is_no_traceback(tmp_path: Path) -> None:
    class Gone(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    path = tmp_path / "config.json"
    path.write_text(json.dumps({"models": {}}))
    assert run(path, Gone(), io.StringIO()) == 1


# --- the verdict


def test_a_configuration_that_lacks_nothing_is_ready(tmp_path: Path) -> None:
    assert verdict(tmp_path) == (0, "ready")


def test_models_that_cannot_be_used_are_named_with_the_reason(tmp_path: Path) -> None:
    models = {"a": USABLE, "b": USABLE | {"installed": False}, "c": USABLE | {"engine": "gone"}}
    engines = {
        "llama": {"kind": "llama-server", "command": sys.executable},
        "gone": {"kind": "llama-server", "command": "/none"},
    }
    assert verdict(tmp_path, models=models, engines=engines) == (
        0,
        "it would start; 2 of 3 models cannot be used: b is not_installed, "
        "c has no engine (engine gone /none is missing)",
    )


def test_many_models_that_cannot_be_used_are_not_all_named(tmp_path: Path) -> None:
    models = {f"m{number}": {"family": "f"} for number in range(5)}
    assert verdict(tmp_path, models=models) == (
        0,
        "it would start; none of 5 models can be used: m0 is not_installed, m1 is not_installed, "
        "m2 is not_installed, and 2 more",
    )
    assert (
        "no model can be used: a is not_installed"
        in verdict(tmp_path, models={"a": {"family": "f"}})[1]
    )


def test_only_models_that_are_offered_count(tmp_path: Path) -> None:
    models = {"a": USABLE, "b": {"family": "f"}}
    assert verdict(tmp_path, models=models, enabled_models=["a"]) == (0, "ready")
    assert verdict(tmp_path, models=models, enabled_models=[]) == (
        0,
        "it would start; no model is offered, as enabled_models is empty",
    )


def test_a_profile_is_of_no_use_without_strata(tmp_path: Path) -> None:
    profile = tmp_path / "p.json"
    profile.write_text(json.dumps({"model_name": "a"}))
    profile.chmod(0o600)
    model = {"family": "f", "installed": True, "compatible": True, "profile": str(profile)}
    keys = {"models": {"a": model}, "python": sys.executable, "strata_dir": str(tmp_path)}
    assert verdict(tmp_path, **keys)[1].endswith(
        f"a has no engine (strata_dir {tmp_path} has no serve/server.py: not a Strata checkout)"
    )
    assert verdict(tmp_path, **keys | {"python": "/none"})[1].endswith(
        "a has no engine (python /none is missing)"
    )
    (tmp_path / "serve").mkdir()
    (tmp_path / "serve" / "server.py").touch()
    assert verdict(tmp_path, **keys) == (0, "ready")
    profile.unlink()
    assert verdict(tmp_path, **keys)[1].endswith("a is missing_profile")


def test_a_program_that_cannot_be_reached_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may reach everything, so the kernel's answer is replaced."""
    look = os.stat

    def denied(path: str, **how: Any) -> os.stat_result:
        if str(path).startswith("/closed"):
            raise PermissionError(13, "Permission denied", path)
        return look(path, **how)

    monkeypatch.setattr(os, "stat", denied)
    shown = report(tmp_path, python="/closed/python", strata_dir="/closed/strata")
    assert (
        f"python /closed/python cannot be reached by uid {os.geteuid()}: Permission denied" in shown
    )
    assert "strata_dir /closed/strata/serve/server.py cannot be reached by" in shown


@pytest.mark.parametrize("mode", [0o755, 0o1777])
def test_a_directory_that_the_daemon_refuses_is_a_refusal(tmp_path: Path, mode: int) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run").chmod(mode)
    status, said = verdict(tmp_path)
    assert status == 1
    assert said.startswith(f"{REFUSED}control socket directory {tmp_path / 'run'} has mode")


def test_a_stale_socket_is_a_refusal(tmp_path: Path) -> None:
    path = tmp_path / "stale" / "control.sock"
    path.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    status, said = verdict(tmp_path, control_socket=str(path))
    assert status == 1
    assert said.startswith(f"{REFUSED}stale control socket {path}")


def test_the_daemon_that_is_to_be_replaced_is_in_nobodys_way(tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    path = tmp_path / "live" / "control.sock"
    path.parent.mkdir(mode=0o700)
    with (
        socket.socket(socket.AF_UNIX) as daemon,
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_server(("127.0.0.1", 0)) as engine,
        locked(log),
    ):
        daemon.bind(str(path))
        daemon.listen()
        keys = {
            "control_socket": str(path),
            "request_log_path": str(log),
            "listen": f"127.0.0.1:{listener.getsockname()[1]}",
            "backend_port": engine.getsockname()[1],
        }
        assert verdict(tmp_path, **keys) == (
            0,
            f"another daemon (pid {os.getpid()}) listens on control socket {path} and was left alone; "
            "stop it first, or give this one another control_socket. After that it would start, ready",
        )


@contextmanager
def locked(log: Path) -> Iterator[None]:
    """The request log of a daemon that runs."""
    file = RecordFile(str(log), max_bytes=10_000, backups=1)
    file.open()
    try:
        yield
    finally:
        file.close()


def test_a_request_log_that_another_daemon_writes_is_a_refusal(tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    with locked(log):
        assert verdict(tmp_path, request_log_path=str(log)) == (
            1,
            f"{REFUSED}request_log_path: {log} is written by another process; "
            "give each daemon its own path",
        )
    assert verdict(tmp_path, request_log_path=str(log)) == (0, "ready")


@pytest.mark.parametrize("what", ["device", "link", "other file"])
def test_a_request_log_that_is_not_the_daemons_is_a_refusal(tmp_path: Path, what: str) -> None:
    log = tmp_path / "log"
    match what:
        case "device":
            log = Path("/dev/full")
        case "link":
            log.symlink_to(tmp_path / "elsewhere")
        case _:
            log.write_text("precious")
    status, said = verdict(tmp_path, request_log_path=str(log))
    assert status == 1
    assert said.startswith(f"{REFUSED}request_log_path: {log} ")
    with pytest.raises(RecordLogRefused):
        RecordFile(str(log), max_bytes=10_000, backups=1).open()


@pytest.mark.parametrize(
    ("key", "without"),
    [("request_log_path", "no records on disk"), ("engine_log_path", "no output of engines")],
)
def test_without_a_usable_log_the_daemon_starts_all_the_same(
    tmp_path: Path, key: str, without: str
) -> None:
    log = tmp_path / "none" / "log"
    assert verdict(tmp_path, **{key: str(log)}) == (
        0,
        f"it would start; {without}: {log} cannot be made: its directory: No such file or directory",
    )


def test_a_request_log_that_cannot_be_read_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may read everything, so the kernel's answer is replaced."""

    def denied(path: str, mode: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    log = tmp_path / "log"
    log.touch(mode=0o600)
    monkeypatch.setattr("strata_router.cli.check_machine.open", denied, raising=False)
    assert verdict(tmp_path, request_log_path=str(log)) == (
        0,
        f"it would start; no records on disk: {log} cannot be used: Permission denied",
    )


def test_a_held_port_for_clients_is_a_refusal_and_one_of_the_engine_is_not(
    tmp_path: Path, ports: tuple[socket.socket, int, int]
) -> None:
    _, held, _ = ports
    holder = f"held by pid {os.getpid()} ("
    status, said = verdict(tmp_path, listen=f"127.0.0.1:{held}")
    assert (status, said.startswith(f"{REFUSED}port {held} is {holder}")) == (1, True)
    status, said = verdict(tmp_path, backend_port=held)
    assert status == 0
    assert said.startswith(f"it would start; no model can be loaded while port {held} is {holder}")


def test_a_port_that_is_held_on_another_address_is_no_refusal(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.2", 0)) as other:
        assert verdict(tmp_path, listen=f"127.0.0.1:{other.getsockname()[1]}") == (0, "ready")


def test_what_the_units_bring_is_not_looked_for(
    tmp_path: Path, ports: tuple[socket.socket, int, int]
) -> None:
    _, held, _ = ports
    keys = {
        "require_socket_activation": True,
        "listen": f"127.0.0.1:{held}",
        "control_socket": str(tmp_path / "later" / "control.sock"),
    }
    assert verdict(tmp_path, **keys) == (0, "ready")


def test_an_address_that_cannot_be_had_is_a_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A port below 1024, say; the kernel's answer is replaced."""

    def denied(self: socket.socket, address: object) -> None:
        raise PermissionError(13, "Permission denied")

    keys = {"listen": f"127.0.0.1:{free_port()}", "backend_port": free_port()}
    monkeypatch.setattr("tests.cli.test_check.free_port", lambda: 1)
    monkeypatch.setattr(socket.socket, "bind", denied)
    assert verdict(tmp_path, **keys) == (
        1,
        f"{REFUSED}{keys['listen']} cannot be listened on: Permission denied",
    )
