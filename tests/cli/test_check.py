"""``strata-router check`` on real files, directories and ports."""

import io
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strata_router.cli.check import run
from strata_router.runtime.control_endpoint import user_name
from tests.generate_docs import ROOT


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
    assert (status, err) == (0, "")
    return "\n".join(" ".join(line.split()) for line in out.splitlines())


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
    assert run(tmp_path / "none.json", out, err) == 2
    assert err.getvalue().startswith("config file: cannot be read: No such file")


def test_the_shipped_example_can_be_checked() -> None:
    out, err = io.StringIO(), io.StringIO()
    assert run(ROOT / "config.example.json", out, err) == 0
    assert out.getvalue().count("not_installed") == 23


def test_warnings_go_to_standard_error_and_change_no_status(tmp_path: Path) -> None:
    document = {"models": {"a": {"family": "f", "enabled": False}}}
    status, out, err = check(tmp_path, document)
    assert status == 0
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
        "model_name differs from upstream_model in the config: make them the same",
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
    ("mode", "said"), [(0o700, "is ours"), (0o755, "has mode 0755; group and others")]
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
    assert state(tmp_path) == "is not a regular file"
    assert state(log / "below") == "cannot be seen: Not a directory"
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
    assert run(path, out, io.StringIO()) == 0
    out.flush()
    assert b"mod\\xe8le" in raw.getvalue()


def test_a_reader_that_went_away_is_no_traceback(tmp_path: Path) -> None:
    class Gone(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    path = tmp_path / "config.json"
    path.write_text(json.dumps({"models": {}}))
    assert run(path, Gone(), io.StringIO()) == 1
