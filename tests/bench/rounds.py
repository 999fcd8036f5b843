"""The interleaved rounds: every target does everything once per round, so that the machine's moods
fall on all of them alike, and ratios are taken within a round.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.bench import processes
from tests.bench.measures import (
    STREAM_TOKENS,
    Load,
    Result,
    hang_up_delays_us,
    measure,
    running,
    settle,
)
from tests.bench.processes import Missing
from tests.bench.targets import Target

STREAMS = Load(connections=32, rate=100, tokens=STREAM_TOKENS, warm_s=0.8, window_s=2.5)
"""The load of the budget: 32 streams at 100 tokens a second."""

PROBE = Load(tokens=1, pause_us=3000)
"""Single requests with pauses between them: nothing queues behind anything."""

SCENARIOS: dict[str, Load] = {
    "ttft_idle": PROBE,
    "ttft_busy": PROBE,  # while STREAMS runs
    "paced_1": replace(STREAMS, connections=1, warm_s=0.3),
    "paced_8": replace(STREAMS, connections=8, warm_s=0.4, window_s=2.0),
    "paced_32": STREAMS,
    "offered_100k": replace(STREAMS, rate=3125, window_s=2.0),
    "blast": replace(STREAMS, rate=0, window_s=2.0),
    "blast_batched": replace(STREAMS, rate=0, batch=32, window_s=1.5),
    "short_1": Load(tokens=1, window_s=1.0),
    "short_32": Load(tokens=1, connections=32, window_s=2.0),
}

HANG_UPS = 10

Results = dict[str, dict[str, list[Result]]]
"""Target name -> scenario -> one result per round."""


@dataclass
class Rounds:
    """Runs rounds over the targets and keeps what they gave."""

    targets: Sequence[Target]
    load_program: Path
    shorten: float = 1.0
    results: Results = field(default_factory=dict)

    def run(self, count: int) -> None:
        for number in range(count):
            for target in self.targets:
                print(f"round {number + 1} of {count}: {target.name}", file=sys.stderr, flush=True)
                target.resume()
                settle(target)
                for scenario, load in SCENARIOS.items():
                    self._keep(target, scenario, self._measured(target, scenario, load))
                self._keep(target, "hang_up", self._hang_ups(target))
                target.pause()

    def _keep(self, target: Target, scenario: str, result: Result) -> None:
        self.results.setdefault(target.name, {}).setdefault(scenario, []).append(result)

    def _measured(self, target: Target, scenario: str, load: Load) -> Result:
        load = replace(load, window_s=load.window_s * self.shorten)
        if scenario == "ttft_busy":
            background = replace(STREAMS, window_s=60.0)
            with running(background, self.load_program, target):
                result = measure(replace(load, warm_s=0.8), self.load_program, target)
        else:
            result = measure(load, self.load_program, target)
        settle(target)
        return result

    def _hang_ups(self, target: Target) -> Result:
        try:
            delays = sorted(hang_up_delays_us(target, HANG_UPS))
        except (OSError, ValueError, Missing):
            delays = []
        if not delays:
            return {"failed": True}
        return {"p50_us": delays[len(delays) // 2], "max_us": delays[-1], "n": len(delays)}


def noise() -> str:
    """One line about the machine's state now."""
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    ticks = [int(word) for word in words]
    load = Path("/proc/loadavg").read_text().split()[0]
    steal = 100 * ticks[7] / max(1, sum(ticks))
    return f"load average {load}, {steal:.1f} % of all CPU time since boot stolen by the host"


def cpus() -> str:
    if processes.ROUTER_CPU == processes.LOAD_CPU:
        return "one core for everything: ratios only"
    return f"router on core {processes.ROUTER_CPU}, double and load client on {processes.LOAD_CPU}"
