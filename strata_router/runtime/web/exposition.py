"""Writes the daemon's figures as Prometheus text, in the two forms that scrapers ask for.

What is counted and under which name is ``core.metrics``'s. Uses a registry of its own: the library's
global one would add figures of the Python process that nobody asked for.
"""

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.registry import Collector

from strata_router.core.metrics import Kind, Reading


class TextForm(StrEnum):
    """The media types; the text form first, as that is the one a scraper without wishes gets."""

    PROMETHEUS = "text/plain"
    OPENMETRICS = "application/openmetrics-text"

    @property
    def content_type(self) -> str:
        """With the version of the form. The library's own negotiation repeats whatever version a
        client names, and raises for one that is no number."""
        version = "1.0.0" if self is TextForm.OPENMETRICS else "0.0.4"
        return f"{self.value}; version={version}; charset=utf-8"


class Exposition(Collector):
    """Gives the text; every call reads the figures anew."""

    def __init__(self, read: Callable[[], Iterable[Reading]]) -> None:
        self._read = read
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def text(self, form: TextForm) -> bytes:
        if form is TextForm.OPENMETRICS:
            return bytes(generate_openmetrics(self._registry))  # type: ignore[no-untyped-call]  # theirs
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """For the registry."""
        return map(_metric, self._read())


def _metric(reading: Reading) -> Metric:
    family = reading.family
    match family.kind:
        case Kind.HISTOGRAM:
            histogram = HistogramMetricFamily(family.name, family.meaning, labels=family.labels)
            for labels, buckets in reading.buckets.items():
                histogram.add_metric(labels, buckets.at_most, buckets.total)
            return histogram
        case Kind.COUNTER:
            counter = CounterMetricFamily(family.name, family.meaning, labels=family.labels)
            for labels, value in reading.values.items():
                counter.add_metric(labels, value)
            return counter
        case Kind.GAUGE:
            gauge = GaugeMetricFamily(family.name, family.meaning, labels=family.labels)
            for labels, value in reading.values.items():
                gauge.add_metric(labels, value)
            return gauge
