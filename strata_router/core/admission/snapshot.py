"""The scheduler's counts and the engine's model at one instant, for metrics and ``status``.

Reads the state and changes nothing; costs the same however many tickets wait. Why a single ticket
waits is in ``why``.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from strata_router.core.admission.engine_view import Phase
from strata_router.core.admission.state import AdmissionState
from strata_router.core.vocabulary import ModelId, Tier


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Counts at one instant.

    queue_depth: waiting tickets. queue_depth_by_tier: the same split, in legacy mode together with
        the leases that load or await upstream headers. in_flight: leases.
    loaded, loading: at most one of both. stopping: an unload or a called-off load runs.
    cooling_s: seconds left per model that failed to load.
    """

    queue_depth: int
    queue_depth_by_tier: Mapping[Tier, int]
    in_flight: int
    loaded: ModelId | None
    loading: ModelId | None
    stopping: bool
    cooling_s: Mapping[ModelId, float]


def take_snapshot(state: AdmissionState, now: float) -> Snapshot:
    """Source of the legacy split: design, "Service tiers"."""
    by_tier = state.room.depth_by_tier()
    if state.policy.counts_header_waits:
        for lease in state.leases.values():
            by_tier[lease.tier] += lease.before_headers
    return Snapshot(
        queue_depth=len(state.room),
        queue_depth_by_tier=by_tier,
        in_flight=len(state.leases),
        loaded=state.engine.ready,
        loading=state.engine.loading,
        stopping=state.engine.phase in (Phase.UNLOADING, Phase.CANCELLING),
        cooling_s=state.engine.cooling_s(now),
    )
