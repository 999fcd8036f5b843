"""Which form an Accept header gets. Source: RFC 9110, 12.5.1; the headers are those of real clients."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_router.core.http.accept import preferred

JSON, TEXT, OPEN = "application/json", "text/plain", "application/openmetrics-text"
OFFERS = (JSON, TEXT, OPEN)


@pytest.mark.parametrize(
    ("client", "accept", "form"),
    [
        ("none", "", None),
        ("curl", "*/*", JSON),
        ("a browser", "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", JSON),
        ("axios", "application/json, text/plain, */*", JSON),
        ("python-requests for text", "text/plain", TEXT),
        (
            "Prometheus 2",
            "application/openmetrics-text;version=1.0.0;q=0.5,"
            "application/openmetrics-text;version=0.0.1;q=0.4,"
            "text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
            OPEN,
        ),
        (
            "Prometheus 3 with protobuf",
            "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;"
            "encoding=delimited;q=0.6,application/openmetrics-text;version=1.0.0;"
            "escaping=allow-utf-8;q=0.5,text/plain;version=1.0.0;q=0.3,*/*;q=0.2",
            OPEN,
        ),
        (
            "an old scraper",
            "application/vnd.google.protobuf;q=0.7,text/plain;version=0.0.4;q=0.3",
            TEXT,
        ),
        ("what is on nobody's offer", "image/png, text/html", None),
    ],
)
def test_a_client_gets_the_form_it_means(client: str, accept: str, form: str | None) -> None:
    assert preferred(accept, OFFERS) == form, client


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("text/plain, */*", TEXT),
        ("*/*, text/plain", TEXT),
        ("text/*, */*", TEXT),
        ("application/*", JSON),
        ("text/plain;q=0.1, application/*;q=0.2", JSON),
        ("*/*, text/plain;q=0, application/json;q=0", OPEN),
        ("*/*;q=0", None),
        ("application/json;q=0, */*;q=0.1", TEXT),
        ("TEXT/Plain; Q=0.5; charset=utf-8, application/json ; q=0.4", TEXT),
        ("text/plain;version=1.0.0;q=0.1,text/plain;version=0.0.4;q=0.9,*/*;q=0.5", TEXT),
    ],
)
def test_quality_comes_before_precision_and_precision_before_order(
    accept: str, form: str | None
) -> None:
    assert preferred(accept, OFFERS) == form


@pytest.mark.parametrize("item", ["text", "/plain", "text/", ";q=1", ",", "q=1", "text plain"])
def test_what_is_no_media_range_is_passed_over(item: str) -> None:
    assert preferred(item, OFFERS) is None
    assert preferred(f"{item},{OPEN}", OFFERS) == OPEN


@pytest.mark.parametrize("quality", ["2", "1.1", "-1", "x", "", "0.1234", "1e0", "nan", "0,5"])
def test_a_range_with_an_impossible_quality_wants_nothing(quality: str) -> None:
    assert preferred(f"text/plain;q={quality}", (TEXT,)) is None


@pytest.mark.parametrize("quality", ["1", "1.", "1.000", "0.001"])
def test_qualities_of_every_allowed_form_count(quality: str) -> None:
    assert preferred(f"text/plain;q={quality}", (TEXT,)) == TEXT


@given(st.text(st.sampled_from("aptex/lin*;,q=01. \x00ö"), max_size=60))
def test_no_header_is_too_strange(accept: str) -> None:
    assert preferred(accept, OFFERS) in (None, *OFFERS)
