"""``python -m tests.bench.compare TREE [TREE ...]``: checkouts of this daemon side by side, and nginx.

For judging a change: rounds are interleaved and ratios taken in one run, so that a busy machine falls on
all alike. ``git worktree add DIR COMMIT`` makes a checkout.

    --rounds N         interleaved rounds (5)
    --load NAME        one of the bench's loads (repeat; some that show most are the default)
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from tests.bench import processes, targets
from tests.bench.measures import Result, measure, settle
from tests.bench.processes import LOAD_CPU, Missing
from tests.bench.rounds import SCENARIOS
from tests.bench.targets import MODEL, Target, Workshop

USUAL = ("paced_32", "blast", "short_32", "short_1", "ttft_idle")


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.compare", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("tree", type=Path, nargs="+")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--load", action="append", choices=list(SCENARIOS))
    return parser.parse_args()


def start(workshop: Workshop, trees: Sequence[Path], owned: ExitStack) -> list[Target]:
    """A daemon of each tree, and nginx if there is one."""
    started = []
    for number, tree in enumerate(trees):
        target = targets.daemon(workshop, name=f"tree-{number}", tree=tree.resolve())
        owned.callback(target.stop)
        started.append(replace(target, name=f"{number} {tree.name}"))
    try:
        nginx = targets.nginx(workshop)
        owned.callback(nginx.stop)
        started.append(nginx)
    except Missing as why:
        print(why, file=sys.stderr)
    return started


def row(results: Sequence[Result]) -> str:
    """Units per second, processor microseconds per unit, and p50 and p99 of what the load times."""

    def middle(figures: Sequence[Any]) -> float:
        return float(median(figure for figure in figures if figure is not None))

    units = [result["answers"] or result["tokens"] for result in results]
    per_s = middle([n / result["seconds"] for n, result in zip(units, results, strict=True)])
    cpu_us = middle(
        [
            1e6 * result["cpu_s_per_s"] * result["seconds"] / n
            for n, result in zip(units, results, strict=True)
            if n
        ]
    )
    cells = [f"{per_s:12,.0f} /s", f"{cpu_us:9.2f} us CPU each"]
    for part in ("ttft", "delay"):
        timed = [result[part] for result in results if result.get(part, {}).get("p50_us")]
        if timed:
            p50, p99 = (middle([each[key] for each in timed]) for key in ("p50_us", "p99_us"))
            cells.append(f"{part} p50 {p50:,.0f}, p99 {p99:,.0f} us")
    return "  ".join(cells)


def main() -> int:
    arguments = read_arguments()
    loads = arguments.load or USUAL
    with tempfile.TemporaryDirectory(prefix="strata-compare-") as scratch, ExitStack() as owned:
        directory = Path(scratch)
        programs = processes.compile_programs(directory)
        port = processes.free_port()
        words = (programs.double, "--port", str(port), "--alias", MODEL)
        owned.callback(processes.stop, processes.start(words, LOAD_CPU, directory / "double.log"))
        started = start(Workshop(directory, programs, port), arguments.tree, owned)
        results: dict[tuple[str, str], list[Result]] = {}
        for _ in range(arguments.rounds):
            for target in started:
                settle(target)
                for load in loads:
                    result = measure(SCENARIOS[load], programs.load, target)
                    results.setdefault((load, target.name), []).append(result)
    for (load, name), found in results.items():
        whole = [result for result in found if "failed" not in result]
        print(f"{load:13} {name:20} {row(whole) if whole else 'failed'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
