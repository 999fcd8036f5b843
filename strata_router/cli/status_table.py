"""The daemon's status as a short table for a terminal, with the queue below it."""

from collections.abc import Mapping
from typing import Any

from strata_router.cli.queue_table import queue_lines
from strata_router.cli.requests_table import duration

_KNOWN = {
    "pid",
    "version",
    "routing",
    "draining",
    "loaded",
    "loaded_ms",
    "loading",
    "loading_ms",
    "child_pid",
    "engine_state",  # said by the rows "model" and "engine" already
    "busy",
    "operation",
    "in_flight",
    "queue_depth",
    "queue_depth_by_tier",
    "active",
    "queue",
    "last_startup_error",
    "last_startup_model",
    "last_startup_advice",
    "last_engine_death",
    "request_log",
}


def status_table(status: Mapping[str, Any]) -> list[str]:
    """One line per fact: the well-known ones in words, whatever else the daemon says as it is. Then
    the active answers and the queue in order, with the reasons, where there are any.

    status: the parsed answer. A well-known fact that it lacks shows as ``-`` (a busy daemon may not
    know); anything else is left out when it is null.
    """
    rows = [
        ("daemon", _daemon(status)),
        ("routing", _claim(status, "routing", "on", "off, chat requests get 503")),
        ("draining", _claim(status, "draining", "yes, ends after accepted work", "no")),
        ("model", _model(status)),
        ("engine", _pid(status.get("child_pid", "-"), "not running")),
        ("busy", _claim(status, "busy", _busy(status), "no")),
        ("requests", _requests(status)),
        ("last start error", _failed_start(status)),
    ]
    if isinstance(death := status.get("last_engine_death"), dict):
        rows.append(("last engine death", _death(death)))
    if isinstance(log := status.get("request_log"), dict) and any(log.values()):
        rows.append(("request log", _lost_records(log)))
    rows += [
        (name.replace("_", " "), _plain(value))
        for name, value in status.items()
        if name not in _KNOWN and value is not None
    ]
    width = max(len(label) for label, _ in rows)
    facts = [f"{label:<{width}}  {text}" for label, text in rows]
    return facts + queue_lines(status)


def _daemon(status: Mapping[str, Any]) -> str:
    version = status.get("version")
    return _pid(status.get("pid"), "-") + (f", version {version}" if version else "")


def _model(status: Mapping[str, Any]) -> str:
    loading, loaded = status.get("loading"), status.get("loaded")
    if loading:
        return f"loading {loading}" + _since(status.get("loading_ms"), ", {} so far")
    if loaded:
        return _plain(loaded) + _since(status.get("loaded_ms"), ", for {}")
    return _plain(status.get("loaded", "-"), "none loaded")


def _failed_start(status: Mapping[str, Any]) -> str:
    error = _plain(status.get("last_startup_error", "-"), "none")
    model, advice = status.get("last_startup_model"), status.get("last_startup_advice")
    return (f"{model}: " if model else "") + error + (f"; {advice}" if advice else "")


def _death(death: Mapping[str, Any]) -> str:
    text = (
        f"{_plain(death.get('model'))}, pid {_plain(death.get('pid'))}, {_plain(death.get('how'))}"
    )
    return text + _since(death.get("ago_ms"), ", {} ago")


def _lost_records(log: Mapping[str, Any]) -> str:
    drops, errors = log.get("write_drops"), log.get("write_errors")
    return (
        f"{_plain(drops)} records lost, {_plain(errors)} file operations failed; the log says why"
    )


def _since(ms: object, text: str) -> str:
    return text.format(duration(ms)) if isinstance(ms, int) else ""


def _busy(status: Mapping[str, Any]) -> str:
    operation = status.get("operation")
    return f"yes, '{operation}' is running" if operation else "yes"


def _requests(status: Mapping[str, Any]) -> str:
    if "in_flight" not in status or "queue_depth" not in status:
        return "-"
    text = f"{_plain(status['in_flight'])} active, {_plain(status['queue_depth'])} waiting"
    if status["queue_depth"] and "queue_depth_by_tier" in status:
        text += f" ({_plain(status['queue_depth_by_tier'])})"
    return text


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
