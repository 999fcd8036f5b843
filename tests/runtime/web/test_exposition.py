"""The text that a scraper gets, read back by the library's parsers and, where it can be had, promtool."""

import shutil
import subprocess
from collections.abc import Callable, Iterable

import prometheus_client
import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from strata_router.core.metrics import FAMILIES, Kind, Tally, readings
from strata_router.core.vocabulary import ModelId, Reason, Tier
from strata_router.runtime.web.exposition import Exposition, TextForm
from tests.core.metric_records import figures, record, snapshot

A = ModelId("a-1.0_x")

PARSERS: dict[TextForm, Callable[[str], Iterable[Metric]]] = {
    TextForm.PROMETHEUS: parse_text,
    TextForm.OPENMETRICS: parse_openmetrics,
}


def full_exposition() -> Exposition:
    """Figures in which every family has a series."""
    tally = Tally([A])
    stream = record(
        model_resolved=A,
        model_switch=True,
        queue_wait_ms=12,
        ttft_ms=300,
        ttft_after_lease_ms=288,
        generation_ms=2_000,
        total_ms=2_400,
        prompt_tokens=10,
        completion_tokens=50,
    )
    tally.request_ended(stream, Tier.FLEX)
    tally.request_ended(record(Reason.INVALID_REQUEST), None)
    tally.loaded(A, 1_500)
    return Exposition(lambda: readings(figures(tally, snapshot=snapshot(loaded=A, in_flight=1))))


def parsed(form: TextForm) -> dict[str, Metric]:
    text = full_exposition().text(form).decode()
    return {metric.name: metric for metric in PARSERS[form](text)}


def value(metric: Metric, name: str, **labels: str) -> float:
    (sample,) = (each for each in metric.samples if (each.name, each.labels) == (name, labels))
    return float(sample.value)


@pytest.mark.parametrize("form", TextForm)
def test_every_family_has_its_name_kind_and_meaning(form: TextForm) -> None:
    found = parsed(form)
    assert {
        metric.name + "_total" * (metric.type == "counter"): (metric.type, metric.documentation)
        for metric in found.values()
    } == {family.name: (family.kind.value, family.meaning) for family in FAMILIES}
    assert all(metric.samples for metric in found.values())


@pytest.mark.parametrize("form", TextForm)
def test_values_and_labels_are_those_of_the_figures(form: TextForm) -> None:
    found = parsed(form)
    requests = found["strata_router_requests"]
    name = "strata_router_requests_total"
    assert value(requests, name, model=A, tier="flex", outcome="completed") == 1
    assert value(requests, name, model="none", tier="none", outcome="invalid_request") == 1
    assert value(found["strata_router_in_flight_requests"], "strata_router_in_flight_requests") == 1
    load = found["strata_router_model_load_seconds"]
    assert value(load, "strata_router_model_load_seconds_bucket", model=A, le="1.0") == 0
    assert value(load, "strata_router_model_load_seconds_bucket", model=A, le="2.5") == 1
    assert value(load, "strata_router_model_load_seconds_bucket", model=A, le="+Inf") == 1
    assert value(load, "strata_router_model_load_seconds_sum", model=A) == 1.5
    assert value(load, "strata_router_model_load_seconds_count", model=A) == 1


@pytest.mark.parametrize("form", TextForm)
def test_each_text_reads_the_figures_anew(form: TextForm) -> None:
    tally = Tally([])
    exposition = Exposition(lambda: readings(figures(tally)))
    before = exposition.text(form)
    assert exposition.text(form) == before
    tally.load_failed(A)
    assert exposition.text(form) != before


def test_nothing_of_ours_is_in_the_library_s_global_registry() -> None:
    full_exposition()
    assert b"strata_router" not in prometheus_client.generate_latest()


def test_nothing_of_the_python_process_is_exposed() -> None:
    for form in TextForm:
        lines = full_exposition().text(form).decode().splitlines()
        names = [line for line in lines if line and not line.startswith("#")]
        assert all(name.startswith("strata_router_") for name in names)


def test_only_openmetrics_has_an_end_mark() -> None:
    assert full_exposition().text(TextForm.OPENMETRICS).endswith(b"\n# EOF\n")
    assert b"# EOF" not in full_exposition().text(TextForm.PROMETHEUS)


def test_promtool_finds_nothing_to_complain_about() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian package prometheus)")
    checked = subprocess.run(
        [promtool, "check", "metrics"],
        input=full_exposition().text(TextForm.PROMETHEUS),
        capture_output=True,
        check=False,
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def test_a_histogram_counts_everything_it_has_a_bucket_for() -> None:
    for metric in parsed(TextForm.OPENMETRICS).values():
        if metric.type != Kind.HISTOGRAM.value:
            continue
        for sample in metric.samples:
            if sample.labels.get("le") == "+Inf":
                rest = {name: label for name, label in sample.labels.items() if name != "le"}
                assert sample.value == value(metric, f"{metric.name}_count", **rest)
