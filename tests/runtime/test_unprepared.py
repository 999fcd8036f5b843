"""What the operator is told of models that cannot be loaded, at the start and by ``on``."""

import sys
from pathlib import Path
from typing import Any

import pytest

from strata_router.core.catalog import Catalog
from strata_router.core.config import Config, Defaults, ProfileCheck, check_profile, parse_config
from strata_router.core.vocabulary import ModelId, Preparation
from strata_router.runtime.unprepared import WARNED_MODELS, start_warnings, why_not_loaded

A = ModelId("a")
ENTRY = {"family": "f", "profile": "/p/a.json", "installed": True, "compatible": True}


def configured(tmp_path: Path, models: dict[str, Any], **keys: Any) -> Config:
    document = {
        "python": sys.executable,
        "strata_dir": str(tmp_path),
        "control_socket": "/run/x/c.sock",
        "models": models,
        **keys,
    }
    return parse_config(document, Defaults(None)).config


def warnings(config: Config, *refused: str) -> list[str]:
    profiles: dict[ModelId, ProfileCheck] = {
        model: check_profile({"model_name": model, "lazy_load": model in refused}, model)
        for model in config.models
    }
    return list(start_warnings(config, Catalog(config, profiles), profiles))


@pytest.mark.parametrize(
    ("preparation", "begins"),
    [
        (Preparation.NOT_INSTALLED, "a is not_installed: set its installed: true "),
        (Preparation.INCOMPATIBLE, "a is incompatible: set its compatible: true "),
    ],
)
def test_what_the_operator_has_not_said_yet_is_named(
    tmp_path: Path, preparation: Preparation, begins: str
) -> None:
    entry = configured(tmp_path, {"a": ENTRY}).models[A]
    why = why_not_loaded(entry, preparation, None)
    assert why is not None
    assert why.startswith(begins)


def test_a_prepared_model_has_no_reason(tmp_path: Path) -> None:
    entry = configured(tmp_path, {"a": ENTRY}).models[A]
    assert why_not_loaded(entry, Preparation.PREPARED_UNVERIFIED, None) is None


def test_a_refused_profile_is_told_with_its_problems_and_without_its_path(tmp_path: Path) -> None:
    entry = configured(tmp_path, {"a": ENTRY}).models[A]
    check = ProfileCheck(None, ("b is set", "c is not"))
    why = why_not_loaded(entry, Preparation.MISSING_PROFILE, check)
    assert why == "a is missing_profile: b is set; c is not (strata-router check names the file)"


def test_a_machine_that_is_ready_has_no_warnings(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    config = configured(tmp_path, {"a": ENTRY}, engine_log_path=str(log))
    assert warnings(config) == []
    log.touch()
    assert warnings(config) == []


def test_models_that_are_not_installed_have_no_line_each(tmp_path: Path) -> None:
    absent = {"family": "f", "profile": "/p"}
    assert warnings(configured(tmp_path, {"a": ENTRY, "b": absent, "c": absent})) == []
    (line,) = warnings(configured(tmp_path, {"b": absent, "c": absent}))
    assert line.startswith("no enabled model is prepared, ")


def test_no_enabled_model_at_all_is_what_somebody_wrote_down(tmp_path: Path) -> None:
    assert warnings(configured(tmp_path, {"a": ENTRY}, enabled_models=[])) == []


def test_each_refused_profile_of_an_enabled_model_has_a_line(tmp_path: Path) -> None:
    models = {"a": ENTRY, "b": ENTRY, "c": ENTRY}
    config = configured(tmp_path, models, enabled_models=["a", "b"])
    (line,) = warnings(config, "b", "c")
    assert line.startswith("b is missing_profile: lazy_load")


def test_more_refused_profiles_than_one_can_read_are_counted(tmp_path: Path) -> None:
    names = [f"m{number:02}" for number in range(WARNED_MODELS + 3)]
    config = configured(tmp_path, {"a": ENTRY, **dict.fromkeys(names, ENTRY)})
    lines = warnings(config, *names)
    assert len(lines) == WARNED_MODELS + 1
    assert lines[-1] == "3 more enabled models are missing_profile"


def test_an_interpreter_and_a_checkout_that_are_missing_are_named(tmp_path: Path) -> None:
    gone = str(tmp_path / "gone")
    lines = warnings(configured(tmp_path, {"a": ENTRY}, python=gone, strata_dir=gone))
    assert [line.partition(": ")[0] for line in lines] == ["python", "strata_dir"]
    assert all(gone in line for line in lines)


def test_the_machine_is_looked_at_also_while_every_profile_is_refused(tmp_path: Path) -> None:
    config = configured(tmp_path, {"a": ENTRY}, python=str(tmp_path / "gone"))
    assert [line.partition(": ")[0] for line in warnings(config, "a")][-1] == "python"


def test_the_command_of_another_kind_is_looked_at_where_a_model_needs_it(tmp_path: Path) -> None:
    gone = str(tmp_path / "llama-server")
    engines = {"llama": {"kind": "llama-server", "command": gone}}
    model = {"family": "f", "engine": "llama", "installed": True, "compatible": True}
    (line,) = warnings(configured(tmp_path, {"b": model}, engines=engines))
    assert line.startswith(f"engine llama: command: {gone} ")
    assert warnings(configured(tmp_path, {"a": ENTRY}, engines=engines)) == []


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("gone/engine.log", "is in a directory that is missing or cannot be reached"),
        ("folder", "is not a regular file"),
        ("link", "is not a regular file"),
    ],
)
def test_an_engine_log_that_cannot_be_had_is_named(tmp_path: Path, path: str, told: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "file")
    log = str(tmp_path / path)
    (line,) = warnings(configured(tmp_path, {"a": ENTRY}, engine_log_path=log))
    assert line == f"engine_log_path: {log} {told}; engines start without a log"
