"""The study's pictures. Needs matplotlib, which nothing else does (extra ``bench``)."""

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from strata_router.core.vocabulary import Tier
from tests.simulate.report import at
from tests.simulate.traffic import Scenario
from tests.simulate.world import Outcome

Rows = Sequence[tuple[str, Outcome]]
Sweep = Sequence[tuple[int, Outcome]]
Measures = tuple[tuple[str, Callable[[Outcome], float]], ...]


def load_pyplot() -> Any:
    """matplotlib.pyplot, drawing into files; ImportError where it is not installed."""
    importlib.import_module("matplotlib").use("Agg")
    return importlib.import_module("matplotlib.pyplot")


def draw(
    pyplot: Any,
    folder: Path,
    comparison: Iterable[tuple[Scenario, Rows]],
    graces: Mapping[tuple[str, float], Sweep],
    bounds: Mapping[str, Sweep],
) -> None:
    comparison = list(comparison)
    _rules(pyplot, folder / "scheduling-rules.png", comparison)
    _waits(pyplot, folder / "scheduling-waits.png", comparison[2])
    _graces(pyplot, folder / "scheduling-grace.png", graces)
    _bounds(pyplot, folder / "scheduling-max-wait.png", bounds)


def _rules(pyplot: Any, path: Path, comparison: Sequence[tuple[Scenario, Rows]]) -> None:
    figure, panes = pyplot.subplots(3, 1, figsize=(11, 11), sharex=True)
    names = [name for name, _ in comparison[0][1]]
    width = 0.8 / len(names)
    measures: Measures = (
        ("answers per hour", lambda o: mean(o.answers) / o.hours),
        ("switches per hour", lambda o: mean(o.switches) / o.hours),
        ("share of time spent loading (%)", lambda o: mean(o.loading_s) / o.hours / 36),
    )
    for pane, (label, measure) in zip(panes, measures, strict=True):
        for place, name in enumerate(names):
            heights = [measure(rows[place][1]) for _, rows in comparison]
            where = [group + place * width for group in range(len(comparison))]
            pane.bar(where, heights, width, label=name)
        pane.set_ylabel(label)
        pane.grid(axis="y", alpha=0.3)
    panes[0].legend(fontsize=8, ncols=2)
    panes[-1].set_xticks(
        [group + 0.4 - width / 2 for group in range(len(comparison))],
        [scenario.name.replace(", ", ",\n") for scenario, _ in comparison],
        fontsize=8,
    )
    _save(pyplot, figure, path)


def _waits(pyplot: Any, path: Path, compared: tuple[Scenario, Rows]) -> None:
    scenario, rows = compared
    figure, panes = pyplot.subplots(1, 3, figsize=(13, 4.5), sharey=True)
    for pane, tier in zip(panes, (Tier.PRIORITY, Tier.DEFAULT, Tier.FLEX), strict=True):
        for name, outcome in rows:
            waits = sorted(outcome.waits_s[tier])
            shares = [100 * (index + 1) / len(waits) for index in range(len(waits))]
            pane.plot([max(wait, 1.0) for wait in waits], shares, label=name)
        pane.set_xscale("log")
        pane.set_title(f"{tier.value}: {scenario.name}", fontsize=8)
        pane.set_xlabel("wait until the engine begins (s; 1 is at once)")
        pane.grid(alpha=0.3)
    panes[0].set_ylabel("requests that waited no longer (%)")
    panes[0].legend(fontsize=7)
    _save(pyplot, figure, path)


def _graces(pyplot: Any, path: Path, graces: Mapping[tuple[str, float], Sweep]) -> None:
    figure, panes = pyplot.subplots(1, 3, figsize=(14, 4.5))
    measures: Measures = (
        ("answers per hour", lambda o: mean(o.answers) / o.hours),
        ("switches per hour", lambda o: mean(o.switches) / o.hours),
        ("default wait, p95 (s)", lambda o: at(o.waits_s[Tier.DEFAULT], 95)),
    )
    for pane, (label, measure) in zip(panes, measures, strict=True):
        for (name, gap_s), sweep in graces.items():
            seconds = [ms / 1000 for ms, _ in sweep]
            values = [measure(outcome) for _, outcome in sweep]
            pane.plot(seconds, values, marker="o", label=f"{name}; tool call {gap_s:g} s")
        pane.axvline(3.0, color="grey", linestyle=":")
        pane.set_xscale("symlog", linthresh=0.25)
        pane.set_xlim(left=0)
        pane.set_xlabel("model_grace_ms (s)")
        pane.set_ylabel(label)
        pane.grid(alpha=0.3)
    panes[2].legend(fontsize=7, loc="upper left")
    _save(pyplot, figure, path)


def _bounds(pyplot: Any, path: Path, bounds: Mapping[str, Sweep]) -> None:
    figure, panes = pyplot.subplots(1, len(bounds), figsize=(12, 4.5))
    for pane, (name, sweep) in zip(panes, bounds.items(), strict=True):
        labels = [f"{seconds}" if seconds else "never" for seconds, _ in sweep]
        for tier in Tier:
            if any(outcome.waits_s[tier] for _, outcome in sweep):
                longest = [max(outcome.waits_s[tier], default=0.0) for _, outcome in sweep]
                pane.plot(labels, longest, marker="o", label=f"longest wait, {tier.value} (s)")
        pane.set_yscale("log")
        pane.set_xlabel("max_wait of default and flex (s)")
        pane.set_title(name, fontsize=9)
        pane.grid(alpha=0.3)
        other = pane.twinx()
        rates = [mean(outcome.answers) / outcome.hours for _, outcome in sweep]
        other.plot(labels, rates, color="grey", linestyle="--", label="answers per hour")
        other.set_ylabel("answers per hour (dashed)")
        pane.legend(fontsize=7)
    _save(pyplot, figure, path)


def _save(pyplot: Any, figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
