"""Fuzz: any document gives a Config or problems, and every broken key is found where it is."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_router.core.config import Config, ConfigError, parse_config
from tests.core.config_documents import NO_SURROUNDINGS

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([0, 1, -1, 8088, 8089, 2**53, 2**64, 10**4000])
    | st.floats()
    | st.text(st.characters(), max_size=8)
    | st.sampled_from(["/x", "f", "a", "b", "strata", "llama", "127.0.0.1:8088", "https://a"])
)
JSON = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
NAMES = st.sampled_from(["a", "b", "f", "g", "qwen3.6-35b-a3b-x", "a b", ""])

# The known keys, written down a second time: a fuzzer that took them from the table could not miss.
MODEL = st.fixed_dictionaries(
    {},
    optional={
        "family": st.sampled_from(["f", "g"]) | JSON,
        "fine_tune": JSON,
        "quantization": JSON,
        "profile": JSON,
        "upstream_model": JSON,
        "installed": st.booleans() | JSON,
        "compatible": st.booleans() | JSON,
        "enabled": st.booleans() | JSON,
        "metadata": JSON,
        "engine": st.sampled_from(["strata", "llama"]) | JSON,
        "args": JSON,
    },
)
ENGINE = st.fixed_dictionaries(
    {},
    optional={
        "kind": st.sampled_from(["strata", "llama-server"]) | JSON,
        "command": JSON,
        "readiness": st.sampled_from(["auto", "file", "health"]) | JSON,
        "env": st.dictionaries(st.text(max_size=4), JSON, max_size=2) | JSON,
    },
)
SIMPLE = [
    "listen",
    "control_socket",
    "require_socket_activation",
    "python",
    "strata_dir",
    "backend_port",
    "wait_when_busy",
    "max_pending",
    "model_grace_ms",
    "max_wait_ms",
    "cache_lookup_ms",
    "cache_max_active",
    "max_request_body_bytes",
    "queue_ms",
    "response_ms",
    "drain_ms",
    "keepalive_ms",
    "allowed_hosts",
    "allowed_origins",
    "request_log_path",
    "engine_log_path",
]
IDS = st.lists(NAMES | JSON, max_size=4)
DOCUMENT = st.fixed_dictionaries(
    {"models": st.dictionaries(NAMES, MODEL | JSON, max_size=4) | JSON},
    optional={
        "enabled_models": IDS | JSON,
        "aliases": st.dictionaries(
            NAMES, st.fixed_dictionaries({"allowed_models": IDS}) | JSON, max_size=3
        ),
        "engines": st.dictionaries(st.sampled_from(["strata", "llama", "x"]), ENGINE | JSON),
        "unknown key": JSON,
        **dict.fromkeys(SIMPLE, JSON),
    },
)


def outcome(document: object) -> Config | ConfigError:
    try:
        return parse_config(document, NO_SURROUNDINGS).config
    except ConfigError as error:
        return error


@given(JSON)
def test_any_json_gives_a_configuration_or_problems(document: object) -> None:
    result = outcome(document)
    assert isinstance(result, Config) or result.problems


@given(DOCUMENT)
def test_nearly_right_documents_give_a_configuration_or_problems(document: object) -> None:
    result = outcome(document)
    match result:
        case ConfigError():
            assert result.problems
            assert all(
                problem.message and problem.message.isprintable() for problem in result.problems
            )
            assert all(problem.path.isprintable() for problem in result.problems)
        case Config():
            check_invariants(result)


def check_invariants(config: Config) -> None:
    """What the rest of the program relies on, said without the checks that establish it."""
    assert len(set(config.enabled_models)) == len(config.enabled_models)
    assert set(config.enabled_models) <= set(config.models)
    assert config.control_socket.startswith("/")
    assert config.listen.port != config.backend_port
    for model in config.models.values():
        assert model.family
        assert model.engine in config.engines
    for alias, models in config.aliases.items():
        assert models
        assert str(alias) not in map(str, config.models)
        assert {config.models[model].family for model in models} == {alias}
    if any(
        m.installed and config.engines[m.engine].kind == "strata" for m in config.models.values()
    ):
        assert config.python
        assert config.strata_dir
    for engine in config.engines.values():
        assert (engine.command is not None) == (engine.kind == "llama-server")


# Documents whose every value is of the right kind, so that only their agreement can be wrong.
FEW = st.sampled_from(["a", "b", "c"])
LISTED = st.lists(FEW, min_size=1, max_size=2, unique=True) | st.lists(
    st.sampled_from(["a", "b", "c", "f", "z"]), max_size=3
)
AGREEING = st.fixed_dictionaries(
    {
        "models": st.dictionaries(
            FEW,
            st.fixed_dictionaries(
                {"family": st.just("f") | st.sampled_from(["f", "g"])},
                optional={
                    "installed": st.booleans(),
                    "enabled": st.booleans(),
                    "engine": st.sampled_from(["strata", "llama", "llama", "x"]),
                },
            ),
            min_size=1,
        )
    },
    optional={
        "enabled_models": LISTED,
        "aliases": st.dictionaries(
            st.just("f") | st.sampled_from(["f", "g", "h", "a"]),
            st.fixed_dictionaries({"allowed_models": LISTED}),
            max_size=2,
        ),
        "engines": st.just({"llama": {"kind": "llama-server", "command": "/x"}}),
        "python": st.just("/p"),
        "strata_dir": st.just("/s"),
    },
)


def is_right(document: Any) -> bool:
    """The contract's rules between keys, said once more in the test's own way."""
    models = document["models"]
    aliases = document.get("aliases", {})
    lists = [alias["allowed_models"] for alias in aliases.values()]
    for ids in [document.get("enabled_models", []), *lists]:
        if len(ids) != len(set(ids)) or not set(ids) <= models.keys():
            return False
    for name, alias in aliases.items():
        families = {models[model_id]["family"] for model_id in alias["allowed_models"]}
        if families != {name} or name in models:
            return False
    for model in models.values():
        if model.get("installed", model.get("enabled")) != model.get(
            "enabled", model.get("installed")
        ):
            return False
        engine = model.get("engine", "strata")
        if engine == "x" or (engine == "llama" and "engines" not in document):
            return False
        is_installed = model.get("installed") or model.get("enabled")
        if engine == "strata" and is_installed and not {"python", "strata_dir"} <= document.keys():
            return False
    return True


@given(AGREEING)
def test_a_configuration_is_accepted_exactly_if_its_keys_agree(document: Any) -> None:
    result = outcome(document)
    assert isinstance(result, Config) == is_right(document)
    if isinstance(result, Config):
        check_invariants(result)


# A path per key of the file, a value that is right there, and what is wrong there whatever it is.
RIGHT: dict[str, Any] = {
    "listen": "127.0.0.1:9000",
    "python": "/p",
    "backend_port": 9001,
    "max_pending": 3,
    "wait_when_busy": True,
    "enabled_models": ["a"],
    "queue_ms": 5,
    "max_wait_ms": {"flex": 3},
    "allowed_hosts": ["router.lan"],
    "request_log_path": "/r",
}
WRONG: dict[str, list[Any]] = {
    "listen": [8088, "0.0.0.0:80", None],
    "python": ["p", 1, None],
    "backend_port": [0, 65536, "80", True, None],
    "max_pending": [0, 4097, 1.5, False, None],
    "wait_when_busy": ["true", 1, None],
    "enabled_models": ["a", {"a": True}, None],
    "queue_ms": [0, -1, 2**53, "5", None],
    "max_wait_ms": [3, [], None],
    "allowed_hosts": ["router.lan", 1, None],
    "request_log_path": ["r", 1, False],
}


@given(st.data())
def test_exactly_the_broken_keys_are_reported(data: st.DataObject) -> None:
    broken = data.draw(st.sets(st.sampled_from(sorted(WRONG))))
    document = {"models": {"a": {"family": "f"}}} | {
        key: data.draw(st.sampled_from(WRONG[key])) if key in broken else RIGHT[key]
        for key in RIGHT
    }
    result = outcome(document)
    if broken:
        assert isinstance(result, ConfigError)
        assert {problem.path for problem in result.problems} == broken
    else:
        assert isinstance(result, Config)


@pytest.mark.parametrize("key", ["max_pending", "models", "listen"])
@pytest.mark.parametrize("depth", [100, 100_000])
def test_deep_nesting_is_a_problem_at_its_key(key: str, depth: int) -> None:
    value: Any = 1
    for _ in range(depth):
        value = {"x": value}
    result = outcome({"models": {}} | {key: value})
    assert isinstance(result, ConfigError)
    assert all(problem.path.startswith(key) for problem in result.problems)
