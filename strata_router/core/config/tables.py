"""Lists and objects of a configuration, made of shapes: read with all their problems, or drawn.

An object has either fixed keys (``Table``, a row per key) or free ones (``Entries``). What is broken
is reported and left out, so that the rest is still read and all problems appear together.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from strata_router.core.config.problems import (
    Findings,
    item_path,
    key_path,
    kind_of,
)
from strata_router.core.config.shapes import Shape, refuse

_UNITS = {"_ms": "milliseconds", "_bytes": "bytes"}


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list without repetitions, in the order given, or with them where order is all (``repeats``)."""

    item: Shape
    least: int = 0
    repeats: bool = False

    @property
    def allowed(self) -> str:
        least = f" of at least {self.least}" if self.least else ""
        return f"a list{least}, each item {self.item.allowed}"

    def read(self, value: object, path: str, findings: Findings) -> tuple[Any, ...] | None:
        """One element per item, None in the place of a broken one, so that positions stay true."""
        if not isinstance(value, list):
            refuse(findings, path, value, self.allowed)
            return None
        if len(value) < self.least:
            findings.problem(path, f"has {len(value)} items; must be {self.allowed}")
        items = tuple(
            self.item.read(item, item_path(path, index), findings)
            for index, item in enumerate(value)
        )
        if not self.repeats:
            _report_repetitions(items, path, findings)
        return items

    def json_schema(self) -> dict[str, object]:
        schema: dict[str, object] = {"type": "array", "items": self.item.json_schema()}
        if self.least:
            schema["minItems"] = self.least
        if not self.repeats:
            schema["uniqueItems"] = True
        return schema


def _report_repetitions(items: tuple[Any, ...], path: str, findings: Findings) -> None:
    first: dict[Any, int] = {}
    for index, item in enumerate(items):
        if item is not None and first.setdefault(item, index) != index:
            findings.problem(
                item_path(path, index), f"repeats item {first[item]}; list each item once"
            )


@dataclass(frozen=True, slots=True)
class Entries:
    """An object whose keys are names of the author's choice."""

    key: Shape
    value: Shape
    what: str

    @property
    def allowed(self) -> str:
        return f"an object of {self.what}"

    def read(self, value: object, path: str, findings: Findings) -> dict[str, Any] | None:
        """Every usable key in the order given; None where the key is usable but its value is not."""
        if not isinstance(value, dict):
            refuse(findings, path, value, self.allowed)
            return None
        entries = {}
        for key, member in string_keyed(value, path, findings):
            where = key_path(path, key)
            if self.key.read(key, where, findings) is not None:
                entries[key] = self.value.read(member, where, findings)
        return entries

    def json_schema(self) -> dict[str, object]:
        return {
            "type": "object",
            "propertyNames": self.key.json_schema(),
            "additionalProperties": self.value.json_schema(),
        }


@dataclass(frozen=True, slots=True)
class Key:
    """One row: a key that an object may have.

    default: as one would write it in the file; None when the key's absence is a value of its own.
    default_text: what absence means, for the reference, when ``default`` cannot say it.
    nullable: null may be written and means the same as leaving the key out.
    example: what ``config.example.json`` shows if not the default.
    """

    name: str
    shape: Shape
    meaning: str
    default: object = None
    default_text: str | None = None
    required: bool = False
    nullable: bool = False
    example: object = None

    @property
    def unit(self) -> str:
        """What one of it is, which the name ends with by house rule; "" for what has no unit."""
        return next((unit for suffix, unit in _UNITS.items() if self.name.endswith(suffix)), "")

    def when_absent(self, path: str, findings: Findings) -> Any | None:
        """The default as a typed value; None if there is none."""
        return None if self.default is None else self.shape.read(self.default, path, findings)

    def refuse_null(self, path: str, findings: Findings) -> None:
        remedy = "" if self.required else "; leave the key out instead"
        refuse(findings, path, None, self.shape.allowed, remedy)

    def json_schema(self) -> dict[str, object]:
        schema = self.shape.json_schema()
        if self.nullable:
            schema = {"anyOf": [schema, {"type": "null"}]}
        if self.default is not None or self.nullable:
            schema["default"] = self.default
        return schema | {"description": self.meaning}


@dataclass(frozen=True, slots=True)
class Table:
    """An object with fixed keys; any other is a problem that names the nearest one."""

    keys: tuple[Key, ...]
    what: str

    @property
    def allowed(self) -> str:
        return f"an object, {self.what}"

    def read(self, value: object, path: str, findings: Findings) -> dict[str, Any] | None:
        """A value per key: as read, the default if absent, or None; a broken key is not there."""
        if not isinstance(value, dict):
            refuse(findings, path, value, self.allowed)
            return None
        known = {key.name: key for key in self.keys}
        for name, _ in string_keyed(value, path, findings):
            if name not in known:
                nearest = findings.nearest_key(name, known)
                findings.problem(key_path(path, name), f"is not a known key{nearest}")
        values: dict[str, Any] = {}
        for name, key in known.items():
            where = key_path(path, name)
            if name not in value:
                if key.required:
                    findings.problem(where, f"is missing; must be {key.shape.allowed}")
                else:
                    values[name] = key.when_absent(where, findings)
            elif value[name] is None:
                if key.nullable:
                    values[name] = None
                else:
                    key.refuse_null(where, findings)
            elif (read := key.shape.read(value[name], where, findings)) is not None:
                values[name] = read
        return values

    def json_schema(self) -> dict[str, object]:
        schema: dict[str, object] = {
            "type": "object",
            "additionalProperties": False,
            "properties": {key.name: key.json_schema() for key in self.keys},
        }
        required = [key.name for key in self.keys if key.required]
        return schema | {"required": required} if required else schema


def string_keyed(
    value: dict[Any, Any], path: str, findings: Findings
) -> Iterator[tuple[str, object]]:
    """The members whose key is a string, which in JSON all are; others are reported."""
    for key, member in value.items():
        if isinstance(key, str):
            yield key, member
        else:
            findings.problem(path, f"has {kind_of(key)} as a key; keys must be strings")
