"""Overviews for tests: one that says nothing, and one in which everything is going on."""

from dataclasses import replace

from strata_router.core.admission import Wait, WaitReason
from strata_router.core.engine.lifecycle import EngineState
from strata_router.core.overview import ActiveAnswer, AnswerPhase, EngineNow, Overview
from strata_router.core.vocabulary import ModelId, TicketId, Tier

A, B, C = ModelId("a"), ModelId("b"), ModelId("c")

IDLE = Overview(
    version="1.2.3",
    instance_id="19a-7",
    uptime_s=12,
    routing=True,
    draining=False,
    engine=EngineNow(EngineState.STOPPED, None, None, None, None, {}),
    waiting=(),
    waiting_total=0,
    waiting_by_tier=dict.fromkeys(Tier, 0),
    active=(),
    active_total=0,
)

GRACE = Wait(
    ticket=TicketId(9),
    tier=Tier.FLEX,
    model=B,
    waited_s=3.2504,
    due=False,
    reason=WaitReason.GRACE,
    behind_model=A,
    behind_tier=None,
    leases=0,
    seconds_left=1.25,
)
HIGHER = replace(
    GRACE,
    ticket=TicketId(4),
    model=None,
    due=True,
    reason=WaitReason.HIGHER_TIER,
    behind_model=None,
    behind_tier=Tier.PRIORITY,
    seconds_left=None,
)

BUSY = replace(
    IDLE,
    routing=False,
    draining=True,
    engine=EngineNow(EngineState.READY, A, 61_000, None, None, {C: 7200}),
    waiting=(GRACE, HIGHER),
    waiting_total=7,
    waiting_by_tier={Tier.PRIORITY: 1, Tier.DEFAULT: 0, Tier.FLEX: 6},
    active=(
        ActiveAnswer(TicketId(2), A, Tier.DEFAULT, AnswerPhase.GENERATING, 5000, 3000, 41),
        ActiveAnswer(TicketId(3), A, Tier.PRIORITY, AnswerPhase.HEADER_WAIT, 400, 20, None),
    ),
    active_total=3,
)
LOADING = replace(IDLE, engine=EngineNow(EngineState.STARTING, None, None, B, 2300, {}))
STOPPING = replace(IDLE, engine=EngineNow(EngineState.STOPPING, None, None, None, None, {}))
