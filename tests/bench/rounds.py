"""The interleaved rounds: every target does everything once per round, so that the machine's moods
fall on all of them alike, and ratios are taken within a round.
"""

import os
import resource
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

NOT_FOR_THE_SLOW = ("offered_100k", "blast", "blast_batched")
"""LiteLLM passes a hundredth of these, and reads on what it was asked for when its client has gone."""

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
                    if target.is_slow and scenario in NOT_FOR_THE_SLOW:
                        continue
                    self._keep(target, scenario, self._measured(target, scenario, load))
                self._keep(target, "hang_up", self._hang_ups(target))
                target.pause()

    def _keep(self, target: Target, scenario: str, result: Result) -> None:
        self.results.setdefault(target.name, {}).setdefault(scenario, []).append(result)

    def _measured(self, target: Target, scenario: str, load: Load) -> Result:
        load = replace(load, window_s=load.window_s * self.shorten)
        if scenario == "ttft_busy":
            background = replace(STREAMS, window_s=load.window_s + 2.0)
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


class Noise:
    """What else the machine did, from now on."""

    def __init__(self) -> None:
        self._load = Path("/proc/loadavg").read_text().split()[0]
        self._ticks = self._all_ticks()
        self._own_s = self._own_cpu_s()

    def words(self) -> str:
        """One line; call it while the bench's processes still live."""
        ticks = [now - then for now, then in zip(self._all_ticks(), self._ticks, strict=True)]
        user, nice, system, idle, io_wait, interrupts, soft_interrupts, stolen = ticks
        hertz = os.sysconf("SC_CLK_TCK")
        busy_s = (user + nice + system + interrupts + soft_interrupts) / hertz
        total_s = busy_s + (idle + io_wait + stolen) / hertz
        others = max(0.0, busy_s - (self._own_cpu_s() - self._own_s)) / total_s
        warning = (
            "; wall-clock figures are no measure of anything but each other" if others > 0.1 else ""
        )
        return (
            f"load average {self._load} before; meanwhile others had {100 * others:.0f} % of all cores, "
            f"the host {100 * stolen / hertz / total_s:.1f} %{warning}"
        )

    @staticmethod
    def _all_ticks() -> list[int]:
        line = Path("/proc/stat").read_text().split("\n", 1)[0]
        return [int(word) for word in line.split()[1:9]]

    @staticmethod
    def _own_cpu_s() -> float:
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        living = processes.cpu_s(processes.descendants(os.getpid()))
        return ended.ru_utime + ended.ru_stime + living


def cpus() -> str:
    if processes.ROUTER_CPU == processes.LOAD_CPU:
        return "one core for everything: ratios only"
    return f"router on core {processes.ROUTER_CPU}, double and load client on {processes.LOAD_CPU}"
