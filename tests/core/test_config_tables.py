"""Lists and objects of a configuration."""

from typing import Any

from strata_router.core.config.problems import Findings
from strata_router.core.config.shapes import Flag, Name, Shape, Whole
from strata_router.core.config.tables import Entries, Key, ListOf, Table

POINT = Table(
    (
        Key("x_ms", Whole(0, 9), "Across.", required=True),
        Key("y_bytes", Whole(0, 9), "Up.", default=3),
        Key("note", Name(), "Said of it.", nullable=True),
        Key("flag", Flag(), "Whether."),
    ),
    "a point",
)


def read(shape: Shape, value: object) -> tuple[Any, dict[str, str]]:
    findings = Findings()
    result = shape.read(value, "here", findings)
    return result, {problem.path: problem.message for problem in findings.problems}


def test_a_list_is_read_in_its_order() -> None:
    assert read(ListOf(Name()), ["b", "a"]) == (("b", "a"), {})


def test_a_broken_item_leaves_the_others_where_they_are() -> None:
    """Later rules name items by position."""
    items, said = read(ListOf(Name()), ["b", 1, "a"])
    assert items == ("b", None, "a")
    assert list(said) == ["here[1]"]


def test_a_repeated_item_is_reported_with_the_first_place() -> None:
    _, said = read(ListOf(Name()), ["a", "b", "a", "a"])
    assert said == {
        "here[2]": "repeats item 0; list each item once",
        "here[3]": "repeats item 0; list each item once",
    }


def test_broken_items_do_not_repeat_each_other() -> None:
    _, said = read(ListOf(Name()), [1, 1])
    assert not any("repeats" in message for message in said.values())


def test_a_list_may_allow_repetitions() -> None:
    assert read(ListOf(Name(), repeats=True), ["a", "a"]) == (("a", "a"), {})


def test_a_list_that_must_not_be_empty_says_so() -> None:
    items, said = read(ListOf(Name(), least=1), [])
    assert items == ()
    assert said["here"].startswith("has 0 items; must be a list of at least 1, each item 1 to 128")


def test_an_object_is_no_list() -> None:
    assert read(ListOf(Flag()), {}) == (
        None,
        {"here": "is an object; must be a list, each item true or false"},
    )


def test_entries_keep_usable_names_of_broken_values() -> None:
    """Another key may refer to the name, and need not be reported because the entry is broken."""
    entries, said = read(Entries(Name(), Flag(), "flags"), {"a": True, "b": 1, "c d": True})
    assert entries == {"a": True, "b": None}
    assert set(said) == {"here.b", "here[<3 characters>]"}


def test_entries_report_keys_that_are_no_strings() -> None:
    entries, said = read(Entries(Name(), Flag(), "flags"), {1: True, "a": True})
    assert entries == {"a": True}
    assert said == {"here": "has a whole number as a key; keys must be strings"}


def test_a_list_is_no_object() -> None:
    assert read(Entries(Name(), Flag(), "flags"), []) == (
        None,
        {"here": "is a list; must be an object of flags"},
    )
    assert read(POINT, []) == (None, {"here": "is a list; must be an object, a point"})


def test_absent_keys_have_their_default_or_nothing() -> None:
    assert read(POINT, {"x_ms": 1}) == ({"x_ms": 1, "y_bytes": 3, "note": None, "flag": None}, {})


def test_a_missing_required_key_is_reported() -> None:
    point, said = read(POINT, {})
    assert said == {"here.x_ms": "is missing; must be a whole number from 0 to 9"}
    assert "x_ms" not in point


def test_a_broken_key_is_left_out_and_the_rest_is_read() -> None:
    point, said = read(POINT, {"x_ms": 1, "y_bytes": "2", "flag": True})
    assert point == {"x_ms": 1, "note": None, "flag": True}
    assert list(said) == ["here.y_bytes"]


def test_null_is_refused_where_it_has_no_meaning() -> None:
    _, said = read(POINT, {"x_ms": None, "y_bytes": None, "note": None})
    assert said == {
        "here.x_ms": "is null; must be a whole number from 0 to 9",
        "here.y_bytes": "is null; must be a whole number from 0 to 9; leave the key out instead",
    }


def test_an_unknown_key_is_reported_with_the_nearest() -> None:
    _, said = read(POINT, {"x_ms": 1, "y_byte": 1})
    assert said == {"here.y_byte": "is not a known key; the nearest known key is 'y_bytes'"}


def test_units_are_read_off_the_names() -> None:
    assert [key.unit for key in POINT.keys] == ["milliseconds", "bytes", "", ""]


def test_schemas_say_what_reading_demands() -> None:
    assert POINT.json_schema() == {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "x_ms": {"type": "integer", "minimum": 0, "maximum": 9, "description": "Across."},
            "y_bytes": {
                "type": "integer",
                "minimum": 0,
                "maximum": 9,
                "default": 3,
                "description": "Up.",
            },
            "note": {
                "anyOf": [Name().json_schema(), {"type": "null"}],
                "default": None,
                "description": "Said of it.",
            },
            "flag": {"type": "boolean", "description": "Whether."},
        },
        "required": ["x_ms"],
    }
    assert "required" not in Table((), "empty").json_schema()
    assert ListOf(Flag(), least=1).json_schema() == {
        "type": "array",
        "items": {"type": "boolean"},
        "minItems": 1,
        "uniqueItems": True,
    }
    assert ListOf(Flag(), repeats=True).json_schema() == {
        "type": "array",
        "items": {"type": "boolean"},
    }
    assert Entries(Name(), Flag(), "flags").json_schema() == {
        "type": "object",
        "propertyNames": Name().json_schema(),
        "additionalProperties": {"type": "boolean"},
    }
