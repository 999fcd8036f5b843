"""Single values: what each shape reads, refuses and says."""

from enum import StrEnum
from typing import Any

import pytest

from strata_router.core.config.problems import Findings, Problem
from strata_router.core.config.shapes import (
    AbsolutePath,
    AnyJson,
    Argument,
    Choice,
    Flag,
    Name,
    Shape,
    Text,
    Whole,
)


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


COLOURS = Choice(Colour)


def read(shape: Shape, value: object) -> Any:
    """The value read; a problem fails the test."""
    findings = Findings()
    result = shape.read(value, "key", findings)
    assert findings.problems == []
    return result


def message(shape: Shape, value: object) -> str:
    """What the one problem says."""
    findings = Findings()
    assert shape.read(value, "key", findings) is None
    (problem,) = findings.problems
    assert problem == Problem("key", problem.message)
    return problem.message


@pytest.mark.parametrize(
    ("shape", "value"),
    [
        (Flag(), True),
        (Flag(), False),
        (Whole(1, 4096), 1),
        (Whole(1, 4096), 4096),
        (Whole(0), 2**53 - 1),
        (Text(), "é"),
        (Text(), "x" * 256),
        (Name(), "qwen3.6_35b-A3B"),
        (Name(), "x" * 128),
        (AbsolutePath(), "/"),
        (AbsolutePath(107), "/" + "x" * 106),
        (Argument(), ""),
        (Argument(), "a\nb"),
        (COLOURS, "red"),
        (AnyJson(), {"n_ctx": 1}),
        (AnyJson(), False),
    ],
)
def test_a_value_within_bounds_is_read_as_it_is(shape: Shape, value: object) -> None:
    assert read(shape, value) == value


def test_a_choice_is_read_as_its_member() -> None:
    assert read(COLOURS, "blue") is Colour.BLUE


def test_a_boolean_is_no_whole_number() -> None:
    """bool is a subclass of int, so ``max_pending: true`` would otherwise mean 1."""
    assert message(Whole(1, 4), True) == (
        "is a boolean; must be a whole number from 1 to 4, without quotes or fraction"
    )


def test_a_number_is_no_flag() -> None:
    assert message(Flag(), 1) == "is a whole number; must be true or false, without quotes"


@pytest.mark.parametrize("value", [1.0, "1", None, [], {}, float("nan")])
def test_nothing_else_is_a_whole_number(value: object) -> None:
    assert message(Whole(1, 4), value).endswith("from 1 to 4, without quotes or fraction")


@pytest.mark.parametrize("value", [0, 5, -1])
def test_a_number_out_of_range_is_named_with_its_bounds(value: int) -> None:
    assert message(Whole(1, 4), value) == f"is {value}; must be a whole number from 1 to 4"


@pytest.mark.parametrize("value", [10**18, -(10**18), 10**5000], ids=["long", "low", "longest"])
def test_an_endless_number_is_not_repeated(value: int) -> None:
    assert message(Whole(0), value) == "is out of range; must be a whole number from 0 to 2^53-1"


@pytest.mark.parametrize(
    ("shape", "value", "said"),
    [
        (Text(), 1, "is a whole number"),
        (Text(), "", "has 0 characters"),
        (Text(), "x" * 257, "has 257 characters"),
        (Text(), "a\x1b[1m", "holds unprintable characters"),
        (Text(), "\ud800", "holds unprintable characters"),
        (Name(), None, "is null"),
        (Name(), "", "is not a name that can be used"),
        (Name(), "a b", "is not a name that can be used"),
        (Name(), "a\n", "is not a name that can be used"),
        (Name(), "modèle", "is not a name that can be used"),
        (Name(), "٣", "is not a name that can be used"),
        (Name(), "x" * 129, "is not a name that can be used"),
        (AbsolutePath(), 1, "is a whole number"),
        (AbsolutePath(), "", "is a relative path"),
        (AbsolutePath(), "~/x", "is a relative path"),
        (AbsolutePath(), "/a\0b", "holds unprintable characters"),
        (AbsolutePath(), "/\udcff", "holds unprintable characters"),
        (AbsolutePath(107), "/" + "x" * 107, "is too long"),
        (AbsolutePath(107), "/" + "é" * 54, "is too long"),
        (Argument(), 1, "is a whole number"),
        (Argument(), "a\0", "cannot be passed to a process"),
        (Argument(), "\ud800", "cannot be passed to a process"),
        (Argument(), "x" * 32_001, "has 32001 characters"),
        (COLOURS, ["red"], "is a list"),
        (COLOURS, "green", "is none of the words there are"),
        (AnyJson(), None, "is null"),
        (AnyJson(), [float("nan")], "holds a number that is not finite"),
    ],
)
def test_what_is_wrong_comes_first_and_what_is_allowed_after(
    shape: Shape, value: object, said: str
) -> None:
    text = message(shape, value)
    assert text.startswith(f"{said}; must be {shape.allowed}")


def test_a_choice_lists_its_words() -> None:
    assert COLOURS.allowed == "'red' or 'blue'"


@pytest.mark.parametrize("shape", [Text(), Name(), AbsolutePath(), Argument(), COLOURS, Whole(0)])
def test_a_misplaced_secret_is_not_repeated(shape: Shape) -> None:
    assert "hunter2" not in message(shape, "hunter2 \0")


def test_schemas_carry_type_and_bounds() -> None:
    assert Flag().json_schema() == {"type": "boolean"}
    assert Whole(1, 4).json_schema() == {"type": "integer", "minimum": 1, "maximum": 4}
    assert Text().json_schema() == {"type": "string", "minLength": 1, "maxLength": 256}
    assert Name().json_schema() == {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,128}$"}
    assert AbsolutePath(107).json_schema() == {
        "type": "string",
        "pattern": "^/",
        "maxLength": 107,
    }
    assert Argument().json_schema() == {"type": "string", "maxLength": 32_000}
    assert COLOURS.json_schema() == {"enum": ["red", "blue"]}
    assert AnyJson().json_schema() == {"not": {"type": "null"}}
