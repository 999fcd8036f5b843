"""What one waiting ticket waits for, as a phrase for a person.

The only place that puts a ``WaitReason`` into words: the page, ``GET /queue``, ``status`` and ``top``
all show what comes out of here.
"""

from typing import assert_never

from strata_router.core.admission.why import Wait, WaitReason
from strata_router.core.vocabulary import ModelId


def in_words(wait: Wait) -> str:
    """Such as ``waits for 2 active answers of X`` or ``grace for X, 1.2 s left``; no full stop."""
    model = wait.behind_model
    match wait.reason:
        case WaitReason.ENGINE_STOPPING:
            return "waits for the engine to stop"
        case WaitReason.OPERATOR if model is None:
            return "behind the operator's unload"
        case WaitReason.OPERATOR:
            return f"behind the operator's load of {model}"
        case WaitReason.OWN_LOAD:
            return f"waits for {model} to load"
        case WaitReason.OTHER_LOAD:
            return f"behind the load of {model}"
        case WaitReason.DUE_FIRST:
            return f"behind overdue work{_for(model)}"
        case WaitReason.HIGHER_TIER:
            return f"behind {wait.behind_tier} work"
        case WaitReason.PLACES:
            return f"waits for {_one_of(wait.leases)} of {model}"
        case WaitReason.HEADERS:
            return f"waits for {model} to begin another answer"
        case WaitReason.CACHE_LOOKUP:
            return f"{model} is asked what it holds cached{_left(wait.seconds_left)}"
        case WaitReason.LOADED_FIRST:
            return f"behind work for {model}, which is loaded"
        case WaitReason.EARLIER_FIRST:
            return f"behind earlier work{_for(model)}"
        case WaitReason.OTHER_LEASES:
            return f"waits for {_active(wait.leases)} of {model}"
        case WaitReason.GRACE:
            return f"grace for {model}{_left(wait.seconds_left)}"
        case WaitReason.NOTHING:
            return "is next"
    assert_never(wait.reason)


def _for(model: ModelId | None) -> str:
    return "" if model is None else f" for {model}"


def _active(answers: int) -> str:
    return "1 active answer" if answers == 1 else f"{answers} active answers"


def _one_of(answers: int) -> str:
    return "the active answer" if answers == 1 else f"one of {answers} active answers"


def _left(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f", {seconds:.1f} s left" if seconds < 60 else f", {seconds:.0f} s left"
