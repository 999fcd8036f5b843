"""The field table of ``docs/record.md``, drawn from the record's schema; ``make docs`` places it."""

from collections.abc import Iterator
from enum import StrEnum
from types import NoneType
from typing import Any, get_args, get_type_hints

from strata_router.core.record.schema import FIELD_NAMES, Note, Record

JSON_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean"}


def field_table() -> str:
    """Return the Markdown table of every field, in order."""
    return "\n".join(_rows()) + "\n"


def _rows() -> Iterator[str]:
    hints = get_type_hints(Record, include_extras=True)
    yield "| field | JSON | null | unit | meaning |"
    yield "| --- | --- | --- | --- | --- |"
    for name in FIELD_NAMES:
        annotated, note = get_args(hints[name])
        assert isinstance(note, Note)
        is_nullable = NoneType in get_args(annotated)
        value_type = get_args(annotated)[0] if is_nullable else annotated
        meaning = note.meaning
        if _is_closed_set(value_type):
            meaning += " One of " + ", ".join(f"`{word.value}`" for word in value_type) + "."
        null = "yes" if is_nullable else "no"
        yield f"| `{name}` | {_json_type(value_type)} | {null} | {note.unit} | {meaning} |"


def _json_type(value_type: Any) -> str:
    if _is_closed_set(value_type):
        return "string"
    # A NewType is written as what it is made of.
    return JSON_TYPES[getattr(value_type, "__supertype__", value_type)]


def _is_closed_set(value_type: Any) -> bool:
    return isinstance(value_type, type) and issubclass(value_type, StrEnum)
