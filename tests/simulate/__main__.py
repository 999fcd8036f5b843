"""Compare scheduling rules on agent-like traffic in virtual time and print the tables."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.simulate.plots import draw, load_pyplot
from tests.simulate.report import table
from tests.simulate.study import GAPS_S, Study
from tests.simulate.traffic import SCENARIOS
from tests.simulate.world import Outcome


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulate", description=__doc__)
    parser.add_argument("--hours", type=float, default=24.0, help="virtual hours per seed (24)")
    parser.add_argument("--seeds", type=int, default=5, help="how many seeds, from 1 (5)")
    parser.add_argument("--plots", type=Path, help="also draw PNG files into this folder")
    arguments = parser.parse_args()
    pyplot: Any = None
    if arguments.plots is not None:
        try:
            pyplot = load_pyplot()
        except ImportError:
            print("--plots needs matplotlib: pip install matplotlib", file=sys.stderr)
            return 2
    study = Study(arguments.hours, range(1, arguments.seeds + 1))
    print(f"{arguments.hours:g} virtual hours for each of the seeds 1..{arguments.seeds}\n")
    comparison = []
    for scenario, rows in study.comparison():
        comparison.append((scenario, rows))
        show(scenario.name, "rule", rows)
    graces = {(s.name, gap): study.graces(s, gap) for s in SCENARIOS[1:3] for gap in GAPS_S}
    for (name, gap_s), sweep in graces.items():
        title = f"model_grace_ms: {name}; median tool call {gap_s:g} s"
        show(title, "grace (ms)", [(f"{ms:,}", outcome) for ms, outcome in sweep])
    bounds = {s.name: study.max_waits(s) for s in SCENARIOS[2:4]}
    for name, sweep in bounds.items():
        rows = [(f"{s} s" if s else "never", outcome) for s, outcome in sweep]
        show(f"max_wait_ms of default and flex: {name}", "max wait", rows)
    if pyplot is not None:
        draw(pyplot, arguments.plots, comparison, graces, bounds)
    return 0


def show(title: str, first: str, rows: Sequence[tuple[str, Outcome]]) -> None:
    print(f"### {title}\n")
    print(*table(first, rows), sep="\n", end="\n\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())
