"""Bytes of a JSON or YAML file become plain JSON values, bounded, with repeated keys reported.

Whether the values make a configuration is ``core.config``'s. JSON is strict but for NaN and Infinity,
which are let through to be reported with their path. YAML is read from its events, never by PyYAML's
constructors: scalars by the rules of JSON (so ``no`` and ``12:30`` are strings), keys always as
strings, anchors shared and counted so that a "billion laughs" file stays small, nothing executed.
Called by ``config_file``.
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any, NoReturn

import yaml

from strata_router.core.config import Problem, item_path, key_path

_DEPTH = 40
"""A configuration is 6 deep, its metadata 16 more."""

_YAML_VALUES = 1_000_000
"""Values after anchors are repeated: 10,000 models have about 200,000."""

_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")
_FRACTION = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_CONSTANTS: dict[str, object] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", "-.inf", "+.inf", ".nan", ".NaN"), float("nan")),
}
_STRING_TAG = "tag:yaml.org,2002:str"


class SyntaxFault(Exception):
    """The text cannot be read at all; the message says where and why, never what it holds."""


@dataclass(frozen=True, slots=True)
class Document:
    """value: JSON values. repetitions: keys that occur twice in one object, the last one counting."""

    value: object
    repetitions: tuple[Problem, ...]


class _Object(dict[str, Any]):
    """A JSON object that remembers which of its keys were repeated."""

    __slots__ = ("repeated",)

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.repeated: list[str] = []
        if len(self) != len(pairs):
            seen: set[str] = set()
            for key, _ in pairs:
                if key in seen:
                    self.repeated.append(key)
                seen.add(key)


def read_json(content: bytes) -> Document:
    """Raises SyntaxFault."""
    text = _decode(content)
    try:
        value = json.loads(text, object_pairs_hook=_Object)
    except json.JSONDecodeError as exc:
        where = f"line {exc.lineno}, column {exc.colno}"
        raise SyntaxFault(f"is not JSON at {where}: {exc.msg}{_yaml_hint(text)}") from exc
    except RecursionError as exc:
        raise SyntaxFault("is nested too deeply") from exc
    except ValueError as exc:
        # Python refuses to convert integers of more than 4300 digits.
        raise SyntaxFault("holds a number with too many digits") from exc
    return Document(value, _repetitions(value))


def read_yaml(content: bytes) -> Document:
    """Raises SyntaxFault, also for a text that is no YAML of JSON values (tags, merge keys, ...)."""
    text = _decode(content)
    builder = _YamlBuilder()
    try:
        # libyaml's parser is ten times faster; PyYAML is sometimes built without it.
        for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            builder.take(event)
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise SyntaxFault(f"is not YAML{where}: {exc.problem}") from exc
    except yaml.YAMLError as exc:
        raise SyntaxFault("is not YAML: it holds characters that YAML does not allow") from exc
    return Document(builder.document, _repetitions(builder.document))


def _decode(content: bytes) -> str:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise SyntaxFault(f"is not UTF-8 text (byte {exc.start})") from exc
    if not text.strip():
        raise SyntaxFault("is empty; must hold an object, the configuration")
    return text


def _yaml_hint(text: str) -> str:
    """A half-sentence for one who wrote YAML into a file that is read as JSON."""
    if text.lstrip().startswith(("{", "[")):
        return ""
    return "; YAML is read only from a file whose name ends in .yaml or .yml"


def _repetitions(document: object) -> tuple[Problem, ...]:
    found: list[Problem] = []
    seen: set[int] = set()
    waiting: list[tuple[object, str]] = [(document, "")]
    while waiting:
        value, path = waiting.pop()
        # A YAML anchor's value appears in many places but is one object.
        if not isinstance(value, dict | list) or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, list):
            waiting.extend((item, item_path(path, index)) for index, item in enumerate(value))
            continue
        waiting.extend((member, key_path(path, key)) for key, member in value.items())
        if isinstance(value, _Object):
            found += [
                Problem(key_path(path, key), "is given more than once; keep one of them")
                for key in dict.fromkeys(value.repeated)
            ]
    return tuple(sorted(found, key=lambda problem: problem.path))


@dataclass(slots=True)
class _Open:
    """A list or object whose end has not come: its parts so far, keys and values in turn."""

    is_object: bool
    anchor: str | None
    values_before: int
    parts: list[Any] = field(default_factory=list)

    @property
    def expects_key(self) -> bool:
        return self.is_object and len(self.parts) % 2 == 0

    def close(self) -> object:
        if not self.is_object:
            return self.parts
        return _Object(list(zip(self.parts[::2], self.parts[1::2], strict=True)))


class _YamlBuilder:
    """Makes one document of PyYAML's events, which it takes in order."""

    def __init__(self) -> None:
        self.document: object = None
        self._open: list[_Open] = []
        self._anchors: dict[str, tuple[object, int]] = {}
        self._values = 0
        self._documents = 0

    def take(self, event: yaml.Event) -> None:
        match event:
            case yaml.DocumentStartEvent():
                self._documents += 1
                if self._documents > 1:
                    _refuse(event, "holds a second document")
            case yaml.AliasEvent():
                self._take_alias(event)
            case yaml.ScalarEvent():
                self._values += 1
                value = self._scalar(event)
                self._remember(event.anchor, value, 1)
                self._put(value)
            case yaml.SequenceStartEvent() | yaml.MappingStartEvent():
                self._start(event)
            case yaml.SequenceEndEvent() | yaml.MappingEndEvent():
                done = self._open.pop()
                value = done.close()
                self._remember(done.anchor, value, self._values - done.values_before)
                self._put(value)
            case _:
                pass  # stream start and end, document end

    def _start(self, event: yaml.CollectionStartEvent) -> None:
        self._values += 1
        if self._open and self._open[-1].expects_key:
            _refuse(event, "has a list or object as a key")
        if event.tag is not None:
            _refuse(event, "has a tag, which is not read")
        if len(self._open) >= _DEPTH:
            _refuse(event, "is nested too deeply")
        is_object = isinstance(event, yaml.MappingStartEvent)
        self._open.append(_Open(is_object, event.anchor, self._values - 1))

    def _scalar(self, event: yaml.ScalarEvent) -> object:
        if event.tag not in (None, "!", _STRING_TAG):
            _refuse(event, "has a tag, which is not read")
        plain = event.implicit[0] and event.tag is None
        if self._open and self._open[-1].expects_key:
            if plain and event.value == "<<":
                _refuse(event, "has a merge key ('<<'), which is not read; write the keys out")
            return event.value
        return _plain_value(event) if plain else event.value

    def _take_alias(self, event: yaml.AliasEvent) -> None:
        if self._open and self._open[-1].expects_key:
            _refuse(event, "has an alias as a key")
        if event.anchor not in self._anchors:
            _refuse(event, "uses an anchor that is not complete there")
        value, values = self._anchors[event.anchor]
        self._values += values
        if self._values > _YAML_VALUES:
            _refuse(event, "grows too large when its anchors are repeated")
        self._put(value)

    def _remember(self, anchor: str | None, value: object, values: int) -> None:
        if anchor is not None:
            self._anchors[anchor] = (value, values)

    def _put(self, value: object) -> None:
        if self._open:
            self._open[-1].parts.append(value)
        else:
            self.document = value


def _plain_value(event: yaml.ScalarEvent) -> object:
    text = event.value
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INTEGER.fullmatch(text):
        try:
            return int(text)
        except ValueError:
            _refuse(event, "holds a number with too many digits")
    return float(text) if _FRACTION.fullmatch(text) else text


def _refuse(event: yaml.Event, fault: str) -> NoReturn:
    line = event.start_mark.line + 1 if event.start_mark else 0
    raise SyntaxFault(f"{fault} (line {line})")
