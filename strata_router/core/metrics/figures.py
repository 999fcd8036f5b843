"""What is true at one instant, and the JSON that ``GET /metrics`` makes of it.

Made by ``runtime.views`` at the time of asking; ``readings`` turns the same object into series, so the
two forms cannot disagree. Source: contract 5.
"""

from dataclasses import asdict, dataclass
from typing import Any

from strata_router.core.admission.snapshot import Snapshot
from strata_router.core.metrics.tally import Tally


@dataclass(frozen=True, slots=True)
class RequestLogFigures:
    """``request_log`` of the JSON form, key by key.

    next_seq: the next completion sequence. path: None while there are no files; the limits are the
    configured ones all the same.
    """

    write_errors: int
    write_drops: int
    evicted: int
    records_in_ring: int
    next_seq: int
    instance_id: str
    path: str | None
    max_bytes: int
    rotate_files: int
    capacity: int


@dataclass(frozen=True, slots=True)
class DaemonFigures:
    """started_unix_s: seconds since the epoch. snapshot: queue, leases, loaded model."""

    version: str
    started_unix_s: int
    snapshot: Snapshot
    routing: bool
    draining: bool
    max_request_body_bytes: int
    request_log: RequestLogFigures
    tally: Tally

    def to_mapping(self) -> dict[str, Any]:
        """The JSON form."""
        snapshot, last = self.snapshot, self.tally.last_stream
        return {
            "loaded_model": snapshot.loaded,
            "in_flight": snapshot.in_flight,
            "queue_depth": snapshot.queue_depth,
            "queue_depth_by_tier": {
                tier.value: count for tier, count in snapshot.queue_depth_by_tier.items()
            },
            "max_request_body_bytes": self.max_request_body_bytes,
            "last_ttft_ms": last.ttft_ms,
            "last_decode_tokens_per_s": last.decode_tokens_per_s,
            "request_log": asdict(self.request_log),
        }
