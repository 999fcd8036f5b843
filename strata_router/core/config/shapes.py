"""Kinds of single values a key may hold: each reads itself, says what it allows, draws its schema.

A shape looks at one value alone. Lists and objects are ``tables``; whether two keys agree is decided
in ``entries`` and ``references``. ``keys`` builds the key table from these.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from strata_router.core.config.portable_json import is_unicode, json_fault
from strata_router.core.config.problems import Findings, kind_of

LARGEST_WHOLE = 2**53 - 1
"""The largest whole number on which all JSON readers agree (RFC 8259 section 6)."""

_NAME_CHARACTERS = 128
_TEXT_CHARACTERS = 256
_ARGUMENT_CHARACTERS = 32_000
"""Linux takes 128 KiB per word (MAX_ARG_STRLEN); UTF-8 makes at most four bytes of a character."""

_PATH_BYTES = 4095
"""Linux's PATH_MAX without the closing zero byte."""

SOCKET_PATH_BYTES = 107
"""sun_path of unix(7) without the closing zero byte."""

_NAME = rf"[A-Za-z0-9_.-]{{1,{_NAME_CHARACTERS}}}"
_ECHOED_WHOLE = 10**18


class Shape(Protocol):
    """One kind of value."""

    @property
    def allowed(self) -> str:
        """Completes the sentence "must be ..."; also the reference's column of that name."""

    def read(self, value: object, path: str, findings: Findings) -> Any | None:
        """The typed value, or None after a problem was reported; no shape reads a value as None."""

    def json_schema(self) -> dict[str, object]:
        """JSON Schema (draft 2020-12) of the value."""


def refuse(findings: Findings, path: str, value: object, allowed: str, remedy: str = "") -> None:
    """Report that the value is not what the shape allows."""
    findings.problem(path, f"is {kind_of(value)}; must be {allowed}{remedy}")


@dataclass(frozen=True, slots=True)
class Flag:
    allowed: str = "true or false"

    def read(self, value: object, path: str, findings: Findings) -> bool | None:
        if isinstance(value, bool):
            return value
        refuse(findings, path, value, self.allowed, ", without quotes")
        return None

    def json_schema(self) -> dict[str, object]:
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number, both bounds included. A boolean is not one, though Python thinks so."""

    low: int
    high: int = LARGEST_WHOLE

    @property
    def allowed(self) -> str:
        high = "2^53-1" if self.high == LARGEST_WHOLE else self.high
        return f"a whole number from {self.low} to {high}"

    def read(self, value: object, path: str, findings: Findings) -> int | None:
        if not isinstance(value, int) or isinstance(value, bool):
            refuse(findings, path, value, self.allowed, ", without quotes or fraction")
            return None
        if not self.low <= value <= self.high:
            # A longer number says nothing more, and beyond 4300 digits str() refuses.
            what = str(value) if abs(value) < _ECHOED_WHOLE else "out of range"
            findings.problem(path, f"is {what}; must be {self.allowed}")
            return None
        return value

    def json_schema(self) -> dict[str, object]:
        return {"type": "integer", "minimum": self.low, "maximum": self.high}


@dataclass(frozen=True, slots=True)
class Text:
    """Free text that can be shown: no control characters, no half of a surrogate pair."""

    allowed: str = f"a printable string of 1 to {_TEXT_CHARACTERS} characters"

    def read(self, value: object, path: str, findings: Findings) -> str | None:
        if not isinstance(value, str):
            refuse(findings, path, value, self.allowed)
        elif not 1 <= len(value) <= _TEXT_CHARACTERS:
            findings.problem(path, f"has {len(value)} characters; must be {self.allowed}")
        elif not value.isprintable():
            findings.problem(path, f"holds unprintable characters; must be {self.allowed}")
        else:
            return value
        return None

    def json_schema(self) -> dict[str, object]:
        return {"type": "string", "minLength": 1, "maxLength": _TEXT_CHARACTERS}


@dataclass(frozen=True, slots=True)
class Argument:
    """One word of a command line or environment: anything that the kernel can hand to a process."""

    allowed: str = f"a string of at most {_ARGUMENT_CHARACTERS} characters, none of them zero"

    def read(self, value: object, path: str, findings: Findings) -> str | None:
        if not isinstance(value, str):
            refuse(findings, path, value, self.allowed)
        elif len(value) > _ARGUMENT_CHARACTERS:
            findings.problem(path, f"has {len(value)} characters; must be {self.allowed}")
        elif "\0" in value or not is_unicode(value):
            findings.problem(path, f"cannot be passed to a process; must be {self.allowed}")
        else:
            return value
        return None

    def json_schema(self) -> dict[str, object]:
        return {"type": "string", "maxLength": _ARGUMENT_CHARACTERS}


@dataclass(frozen=True, slots=True)
class Name:
    """An id as clients send it and headers carry it (contract section 3, ``models``)."""

    allowed: str = f"1 to {_NAME_CHARACTERS} of ASCII letters, digits, '_', '.' and '-'"

    def read(self, value: object, path: str, findings: Findings) -> str | None:
        if not isinstance(value, str):
            refuse(findings, path, value, self.allowed)
        elif re.fullmatch(_NAME, value) is None:
            findings.problem(path, f"is not a name that can be used; must be {self.allowed}")
        else:
            return value
        return None

    def json_schema(self) -> dict[str, object]:
        return {"type": "string", "pattern": f"^{_NAME}$"}


@dataclass(frozen=True, slots=True)
class AbsolutePath:
    high_bytes: int = _PATH_BYTES

    @property
    def allowed(self) -> str:
        return f"an absolute path (beginning with '/') of at most {self.high_bytes} bytes"

    def read(self, value: object, path: str, findings: Findings) -> str | None:
        """The path as written; it need not exist. The path itself is never repeated in a problem."""
        if not isinstance(value, str):
            refuse(findings, path, value, self.allowed)
        elif not value.startswith("/"):
            findings.problem(path, f"is a relative path; must be {self.allowed}")
        elif not value.isprintable():
            # A NUL, a line break or half a surrogate pair cannot be opened or cannot be shown.
            findings.problem(path, f"holds unprintable characters; must be {self.allowed}")
        elif len(value.encode()) > self.high_bytes:
            findings.problem(path, f"is too long; must be {self.allowed}")
        else:
            return value
        return None

    def json_schema(self) -> dict[str, object]:
        return {"type": "string", "pattern": "^/", "maxLength": self.high_bytes}


@dataclass(frozen=True, slots=True)
class Choice:
    """One member of a closed set."""

    members: type[StrEnum]

    @property
    def allowed(self) -> str:
        return " or ".join(f"'{member}'" for member in self.members)

    def read(self, value: object, path: str, findings: Findings) -> StrEnum | None:
        if not isinstance(value, str):
            refuse(findings, path, value, self.allowed)
        elif value not in [*self.members]:
            findings.problem(path, f"is none of the words there are; must be {self.allowed}")
        else:
            return self.members(value)
        return None

    def json_schema(self) -> dict[str, object]:
        return {"enum": [str(member) for member in self.members]}


@dataclass(frozen=True, slots=True)
class AnyJson:
    """A value that is only passed on, bounded so that the listing stays small."""

    allowed: str = "any JSON value but null, of moderate size"

    def read(self, value: object, path: str, findings: Findings) -> object | None:
        if value is None:
            refuse(findings, path, value, self.allowed, "; leave the key out instead")
            return None
        fault = json_fault(value)
        if fault is not None:
            findings.problem(path, f"{fault}; must be {self.allowed}")
            return None
        return value

    def json_schema(self) -> dict[str, object]:
        return {"not": {"type": "null"}}
