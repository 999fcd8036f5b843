"""Figures become series: every family, in exposed units."""

from strata_router.core.metrics import FAMILIES, Family, Kind, Reading, Tally, readings
from strata_router.core.metrics import families as known
from strata_router.core.metrics.figures import DaemonFigures
from strata_router.core.metrics.readings import Buckets
from strata_router.core.vocabulary import ModelId, Tier
from tests.core.metric_records import figures, record, snapshot

A = ModelId("a")


def reading(family: Family, of: DaemonFigures) -> Reading:
    (found,) = (each for each in readings(of) if each.family is family)
    return found


def test_every_family_is_read_in_the_table_s_order_even_when_it_has_no_series() -> None:
    assert [each.family for each in readings(figures())] == list(FAMILIES)
    assert reading(known.REQUESTS, figures()).values == {}
    assert reading(known.TTFT, figures()).buckets == {}


def test_gauges_show_the_instant() -> None:
    busy = snapshot(loaded=A, in_flight=2, waiting=(1, 0, 3))
    now = figures(snapshot=busy, routing=False, draining=True)
    shown = {each.family: each.values for each in readings(now) if each.family.kind is Kind.GAUGE}
    assert shown == {
        known.LOADED: {("a",): 1},
        known.IN_FLIGHT: {(): 2},
        known.QUEUED: {("priority",): 1, ("default",): 0, ("flex",): 3},
        known.IN_RING: {(): 4},
        known.ROUTING: {(): 0},
        known.DRAINING: {(): 1},
        known.STARTED: {(): 1_796_000_000},
        known.BUILD: {("1.2.3",): 1},
    }


def test_no_loaded_model_is_none() -> None:
    assert reading(known.LOADED, figures()).values == {("none",): 1}
    assert reading(known.ROUTING, figures()).values == {(): 1}
    assert reading(known.DRAINING, figures()).values == {(): 0}


def test_counters_come_from_the_tally_and_the_log() -> None:
    tally = Tally([A])
    tally.request_ended(record(model_resolved=A), Tier.DEFAULT)
    now = figures(tally)
    assert reading(known.REQUESTS, now).values == {("a", "default", "completed"): 1}
    assert reading(known.DEATHS, now).values == {("a",): 0}
    assert reading(known.WRITE_ERRORS, now).values == {(): 1}
    assert reading(known.WRITE_DROPS, now).values == {(): 2}
    assert reading(known.EVICTED, now).values == {(): 3}


def test_milliseconds_are_exposed_as_seconds() -> None:
    tally = Tally([])
    for load_ms in (400, 500, 7_000):
        tally.loaded(A, load_ms)
    buckets = reading(known.LOAD, figures(tally)).buckets["a",]
    assert buckets.total == 7.9
    assert buckets.at_most[:4] == (("0.5", 2), ("1.0", 2), ("2.5", 2), ("5.0", 2))
    assert buckets.at_most[-1] == ("+Inf", 3)


def test_rates_are_exposed_as_they_are() -> None:
    tally = Tally([])
    stream = record(model_resolved=A, generation_ms=1_000, completion_tokens=12)
    tally.request_ended(stream, Tier.DEFAULT)
    counts = [(repr(float(n)), int(n >= 12)) for n in known.DECODE_RATE.bounds]
    assert reading(known.DECODE_RATE, figures(tally)).buckets["a",] == Buckets(
        (*counts, ("+Inf", 1)), 12
    )
