"""What admission knows of the engine: which model, in which phase, since when, and what cools down.

It follows the coordinator's reports and the scheduler's own decisions; it is not the engine's life
cycle (``core.engine`` is) and never speaks to a process.

    EMPTY --Load--> LOADING --engine_ready--> READY --Load--> LOADING
      ^               |  |                      |
      |               |  +--CancelLoad--> CANCELLING --load_cancelled--> EMPTY
      +-- load_failed-+                         +--Unload--> UNLOADING --engine_stopped--> EMPTY
"""

from collections.abc import Mapping
from enum import StrEnum
from math import ceil, inf

from strata_router.core.refusal import Case, Refusal
from strata_router.core.vocabulary import ModelId


class Phase(StrEnum):
    """The engine as admission sees it; everything but EMPTY and READY is awaited."""

    EMPTY = "empty"
    LOADING = "loading"
    CANCELLING = "cancelling"
    READY = "ready"
    UNLOADING = "unloading"


class EngineView:
    """One engine, at most one model. Times are monotonic seconds."""

    __slots__ = (
        "_cooldown_ms",
        "_cools_until_s",
        "_died",
        "_grace_ms",
        "_idle_ms",
        "_idle_since_s",
        "_model",
        "grace_until_s",
        "phase",
    )

    def __init__(self, grace_ms: int, idle_ms: int, cooldown_ms: int) -> None:
        self._grace_ms = grace_ms
        self._idle_ms = idle_ms
        self._cooldown_ms = cooldown_ms
        self.phase = Phase.EMPTY
        self._model: ModelId | None = None
        self._died: ModelId | None = None
        self.grace_until_s = -inf
        self._idle_since_s = -inf
        self._cools_until_s: dict[ModelId, float] = {}

    @property
    def ready(self) -> ModelId | None:
        """The model that answers now."""
        return self._model if self.phase is Phase.READY else None

    @property
    def loading(self) -> ModelId | None:
        """The model whose load is running and was not called off."""
        return self._model if self.phase is Phase.LOADING else None

    @property
    def selected(self) -> ModelId | None:
        """The ready or the loading model: what an alias resolves to before its preference."""
        return self.ready or self.loading

    def is_about(self, model: ModelId) -> bool:
        """Whether the engine holds, loads or is losing ``model``."""
        return self._model == model

    def found_another(self, model: ModelId) -> bool:
        """Whether loading ``model``, which is not ready, finds another or none.

        After its own engine died it does not. Source: design, record field ``model_switch``.
        """
        return model != self._died

    def cooldown_refusal(self, model: ModelId, now: float) -> Refusal | None:
        """What an asker is told while ``model`` must not be loaded; None when it may be."""
        left_s = self._cools_until_s.get(model, -inf) - now
        if left_s <= 0:
            return None
        return Refusal(Case.MODEL_LOAD_FAILED, retry_after_s=ceil(left_s))

    def cooling_s(self, now: float) -> Mapping[ModelId, float]:
        """Seconds left for each model that cools down."""
        return {m: until - now for m, until in self._cools_until_s.items() if until > now}

    def idle_until_s(self) -> float | None:
        """When the ready model has been unused for long enough; None when it may stay for ever."""
        if self.phase is not Phase.READY or self._idle_ms == 0:
            return None
        return max(self._idle_since_s + self._idle_ms / 1000, self.grace_until_s)

    def decided(self, phase: Phase, model: ModelId | None) -> None:
        """A Load, Unload or CancelLoad was decided: nothing is loaded from now on."""
        self.phase = phase
        self._model = model
        self._died = None
        self.grace_until_s = -inf

    def became_ready(self, model: ModelId, now: float) -> None:
        self.decided(Phase.READY, model)
        self._idle_since_s = now
        self._cools_until_s.pop(model, None)

    def became_empty(self, died: ModelId | None = None) -> None:
        """died: the model whose engine ended without having been asked to."""
        self.decided(Phase.EMPTY, None)
        self._died = died

    def failed(self, model: ModelId, now: float) -> None:
        self.became_empty()
        self._cools_until_s[model] = now + self._cooldown_ms / 1000

    def wanted(self, now: float) -> None:
        """Restart the idle clock of the ready model: the operator has just asked for it."""
        self._idle_since_s = now

    def lease_ended(self, model: ModelId, now: float) -> None:
        """Restart grace and idle clock; a lease of a model that is no longer there has neither."""
        if self.ready == model:
            self.grace_until_s = now + self._grace_ms / 1000
            self._idle_since_s = now
