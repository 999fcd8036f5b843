"""The cache lookup extension: what to ask in one batch, and whether the reply can be believed.

Source: contract section 8. Public Strata has no such endpoint (RESEARCH.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import orjson

BATCH_REQUESTS = 16
BATCH_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Scores:
    """(cached_tokens, input_tokens) per request asked about, in order; None where it said null."""

    values: tuple[tuple[int, int] | None, ...]


@dataclass(frozen=True, slots=True)
class Unsupported:
    """The engine has no such endpoint; not asked again until the engine changes."""


@dataclass(frozen=True, slots=True)
class NoScores:
    """Busy, failed or not to be believed: arrival order now."""


LookupReply = Scores | Unsupported | NoScores


def plan_batches(sizes_bytes: Sequence[int]) -> list[list[int]]:
    """Split requests, by index, into batches within both bounds; one over BATCH_BYTES is left out."""
    batches: list[list[int]] = []
    room_bytes = 0
    for index, size in enumerate(sizes_bytes):
        if size > BATCH_BYTES:
            continue
        if not batches or len(batches[-1]) == BATCH_REQUESTS or size > room_bytes:
            batches.append([])
            room_bytes = BATCH_BYTES
        batches[-1].append(index)
        room_bytes -= size
    return batches


def lookup_body(bodies: Sequence[bytes]) -> bytes:
    """The request body for one batch of chat bodies, each as it would be forwarded."""
    return b'{"requests":[' + b",".join(bodies) + b"]}"


def read_lookup_reply(status: int, body: bytes, asked: int) -> LookupReply:
    """Judge the reply to a batch of ``asked`` requests; it is valid as a whole or not at all."""
    if status in (404, 405, 501):
        return Unsupported()
    if status != 200:
        return NoScores()
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return NoScores()
    results = document.get("results") if isinstance(document, dict) else None
    if not isinstance(results, list) or len(results) != asked:
        return NoScores()
    values: list[tuple[int, int] | None] = []
    for result in results:
        if result is None:
            values.append(None)
            continue
        if not isinstance(result, dict):
            return NoScores()
        cached, total = _count(result.get("cached_tokens")), _count(result.get("input_tokens"))
        if cached is None or total is None or cached > total:
            return NoScores()
        values.append((cached, total))
    return Scores(tuple(values))


def _count(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    return None
