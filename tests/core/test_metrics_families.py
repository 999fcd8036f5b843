"""The table of metrics keeps the rules that Prometheus and bounded label sets ask for."""

import re

import pytest

from strata_router.core.metrics.families import FAMILIES, PREFIX, Family, Kind
from tests.generate_docs import ROOT, metric_reference

LABELS = {"model", "tier", "outcome", "kind", "version"}
"""Every one has values from a closed or configured set; a new label needs the same proof."""


def names() -> list[str]:
    return [family.name for family in FAMILIES]


def test_names_are_unique_and_have_the_prefix() -> None:
    assert len(set(names())) == len(names())
    assert all(re.fullmatch(PREFIX + "[a-z_]+", name) for name in names())


@pytest.mark.parametrize("family", FAMILIES, ids=names())
def test_a_family_is_named_and_described_as_its_kind_demands(family: Family) -> None:
    assert (family.kind is Kind.COUNTER) == family.name.endswith("_total")
    assert family.meaning.endswith(".")
    assert set(family.labels) <= LABELS
    assert (family.kind is Kind.HISTOGRAM) == bool(family.bounds)
    assert list(family.bounds) == sorted(set(family.bounds))
    assert (family.per_unit == 1000) == (
        family.kind is Kind.HISTOGRAM and "_seconds" in family.name
    )


def test_the_document_shows_every_family() -> None:
    """``make docs`` writes the tables."""
    text = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert metric_reference(text) == text
    assert all(f"`{name}`" in text for name in names())
