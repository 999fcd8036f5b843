"""Configuration and profiles on a real file system: what is read, refused, and warned about."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strata_router.core.config import ConfigError, Problem
from strata_router.core.config.keys import CONFIG_KEYS
from strata_router.core.vocabulary import ModelId
from strata_router.runtime.config_file import Loaded, load_config, read_profile

A = ModelId("a")
MINIMAL: dict[str, Any] = {"models": {"a": {"family": "f"}}}

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(content: object, name: str = "config.json", mode: int = 0o600) -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        path.chmod(mode)
        return path

    return write


@pytest.fixture(autouse=True)
def no_runtime_dir(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)


def problems(path: str | Path) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert "Traceback" not in str(caught.value)
    return [str(problem) for problem in caught.value.problems]


def may_write(path_in_config: str, file: str | Path) -> Problem:
    """The warning that others may write this file."""
    said = "is writable by group or others, who could have the daemon run anything: chmod go-w"
    return Problem(path_in_config, f"{said} {file}")


def with_profile(path: Path, **keys: Any) -> dict[str, Any]:
    model = {"family": "f", "profile": str(path), "upstream_model": "m"} | keys
    return {"models": {"a": model}, "python": "/p", "strata_dir": "/s"}


# --- the configuration


def test_json_is_the_rule(write: Write) -> None:
    assert load_config(write(MINIMAL)).config.models[A].family == "f"
    assert load_config(str(write(MINIMAL, "config"))).config.models[A].family == "f"


@pytest.mark.parametrize("name", ["config.yaml", "config.yml", "CONFIG.YML"])
def test_yaml_is_read_by_suffix(write: Write, name: str) -> None:
    path = write(b"models:\n  a: {family: f}\nmax_pending: 5\n", name)
    assert load_config(path).config.max_pending == 5


def test_the_socket_default_comes_from_the_environment(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert load_config(write(MINIMAL)).config.control_socket == (
        "/run/user/7/strata-router/control.sock"
    )


def test_a_file_that_is_not_there_is_a_problem(tmp_path: Path) -> None:
    missing = tmp_path / "none.json"
    assert problems(missing) == [
        f"config file: {missing} cannot be read: No such file or directory; "
        "check path and permissions"
    ]


def test_a_path_of_odd_characters_is_named_on_one_line(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path / "a\nb\udc80.json")
    assert problem.isprintable()
    assert "a\\nb\\udc80.json' cannot be read" in problem


def test_a_directory_is_a_problem(tmp_path: Path) -> None:
    assert "Is a directory" in problems(tmp_path)[0]


def test_a_path_that_no_file_can_have_is_a_problem() -> None:
    assert problems("a\0b") == [r"config file: 'a\x00b' cannot be read: its path holds a zero byte"]
    assert "File name too long" in problems("x" * 5000)[0]


def test_a_pipe_that_nobody_writes_is_a_problem_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    before = time.monotonic()
    assert problems(tmp_path / "pipe.json") == [
        f"config file: {tmp_path / 'pipe.json'} is not a regular file; give the path of one"
    ]
    assert time.monotonic() - before < 1


def test_a_device_is_a_problem() -> None:
    assert "not a regular file" in problems("/dev/zero")[0]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_a_problem(write: Write) -> None:
    assert "Permission denied" in problems(write(MINIMAL, mode=0))[0]


def test_a_file_beyond_all_measure_is_a_problem(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(33 * 1024 * 1024)
    assert "is larger than" in problems(path)[0]


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe{}", b"[" * 100_000, b"nul"])
def test_broken_syntax_is_one_problem_of_the_file(write: Write, content: bytes) -> None:
    path = write(content)
    (problem,) = problems(path)
    assert problem.startswith(f"config file: {path} is ")


def test_an_empty_yaml_file_is_a_problem(write: Write) -> None:
    path = write(b"", "config.yaml")
    assert problems(path) == [
        f"config file: {path} is empty; must hold an object, the configuration"
    ]
    (problem,) = problems(write(b"# nothing yet", "config.yaml"))
    assert problem == "config file: is null; must be an object, the configuration"


def test_repeated_keys_are_problems(write: Write) -> None:
    content = b'{"models": {"a": {"family": "f"}}, "max_pending": 1, "max_pending": 2}'
    assert problems(write(content)) == ["max_pending: is given more than once; keep one of them"]


@pytest.mark.parametrize("key", [key.name for key in CONFIG_KEYS])
@pytest.mark.parametrize("name", ["config.json", "config.yaml"])
def test_every_key_is_reported_when_it_is_there_twice(write: Write, key: str, name: str) -> None:
    once = json.dumps(MINIMAL)[1:-1]
    repeated = json.dumps({key: MINIMAL.get(key)})[1:-1]
    text = f"{{{once}, {repeated}, {repeated}}}".encode()
    assert f"{key}: is given more than once; keep one of them" in problems(write(text, name))


def test_repeated_keys_are_reported_together_with_all_else(write: Write) -> None:
    content = b'{"models": {"a": {"family": "f", "family": 1}}, "queue_ms": 0}'
    assert [problem.split(":")[0] for problem in problems(write(content))] == [
        "models.a.family",
        "models.a.family",
        "queue_ms",
    ]


def test_infinity_is_reported_at_its_key(write: Write) -> None:
    (problem,) = problems(write(b'{"models": {}, "max_pending": Infinity}'))
    assert problem.startswith("max_pending: is not a finite number; must be")


def test_a_private_configuration_gives_no_warning(write: Write) -> None:
    assert load_config(write(MINIMAL, mode=0o644)).warnings == ()


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_configuration_that_others_may_write_gives_a_warning(write: Write, mode: int) -> None:
    path = write(MINIMAL, mode=mode)
    assert load_config(path).warnings == (may_write("", path),)


def test_warnings_of_the_content_are_kept(write: Write) -> None:
    path = write({"models": {"a": {"family": "f", "enabled": False}}})
    (warning,) = load_config(path).warnings
    assert warning.path == "models"


def test_ten_thousand_models_in_a_file_are_read_in_seconds(write: Write) -> None:
    ids = [f"model-{number}" for number in range(10_000)]
    models = {model_id: {"family": "f", "profile": f"/none/{model_id}"} for model_id in ids}
    text = json.dumps({"models": models, "enabled_models": ids}).encode()
    for name in ("config.json", "config.yaml"):
        before = time.monotonic()
        assert len(load_config(write(text, name)).profiles) == 10_000
        assert time.monotonic() - before < 10


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=40), st.sampled_from(["fuzz.json", "fuzz.yaml"]))
def test_any_file_gives_a_configuration_or_problems(
    write: Write, content: bytes, name: str
) -> None:
    found: tuple[Problem, ...] = ()
    try:
        usable = isinstance(load_config(write(content, name)), Loaded)
    except ConfigError as error:
        usable, found = False, error.problems
    assert usable == (not found)


# --- profiles


def test_profiles_are_read_with_the_configuration(write: Write) -> None:
    profile = write({"model_name": "m", "parallel": 2}, "profile.json")
    loaded = load_config(write(with_profile(profile)))
    check = loaded.profiles[A]
    assert check.profile is not None
    assert check.profile.parallel == 2
    assert loaded.warnings == ()


def test_a_profile_may_begin_with_a_byte_order_mark(write: Write) -> None:
    profile = write(b"\xef\xbb\xbf" + b'{"model_name": "m"}', "profile.json")
    assert load_config(write(with_profile(profile))).profiles[A].profile is not None


def test_a_profile_is_checked_against_the_id_without_an_upstream_model(write: Write) -> None:
    profile = write({"model_name": "a"}, "profile.json")
    document = with_profile(profile)
    del document["models"]["a"]["upstream_model"]
    assert load_config(write(document)).profiles[A].profile is not None


def test_a_refused_profile_does_not_refuse_the_configuration(write: Write) -> None:
    profile = write({"model_name": "m", "api_key": "x"}, "profile.json")
    check = load_config(write(with_profile(profile))).profiles[A]
    assert check.profile is None
    assert check.problems == (
        "api_key must not be set: the engine serves this router only; remove it",
    )


@pytest.mark.parametrize(
    "content", [b"{", b"\xff{}", b'{"model_name": NaN}', b"[" * 100_000, b"9" * 5000]
)
def test_a_profile_that_is_no_json_is_refused(write: Write, content: bytes) -> None:
    profile = write(content, "profile.json")
    assert load_config(write(with_profile(profile))).profiles[A].problems == (
        "profile is not JSON in UTF-8: run Strata's setup again",
    )


def test_an_empty_profile_is_called_so(write: Write) -> None:
    profile = write(b"", "profile.json")
    assert load_config(write(with_profile(profile))).profiles[A].problems == (
        "profile is empty: run Strata's setup again",
    )


def test_a_profile_that_is_not_there_is_refused(write: Write, tmp_path: Path) -> None:
    missing = tmp_path / "missing.json"
    check = load_config(write(with_profile(missing))).profiles[A]
    assert check.problems == (
        "profile cannot be read: No such file or directory; check path and permissions",
    )


def test_a_profile_beyond_all_measure_is_refused(write: Write, tmp_path: Path) -> None:
    profile = tmp_path / "profile.json"
    with profile.open("wb") as file:
        file.truncate(2 * 1024 * 1024)
    (problem,) = load_config(write(with_profile(profile))).profiles[A].problems
    assert problem.startswith("profile is larger than")


def test_a_model_without_profile_says_so(write: Write) -> None:
    assert load_config(write(MINIMAL)).profiles[A].problems == (
        "no profile is set: name the file that Strata's setup wrote",
    )


def test_a_llama_server_model_has_no_profile_to_check(write: Write) -> None:
    document = {
        "models": {"a": {"family": "f", "engine": "llama"}},
        "engines": {"llama": {"kind": "llama-server", "command": "/x"}},
    }
    assert load_config(write(document)).profiles == {}


def test_a_profile_that_others_may_write_gives_a_warning_that_names_the_key(write: Write) -> None:
    profile = write({"model_name": "m"}, "profile.json", mode=0o664)
    assert load_config(write(with_profile(profile))).warnings == (
        may_write("models.a.profile", "that file"),
    )


def test_a_profile_is_read_again_when_asked(write: Write) -> None:
    profile = write({"model_name": "m"}, "profile.json")
    loaded = load_config(write(with_profile(profile)))
    write({"model_name": "other"}, "profile.json")
    check = read_profile(loaded.config.models[A])
    assert check.profile is None
    assert check.problems[0].startswith("model_name differs")
