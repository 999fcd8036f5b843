"""The body of a chat request: four keys are read, one replaced, two removed, every other byte kept.

Strict JSON is demanded of the whole body (NaN and Infinity included), but what the values mean is the
engine's business: escaped lone surrogates, big integers and duplicates elsewhere pass as they came.
That rules out msgspec and orjson as readers, which refuse lone surrogates (RESEARCH.md, "Chat body"); the
standard library's scanner accepts them and tells where each value ends.
Source: contract 6.1.
"""

import json
import re
from codecs import BOM_UTF8
from dataclasses import dataclass
from typing import NoReturn

from strata_router.core.refusal import Case, Refusal
from strata_router.core.vocabulary import Tier

_WATCHED = ("model", "stream", "service_tier", "speed")
_REMOVED = ("service_tier", "speed")

_TIERS = {
    "priority": Tier.PRIORITY,
    "default": Tier.DEFAULT,
    "auto": Tier.DEFAULT,
    "flex": Tier.FLEX,
}
_SPEEDS = {"fast": Tier.PRIORITY, "standard": None}

_SPACE = re.compile(r"[ \t\n\r]*")


class _Malformed(Exception):
    """offset: of the byte at which the text cannot be JSON any more; its length where it ends early."""

    def __init__(self, offset: int) -> None:
        super().__init__(offset)
        self.offset = offset


class _Constant(Exception):
    """NaN or an infinity, which Python's scanner knows and JSON does not."""


def _no_constant(_: str) -> NoReturn:
    raise _Constant


# Nested objects and numbers are checked and thrown away: ``len`` keeps the scan in C and the memory flat.
_DECODER = json.JSONDecoder(
    parse_int=len, parse_float=len, parse_constant=_no_constant, object_pairs_hook=len
)


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What the router needs to know of one body.

    model: as sent. stream: requested streaming mode. tier: from ``speed`` and ``service_tier``.
    members: views of the body's top-level members to forward, as sent, ``model`` not among them; they
        keep the one copy of the body alive.
    """

    model: str
    stream: bool
    tier: Tier
    members: tuple[memoryview, ...]

    @property
    def size_bytes(self) -> int:
        """What the forwarded body will take, but for the model's name."""
        return sum(len(member) + 1 for member in self.members)

    def forwarded_parts(self, upstream_model: str) -> list[bytes | memoryview]:
        """The body for the engine in parts, uncopied: its own model name, no tier fields, the rest byte
        for byte."""
        parts: list[bytes | memoryview] = [b'{"model":', json.dumps(upstream_model).encode("ascii")]
        for member in self.members:
            parts += (b",", member)
        parts.append(b"}")
        return parts

    def forwarded_body(self, upstream_model: str) -> bytes:
        """The same in one piece."""
        return b"".join(self.forwarded_parts(upstream_model))


def read_chat_request(body: bytes | bytearray) -> ChatRequest | Refusal:
    """Read one complete body, which must not change any more: the result refers to it.

    Costs about what ``json.loads`` costs and holds the GIL as that does; above about 1 MiB call it in a
    thread, where it lets other threads in between top-level values and between the elements of top-level
    lists.
    """
    try:
        # Latin-1 makes offsets in the text the offsets in the body; JSON's own bytes are all ASCII.
        if not body.isascii():
            body.decode("utf-8")
        text = body.decode("latin-1")
        members = _scan_members(text)
    except UnicodeDecodeError as exc:
        where = _where(body, exc.start)
        return Refusal(Case.INVALID_JSON, f"The request body is not UTF-8: it goes wrong {where}.")
    except RecursionError:
        return Refusal(Case.INVALID_JSON, "The request body is nested too deeply.")
    except _Constant:
        return Refusal(
            Case.INVALID_JSON,
            "The request body is not strict JSON: NaN and Infinity are not JSON values.",
        )
    except json.JSONDecodeError as exc:
        return _not_json(body, exc.pos)
    except _Malformed as exc:
        return _not_json(body, exc.offset)
    if members is None:
        return Refusal(Case.INVALID_JSON, "The request body is not a JSON object.")
    watched: dict[str, object] = {}
    kept: list[memoryview] = []
    view = memoryview(body)
    for key, value, start, end in members:
        if key in _WATCHED:
            if key in watched:
                return Refusal(Case.INVALID_VALUE, f"The field '{key}' is given twice.")
            watched[key] = value
        if key != "model" and key not in _REMOVED:
            kept.append(view[start:end])
    return _judge(watched, tuple(kept))


