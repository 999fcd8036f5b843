"""Rules within one model and one engine."""

from typing import Any

import pytest

from strata_router.core.config.schema import EngineEntry, EngineKindName, Metadata, Readiness
from strata_router.core.vocabulary import ModelId
from tests.core.config_documents import FAMILY, OTHER_FAMILY, document, parse, problems

LLAMA = {"kind": "llama-server", "command": "/opt/llama-server"}


def model(**keys: Any) -> dict[str, Any]:
    """A document with one model ``a`` of family ``f`` and a llama-server that could run it."""
    return {"models": {"a": {"family": "f"} | keys}, "engines": {"llama": LLAMA}}


def engine(**keys: Any) -> dict[str, Any]:
    return document(engines={"llama": LLAMA | keys})


def model_problems(**keys: Any) -> dict[str, str]:
    return problems(model(**keys))


def test_a_model_is_made_of_its_keys() -> None:
    entry = parse(
        model(
            fine_tune="base",
            quantization="q4",
            profile="/p.json",
            upstream_model="name",
            compatible=True,
            metadata={"meta": {"n_ctx": 1}, "thinking": False},
        )
    ).config.models[ModelId("a")]
    assert entry.id == "a"
    assert entry.family == "f"
    assert entry.fine_tune == "base"
    assert entry.quantization == "q4"
    assert entry.profile == "/p.json"
    assert entry.upstream_model == "name"
    assert entry.compatible
    assert entry.metadata == Metadata(meta={"n_ctx": 1}, architecture=None, thinking=False)
    assert entry.engine == "strata"
    assert entry.args == ()


def test_what_a_model_leaves_out_is_absent_or_false() -> None:
    entry = parse(model()).config.models[ModelId("a")]
    assert entry.fine_tune is None
    assert entry.quantization is None
    assert entry.profile is None
    assert entry.upstream_model is None
    assert not entry.installed
    assert not entry.compatible
    assert entry.metadata == Metadata()


@pytest.mark.parametrize("family", [FAMILY, OTHER_FAMILY])
def test_a_shipped_family_is_read_off_the_id(family: str) -> None:
    made = parse({"models": {f"{family}-x": {}}}).config
    assert made.models[ModelId(f"{family}-x")].family == family


def test_a_family_given_beats_the_id() -> None:
    made = parse({"models": {f"{FAMILY}-x": {"family": "mine"}}}).config
    assert made.models[ModelId(f"{FAMILY}-x")].family == "mine"


def test_any_other_id_needs_a_family() -> None:
    assert problems({"models": {"my-model": {}}}) == {
        "models.my-model.family": "is missing; must name the model's family, unless its id begins "
        "with 'qwen3.8-flash-next' or 'qwen3.6-35b-a3b'"
    }


def test_a_broken_family_is_not_missing_too() -> None:
    assert list(model_problems(family=1)) == ["models.a.family"]


@pytest.mark.parametrize("spelling", ["installed", "enabled"])
def test_either_spelling_means_installed(spelling: str) -> None:
    given = model(**{spelling: True}) | {"python": "/p", "strata_dir": "/s"}
    assert parse(given).config.models[ModelId("a")].installed


@pytest.mark.parametrize("value", [True, False])
def test_spellings_may_agree(value: bool) -> None:
    given = model(installed=value, enabled=value) | {"python": "/p", "strata_dir": "/s"}
    assert parse(given).config.models[ModelId("a")].installed is value


@pytest.mark.parametrize("value", [True, False])
def test_spellings_that_disagree_are_a_problem(value: bool) -> None:
    said = problems(model(installed=value, enabled=not value) | {"python": "/p", "strata_dir": "/"})
    assert said == {
        "models.a.enabled": "disagrees with 'installed', of which it is the legacy spelling; "
        "remove 'enabled'"
    }


def test_a_strata_model_takes_no_arguments() -> None:
    assert list(model_problems(args=["-c", "1"])) == ["models.a.args"]


