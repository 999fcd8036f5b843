"""What is wrong with a configuration, said so that its author can put it right.

Holds the words (paths, kinds of value, the nearest known name) and the collection of findings; what
counts as wrong is decided by the callers, ``shapes``, ``tables``, ``entries`` and ``references``.
A value from the file is repeated only if it is a short plain name: it might be a secret in the
wrong place.
"""

import difflib
import re
from collections.abc import Collection
from dataclasses import dataclass

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]{1,80}")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.:/@+-]{1,128}")

_COMPARISONS = 50_000
"""Names compared per parse to find a nearest one: about a second, and far more than one reads."""

_SIMILAR = 0.6
"""difflib's own default for "a close match"; below it a name is not worth suggesting."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to put right, or, as a warning, to know.

    path: where, as ``models.a.profile`` or ``aliases["a.b"].allowed_models[2]``; "" for the file.
    """

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path or 'config file'}: {self.message}"


class ConfigError(Exception):
    """The configuration cannot be used; ``problems`` is everything that was found, never empty."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


class Findings:
    """Collects problems and warnings of one parse, in the order found."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.warnings: list[Problem] = []
        self._comparisons_left = _COMPARISONS

    def problem(self, path: str, message: str) -> None:
        self.problems.append(Problem(path, message))

    def warning(self, path: str, message: str) -> None:
        self.warnings.append(Problem(path, message))

    def nearest_key(self, name: str, known: Collection[str]) -> str:
        """A half-sentence naming the known key most like ``name``; "" when that is not affordable.

        A key that is far away is named too, as the contract has it (section 3), but not as advice.
        """
        nearest = self._nearest(name, known, 0.0)
        if nearest is None:
            return ""
        if difflib.SequenceMatcher(None, nearest, name).ratio() >= _SIMILAR:
            return f"; the nearest known key is {nearest!r}"
        return (
            f"; none is close, the nearest known key is {nearest!r}: "
            "docs/configuration.md lists them all"
        )

    def did_you_mean(self, name: str, known: Collection[str]) -> str:
        """A half-sentence naming the known name that ``name`` may be a slip of; "" if none is."""
        nearest = self._nearest(name, known, _SIMILAR)
        return "" if nearest is None else f"; did you mean {shown(nearest)}?"

    def _nearest(self, name: str, known: Collection[str], similar: float) -> str | None:
        if not is_plain(name) or len(known) > self._comparisons_left:
            return None
        self._comparisons_left -= len(known)
        return next(iter(difflib.get_close_matches(name, known, 1, similar)), None)


def key_path(parent: str, key: str) -> str:
    """Path of a member: dotted if the key cannot be misread so, bracketed and quoted otherwise."""
    if _PLAIN_KEY.fullmatch(key):
        return f"{parent}.{key}" if parent else key
    return f"{parent}[{shown(key, quote=chr(34))}]"


def item_path(parent: str, index: int) -> str:
    return f"{parent}[{index}]"


def is_plain(name: str) -> bool:
    """Whether the name is short and of characters that names are made of."""
    return _PLAIN_NAME.fullmatch(name) is not None


def shown(name: str, quote: str = "'") -> str:
    """The name in quotes if it is short and plain, else only how long it is."""
    if is_plain(name):
        return f"{quote}{name}{quote}"
    return f"<{len(name)} characters>"


def kind_of(value: object) -> str:
    """What a JSON value is, in the words of someone who wrote the file."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int():
            return "a whole number"
        case float():
            # NaN, both infinities and 1e999 fail this comparison or exceed it.
            return (
                "a number with a fraction" if abs(value) < float("inf") else "not a finite number"
            )
        case str():
            return "a string"
        case list():
            return "a list"
        case dict():
            return "an object"
        case _:
            return "not a JSON value"
