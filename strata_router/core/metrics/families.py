"""Every metric that the daemon exposes to Prometheus: name, kind, labels, buckets, meaning.

One table: ``tally`` counts by it, ``readings`` fills it, ``docs/metrics.md`` is drawn from it, and the
alert rules and the dashboard in ``contrib/`` are tested against it.

Labels take values from closed or configured sets only, so that no client can make a series: ``model``
is a configured id or alias, ``tier`` a tier, ``outcome`` a record's reason; what is not known is
``none``. Source: contract 5; issue 4.
"""

from dataclasses import dataclass
from enum import StrEnum

PREFIX = "strata_router_"

NONE = "none"
"""The label value for "not known". A model of that name would be counted with it."""


class Kind(StrEnum):
    """What Prometheus calls the type; the words of its ``# TYPE`` lines."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """One metric with all its series.

    name: as exposed; a counter's ends in ``_total``. bounds: upper bounds of a histogram's buckets,
    ascending, in what is counted; "+Inf" is implied. per_unit: how much of what is counted makes one
    of what is exposed: 1000 for milliseconds exposed as seconds.
    """

    name: str
    kind: Kind
    meaning: str
    labels: tuple[str, ...] = ()
    bounds: tuple[int, ...] = ()
    per_unit: int = 1


def _counter(name: str, meaning: str, *labels: str) -> Family:
    return Family(f"{PREFIX}{name}_total", Kind.COUNTER, meaning, labels)


def _gauge(name: str, meaning: str, *labels: str) -> Family:
    return Family(PREFIX + name, Kind.GAUGE, meaning, labels)


def _seconds(name: str, meaning: str, label: str, bounds_ms: tuple[int, ...]) -> Family:
    return Family(f"{PREFIX}{name}_seconds", Kind.HISTOGRAM, meaning, (label,), bounds_ms, 1000)


# A queue may be waited in for hours (wait-first has no deadline); an idle one takes a millisecond.
_WAITS_MS = (
    5, 50, 250, 1_000, 5_000, 15_000, 60_000, 300_000, 900_000, 3_600_000, 14_400_000,
)  # fmt: skip

# From a small model in the page cache to a large one on a slow disk, up to a generous startup_ms.
_LOADS_MS = (500, 1_000, 2_500, 5_000, 10_000, 20_000, 30_000, 60_000, 120_000, 300_000, 600_000)

# A cached prompt answers within tens of milliseconds; a cold load and a long prompt take minutes.
_TTFTS_MS = (
    25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 300_000, 1_800_000,
)  # fmt: skip

# Whole answers: from a refusal to a long reasoning run behind a long queue.
_TOTALS_MS = (
    5, 100, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 300_000, 900_000, 3_600_000, 14_400_000,
)  # fmt: skip

_RATES_PER_S = (1, 2, 5, 10, 15, 20, 30, 40, 60, 80, 120, 200, 400)

REQUESTS = _counter(
    "requests",
    "Finished requests on the chat path, one per record. model: the one that was to answer, else the "
    "name asked for if it is configured; outcome: the record's reason.",
    "model",
    "tier",
    "outcome",
)
TOKENS = _counter(
    "tokens",
    "Sum over records of each of the engine's token counts, by field of the record. Overlapping: "
    "reasoning_tokens are part of completion_tokens, cache_n of prompt_tokens. Unknown counts are left out.",
    "model",
    "kind",
)
SWITCHES = _counter(
    "model_switches",
    "Admissions that found another model loaded, or none: records with model_switch.",
    "model",
)
LOADS = _counter(
    "model_loads", "Loads that ended with a proven engine, whoever asked for them.", "model"
)
LOAD_FAILURES = _counter(
    "model_load_failures", "Loads that failed; called-off ones do not.", "model"
)
DEATHS = _counter("engine_deaths", "Ready engines that ended by themselves.", "model")
WRITE_ERRORS = _counter(
    "request_log_write_errors", "File operations of the request log that failed."
)
WRITE_DROPS = _counter("request_log_write_drops", "Records that never reached the request log.")
EVICTED = _counter("records_evicted", "Records that the memory ring no longer holds.")

LOADED = _gauge(
    "loaded_model", "1 for the model that is loaded; model is none while none is.", "model"
)
IN_FLIGHT = _gauge("in_flight_requests", "Admitted requests: leases.")
QUEUED = _gauge(
    "queued_requests",
    "Waiting requests; in legacy mode with those that load or await the engine's head.",
    "tier",
)
IN_RING = _gauge("records_in_ring", "Records that GET /requests can still give.")
ROUTING = _gauge("routing_enabled", "0 while the operator has turned routing off.")
DRAINING = _gauge("draining", "1 once the daemon has begun to stop.")
STARTED = _gauge("start_time_seconds", "When the daemon started, in seconds since the epoch.")
BUILD = _gauge("build_info", "Always 1; which version runs.", "version")

QUEUE_WAIT = _seconds(
    "queue_wait",
    "Arrival to admission, body upload included, load not; admitted requests only.",
    "tier",
    _WAITS_MS,
)
LOAD = _seconds(
    "model_load", "Stop of the old engine, start and proof of the new one.", "model", _LOADS_MS
)
TTFT = _seconds("ttft", "Arrival to the first generated delta of a stream.", "model", _TTFTS_MS)
TTFT_AFTER_LEASE = _seconds(
    "ttft_after_lease",
    "Admission to the first generated delta of a stream: without the queue, with a load.",
    "model",
    _TTFTS_MS,
)
TOTAL = _seconds(
    "request", "Arrival to the end of the answer, however it ended.", "model", _TOTALS_MS
)
DECODE_RATE = Family(
    f"{PREFIX}decode_tokens_per_second",
    Kind.HISTOGRAM,
    "Completion tokens over generation time of a stream, where both are known.",
    ("model",),
    _RATES_PER_S,
)

FAMILIES = (
    REQUESTS,
    TOKENS,
    SWITCHES,
    LOADS,
    LOAD_FAILURES,
    DEATHS,
    WRITE_ERRORS,
    WRITE_DROPS,
    EVICTED,
    LOADED,
    IN_FLIGHT,
    QUEUED,
    IN_RING,
    ROUTING,
    DRAINING,
    STARTED,
    BUILD,
    QUEUE_WAIT,
    LOAD,
    TTFT,
    TTFT_AFTER_LEASE,
    TOTAL,
    DECODE_RATE,
)
"""In the order of the exposition and of the document."""