def test_a_llama_server_model_takes_arguments_in_order() -> None:
    made = parse(model(engine="llama", args=["-m", "x", "-v", "-v"])).config
    assert made.models[ModelId("a")].args == ("-m", "x", "-v", "-v")


def test_a_llama_server_model_takes_no_profile() -> None:
    assert list(model_problems(engine="llama", profile="/p")) == ["models.a.profile"]


@pytest.mark.parametrize(
    "option", ["--host", "--port", "--alias", "-a", "--api-key", "--api-key-file"]
)
def test_what_the_router_decides_is_no_argument(option: str) -> None:
    said = model_problems(engine="llama", args=["-m", "x", option, "y"])
    assert said == {
        "models.a.args[2]": f"is {option}, which the router decides; remove it and its value"
    }


def test_broken_arguments_are_reported_once() -> None:
    assert list(model_problems(engine="llama", args=[1])) == ["models.a.args[0]"]
    assert list(model_problems(engine="llama", args="-m")) == ["models.a.args"]


def test_the_builtin_engine_is_there_without_being_named() -> None:
    assert parse(document()).config.engines == {
        "strata": EngineEntry("strata", EngineKindName.STRATA, None, Readiness.AUTO, {})
    }


def test_the_builtin_engine_can_be_told_how_readiness_is_seen() -> None:
    made = parse(document(engines={"strata": {"kind": "strata", "readiness": "health"}})).config
    assert made.engines["strata"].readiness is Readiness.HEALTH


def test_the_builtin_engine_is_of_its_own_kind() -> None:
    assert problems(document(engines={"strata": LLAMA})) == {
        "engines.strata.kind": "must be 'strata' here; give another kind another name"
    }


def test_a_llama_server_is_made_of_its_keys() -> None:
    made = parse(engine(env={"LD_LIBRARY_PATH": "/opt/lib"}, readiness="health")).config
    assert made.engines["llama"] == EngineEntry(
        name="llama",
        kind=EngineKindName.LLAMA_SERVER,
        command="/opt/llama-server",
        readiness=Readiness.HEALTH,
        env={"LD_LIBRARY_PATH": "/opt/lib"},
    )


def test_an_engine_needs_a_kind() -> None:
    assert list(problems(document(engines={"x": {}}))) == ["engines.x.kind"]


def test_a_llama_server_needs_a_command() -> None:
    assert problems(document(engines={"x": {"kind": "llama-server"}})) == {
        "engines.x.command": "is missing; must be the absolute path of the llama-server binary"
    }


def test_a_broken_command_is_not_missing_too() -> None:
    assert "relative path" in problems(engine(command="llama-server"))["engines.llama.command"]


def test_a_llama_server_writes_no_readiness_file() -> None:
    assert list(problems(engine(readiness="file"))) == ["engines.llama.readiness"]


def test_a_strata_engine_has_neither_command_nor_environment() -> None:
    given = {"kind": "strata", "command": "/x", "env": {"A": "b"}}
    assert list(problems(document(engines={"more": given}))) == [
        "engines.more.command",
        "engines.more.env",
    ]


@pytest.mark.parametrize(
    "name",
    [
        "STRATA_API_KEY",
        "LLAMA_API_KEY",
        "NOTIFY_SOCKET",
        "LISTEN_FDS",
        "LISTEN_PID",
        "WATCHDOG_USEC",
    ],
)
def test_what_is_kept_from_an_engine_cannot_be_given_back(name: str) -> None:
    said = problems(engine(env={name: "x"}))
    assert said == {f"engines.llama.env.{name}": "is kept from the engine on purpose; remove it"}


@pytest.mark.parametrize("name", ["", "A=B"])
def test_a_variable_needs_a_name_that_can_be_set(name: str) -> None:
    (message,) = problems(engine(env={name: "x"})).values()
    assert message == "is no name of a variable; must not be empty or hold '='"


def test_a_broken_variable_is_reported_once() -> None:
    assert list(problems(engine(env={"A": 1, "B": "x\0"}))) == [
        "engines.llama.env.A",
        "engines.llama.env.B",
    ]
    assert list(problems(engine(env=[]))) == ["engines.llama.env"]
