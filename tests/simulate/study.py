"""Which outcomes the study needs: the comparison of rules and the two sweeps."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import repeat

from strata_router.core.vocabulary import Tier
from tests.simulate.rules import FifoRule, LoadedFirstRule, RoundRobinRule, Rule, WaitFirstRule
from tests.simulate.traffic import SCENARIOS, Scenario
from tests.simulate.world import Outcome, simulate

GRACES_MS = (0, 250, 500, 1_000, 2_000, 3_000, 5_000, 8_000, 15_000, 30_000)
GAPS_S = (0.3, 1.0, 3.0)
MAX_WAITS_S = (0, 600, 300, 180, 120, 60, 30)
BOUND_MS = 180_000
"""The ``max_wait_ms`` of default and flex in the comparison's bounded row."""


@dataclass(frozen=True, slots=True)
class Study:
    """How much virtual time each outcome covers."""

    hours: float
    seeds: range

    def of(self, scenario: Scenario, make: Callable[[], Rule]) -> Outcome:
        return simulate(scenario, (make() for _ in repeat(None)), self.seeds, self.hours)

    def comparison(self) -> Iterator[tuple[Scenario, list[tuple[str, Outcome]]]]:
        """Every rule on every scenario."""
        for scenario in SCENARIOS:
            yield scenario, [(name, self.of(scenario, make)) for name, make in rules(scenario)]

    def graces(self, scenario: Scenario, gap_s: float) -> list[tuple[int, Outcome]]:
        """The product's rule by ``model_grace_ms``."""
        slots, gapped = scenario.slots, scenario.with_gaps(gap_s)
        return [
            (ms, self.of(gapped, partial(WaitFirstRule, slots, grace_ms=ms))) for ms in GRACES_MS
        ]

    def max_waits(self, scenario: Scenario) -> list[tuple[int, Outcome]]:
        """The product's rule by ``max_wait_ms`` of default and flex, in seconds."""
        return [(s, self.of(scenario, bounded(scenario.slots, s * 1000))) for s in MAX_WAITS_S]


def rules(scenario: Scenario) -> list[tuple[str, Callable[[], Rule]]]:
    slots = scenario.slots
    return [
        ("wait-first, grace 3 s", partial(WaitFirstRule, slots)),
        ("the same, max_wait 180 s", bounded(slots, BOUND_MS)),
        ("wait-first, no grace", partial(WaitFirstRule, slots, grace_ms=0)),
        ("loaded model first (llama-swap)", partial(LoadedFirstRule, slots)),
        ("FIFO", partial(FifoRule, slots)),
        ("strict round-robin", partial(RoundRobinRule, slots)),
    ]


def bounded(slots: int, max_wait_ms: int) -> Callable[[], Rule]:
    bounds = {Tier.DEFAULT: max_wait_ms, Tier.FLEX: max_wait_ms}
    return partial(WaitFirstRule, slots, max_wait_ms=bounds)
