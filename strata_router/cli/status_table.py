"""The daemon's status as a short table for a terminal."""

from collections.abc import Mapping
from typing import Any

_KNOWN = (
    "pid",
    "routing",
    "draining",
    "loaded",
    "child_pid",
    "busy",
    "operation",
    "last_startup_error",
)


def status_table(status: Mapping[str, Any]) -> list[str]:
    """One line per fact, the well-known ones in words, whatever else the daemon says as it is.

    status: the parsed answer. A fact that the answer lacks shows as ``-``.
    """
    rows = [
        ("daemon", _pid(status.get("pid", "-"), "-")),
        ("routing", _claim(status, "routing", "on", "off, chat requests get 503")),
        ("draining", _claim(status, "draining", "yes, ends after accepted work", "no")),
        ("model", _plain(status.get("loaded", "-"), "none loaded")),
        ("engine", _pid(status.get("child_pid", "-"), "not running")),
        ("busy", _claim(status, "busy", _busy(status), "no")),
        ("last start error", _plain(status.get("last_startup_error", "-"), "none")),
    ]
    rows += [
        (name.replace("_", " "), _plain(value))
        for name, value in status.items()
        if name not in _KNOWN
    ]
    width = max(len(label) for label, _ in rows)
    return [f"{label:<{width}}  {text}" for label, text in rows]


def _busy(status: Mapping[str, Any]) -> str:
    operation = status.get("operation")
    return f"yes, '{operation}' is running" if operation else "yes"


def _pid(value: object, when_none: str) -> str:
    return f"pid {value}" if isinstance(value, int) else _plain(value, when_none)


def _claim(status: Mapping[str, Any], name: str, when_true: str, when_false: str) -> str:
    match status.get(name):
        case True:
            return when_true
        case False:
            return when_false
        case other:
            return _plain(other)


def _plain(value: object, when_none: str = "-") -> str:
    match value:
        case None:
            return when_none
        case bool():
            return "yes" if value else "no"
        case dict():
            return ", ".join(f"{name} {_plain(inner)}" for name, inner in value.items()) or "-"
        case list():
            return ", ".join(_plain(inner) for inner in value) or "-"
    return str(value)
