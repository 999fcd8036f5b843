"""Stage 2: who may go next. The runtime coordinator owns one ``Scheduler`` and obeys it."""

from strata_router.core.admission.decisions import (
    Admit,
    CancelLoad,
    Decision,
    Load,
    LookUpCache,
    Refuse,
    Unload,
)
from strata_router.core.admission.positions import Position, Positions
from strata_router.core.admission.scheduler import Scheduler
from strata_router.core.admission.settings import SchedulerSettings
from strata_router.core.admission.snapshot import Snapshot
from strata_router.core.admission.ticket import Ticket
from strata_router.core.admission.why import Wait, WaitReason
from strata_router.core.admission.words import in_words

__all__ = [
    "Admit",
    "CancelLoad",
    "Decision",
    "Load",
    "LookUpCache",
    "Position",
    "Positions",
    "Refuse",
    "Scheduler",
    "SchedulerSettings",
    "Snapshot",
    "Ticket",
    "Unload",
    "Wait",
    "WaitReason",
    "in_words",
]
