"""Counts what has ended: requests by their records, loads and engines by their reports.

Only adds up; what is true at the moment (queue, loaded model, log) is a ``DaemonFigures``. One per daemon
instance, owned by the ledger; called on the event loop's thread, once per record and per report.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate

from strata_router.core.metrics import families
from strata_router.core.metrics.families import FAMILIES, NONE, Family, Kind
from strata_router.core.record.schema import Record
from strata_router.core.vocabulary import ModelId, Tier

Labels = tuple[str, ...]

TOKEN_KINDS = (
    "prompt_tokens",
    "completion_tokens",
    "reasoning_tokens",
    "prompt_n",
    "cache_n",
    "predicted_n",
)
"""The record's fields that count tokens; the values of the label ``kind``."""


@dataclass(slots=True)
class Distribution:
    """Values sorted into buckets. bounds: as in the Family. total: their sum."""

    bounds: tuple[int, ...]
    total: float = 0
    _counts: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._counts = [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        self._counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def at_most(self) -> tuple[int, ...]:
        """How many values are at most each bound; the last figure, beyond the bounds, is of all."""
        return tuple(accumulate(self._counts))


@dataclass(frozen=True, slots=True)
class LastStream:
    """The figures of the last stream that generated something; None before there was one.

    decode_tokens_per_s: see ``decode_rate``.
    """

    ttft_ms: int | None = None
    decode_tokens_per_s: float | None = None


class Tally:
    """Everything countable since the daemon's start."""

    def __init__(self, prepared: Iterable[ModelId]) -> None:
        """prepared: models that can be loaded. Their counters of loads, failures and deaths start at
        0: Prometheus takes no increase from a series that begins with its first event."""
        self.last_stream = LastStream()
        self._counts: dict[Family, dict[Labels, int]] = {
            family: {} for family in FAMILIES if family.kind is Kind.COUNTER
        }
        self._distributions: dict[Family, dict[Labels, Distribution]] = {
            family: {} for family in FAMILIES if family.kind is Kind.HISTOGRAM
        }
        for model in prepared:
            for family in (families.LOADS, families.LOAD_FAILURES, families.DEATHS):
                self._count(family, model, amount=0)

    def counts(self, family: Family) -> Mapping[Labels, int]:
        """A counter's value per combination of its labels."""
        return self._counts[family]

    def distributions(self, family: Family) -> Mapping[Labels, Distribution]:
        """A histogram's values per combination of its labels."""
        return self._distributions[family]

    # ---- what ended ----------------------------------------------------------------------------

    def request_ended(self, record: Record, tier: Tier | None) -> None:
        """tier: which the record does not hold; None when the body was not read so far."""
        model = record.model_resolved or record.model_requested or NONE
        tier_label = NONE if tier is None else tier.value
        self._count(families.REQUESTS, model, tier_label, record.reason.value)
        if record.model_switch:
            self._count(families.SWITCHES, model)
        for kind in TOKEN_KINDS:
            tokens = getattr(record, kind)
            if tokens is not None:
                self._count(families.TOKENS, model, kind, amount=tokens)
        self._observe(families.QUEUE_WAIT, tier_label, record.queue_wait_ms)
        self._observe(families.TTFT, model, record.ttft_ms)
        self._observe(families.TTFT_AFTER_LEASE, model, record.ttft_after_lease_ms)
        self._observe(families.TOTAL, model, record.total_ms)
        rate = decode_rate(record)
        self._observe(families.DECODE_RATE, model, rate)
        if record.ttft_ms is not None:
            self.last_stream = LastStream(record.ttft_ms, rate)

    def loaded(self, model: ModelId, load_ms: int) -> None:
        """An engine was proven. load_ms: stop, start and proof."""
        self._count(families.LOADS, model)
        self._observe(families.LOAD, model, load_ms)

    def load_failed(self, model: ModelId) -> None:
        self._count(families.LOAD_FAILURES, model)

    def engine_died(self, model: ModelId) -> None:
        """A proven engine ended by itself."""
        self._count(families.DEATHS, model)

    # ---- how it is kept ------------------------------------------------------------------------

    def _count(self, family: Family, *labels: str, amount: int = 1) -> None:
        counts = self._counts[family]
        counts[labels] = counts.get(labels, 0) + amount

    def _observe(self, family: Family, label: str, value: float | None) -> None:
        """None is unknown, which is no value; least of all 0."""
        if value is None:
            return
        distributions = self._distributions[family]
        if (label,) not in distributions:
            distributions[label,] = Distribution(family.bounds)
        distributions[label,].add(value)


def decode_rate(record: Record) -> float | None:
    """Completion tokens per second of generation, the one computed figure (contract 5).

    None when the engine did not say how many, or nothing can be divided by the time.
    """
    if record.completion_tokens is None or not record.generation_ms:
        return None
    return round(record.completion_tokens * 1000 / record.generation_ms, 2)
