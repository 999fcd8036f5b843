"""Where the daemon's processor time goes: its functions under cProfile, for three loads.

Written beside the report by ``python -m tests.bench``. The profiler makes calls dearer than C code, so the
shares say where to look, not what would be gained. Source: spec/performance.md, "Method".
"""

import pstats
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.bench import targets
from tests.bench.measures import Load, measure, settle
from tests.bench.rounds import SCENARIOS
from tests.bench.targets import Workshop

PROFILED = {
    "short_1": "a request with one token, one after the other",
    "paced_32": "a token, 32 streams at 100 a second",
    "blast": "a token, 32 streams as fast as they go",
}

ROWS = 25

Key = tuple[str, int, str]
Cost = tuple[int, float]
"""Calls, and seconds in the function itself."""


@dataclass(frozen=True)
class Profile:
    """units: requests or tokens of the load. costs: of every function that ran meanwhile."""

    scenario: str
    units: int
    costs: dict[Key, Cost]


def take(workshop: Workshop) -> list[Profile]:
    """One daemon of its own for each load, so that the start and the other loads are not among it."""
    return [_take(workshop, scenario, SCENARIOS[scenario]) for scenario in PROFILED]


def _take(workshop: Workshop, scenario: str, load: Load) -> Profile:
    start_only = _run(workshop, f"{scenario}-start", None)[1]
    units, costs = _run(workshop, scenario, load)
    left = {
        key: (calls - start_only.get(key, (0, 0.0))[0], own - start_only.get(key, (0, 0.0))[1])
        for key, (calls, own) in costs.items()
    }
    return Profile(scenario, units, left)


def _run(workshop: Workshop, name: str, load: Load | None) -> tuple[int, dict[Key, Cost]]:
    """(units, costs) of a daemon that serves this load from its start to its end."""
    out = workshop.directory / f"{name}.profile"
    program = (sys.executable, "-m", "cProfile", "-o", out, "-m", "strata_router")
    target = targets.daemon(workshop, name=f"profiled-{name}", program=program)
    units = 1
    try:
        if load is not None:
            result = measure(load, workshop.programs.load, target)
            units = result["answers"] or result["tokens"]
            settle(target)
    finally:
        target.stop()
    stats: dict[Key, tuple[int, int, float, float, object]] = pstats.Stats(str(out)).stats  # type: ignore[attr-defined]  # untyped, documented
    return units, {key: (calls, own) for key, (_, calls, own, _, _) in stats.items()}


def text(profiles: Iterable[Profile]) -> str:
    """The report: the dearest functions of each load."""
    lines = [
        "# Profiles",
        "",
        "Own time of the daemon's functions under cProfile as a share of all but waiting, warm-up included,",
        "the start subtracted. Written by `make bench` (tests/bench/profile.py).",
    ]
    for profile in profiles:
        costs = _of_the_load(profile)
        total = sum(own for _, own in costs.values())
        dearest = sorted(costs.items(), key=lambda item: -item[1][1])[:ROWS]
        lines += [
            "",
            f"## {profile.scenario}: {PROFILED[profile.scenario]}",
            "",
            "| function | calls | share |",
            "| --- | ---: | ---: |",
        ]
        lines += [
            f"| `{_name(key)}` | {calls:,} | {own / total:.1%} |" for key, (calls, own) in dearest
        ]
    return "\n".join((*lines, ""))


def _of_the_load(profile: Profile) -> dict[Key, Cost]:
    """Without waiting, and without what ran a few times only: the difference of two starts."""
    return {
        key: (calls, own)
        for key, (calls, own) in profile.costs.items()
        if calls >= profile.units / 50 and "select.epoll" not in key[2]
    }


def _name(key: Key) -> str:
    """Without the machine's folders: the package's path from its own name on."""
    file, line, function = key
    if file == "~":
        return function.partition(" at 0x")[0].strip("<>")
    parts = Path(file).parts
    for package in ("strata_router", "trio", "outcome", "hypercorn", "quart"):
        if package in parts:
            return f"{'/'.join(parts[parts.index(package) :])}:{line} {function}"
    return f"{Path(file).name}:{line} {function}"


def write(profiles: Iterable[Profile], path: Path) -> None:
    path.write_text(text(profiles))
