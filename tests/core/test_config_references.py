"""Rules between keys: enabled models, aliases, engines, and places that must differ."""

from typing import Any

import pytest

from strata_router.core.vocabulary import AliasName, ModelId
from tests.core.config_documents import FAMILY, OTHER_FAMILY, document, parse, problems

ONE, TWO, THREE = f"{FAMILY}-one", f"{FAMILY}-two", f"{OTHER_FAMILY}-three"
STRATA = {"python": "/python", "strata_dir": "/strata"}
ALIAS_PATH = f'aliases["{FAMILY}"]'
LIST_PATH = f"{ALIAS_PATH}.allowed_models"


def three(**keys: Any) -> dict[str, Any]:
    """Two models of one family and one of another."""
    return {"models": {ONE: {}, TWO: {}, THREE: {}}} | keys


def alias(*allowed: Any, name: str = FAMILY) -> dict[str, Any]:
    return three(aliases={name: {"allowed_models": list(allowed)}})


def test_enabled_models_keep_their_order() -> None:
    made = parse(three(enabled_models=[TWO, ONE])).config
    assert made.enabled_models == (TWO, ONE)
    assert made.enabled_models_given


def test_an_unknown_enabled_model_is_a_problem() -> None:
    assert problems(three(enabled_models=[ONE, f"{FAMILY}-twoo", "zzz"])) == {
        "enabled_models[1]": f"'{FAMILY}-twoo' names no model; must be a key of 'models'"
        f"; did you mean '{FAMILY}-two'?",
        "enabled_models[2]": "'zzz' names no model; must be a key of 'models'",
    }


def test_an_alias_cannot_be_enabled() -> None:
    given = alias(ONE) | {"enabled_models": [FAMILY]}
    assert problems(given) == {
        "enabled_models[0]": f"'{FAMILY}' names an alias; list the ids of the models instead"
    }


def test_a_model_enabled_twice_is_a_problem() -> None:
    assert list(problems(three(enabled_models=[ONE, ONE]))) == ["enabled_models[1]"]


def test_an_alias_keeps_its_order() -> None:
    assert parse(alias(TWO, ONE)).config.aliases == {AliasName(FAMILY): (TWO, ONE)}


def test_an_alias_may_stand_for_any_family_that_a_model_declares() -> None:
    given = {"models": {"a": {"family": "f"}}, "aliases": {"f": {"allowed_models": ["a"]}}}
    assert parse(given).config.aliases == {AliasName("f"): (ModelId("a"),)}


def test_an_alias_that_is_no_family_is_a_problem() -> None:
    """There is no alias across families (design document: no ``qwen``)."""
    said = problems(alias(ONE, name="qwen3.6-35b"))
    assert said['aliases["qwen3.6-35b"]'] == (
        "is no model's family; an alias is named after the family it stands for"
        f"; did you mean '{FAMILY}'?"
    )


def test_a_model_of_another_family_is_a_problem() -> None:
    assert problems(alias(ONE, THREE)) == {
        f"{LIST_PATH}[1]": f"'{THREE}' belongs to another family; an alias may only list models "
        "of its own"
    }


def test_an_empty_alias_is_a_problem() -> None:
    assert "has 0 items" in problems(alias())[LIST_PATH]


def test_an_alias_without_models_is_a_problem() -> None:
    assert list(problems(three(aliases={FAMILY: {}}))) == [LIST_PATH]


def test_an_unknown_or_repeated_model_in_an_alias_is_a_problem() -> None:
    assert list(problems(alias(ONE, "zzz", ONE))) == [f"{LIST_PATH}[2]", f"{LIST_PATH}[1]"]


def test_aliases_cannot_name_aliases_not_even_in_a_circle() -> None:
    given = three(
        aliases={
            FAMILY: {"allowed_models": [OTHER_FAMILY]},
            OTHER_FAMILY: {"allowed_models": [FAMILY]},
        }
    )
    said = "names an alias; list the ids of the models instead"
    assert problems(given) == {
        f"{LIST_PATH}[0]": f"'{OTHER_FAMILY}' {said}",
        f'aliases["{OTHER_FAMILY}"].allowed_models[0]': f"'{FAMILY}' {said}",
    }


