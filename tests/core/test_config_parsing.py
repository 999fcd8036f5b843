"""Whole documents: what they become, what absent keys take from elsewhere, all problems at once."""

import time
from typing import Any

import pytest

from strata_router.core.config import (
    ConfigError,
    Defaults,
    Problem,
    parse_config,
)
from strata_router.core.vocabulary import Tier
from tests.core.config_documents import NO_SURROUNDINGS, config, document, parse, problems


@pytest.mark.parametrize(
    ("runtime_dir", "socket"),
    [
        ("/run/user/1000", "/run/user/1000/strata-router/control.sock"),
        ("/run/user/1000/", "/run/user/1000/strata-router/control.sock"),
        (None, "/run/strata-router/control.sock"),
        ("", "/run/strata-router/control.sock"),
        ("run/user", "/run/strata-router/control.sock"),
    ],
)
def test_the_socket_is_in_the_runtime_directory(runtime_dir: str | None, socket: str) -> None:
    defaults = Defaults(runtime_dir)
    assert parse_config(document(), defaults).config.control_socket == socket


def test_a_socket_given_beats_the_runtime_directory() -> None:
    given = document(control_socket="/x/control.sock")
    assert parse_config(given, Defaults("/run")).config.control_socket == "/x/control.sock"


def test_all_models_are_enabled_in_id_order_unless_said() -> None:
    models = {"b": {"family": "f"}, "a": {"family": "f"}}
    made = parse({"models": models}).config
    assert made.enabled_models == ("a", "b")
    assert not made.enabled_models_given
    assert list(made.models) == ["b", "a"]


def test_an_empty_list_enables_none() -> None:
    made = config(enabled_models=[])
    assert made.enabled_models == ()
    assert made.enabled_models_given


def test_a_configuration_may_have_no_models() -> None:
    assert parse({"models": {}}).config.models == {}


def test_the_drain_lasts_as_long_as_a_shutdown_unless_said() -> None:
    assert config(shutdown_ms=7).drain_ms == 7
    assert config(shutdown_ms=7, drain_ms=0).drain_ms == 0
    assert config(shutdown_ms=7, drain_ms=9).drain_ms == 9


def test_a_tier_that_waits_without_bound_is_absent() -> None:
    assert config(max_wait_ms={"priority": 5, "flex": 0}).max_wait_ms == {Tier.PRIORITY: 5}


def test_a_tier_that_does_not_exist_is_a_problem() -> None:
    assert problems(document(max_wait_ms={"fast": 1})) == {
        "max_wait_ms.fast": "is not a known key; none is close, the nearest known key is "
        "'default': docs/configuration.md lists them all"
    }


@pytest.mark.parametrize("given", [None, [], "x", 1, True, b""])
def test_a_document_that_is_no_object_is_one_problem(given: object) -> None:
    (message,) = problems(given).values()
    assert message.endswith("must be an object, the configuration")


def test_models_are_required() -> None:
    assert problems({}) == {"models": "is missing; must be an object of models by id"}


def test_all_problems_are_reported_together_in_the_order_of_the_table() -> None:
    given: dict[str, Any] = {
        "models": {"a b": {}, "c": {"profile": "x", "insalled": True}},
        "max_pendng": 1,
        "listen": "0.0.0.0:1",
        "queue_ms": 0,
        "enabled_models": ["d"],
    }
    with pytest.raises(ConfigError) as caught:
        parse(given)
    assert [problem.path for problem in caught.value.problems] == [
        "max_pendng",
        "listen",
        "models[<3 characters>]",
        "models.c.insalled",
        "models.c.profile",
        "queue_ms",
        "models.c.family",
        "enabled_models[0]",
    ]


def test_an_unknown_key_is_reported_at_every_level_with_the_nearest() -> None:
    given = document(
        max_pendng=1,
        models={"a": {"family": "f", "profil": "/x", "metadata": {"met": 1}}},
        aliases={"f": {"allowed_models": ["a"], "models": []}},
        engines={"strata": {"kind": "strata", "redyness": "auto"}},
    )
    unknown = "is not a known key; the nearest known key is"
    assert problems(given) == {
        "max_pendng": f"{unknown} 'max_pending'",
        "models.a.profil": f"{unknown} 'profile'",
        "models.a.metadata.met": f"{unknown} 'meta'",
        "aliases.f.models": f"{unknown} 'allowed_models'",
        "engines.strata.redyness": f"{unknown} 'readiness'",
    }


def test_a_warning_does_not_keep_the_configuration_from_use() -> None:
    parsed = parse({"models": {"a": {"family": "f", "enabled": False}}})
    assert [type(warning) for warning in parsed.warnings] == [Problem]


def test_ten_thousand_models_are_read_in_seconds() -> None:
    """spec/reliability.md, "Config"; 5 s is ten times what it takes here."""
    ids = [f"model-{number}" for number in range(10_000)]
    entry = {"family": "f", "profile": "/p", "upstream_model": "m", "installed": True}
    given = {
        "models": dict.fromkeys(ids, entry),
        "enabled_models": ids,
        "aliases": {"f": {"allowed_models": ids}},
        "python": "/p",
        "strata_dir": "/s",
    }
    before = time.monotonic()
    assert len(parse(given).config.models) == 10_000
    assert time.monotonic() - before < 5


def test_ten_thousand_broken_models_are_reported_in_seconds() -> None:
    ids = [f"model-{number}" for number in range(10_000)]
    given = {
        "models": {model_id: {"famly": "f", "installed": 1} for model_id in ids},
        "enabled_models": [f"{model_id}x" for model_id in ids],
    }
    before = time.monotonic()
    assert len(problems(given)) == 4 * 10_000
    assert time.monotonic() - before < 10


def test_nesting_without_end_is_a_problem_at_its_key() -> None:
    endless: dict[str, Any] = {}
    endless["meta"] = endless
    given = {"models": {"a": {"family": "f", "metadata": endless}}}
    (path,) = problems(given)
    assert path == "models.a.metadata.meta"


def test_problems_repeat_no_values() -> None:
    secret = "sk-secret value"  # the point is that it must not come back
    given = dict.fromkeys(("listen", "python", "max_pending", "models", "engines", secret), secret)
    with pytest.raises(ConfigError) as caught:
        parse_config(given, NO_SURROUNDINGS)
    assert secret not in str(caught.value)
