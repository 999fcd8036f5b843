"""The figures of the daemon: what is counted, and what ``GET /metrics`` shows of it, as JSON and as text."""

from strata_router.core.metrics.families import FAMILIES, Family, Kind
from strata_router.core.metrics.figures import DaemonFigures, RequestLogFigures
from strata_router.core.metrics.readings import Reading, readings
from strata_router.core.metrics.tally import Distribution, Tally

__all__ = [
    "FAMILIES",
    "DaemonFigures",
    "Distribution",
    "Family",
    "Kind",
    "Reading",
    "RequestLogFigures",
    "Tally",
    "readings",
]