def _not_json(body: bytes | bytearray, offset: int) -> Refusal:
    """Says where to look and never what is there."""
    if not body or body.isspace():
        return Refusal(Case.INVALID_JSON, "The request body is empty; it must be a JSON object.")
    if body.startswith(BOM_UTF8):
        return Refusal(
            Case.INVALID_JSON, "The request body begins with a byte-order mark; send it without."
        )
    mistake = (
        f"it goes wrong {_where(body, offset)}"
        if offset < len(body)
        else f"it ends too early, at {len(body)} bytes"
    )
    return Refusal(Case.INVALID_JSON, f"The request body is not strict JSON: {mistake}.")


def _where(body: bytes | bytearray, offset: int) -> str:
    return f"at byte {offset + 1} of {len(body)}"


def _judge(watched: dict[str, object], members: tuple[memoryview, ...]) -> ChatRequest | Refusal:
    """null counts as absent; the messages name the field and what is allowed, never what was sent."""
    model = watched.get("model")
    if model is None:
        return Refusal(Case.MISSING_MODEL)
    if not isinstance(model, str):
        return Refusal(Case.INVALID_VALUE, "The field 'model' must be a string.")
    stream = watched.get("stream")
    if stream is not None and not isinstance(stream, bool):
        return Refusal(Case.INVALID_VALUE, "The field 'stream' must be true or false.")
    service_tier = watched.get("service_tier")
    tier = Tier.DEFAULT
    if service_tier is not None:
        if not isinstance(service_tier, str) or service_tier not in _TIERS:
            return Refusal(
                Case.INVALID_VALUE,
                "The field 'service_tier' must be one of priority, default, auto, flex.",
            )
        tier = _TIERS[service_tier]
    speed = watched.get("speed")
    if speed is not None:
        if not isinstance(speed, str) or speed not in _SPEEDS:
            return Refusal(Case.INVALID_VALUE, "The field 'speed' must be fast or standard.")
        tier = _SPEEDS[speed] or tier
    return ChatRequest(model, bool(stream), tier, members)


def _scan_members(text: str) -> list[tuple[str, object, int, int]] | None:
    """(key, value, start of key, end of value) of each top-level member; None if not an object.

    Values of watched keys are real where they are strings, booleans or null; numbers and objects
    come as some int, which no watched key allows. Raises _Malformed, _Constant, JSONDecodeError,
    RecursionError.
    """
    position = _skip_space(text, 0)
    if text[position : position + 1] != "{":
        _DECODER.raw_decode(text, position)  # not JSON at all is worth another message
        return None
    members: list[tuple[str, object, int, int]] = []
    position = _skip_space(text, position + 1)
    if text[position : position + 1] == "}":
        _expect_end(text, position + 1)
        return members
    while True:
        start = position
        if text[position : position + 1] != '"':
            raise _Malformed(position)
        key, position = _DECODER.raw_decode(text, position)
        position = _expect(text, _skip_space(text, position), ":")
        value, position = _scan_value(text, position)
        members.append((key, value, start, position))
        position = _skip_space(text, position)
        if text[position : position + 1] == "}":
            _expect_end(text, position + 1)
            return members
        position = _expect(text, position, ",")


def _scan_value(text: str, position: int) -> tuple[object, int]:
    """One value; a list is taken element by element, so that a scan of a long conversation in a thread
    gives the event loop its turn between messages."""
    if text[position : position + 1] != "[":
        return _DECODER.raw_decode(text, position)
    position = _skip_space(text, position + 1)
    if text[position : position + 1] == "]":
        return 0, position + 1
    while True:
        _, position = _DECODER.raw_decode(text, position)
        position = _skip_space(text, position)
        if text[position : position + 1] == "]":
            return 0, position + 1
        position = _expect(text, position, ",")


def _skip_space(text: str, position: int) -> int:
    space = _SPACE.match(text, position)
    return space.end() if space else position


def _expect(text: str, position: int, mark: str) -> int:
    """Position of what follows ``mark`` and the white space behind it."""
    if text[position : position + 1] != mark:
        raise _Malformed(position)
    return _skip_space(text, position + 1)


def _expect_end(text: str, position: int) -> None:
    position = _skip_space(text, position)
    if position != len(text):
        raise _Malformed(position)
