"""What is going on at one instant: the engine, the queue with its reasons, the active answers.

Made by ``runtime.overviews`` at the time of asking; ``GET /queue``, the page, ``status`` and ``top`` show
the mappings that it gives. Holds configured names, ids, closed words and numbers, nothing that a
client or an engine could have put there.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from strata_router.core.admission.why import Wait
from strata_router.core.admission.words import in_words
from strata_router.core.engine.lifecycle import EngineState
from strata_router.core.metrics import families
from strata_router.core.metrics.tally import Tally
from strata_router.core.record.ring import new_request_id
from strata_router.core.vocabulary import ModelId, TicketId, Tier

MOST_TOTALS = 200
"""Rows of totals that are given; a configuration may have ten thousand models."""


class AnswerPhase(StrEnum):
    """Where an active answer is."""

    LOADING = "loading"
    """It was admitted; its engine is not proven yet."""
    HEADER_WAIT = "header_wait"
    """The request is on its way to the engine, which has not begun to answer."""
    GENERATING = "generating"


@dataclass(frozen=True, slots=True)
class ActiveAnswer:
    """One lease. active_ms: since admission. phase_ms: since its phase began.

    sse_events: events of the engine's stream so far, which are not tokens; None before the stream
    began and for an answer that is none.
    """

    ticket: TicketId
    model: ModelId
    tier: Tier
    phase: AnswerPhase
    active_ms: int
    phase_ms: int
    sse_events: int | None


@dataclass(frozen=True, slots=True)
class EngineNow:
    """loaded, loading: at most one of both, each with its milliseconds so far, else None.

    cooling_ms: what is left for each model that failed to load.
    """

    state: EngineState
    loaded: ModelId | None
    loaded_ms: int | None
    loading: ModelId | None
    loading_ms: int | None
    cooling_ms: Mapping[ModelId, int]


@dataclass(frozen=True, slots=True)
class Overview:
    """waiting: the first tickets in the order of their service; waiting_total counts them all.

    waiting_by_tier: as in the scheduler's Snapshot. active: the first leases by admission.
    """

    version: str
    instance_id: str
    uptime_s: int
    routing: bool
    draining: bool
    engine: EngineNow
    waiting: Sequence[Wait]
    waiting_total: int
    waiting_by_tier: Mapping[Tier, int]
    active: Sequence[ActiveAnswer]
    active_total: int

    def to_mapping(self) -> dict[str, Any]:
        """The JSON of ``GET /queue``."""
        return {
            "version": self.version,
            "instance_id": self.instance_id,
            "uptime_s": self.uptime_s,
            "routing": self.routing,
            "draining": self.draining,
            "engine": _engine(self.engine),
            "waiting": {
                "total": self.waiting_total,
                "by_tier": {tier.value: count for tier, count in self.waiting_by_tier.items()},
                "tickets": self.tickets(),
            },
            "active": {"total": self.active_total, "answers": self.answers()},
        }

    def tickets(self) -> list[dict[str, Any]]:
        """The waiting tickets that are shown, in order."""
        return [
            _ticket(place, wait, self.instance_id) for place, wait in enumerate(self.waiting, 1)
        ]

    def answers(self) -> list[dict[str, Any]]:
        """The active answers that are shown, in order."""
        return [_answer(answer, self.instance_id) for answer in self.active]


def totals(tally: Tally) -> list[dict[str, Any]]:
    """Finished requests since the start by model and outcome, the most frequent first."""
    by_both: Counter[tuple[str, str]] = Counter()
    for (model, _tier, outcome), requests in tally.counts(families.REQUESTS).items():
        by_both[model, outcome] += requests
    return [
        {"model": model, "outcome": outcome, "requests": requests}
        for (model, outcome), requests in by_both.most_common(MOST_TOTALS)
    ]


def _engine(engine: EngineNow) -> dict[str, Any]:
    return {
        "state": engine.state.value,
        "loaded": engine.loaded,
        "loaded_ms": engine.loaded_ms,
        "loading": engine.loading,
        "loading_ms": engine.loading_ms,
        "cooling": [
            {"model": model, "left_ms": left_ms} for model, left_ms in engine.cooling_ms.items()
        ],
    }


def _ticket(place: int, wait: Wait, instance_id: str) -> dict[str, Any]:
    return {
        "position": place,
        "request_id": new_request_id(instance_id, wait.ticket),
        "tier": wait.tier.value,
        "model": wait.model,
        "waited_ms": int(wait.waited_s * 1000),
        "overdue": wait.due,
        "reason": wait.reason.value,
        "behind_model": wait.behind_model,
        "behind_tier": None if wait.behind_tier is None else wait.behind_tier.value,
        "active_answers": wait.leases,
        "left_ms": None if wait.seconds_left is None else int(wait.seconds_left * 1000),
        "words": in_words(wait),
    }


def _answer(answer: ActiveAnswer, instance_id: str) -> dict[str, Any]:
    return {
        "request_id": new_request_id(instance_id, answer.ticket),
        "model": answer.model,
        "tier": answer.tier.value,
        "phase": answer.phase.value,
        "active_ms": answer.active_ms,
        "phase_ms": answer.phase_ms,
        "sse_events": answer.sse_events,
    }
