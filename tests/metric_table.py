"""The tables of ``docs/metrics.md``, drawn from the families; ``make docs`` places them."""

from collections.abc import Iterator

from strata_router.core.metrics.families import FAMILIES, Kind


def metric_table(kind: Kind) -> str:
    """Return the Markdown table of every metric of one kind, in the table's order."""
    return "\n".join(_rows(kind)) + "\n"


def _rows(kind: Kind) -> Iterator[str]:
    yield "| metric | labels | meaning |"
    yield "| --- | --- | --- |"
    for family in FAMILIES:
        if family.kind is not kind:
            continue
        labels = ", ".join(f"`{label}`" for label in family.labels)
        meaning = family.meaning
        if family.bounds:
            bounds = ", ".join(f"{bound / family.per_unit:g}" for bound in family.bounds)
            meaning += f" Buckets: {bounds}."
        yield f"| `{family.name}` | {labels} | {meaning} |"