def test_an_alias_cannot_name_itself() -> None:
    assert "names an alias" in problems(alias(FAMILY))[f"{LIST_PATH}[0]"]


def test_a_name_cannot_be_model_and_alias() -> None:
    given = {"models": {"f": {"family": "f"}}, "aliases": {"f": {"allowed_models": ["f"]}}}
    assert problems(given) == {"aliases.f": "is also the id of a model; rename the model"}


@pytest.mark.parametrize("broken", [{"family": 1}, {"family": None}, []])
def test_a_model_whose_family_is_broken_is_not_reported_again_in_an_alias(broken: Any) -> None:
    given = {"models": {ONE: broken}, "aliases": {FAMILY: {"allowed_models": [ONE]}}}
    assert not any(path.startswith("aliases") for path in problems(given))


@pytest.mark.parametrize("broken", [1, {"allowed_models": 1}, {"allowed_models": [1]}])
def test_a_broken_alias_is_reported_once(broken: Any) -> None:
    assert len(problems(three(aliases={FAMILY: broken}))) == 1


def test_without_models_no_name_is_reported_as_unknown() -> None:
    assert list(problems(alias(ONE) | {"models": 1, "enabled_models": [ONE]})) == ["models"]


def test_an_engine_must_be_declared() -> None:
    given = {"models": {"a": {"family": "f", "engine": "lama"}}}
    engines = {"llama": {"kind": "llama-server", "command": "/x"}}
    assert problems(given) == {
        "models.a.engine": "'lama' names no engine; must be 'strata' or a key of 'engines'"
    }
    assert problems(given | {"engines": engines})["models.a.engine"].endswith(
        "; did you mean 'llama'?"
    )


@pytest.mark.parametrize("engine", [{"kind": "none"}, {}, 1])
def test_a_model_of_a_broken_engine_is_not_reported(engine: Any) -> None:
    model = {"family": "f", "engine": "x", "args": ["--host"], "installed": True}
    given = {"models": {"a": model}, "engines": {"x": engine}}
    assert not any(path.startswith(("models", "python")) for path in problems(given))


def test_a_broken_engine_name_is_reported_once() -> None:
    assert list(problems({"models": {"a": {"family": "f", "engine": 1}}})) == ["models.a.engine"]


@pytest.mark.parametrize("spelling", ["installed", "enabled"])
def test_an_installed_strata_model_needs_python_and_checkout(spelling: str) -> None:
    given = {"models": {ONE: {spelling: True}}}
    said = f"is missing; model '{ONE}' is installed, so give the absolute path of Strata's"
    assert problems(given) == {"python": f"{said} interpreter", "strata_dir": f"{said} checkout"}
    assert problems(given | STRATA) == {}


def test_a_broken_python_is_not_missing_too() -> None:
    given = {"models": {ONE: {"installed": True}}} | STRATA | {"python": "python3"}
    assert "relative path" in problems(given)["python"]


def test_another_engine_needs_neither() -> None:
    given = {
        "models": {"a": {"family": "f", "engine": "llama", "installed": True}},
        "engines": {"llama": {"kind": "llama-server", "command": "/x"}},
    }
    assert problems(given) == {}


def test_the_engine_has_a_port_of_its_own() -> None:
    assert problems(document(listen="[::1]:8089")) == {
        "backend_port": "is the port of 'listen' too; must be another one"
    }


def test_files_must_differ() -> None:
    given = document(control_socket="/x", request_log_path="/y", engine_log_path="/y")
    assert problems(given) == {
        "engine_log_path": "is the path of 'request_log_path' too; must be another one"
    }


def test_the_legacy_spelling_is_told_once_however_often_it_occurs() -> None:
    given = {"models": {ONE: {"enabled": True}, TWO: {"enabled": False}, THREE: {}}} | STRATA
    (warning,) = parse(given).warnings
    assert str(warning).startswith(
        f"models: 2 use 'enabled', the legacy spelling of 'installed', first '{ONE}'"
    )


def test_nothing_is_told_without_reason() -> None:
    assert parse(three()).warnings == ()
