"""Paths, words and suggestions of configuration problems."""

import pytest

from strata_router.core.config.problems import (
    ConfigError,
    Findings,
    Problem,
    item_path,
    key_path,
    kind_of,
    shown,
)


def test_a_problem_reads_path_then_message() -> None:
    assert str(Problem("models.a", "is null")) == "models.a: is null"


def test_a_problem_without_a_path_is_the_files() -> None:
    assert str(Problem("", "is empty")) == "config file: is empty"


def test_the_error_holds_and_prints_every_problem_on_its_line() -> None:
    error = ConfigError((Problem("a", "x"), Problem("b", "y")))
    assert error.problems == (Problem("a", "x"), Problem("b", "y"))
    assert str(error) == "a: x\nb: y"


@pytest.mark.parametrize(
    ("parent", "key", "path"),
    [
        ("", "listen", "listen"),
        ("models", "my-model_1", "models.my-model_1"),
        ("models", "qwen3.8", 'models["qwen3.8"]'),
        ("", "a.b", '["a.b"]'),
        ("models", "", "models[<0 characters>]"),
        ("models", "two\nlines", "models[<9 characters>]"),
        ("models", "x" * 129, "models[<129 characters>]"),
    ],
)
def test_a_path_can_be_read_in_one_way_only(parent: str, key: str, path: str) -> None:
    assert key_path(parent, key) == path


def test_an_item_is_named_by_its_position() -> None:
    assert item_path("aliases.f.allowed_models", 2) == "aliases.f.allowed_models[2]"


def test_a_name_is_shown_only_if_short_and_plain() -> None:
    assert shown("qwen3.8-flash") == "'qwen3.8-flash'"
    assert shown("a secret, misplaced") == "<19 characters>"


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (None, "null"),
        (True, "a boolean"),
        (1, "a whole number"),
        (1.0, "a number with a fraction"),
        (float("nan"), "not a finite number"),
        (float("-inf"), "not a finite number"),
        ("x", "a string"),
        ([], "a list"),
        ({}, "an object"),
        (b"", "not a JSON value"),
    ],
)
def test_every_kind_of_value_has_its_word(value: object, kind: str) -> None:
    assert kind_of(value) == kind


def test_the_nearest_key_is_named_but_one_that_is_far_is_not_advised() -> None:
    findings = Findings()
    known = ("max_pending", "queue_ms")
    assert findings.nearest_key("max_pendng", known) == "; the nearest known key is 'max_pending'"
    assert findings.nearest_key("quux", known) == (
        "; none is close, the nearest known key is 'queue_ms': docs/configuration.md lists them all"
    )


def test_only_a_similar_name_is_suggested() -> None:
    findings = Findings()
    assert findings.did_you_mean("model-1", ["model-l", "other"]) == "; did you mean 'model-l'?"
    assert findings.did_you_mean("xyz", ["model-l", "other"]) == ""


def test_nothing_is_suggested_for_a_name_that_cannot_be_one() -> None:
    assert Findings().nearest_key("x" * 1_000_000, ("max_pending",)) == ""


def test_suggestions_end_when_they_would_take_too_long() -> None:
    """10,000 unknown ids against 10,000 known ones would otherwise take an hour."""
    findings = Findings()
    known = [f"model-{number}" for number in range(20_000)]
    answers = [findings.did_you_mean("model-1x", known) for _ in range(3)]
    assert [bool(answer) for answer in answers] == [True, True, False]


def test_findings_keep_problems_and_warnings_in_order() -> None:
    findings = Findings()
    findings.problem("b", "x")
    findings.problem("a", "y")
    findings.warning("c", "z")
    assert findings.problems == [Problem("b", "x"), Problem("a", "y")]
    assert findings.warnings == [Problem("c", "z")]
