"""The study's tables as text, from outcomes; no plotting and no I/O."""

from collections.abc import Iterator, Sequence
from statistics import mean, stdev

from strata_router.core.vocabulary import Tier
from tests.simulate.world import Outcome

HEADINGS = (
    "answers/h",
    "switches/h",
    "loading %",
    "default wait p50 / p95 / max (s)",
    "priority",
    "flex",
    "run stretch p50 / p95",
)


def table(first: str, rows: Sequence[tuple[str, Outcome]]) -> Iterator[str]:
    """Markdown lines; ``first`` heads the column of names."""
    yield f"| {first} | " + " | ".join(HEADINGS) + " |"
    yield "| --- |" + " ---: |" * len(HEADINGS)
    for name, outcome in rows:
        yield f"| {name} | " + " | ".join(cells(outcome)) + " |"


def cells(outcome: Outcome) -> Iterator[str]:
    yield per_hour(outcome.answers, outcome.hours)
    yield per_hour(outcome.switches, outcome.hours)
    yield f"{mean(outcome.loading_s) / outcome.hours / 36:.1f}"
    for tier in (Tier.DEFAULT, Tier.PRIORITY, Tier.FLEX):
        waits = outcome.waits_s[tier]
        yield f"{at(waits, 50):.0f} / {at(waits, 95):.0f} / {max(waits):.0f}" if waits else "-"
    yield f"{at(outcome.stretches, 50):.2f} / {at(outcome.stretches, 95):.2f}"


def per_hour(per_seed: Sequence[int], hours: float) -> str:
    """The mean over the seeds, and their standard deviation where there are several."""
    rates = [count / hours for count in per_seed]
    spread = f" ± {stdev(rates):.0f}" if len(rates) > 1 else ""
    return f"{mean(rates):.0f}{spread}"


def at(values: Sequence[float], percent: int) -> float:
    """The value that ``percent`` of the others do not exceed; 0.0 of nothing."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]
