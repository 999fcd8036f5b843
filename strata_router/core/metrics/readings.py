"""Reads every family off the figures: one value per series, in the units that are exposed.

Pure; ``runtime.web.exposition`` only writes down what comes out here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from strata_router.core.metrics import families
from strata_router.core.metrics.families import FAMILIES, NONE, Family, Kind
from strata_router.core.metrics.figures import DaemonFigures
from strata_router.core.metrics.tally import Distribution, Labels


@dataclass(frozen=True, slots=True)
class Buckets:
    """A histogram's value. at_most: (upper bound, how many values up to it), the last one "+Inf"."""

    at_most: tuple[tuple[str, int], ...]
    total: float


@dataclass(frozen=True, slots=True)
class Reading:
    """One family's series: label values (in the family's order) -> value."""

    family: Family
    values: Mapping[Labels, float]
    buckets: Mapping[Labels, Buckets]


def readings(figures: DaemonFigures) -> Iterator[Reading]:
    """Every family, in the table's order; one without a series yet has an empty mapping."""
    now = _instant(figures)
    for family in FAMILIES:
        if family.kind is Kind.HISTOGRAM:
            found = figures.tally.distributions(family)
            yield Reading(
                family, {}, {labels: _exposed(family, each) for labels, each in found.items()}
            )
        elif family in now:
            yield Reading(family, now[family], {})
        else:
            yield Reading(family, figures.tally.counts(family), {})


def _instant(figures: DaemonFigures) -> dict[Family, dict[Labels, float]]:
    """What the tally does not count: the gauges, and counters that others keep."""
    snapshot, log = figures.snapshot, figures.request_log
    return {
        families.WRITE_ERRORS: {(): log.write_errors},
        families.WRITE_DROPS: {(): log.write_drops},
        families.EVICTED: {(): log.evicted},
        families.LOADED: {(snapshot.loaded or NONE,): 1},
        families.IN_FLIGHT: {(): snapshot.in_flight},
        families.QUEUED: {
            (tier.value,): count for tier, count in snapshot.queue_depth_by_tier.items()
        },
        families.IN_RING: {(): log.records_in_ring},
        families.ROUTING: {(): int(figures.routing)},
        families.DRAINING: {(): int(figures.draining)},
        families.STARTED: {(): figures.started_unix_s},
        families.BUILD: {(figures.version,): 1},
    }


def _exposed(family: Family, distribution: Distribution) -> Buckets:
    bounds = [repr(bound / family.per_unit) for bound in family.bounds]
    return Buckets(
        tuple(zip([*bounds, "+Inf"], distribution.at_most(), strict=True)),
        distribution.total / family.per_unit,
    )
