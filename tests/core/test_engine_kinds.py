"""What differs between engine kinds: command lines, proofs, paths (contract 4.1, 4.2, 4.5)."""

from typing import Any

import pytest

from strata_router.core.config import Config, Defaults, parse_config
from strata_router.core.config.schema import ModelEntry
from strata_router.core.engine.kinds import (
    EngineKind,
    LaunchPlan,
    LlamaServerKind,
    StrataKind,
    engine_kind,
)
from strata_router.core.engine.readiness import Mismatch, NotYet, Verified
from strata_router.core.vocabulary import ModelId

STRATA = StrataKind("/opt/python", "/opt/strata")
LLAMA = LlamaServerKind("/opt/llama-server", {"GGML_N": "1"})


def parsed(**keys: Any) -> Config:
    document = {
        "python": "/opt/python",
        "strata_dir": "/opt/strata",
        "control_socket": "/run/x/c.sock",
        "models": {
            "large": {"family": "f", "profile": "/p/large.json", "upstream_model": "up-large"},
            "small": {"family": "f", "engine": "llama", "args": ["-m", "small.gguf"]},
        },
        "engines": {
            "llama": {
                "kind": "llama-server",
                "command": "/opt/llama-server",
                "env": {"GGML_N": "1"},
            }
        },
        **keys,
    }
    return parse_config(document, Defaults(None)).config


def entry(model: str) -> ModelEntry:
    return parsed().models[ModelId(model)]


def test_strata_is_started_as_the_contract_says() -> None:
    assert STRATA.launch_plan(entry("large"), 8089, None) == LaunchPlan(
        argv=(
            *("/opt/python", "-m", "serve.server", "--engine", "strata"),
            *("--config", "/p/large.json", "--host", "127.0.0.1", "--port", "8089"),
            *("--idle-unload", "0"),
        ),
        cwd="/opt/strata",
        environment={},
    )


def test_strata_is_told_where_to_write_its_readiness_file() -> None:
    plan = STRATA.launch_plan(entry("large"), 8089, "/private/ready.json")
    assert plan.argv[-2:] == ("--ready-file", "/private/ready.json")


def test_strata_is_asked_by_its_help_whether_it_writes_one() -> None:
    assert STRATA.help_plan() == LaunchPlan(
        ("/opt/python", "-m", "serve.server", "--help"), "/opt/strata"
    )


def test_a_strata_model_without_a_profile_is_a_bug_of_the_configuration() -> None:
    with pytest.raises(AssertionError, match="demands a profile"):
        STRATA.launch_plan(entry("small"), 8089, None)


def test_strata_is_proven_by_its_health() -> None:
    assert STRATA.identity_paths == ("/health",)
    right = b'{"loaded":true,"model":"m"}'
    assert STRATA.judge("/health", 200, right, "m", {"m"}) == Verified()
    assert STRATA.judge("/health", 503, b"", "m", {"m"}) == NotYet()
    named = STRATA.judge("/health", 200, b'{"loaded":true,"model":"n"}', "m", {"m", "n"})
    assert named == Mismatch("backend reports another model than the profile names: n")


def test_strata_tells_whether_it_still_works_on_something() -> None:
    assert STRATA.activity_path == "/status"
    assert STRATA.is_busy(200, b'{"busy":true,"queued":0}')
    assert not STRATA.is_busy(200, b'{"busy":false,"queued":0}')
    assert not STRATA.is_busy(404, b"")


def test_a_llama_server_gets_its_own_arguments_first_and_ours_last() -> None:
    """It lets the last one of a kind win."""
    assert LLAMA.launch_plan(entry("small"), 8089, None) == LaunchPlan(
        argv=(
            *("/opt/llama-server", "-m", "small.gguf"),
            *("--host", "127.0.0.1", "--port", "8089", "--alias", "small"),
        ),
        cwd=None,
        environment={"GGML_N": "1"},
    )


def test_a_plan_cannot_change_the_kinds_environment() -> None:
    LLAMA.launch_plan(entry("small"), 8089, None).environment["MORE"] = "1"
    assert LLAMA.environment == {"GGML_N": "1"}


def test_a_llama_server_is_proven_by_health_and_model_list() -> None:
    assert LLAMA.identity_paths == ("/health", "/v1/models")
    assert LLAMA.judge("/health", 200, b"", "m", {"m"}) == Verified()
    assert LLAMA.judge("/health", 503, b"", "m", {"m"}) == NotYet()
    assert LLAMA.judge("/v1/models", 200, b'{"data":[{"id":"m"}]}', "m", {"m"}) == Verified()
    another = LLAMA.judge("/v1/models", 200, b'{"data":[{"id":"n"}]}', "m", {"m"})
    assert another == Mismatch("backend reports another model than the profile names")


def test_a_llama_server_proves_nothing_on_any_other_path() -> None:
    assert LLAMA.judge("/v1/other", 200, b"{}", "m", {"m"}) == Mismatch("no such check")


def test_a_llama_server_has_no_readiness_file_and_no_activity_to_wait_for() -> None:
    assert LLAMA.help_plan() is None
    assert LLAMA.activity_path is None
    assert not LLAMA.is_busy(200, b'{"busy":true}')


@pytest.mark.parametrize(
    ("kind", "lookup", "uses_profile"),
    [(STRATA, "/v1/cache/lookup", True), (LLAMA, None, False)],
    ids=["strata", "llama"],
)
def test_what_the_daemon_asks_of_every_kind(
    kind: EngineKind, lookup: str | None, uses_profile: bool
) -> None:
    assert kind.chat_path == "/v1/chat/completions"
    assert kind.cache_lookup_path == lookup
    assert kind.uses_profile is uses_profile


def test_the_kind_of_an_engine_is_that_of_its_configuration() -> None:
    config = parsed()
    assert engine_kind(config.engines["strata"], config) == STRATA
    assert engine_kind(config.engines["llama"], config) == LLAMA
