"""The control protocol: one line asks, one line or a stream of lines answers.

A client sends one line, a bare word or a JSON object::

    status                         -> {"pid":...,"loaded":...}          one line
    on | off                       -> {"routing":true|false}            the flag only, no load or unload
    {"cmd":"off","now":false}      -> {"event":"progress",...}*  {"event":"done",...}
    {"cmd":"on","model":null}      -> the same
    anything else                  -> {"error":"..."}

Lines become values here and values lines; nothing is read, sent or carried out. The daemon's
``runtime.control_socket`` and the client's ``cli.control_client`` both call this, so the two ends
cannot drift apart. Source: design document, "Control the existing daemon".
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

import orjson

JSON: TypeAlias = bool | int | float | str | list["JSON"] | dict[str, "JSON"] | None

Report = Callable[[str, str], None]
"""``report(phase, message)``: a short machine word and a sentence for the operator; never blocks."""

LINE_LIMIT_BYTES = 64 * 1024
"""Longest command line, its newline not counted. Source: reliability, "Bounds"."""

UNKNOWN_COMMAND = "unknown control command"
"""Also what a daemon that is older than its command line answers; clients compare with it."""


class Op(StrEnum):
    """The two operations that take time; at most one of them runs."""

    OFF = "off"
    ON = "on"


# --- what a client asks ---


@dataclass(frozen=True, slots=True)
class Status:
    """Say how things stand; answered at once, whatever else runs."""

    def to_line(self) -> bytes:
        return b"status\n"


@dataclass(frozen=True, slots=True)
class SetRouting:
    """Set the routing flag and nothing else: the bare words ``on`` and ``off``."""

    on: bool

    def to_line(self) -> bytes:
        return b"on\n" if self.on else b"off\n"


@dataclass(frozen=True, slots=True)
class Off:
    """Stop routing, wait for leases (or cut them, if ``now``), unload."""

    now: bool

    @property
    def op(self) -> Op:
        return Op.OFF

    def to_line(self) -> bytes:
        return _line({"cmd": "off", "now": self.now})


@dataclass(frozen=True, slots=True)
class On:
    """Start routing and load. model: concrete id or alias; None lets the daemon choose."""

    model: str | None

    @property
    def op(self) -> Op:
        return Op.ON

    def to_line(self) -> bytes:
        return _line({"cmd": "on", "model": self.model})


Command = Status | SetRouting | Off | On


@dataclass(frozen=True, slots=True)
class Rejected:
    """The line was not carried out; ``error`` says why in words for the operator."""

    error: str

    def to_line(self) -> bytes:
        return _line({"error": self.error})


def read_command(line: bytes) -> Command | Rejected:
    """What one line from a client asks for.

    line: without its newline; surrounding blanks and a carriage return do not matter. An order is
    understood whole or not at all: an unknown field in an object rejects it.
    """
    if len(line) > LINE_LIMIT_BYTES:
        return Rejected(f"the line is longer than {LINE_LIMIT_BYTES} bytes")
    text = line.strip()
    match text:
        case b"status":
            return Status()
        case b"on":
            return SetRouting(on=True)
        case b"off":
            return SetRouting(on=False)
        case b"":
            return Rejected("the line is empty; send status, on, off or a JSON object")
    if text.startswith(b"{"):
        return _read_object(text)
    return Rejected(UNKNOWN_COMMAND)


def _read_object(text: bytes) -> Command | Rejected:
    try:
        fields = orjson.loads(text)
    except orjson.JSONDecodeError:
        return Rejected("the line starts like a JSON object but is not valid JSON")
    if "cmd" not in fields:
        return Rejected('a JSON command needs the field \'cmd\': "status", "on" or "off"')
    match fields.pop("cmd"):
        case "status":
            return Status() if not fields else Rejected("'status' takes no other field")
        case "off":
            return _read_off(fields)
        case "on":
            return _read_on(fields)
        case _:
            return Rejected(UNKNOWN_COMMAND)


def _read_off(fields: dict[str, JSON]) -> Off | Rejected:
    now = fields.pop("now", False)
    if fields:
        return Rejected("'off' takes no other field than 'now'")
    if not isinstance(now, bool):
        return Rejected("'now' must be true or false")
    return Off(now)


def _read_on(fields: dict[str, JSON]) -> On | Rejected:
    model = fields.pop("model", None)
    if fields:
        return Rejected("'on' takes no other field than 'model'")
    if model is None:
        return On(None)
    if not isinstance(model, str) or not model:
        return Rejected("'model' must be null or the name of a model or alias")
    return On(model)


# --- what the daemon answers ---


@dataclass(frozen=True, slots=True)
class Progress:
    """One step of an operation. elapsed_ms: since the daemon read the command."""

    op: Op
    phase: str
    message: str
    elapsed_ms: int

    def to_line(self) -> bytes:
        return _line(
            {
                "event": "progress",
                "op": self.op.value,
                "phase": self.phase,
                "message": self.message,
                "elapsed_ms": self.elapsed_ms,
            }
        )


@dataclass(frozen=True, slots=True)
class Done:
    """How an operation ended, as the part of the daemon that carried it out sees it."""

    ok: bool
    message: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of an operation. status: the fields that ``status`` would have answered."""

    op: Op
    ok: bool
    message: str
    elapsed_ms: int
    status: Mapping[str, JSON]

    def to_line(self) -> bytes:
        own: dict[str, JSON] = {
            "event": "done",
            "ok": self.ok,
            "op": self.op.value,
            "message": self.message,
            "elapsed_ms": self.elapsed_ms,
        }
        return _line(own | {name: value for name, value in self.status.items() if name not in own})


def status_line(status: Mapping[str, JSON]) -> bytes:
    """The answer to ``Status``."""
    return _line(dict(status))


def routing_line(on: bool) -> bytes:
    """The answer to ``SetRouting``."""
    return _line({"routing": on})


Event = Progress | Done | Rejected
"""What a client needs to know of an answer to ``Off`` or ``On``; ``Done`` is the last one."""


def read_event(line: bytes) -> Event | None:
    """What one line from the daemon says about an operation.

    None for what this version does not know: a newer daemon may add events, so a client skips them
    and relies on ``Done`` or the end of the connection.
    """
    try:
        fields = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    match fields:
        case {
            "event": "progress",
            "op": "on" | "off" as op,
            "phase": str(phase),
            "message": str(message),
            "elapsed_ms": int(elapsed_ms),
        } if elapsed_ms >= 0:
            return Progress(Op(op), phase, message, elapsed_ms)
        case {"event": "done", "ok": bool(ok), "message": str(message)}:
            return Done(ok, message)
        case {"error": str(error)}:
            return Rejected(error)
    return None


def _line(fields: Mapping[str, JSON]) -> bytes:
    # orjson keeps insertion order and escapes newlines, so a value can never end the line early.
    return orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)
