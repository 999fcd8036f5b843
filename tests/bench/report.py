"""Writes one run down: ``research/bench/DATE.md``, its plots beside it when matplotlib is there."""

import platform
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from importlib import import_module
from pathlib import Path

from tests.bench.budget import Beside, Line
from tests.bench.figures import FIGURES, Figure, absolute, added, ratio, rounds_of
from tests.bench.rounds import Results
from tests.bench.targets import Target


@dataclass(frozen=True, slots=True)
class Run:
    """Everything that a report tells. missing: sentences. noise: one per look at the machine."""

    day: date
    rounds: int
    took_s: float
    targets: Sequence[Target]
    missing: Sequence[str]
    noise: Sequence[str]
    results: Results
    memory: Sequence[tuple[str, float, float]]
    beside: Beside
    budget: Sequence[Line]
    open_streams: Sequence[tuple[int, float, float]]
    queued_tickets: Sequence[str]
    ring_pages: Sequence[tuple[int, float]]


def number(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    marks = ["---", *["---:"] * (len(headings) - 1)]
    return [_row(headings), _row(marks), *map(_row, rows), ""]


def _spread(run: Run, target: str, figure: Figure) -> str:
    """Median and, in brackets, the least and the greatest of the rounds."""
    known = [value for value in rounds_of(run.results, target, figure) if value is not None]
    if not known:
        return "-"
    shown = number(absolute(run.results, target, figure.key), figure.digits)
    least, most = number(min(known), figure.digits), number(max(known), figure.digits)
    return shown if least == most else f"{shown} ({least}-{most})"


def _part(run: Run, title: str, keys: Sequence[str]) -> list[str]:
    figures = [figure for figure in FIGURES if figure.key in keys]
    rows = [
        [target.name, *(_spread(run, target.name, figure) for figure in figures)]
        for target in run.targets
    ]
    return [f"### {title}", "", *_table(["through", *(f.heading for f in figures)], rows)]


def _ratios(run: Run) -> list[str]:
    names = [target.name for target in run.targets if target.name not in ("daemon", "direct")]
    rows = []
    for figure in FIGURES:
        what = f"{figure.heading}, added" if figure.added else figure.heading
        cells = [number(ratio(run.results, "daemon", name, figure.key), 2) for name in names]
        if not re.fullmatch(r"p99|8|32|32, p99", figure.heading):
            rows.append(
                [what, number(added(run.results, "daemon", figure.key), figure.digits), *cells]
            )
    headings = ["figure", "daemon", *(f"/ {name}" for name in names)]
    return ["## Ratios within a round (median over rounds)", "", *_table(headings, rows)]


def _wrong(run: Run) -> str:
    wrong = errors = tokens = 0
    for by_scenario in run.results.get("daemon", {}).values():
        for result in by_scenario:
            wrong += result.get("wrong_order", 0)
            errors += result.get("errors", 0)
            tokens += result.get("tokens", 0)
    return (
        f"Every sequence number was checked: {tokens:,} tokens through the daemon, "
        f"{wrong} out of order, {errors} failed requests."
    )


def _machine() -> str:
    found = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
    model = found[1] if found else platform.machine()
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{model}, Linux {platform.release()}, {python}"


def text(run: Run, plots: Sequence[str]) -> str:
    """The report in Markdown."""
    lines = [
        f"# Bench of {run.day.isoformat()}",
        "",
        f"`make bench`: {run.rounds} interleaved rounds in {run.took_s / 60:.1f} minutes. Medians, in "
        "brackets the least and the greatest round. Method: docstrings of tests/bench.",
        "",
        f"* Machine: {_machine()}.",
        *(f"* Noise: {line}." for line in run.noise),
        "* Versions: " + "; ".join(f"{t.name}: {t.version}" for t in run.targets) + ".",
        *(f"* Not measured: {line}." for line in run.missing),
        f"* {_wrong(run)}",
        "",
        "The daemon runs with tap, records, scheduling and JSONL log on. Memory and CPU are of the router "
        "alone, in proportional set size and processor time of all its threads.",
        "",
        "## Budget",
        "",
        *_table(
            ["line", "measured", "must", "aim", "reached"],
            [
                [
                    line.name,
                    f"{number(line.value, 2)} {line.unit}",
                    f"{'<=' if line.most else '>='} {line.must:g}",
                    f"{line.aim:g}",
                    line.verdict,
                ]
                for line in run.budget
            ],
        ),
        *_ratios(run),
        "## All targets",
        "",
        *_part(run, "Time to first token", ("ttft", "ttft_p99", "ttft_busy", "hang_up")),
        *_part(run, "Delay per token", ("delay_1", "delay_8", "delay_32", "delay_32_p99")),
        *_part(run, "Processor", ("cpu", "cpu_paced", "cpu_blast", "cpu_in_blast")),
        "Well under 100 % in the blast, the double and the client on the other core were the limit.",
        "",
        *_part(
            run, "Throughput", ("blast", "batched", "offered", "offered_p99", "short_1", "short_32")
        ),
        "### Memory, MB",
        "",
        "After everything above, ring and log queue full; the budget's first two lines are a fresh daemon's.",
        "",
        *_table(
            ["through", "idle", "32 streams"],
            [[name, number(idle, 1), number(streams, 1)] for name, idle, streams in run.memory],
        ),
        f"The daemon with 500 queued streams: {number(run.beside.queued_streams_mb, 1)} MB; with 32 queued "
        f"bodies of 50 MB (1,600 MB): {number(run.beside.queued_bodies_mb, 1)} MB.",
        "",
        "## Scaling",
        "",
        "Open streams share 2,000 tokens a second:",
        "",
        *_table(
            ["open streams", "CPU us per token", "delay p99, us"],
            [[f"{n:,}", number(cost, 1), number(p99)] for n, cost, p99 in run.open_streams],
        ),
        "Queued tickets (processor time of one decision and one arrival):",
        "",
        *_table(["mode", "waiting", "decision p50 (us)", "p99", "max", "arrival p50", "p99"], []),
    ]
    lines.pop()  # the rows below belong to that table
    lines += [
        *run.queued_tickets,
        "",
        "A page of 100 records out of the middle of the ring:",
        "",
        *_table(
            ["records kept", "us per page"], [[f"{n:,}", number(us, 1)] for n, us in run.ring_pages]
        ),
        *(f"![{name}]({name})" for name in plots),
        "",
    ]
    return "\n".join(lines)


def write(run: Run, directory: Path) -> Path:
    """Write report and plots; the report's path."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{run.day.isoformat()}.md"
    path.write_text(text(run, _plots(run, directory)))
    return path


PLOTTED = {
    "ttft": "added TTFT, us",
    "delay_32": "added delay per token, 32 streams, us",
    "cpu_paced": "CPU s per million tokens, paced",
    "blast": "tokens/s, blast",
    "short_32": "short requests/s, 32 connections",
}


def _plots(run: Run, directory: Path) -> list[str]:
    """File names of the plots, [] without matplotlib."""
    try:
        matplotlib = import_module("matplotlib")
    except ImportError:
        return []
    matplotlib.use("Agg")
    pyplot = import_module("matplotlib.pyplot")

    names = [target.name for target in run.targets if target.name != "direct"]
    figure, axes = pyplot.subplots(1, len(PLOTTED), figsize=(16, 3.6))
    for axis, (key, title) in zip(axes, PLOTTED.items(), strict=True):
        values = [added(run.results, name, key) or 0 for name in names]
        colours = ["tab:red" if name == "daemon" else "tab:gray" for name in names]
        bars = axis.barh(names[::-1], values[::-1], color=colours[::-1])
        axis.bar_label(bars, [number(value) for value in values[::-1]], padding=2, fontsize=8)
        axis.set_xlim(0, 1.3 * max(values, default=1))
        axis.set_xticks([])
        axis.set_title(title, fontsize=9)
    figure.tight_layout()
    comparison = f"{run.day.isoformat()}-targets.png"
    figure.savefig(directory / comparison, dpi=100)
    pyplot.close(figure)

    figure, axis = pyplot.subplots(figsize=(6, 3.6))
    axis.plot([n for n, _, _ in run.open_streams], [c for _, c, _ in run.open_streams], "o-")
    axis.set_xscale("log")
    axis.set_ylim(bottom=0)
    axis.set_xlabel("open streams (2,000 tokens/s together)")
    axis.set_ylabel("CPU us per token")
    figure.tight_layout()
    curve = f"{run.day.isoformat()}-streams.png"
    figure.savefig(directory / curve, dpi=100)
    pyplot.close(figure)
    return [comparison, curve]
