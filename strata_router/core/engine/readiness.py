"""What an engine's words prove: a readiness file, or an answer about its health or activity.

Reasons are short, generic and ours; a name that the engine says appears only when it is configured.
Source: contract 4.2.
"""

from collections.abc import Collection
from dataclasses import dataclass

import orjson

READY_FILE_LIMIT_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Verified:
    """The engine is what it should be."""


@dataclass(frozen=True, slots=True)
class NotYet:
    """Nothing is proven and nothing is wrong: ask again."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The load has failed; ``reason`` is for the log and ``status``."""

    reason: str


Verdict = Verified | NotYet | Mismatch


def read_ready_file(content: bytes, pid: int, upstream_model: str) -> Verdict:
    """Judge the readiness file of one start: JSON with at least ``pid`` and ``model``.

    Incomplete JSON means that the file is still being written.
    """
    if not content.strip():
        return NotYet()
    try:
        document = orjson.loads(content)
    except orjson.JSONDecodeError:
        return NotYet() if len(content) < READY_FILE_LIMIT_BYTES else Mismatch(_BAD_FILE)
    if not isinstance(document, dict) or "pid" not in document or "model" not in document:
        return Mismatch(_BAD_FILE)
    if document["pid"] != pid or isinstance(document["pid"], bool):
        return Mismatch("the readiness file names another process than the one started")
    if document["model"] != upstream_model:
        return Mismatch(_ANOTHER_MODEL)
    return Verified()


def read_strata_health(
    status: int, body: bytes, upstream_model: str, configured: Collection[str]
) -> Verdict:
    """Judge ``GET /health`` of Strata. 503 means that it still loads (some versions listen early)."""
    if status == 503:
        return NotYet()
    document = _json_object(body)
    if status != 200 or document is None:
        return Mismatch("backend's health check does not answer as Strata does")
    if document.get("model") != upstream_model:
        return _another_model(document.get("model"), configured)
    if document.get("loaded") is not True:
        return Mismatch("backend listens but reports that its model is not loaded")
    return Verified()


def read_strata_activity(status: int, body: bytes) -> bool:
    """Whether ``GET /status`` of Strata says that requests run or wait; False when it says nothing."""
    document = _json_object(body) if status == 200 else None
    if document is None:
        return False
    queued = document.get("queued")
    return document.get("busy") is True or (isinstance(queued, int) and queued > 0)


def read_llama_health(status: int) -> Verdict:
    """Judge ``GET /health`` of llama.cpp's server: 503 while loading, 200 when ready."""
    if status == 200:
        return Verified()
    if status == 503:
        return NotYet()
    return Mismatch("backend's health check does not answer as llama-server does")


def read_model_list(
    status: int, body: bytes, upstream_model: str, configured: Collection[str]
) -> Verdict:
    """Judge ``GET /v1/models`` of llama.cpp's server: it must list the alias it was given."""
    document = _json_object(body)
    data = document.get("data") if document is not None else None
    if status != 200 or not isinstance(data, list):
        return Mismatch("backend's model list does not answer as llama-server does")
    names = [entry.get("id") for entry in data if isinstance(entry, dict)]
    if upstream_model in names:
        return Verified()
    return _another_model(names[0] if names else None, configured)


_BAD_FILE = "the readiness file is not the JSON that it should be"
_ANOTHER_MODEL = "backend reports another model than the profile names"


def _another_model(name: object, configured: Collection[str]) -> Mismatch:
    if isinstance(name, str) and name in configured:
        return Mismatch(f"{_ANOTHER_MODEL}: {name}")
    return Mismatch(_ANOTHER_MODEL)


def _json_object(body: bytes) -> dict[str, object] | None:
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return document if isinstance(document, dict) else None
