"""Asks the loaded engine what it holds cached for waiting requests, within one budget.

Carries out ``LookUpCache``; what may be asked and believed is decided in ``core.engine.cache_lookup``.
"""

import json
from collections.abc import Mapping, Sequence
from typing import assert_never

import trio

from strata_router.core.chat_request import ChatRequest
from strata_router.core.engine.cache_lookup import (
    NoScores,
    Scores,
    Unsupported,
    lookup_body,
    plan_batches,
    read_lookup_reply,
)
from strata_router.core.vocabulary import TicketId
from strata_router.runtime import engine_control

ScoreMap = Mapping[TicketId, tuple[int, int]]


async def look_up(
    port: int,
    path: str,
    requests: Sequence[tuple[TicketId, ChatRequest]],
    upstream_model: str,
    budget_s: float,
) -> tuple[ScoreMap | None, bool]:
    """(scores, supported); scores None: busy, failed, late or invalid, so arrival order.

    All batches together take at most budget_s.
    """
    found: dict[TicketId, tuple[int, int]] = {}
    head_bytes = len(json.dumps({"model": upstream_model}, separators=(",", ":")))
    sizes = [head_bytes + request.size_bytes for _, request in requests]
    with trio.move_on_after(budget_s) as scope:
        for batch in plan_batches(sizes):
            asked = [requests[index] for index in batch]
            body = lookup_body([request.forwarded_body(upstream_model) for _, request in asked])
            answer = await engine_control.ask(port, path, budget_s, body)
            if isinstance(answer, engine_control.NoAnswer):
                return None, True
            match read_lookup_reply(answer.status, answer.body, len(asked)):
                case Unsupported():
                    return None, False
                case NoScores():
                    return None, True
                case Scores(values):
                    pairs = zip(asked, values, strict=True)
                    found.update({ticket: score for (ticket, _), score in pairs if score})
                case unreachable:
                    assert_never(unreachable)
    return (None if scope.cancelled_caught else found), True
