"""Who asks for what, and when: agents with tool calls, people who chat, batches.

Closed loops: an asker sends its next request only after the last answer, as clients of one machine
do, so a slow rule gets fewer requests rather than an endless queue. Everything is drawn from one
seeded source per asker, whatever the rule under test does.
"""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from strata_router.core.vocabulary import ModelId, Tier

SHORTEST_S, LONGEST_S = 2.0, 30.0
"""Bounds of one answer's time on the engine."""


@dataclass(frozen=True, slots=True)
class Habit:
    """How one asker behaves.

    turns: requests of one run, least and most. answer_s, gap_s: medians of lognormal times; the gap
    is a tool call between two requests of a run. pause_s: mean of the exponential rest between runs.
    """

    name: str
    model: ModelId
    tier: Tier
    turns: tuple[int, int]
    answer_s: float
    gap_s: float
    pause_s: float
    gap_sigma: float = 1.2

    def runs(self, seed: int) -> Iterator["Run"]:
        """Endless runs, the same for the same seed."""
        dice = random.Random(f"{seed} {self.name}")
        while True:
            count = dice.randint(*self.turns)
            yield Run(
                pause_s=dice.expovariate(1 / self.pause_s),
                turns=tuple(
                    Turn(
                        answer_s=min(
                            max(self._spread(dice, self.answer_s, 0.7), SHORTEST_S), LONGEST_S
                        ),
                        gap_s=self._spread(dice, self.gap_s, self.gap_sigma),
                    )
                    for _ in range(count)
                ),
            )

    @staticmethod
    def _spread(dice: random.Random, median_s: float, sigma: float) -> float:
        return dice.lognormvariate(math.log(median_s), sigma)


@dataclass(frozen=True, slots=True)
class Turn:
    """One request: its time on the engine, and the tool call after its answer."""

    answer_s: float
    gap_s: float


@dataclass(frozen=True, slots=True)
class Run:
    """One task of an asker, from the first request to the last answer, after a pause."""

    pause_s: float
    turns: tuple[Turn, ...]

    @property
    def alone_s(self) -> float:
        """How long it takes when the engine is there for nobody else."""
        gaps = sum(turn.gap_s for turn in self.turns[:-1])
        return gaps + sum(turn.answer_s for turn in self.turns)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A household of askers in front of one engine. slots: answers it can generate at once."""

    name: str
    habits: tuple[Habit, ...]
    load_s: float = 10.0
    slots: int = 1

    def with_gaps(self, gap_s: float) -> "Scenario":
        """The same with another median tool call for the agents."""
        habits = tuple(
            replace(h, gap_s=gap_s) if h.tier is Tier.DEFAULT else h for h in self.habits
        )
        return replace(self, habits=habits)


A, B, C, D = (ModelId(letter) for letter in "ABCD")


def agent(name: str, model: ModelId, *, pause_s: float = 180.0) -> Habit:
    return Habit(name, model, Tier.DEFAULT, (4, 16), answer_s=8.0, gap_s=1.0, pause_s=pause_s)


def chat(name: str, model: ModelId) -> Habit:
    return Habit(name, model, Tier.PRIORITY, (1, 1), answer_s=5.0, gap_s=1.0, pause_s=300.0)


def batch(name: str, model: ModelId) -> Habit:
    """Sends the next item as soon as the last is answered."""
    return Habit(name, model, Tier.FLEX, (200, 200), 12.0, gap_s=0.05, pause_s=600.0, gap_sigma=0.1)


SCENARIOS = (
    Scenario("two models, two agents", (agent("a1", A), agent("b1", B))),
    Scenario(
        "two models, four agents, chat",
        (agent("a1", A), agent("a2", A), agent("b1", B), agent("b2", B), chat("c1", B)),
    ),
    Scenario(
        "four models, four agents, chat, batch",
        (
            *(agent(f"{model.lower()}1", model) for model in (A, B, C, D)),
            chat("c1", A),
            batch("f1", D),
        ),
    ),
    Scenario(
        "a crowd on A, one agent on B",
        (*(agent(f"a{n}", A, pause_s=5.0) for n in range(4)), agent("b1", B)),
    ),
    Scenario(
        "four models, twelve agents, chat, four slots",
        (
            *(agent(f"{m.lower()}{n}", m) for m in (A, B, C, D) for n in range(3)),
            chat("c1", A),
            chat("c2", C),
        ),
        slots=4,
    ),
)
