"""The key table against the contract's, written down here a second time, and against Config."""

import dataclasses

import pytest

from strata_router.core.config.keys import CONFIG_KEYS, ENGINE_KEYS, METADATA_KEYS, MODEL_KEYS
from strata_router.core.config.schema import Config, EngineEntry, Metadata, ModelEntry
from tests.core.config_documents import config, document, problems

# Key, default, lowest, highest; contract section 3 and the design document's request log.
WHOLE_NUMBERS = [
    ("backend_port", 8089, 1, 65535),
    ("max_pending", 32, 1, 4096),
    ("model_grace_ms", 0, 0, None),
    ("cache_lookup_ms", 1000, 0, 10_000),
    ("cache_max_active", 0, 0, 1024),
    ("max_request_body_bytes", 268_435_456, 1, 1_073_741_824),
    ("queue_ms", 120_000, 1, None),
    ("startup_ms", 120_000, 1, None),
    ("response_ms", 600_000, 0, None),
    ("idle_ms", 600_000, 0, None),
    ("shutdown_ms", 65_000, 1, None),
    ("cooldown_ms", 10_000, 1, None),
    ("drain_ms", 65_000, 0, None),
    ("stream_commit_ms", 250, 0, 10_000),
    ("keepalive_ms", 5000, 500, 60_000),
    ("write_stall_ms", 300_000, 0, None),
    ("header_ms", 30_000, 1, None),
    ("body_ms", 60_000, 1, None),
    ("max_buffered_body_bytes", 2_147_483_648, 1, None),
    ("max_connections", 4096, 1, 1_048_576),
    ("request_log_max_bytes", 16_777_216, 4096, 1_073_741_824),
    ("request_log_rotate_files", 3, 0, 100),
    ("request_log_capacity", 2048, 1, 100_000),
]
FLAGS = ["require_socket_activation", "wait_when_busy", "keepalive_details"]
PATHS = ["control_socket", "python", "strata_dir", "request_log_path", "engine_log_path"]
OTHERS = [
    "listen",
    "models",
    "enabled_models",
    "aliases",
    "max_wait_ms",
    "allowed_hosts",
    "allowed_origins",
    "engines",
]
ALL = [*(row[0] for row in WHOLE_NUMBERS), *FLAGS, *PATHS, *OTHERS]
NULLABLE = ["request_log_path", "engine_log_path"]


def test_the_table_has_the_contracts_keys_and_no_others() -> None:
    assert sorted(key.name for key in CONFIG_KEYS) == sorted(ALL)


def test_config_has_a_field_per_key() -> None:
    fields = {field.name for field in dataclasses.fields(Config)}
    assert fields == {key.name for key in CONFIG_KEYS} | {"enabled_models_given"}


def test_entries_have_a_field_per_key() -> None:
    def names(kind: type) -> set[str]:
        return {field.name for field in dataclasses.fields(kind)}

    assert names(ModelEntry) == {key.name for key in MODEL_KEYS} - {"enabled"} | {"id"}
    assert names(EngineEntry) == {key.name for key in ENGINE_KEYS} | {"name"}
    assert names(Metadata) == {key.name for key in METADATA_KEYS}


@pytest.mark.parametrize(("key", "default", "low", "high"), WHOLE_NUMBERS)
def test_bounds_are_included_and_nothing_beyond(
    key: str, default: int, low: int, high: int | None
) -> None:
    assert getattr(config(), key) == default
    highest = 2**53 - 1 if high is None else high
    for value in (low, highest):
        assert getattr(config(**{key: value}), key) == value
    for value in (low - 1, highest + 1):
        assert list(problems(document(**{key: value}))) == [key]


@pytest.mark.parametrize("key", FLAGS)
def test_flags_are_off_unless_set(key: str) -> None:
    assert getattr(config(), key) is False
    assert getattr(config(**{key: True}), key) is True


@pytest.mark.parametrize("key", PATHS)
def test_paths_must_be_absolute(key: str) -> None:
    assert getattr(config(**{key: "/some/where"}), key) == "/some/where"
    assert "relative" in problems(document(**{key: "some/where"}))[key]


@pytest.mark.parametrize("key", ALL)
@pytest.mark.parametrize("value", [3.5, "", float("nan"), b"bytes"], ids=repr)
def test_a_wrong_kind_of_value_is_reported_at_its_key(key: str, value: object) -> None:
    assert key in problems(document() | {key: value})


@pytest.mark.parametrize("key", [*(row[0] for row in WHOLE_NUMBERS), *PATHS, *OTHERS])
def test_a_boolean_is_reported_at_its_key(key: str) -> None:
    assert key in problems(document() | {key: True})


@pytest.mark.parametrize("key", ALL)
def test_null_is_reported_at_its_key_unless_it_means_off(key: str) -> None:
    said = problems(document() | {key: None})
    assert (key in said) == (key not in NULLABLE)


def test_defaults_of_the_other_keys() -> None:
    made = config()
    assert str(made.listen) == "127.0.0.1:8088"
    assert made.python is None
    assert made.strata_dir is None
    assert made.request_log_path is None
    assert made.engine_log_path is None
    assert made.max_wait_ms == {}
    assert made.aliases == {}
    assert made.allowed_hosts == ("localhost", "127.0.0.1", "::1")
    assert made.allowed_origins == ()
    assert list(made.engines) == ["strata"]


def test_the_socket_path_fits_a_socket_address() -> None:
    """sun_path of unix(7) has 108 bytes, one of them the closing zero."""
    assert config(control_socket="/" + "x" * 106).control_socket == "/" + "x" * 106
    assert "too long" in problems(document(control_socket="/" + "x" * 107))["control_socket"]


def test_every_key_has_a_sentence_that_says_what_it_is() -> None:
    for key in (*CONFIG_KEYS, *MODEL_KEYS, *ENGINE_KEYS, *METADATA_KEYS):
        assert key.meaning.endswith(".")


def test_every_example_value_is_one_that_could_be_written() -> None:
    for key in CONFIG_KEYS:
        if key.example is not None:
            assert problems(document(**{key.name: key.example})) == {}
