"""The study's simulator: repeatable, honest about who waits, and its rules are what they claim."""

from dataclasses import replace
from itertools import repeat

import pytest

from strata_router.core.vocabulary import Tier
from tests.simulate.report import cells, table
from tests.simulate.rules import (
    FifoRule,
    LoadedFirstRule,
    Request,
    RoundRobinRule,
    Rule,
    Start,
    Step,
    Switch,
    WaitFirstRule,
)
from tests.simulate.study import rules
from tests.simulate.traffic import SCENARIOS, A, B, C, Scenario
from tests.simulate.world import World, simulate

QUIET, BUSY, MIXED, CROWD, WIDE = SCENARIOS


def started(rule: Rule, models: str) -> tuple[str, int]:
    """Let requests for these models arrive at once at one slot: order of answers, switches."""
    names = {"A": A, "B": B, "C": C}
    for number, letter in enumerate(models, start=1):
        rule.arrive(Request(number, names[letter], Tier.DEFAULT, 0.0), 0.0)
    order, switches, now = "", 0, 0.0
    steps: list[Step] = rule.steps(now)
    while steps:
        now += 10.0
        for step in steps:
            if isinstance(step, Switch):
                switches += 1
                rule.loaded(step.model, now)
            elif isinstance(step, Start):
                order += step.request.model
                rule.answered(step.request, now)
        steps = rule.steps(now) or rule.steps(now + 10.0)
    return order, switches


def test_fifo_switches_at_every_change_of_model() -> None:
    assert started(FifoRule(1), "ABABC") == ("ABABC", 5)


def test_loaded_first_serves_all_of_a_model_before_the_next() -> None:
    assert started(LoadedFirstRule(1), "ABABC") == ("AABBC", 3)


def test_wait_first_serves_all_of_a_model_before_the_next() -> None:
    assert started(WaitFirstRule(1), "ABABC") == ("AABBC", 3)


def test_round_robin_gives_each_model_one_answer_in_turn() -> None:
    assert started(RoundRobinRule(1), "AABBC") == ("ABCAB", 5)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_every_rule_respects_the_engine_on_every_scenario(scenario: Scenario) -> None:
    """The world asserts: no answer by another model, no switch under work, no more than the slots."""
    for _, make in rules(scenario):
        assert World(scenario, make(), seed=1, hours=1.0).run().answers[0] > 0


def test_the_same_seed_gives_the_same_outcome() -> None:
    first, second = (World(MIXED, WaitFirstRule(1), seed=4, hours=3.0).run() for _ in range(2))
    assert list(cells(first)) == list(cells(second))


def test_without_grace_and_tiers_wait_first_is_the_loaded_model_first_rule() -> None:
    plain = replace(MIXED, habits=tuple(replace(h, tier=Tier.DEFAULT) for h in MIXED.habits))
    ours = World(plain, WaitFirstRule(1, grace_ms=0), seed=2, hours=6.0).run()
    theirs = World(plain, LoadedFirstRule(1), seed=2, hours=6.0).run()
    assert ours == theirs


def test_who_never_gets_a_turn_counts_with_what_it_has_waited() -> None:
    outcome = World(CROWD, LoadedFirstRule(1), seed=1, hours=2.0).run()
    assert outcome.still_waiting >= 1
    assert max(outcome.waits_s[Tier.DEFAULT]) > 3600


def test_max_wait_bounds_what_starves_otherwise() -> None:
    bounds = {Tier.DEFAULT: 180_000}
    outcome = World(CROWD, WaitFirstRule(1, max_wait_ms=bounds), seed=1, hours=2.0).run()
    assert max(outcome.waits_s[Tier.DEFAULT]) < 180 + 60


def test_the_table_has_a_line_per_rule_with_mean_and_spread_over_the_seeds() -> None:
    outcome = simulate(WIDE, (FifoRule(4) for _ in repeat(None)), range(1, 3), hours=1.0)
    heading, ruler, line = table("rule", [("FIFO", outcome)])
    assert line.startswith("| FIFO | ")
    assert heading.count("|") == ruler.count("|") == line.count("|")
    assert "±" in line
    assert " - |" in line, "nobody is flex here"
