"""What may be passed on as JSON."""

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_router.core.config.portable_json import is_unicode, json_fault


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth - 1):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        2**64 - 1,
        -(2**63),
        1.5,
        "x",
        {"n_ctx": 32768, "modalities": ["text", None]},
        nested(16),
        list(range(999)),
    ],
)
def test_ordinary_json_is_accepted(value: object) -> None:
    assert json_fault(value) is None


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (2**64, "holds a whole number of more than 64 bits"),
        (-(2**63) - 1, "holds a whole number of more than 64 bits"),
        ({"a": [float("nan")]}, "holds a number that is not finite"),
        (float("inf"), "holds a number that is not finite"),
        ("\ud800", "holds text that is not Unicode"),
        ({"\udfff": 1}, "holds text that is not Unicode"),
        ({1: 2}, "holds an object key that is not a string"),
        ([b""], "holds something that is not JSON"),
        (nested(17), "is nested more than 16 deep"),
        (list(range(1000)), "holds more than 1000 values or 65536 characters"),
        ("x" * 65_537, "holds more than 1000 values or 65536 characters"),
        ({"x" * 65_537: 1}, "holds more than 1000 values or 65536 characters"),
    ],
)
def test_what_no_writer_puts_out_or_is_too_much_is_named(value: object, fault: str) -> None:
    assert json_fault(value) == fault


def test_nesting_without_end_ends() -> None:
    endless: list[object] = []
    endless.append(endless)
    assert json_fault(endless) == "is nested more than 16 deep"


def test_half_a_surrogate_pair_is_not_unicode() -> None:
    assert is_unicode("\U0001f600")
    assert not is_unicode("\ud83d")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters()), inner),
        max_leaves=30,
    )
)
def test_what_is_accepted_can_be_written_and_read_back(value: object) -> None:
    if json_fault(value) is None:
        assert json.loads(orjson.dumps(value)) == value
