"""Whether a value read from a file can be sent on as JSON, within bounds.

A file's reader lets through what no JSON writer puts out again (NaN, half a surrogate pair, integers
beyond 64 bits) and nesting that exhausts a stack; one such value in one model's metadata would break
``/v1/models`` for all. Used for ``metadata`` in the config and ``router_metadata`` in a profile.
"""

import math

_DEPTH = 16
_VALUES = 1000
_CHARACTERS = 65_536
"""Together more than a model card could want, yet times thousands of models still a listing."""

_INTEGERS = range(-(2**63), 2**64)
"""What orjson writes."""


def json_fault(value: object) -> str | None:
    """Why the value cannot be passed on, as "holds ..." or "is ..."; None when it can."""
    waiting: list[tuple[object, int]] = [(value, 1)]
    values = characters = 0
    while waiting:
        part, depth = waiting.pop()
        if depth > _DEPTH:
            return f"is nested more than {_DEPTH} deep"
        fault = _own_fault(part)
        if fault is not None:
            return fault
        if isinstance(part, dict):
            # A key counts as a value of its own.
            members = [*part, *part.values()]
        else:
            members = part if isinstance(part, list) else []
        values += 1
        characters += len(part) if isinstance(part, str) else 0
        if values + len(waiting) + len(members) > _VALUES or characters > _CHARACTERS:
            return f"holds more than {_VALUES} values or {_CHARACTERS} characters"
        waiting += [(member, depth + 1) for member in members]
    return None


def is_unicode(text: str) -> bool:
    """False if the text holds half of a surrogate pair, which no UTF-8 can carry."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _own_fault(part: object) -> str | None:
    """What is wrong with this part, its members aside."""
    match part:
        case int() if part not in _INTEGERS:
            return "holds a whole number of more than 64 bits"
        case float() if not math.isfinite(part):
            return "holds a number that is not finite"
        case str() if not is_unicode(part):
            return "holds text that is not Unicode"
        case dict() if not all(isinstance(key, str) for key in part):
            return "holds an object key that is not a string"
        case None | int() | float() | str() | list() | dict():
            return None
        case _:
            return "holds something that is not JSON"
