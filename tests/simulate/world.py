"""One engine, its askers and a rule, in virtual time; measures what the askers feel."""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

from strata_router.core.vocabulary import ModelId, Tier
from tests.simulate.rules import Request, Rule, Start, Switch
from tests.simulate.traffic import Habit, Run, Scenario


@dataclass(slots=True)
class Outcome:
    """What one simulated span showed.

    waits_s: per tier, from a request's arrival to the engine's first work on it, loads included. What
        still waits at the end counts with what it has waited so far: without it a rule that starves
        somebody for ever would look good.
    still_waiting: how many those are.
    stretches: per finished run of several turns, its time divided by its time alone.
    answers, switches, loading_s: one figure per seed.
    """

    hours: float
    switches: list[int] = field(default_factory=lambda: [0])
    loading_s: list[float] = field(default_factory=lambda: [0.0])
    answers: list[int] = field(default_factory=lambda: [0])
    still_waiting: int = 0
    waits_s: dict[Tier, list[float]] = field(default_factory=lambda: {tier: [] for tier in Tier})
    stretches: list[float] = field(default_factory=list)


class _Asker:
    """One asker's place in its endless runs."""

    def __init__(self, habit: Habit, seed: int) -> None:
        self.habit = habit
        self._runs = habit.runs(seed)
        self.run: Run
        self.turn = 0
        self.began_s = 0.0
        self.next_run()

    def next_run(self) -> None:
        self.run = next(self._runs)
        self.turn = 0

    @property
    def answer_s(self) -> float:
        return self.run.turns[self.turn].answer_s


class World:
    """Runs ``hours`` of a scenario under a rule. Asserts that the rule respects the engine."""

    def __init__(self, scenario: Scenario, rule: Rule, seed: int, hours: float) -> None:
        self._scenario = scenario
        self._rule = rule
        self._until_s = hours * 3600
        self.outcome = Outcome(hours)
        self._askers: dict[int, _Asker] = {}
        self._answering: dict[int, Request] = {}
        self._events: list[tuple[float, int, str, int]] = []
        self._order = 0
        self._requests = 0
        self._wake_s: float | None = None
        self._waiting: dict[int, Request] = {}
        self._ready: ModelId | None = None
        self._loading: ModelId | None = None
        self._idle = [_Asker(habit, seed) for habit in scenario.habits]
        for number, asker in enumerate(self._idle):
            self._at(asker.run.pause_s, "ask", number)

    def run(self) -> Outcome:
        while self._events and self._events[0][0] <= self._until_s:
            now, _, what, number = heapq.heappop(self._events)
            if what == "ask":
                self._ask(number, now)
            elif what == "answered":
                self._answered(number, now)
            elif what == "loaded":
                self._loaded(now)
            elif now != self._wake_s:
                continue  # The rule has changed its mind about when to be woken.
            self._obey(now)
        for request in self._waiting.values():
            self.outcome.waits_s[request.tier].append(self._until_s - request.arrived_s)
        self.outcome.still_waiting = len(self._waiting)
        return self.outcome

    def _at(self, when_s: float, what: str, number: int = 0) -> None:
        self._order += 1
        heapq.heappush(self._events, (when_s, self._order, what, number))

    def _ask(self, number: int, now: float) -> None:
        asker = self._idle[number]
        if asker.turn == 0:
            asker.began_s = now
        self._requests += 1
        request = Request(self._requests, asker.habit.model, asker.habit.tier, now)
        self._askers[request.id] = asker
        self._waiting[request.id] = request
        self._rule.arrive(request, now)

    def _answered(self, request_id: int, now: float) -> None:
        self._rule.answered(self._answering.pop(request_id), now)
        self.outcome.answers[0] += 1
        asker = self._askers.pop(request_id)
        number = self._idle.index(asker)
        gap_s = asker.run.turns[asker.turn].gap_s
        asker.turn += 1
        if asker.turn < len(asker.run.turns):
            self._at(now + gap_s, "ask", number)
            return
        if len(asker.run.turns) > 1:
            self.outcome.stretches.append((now - asker.began_s) / asker.run.alone_s)
        asker.next_run()
        self._at(now + asker.run.pause_s, "ask", number)

    def _loaded(self, now: float) -> None:
        assert self._loading is not None
        self._ready, self._loading = self._loading, None
        self._rule.loaded(self._ready, now)

    def _obey(self, now: float) -> None:
        for step in self._rule.steps(now):
            match step:
                case Start(request):
                    self._start(request, now)
                case Switch(model):
                    assert not self._answering, "a switch while something is being answered"
                    assert self._loading is None, "two loads at once"
                    self.outcome.switches[0] += 1
                    self.outcome.loading_s[0] += self._scenario.load_s
                    self._ready, self._loading = None, model
                    self._at(now + self._scenario.load_s, "loaded")
        wake_s = self._rule.wake_s()
        if wake_s is not None and wake_s != self._wake_s:
            self._at(wake_s, "wake")
        self._wake_s = wake_s

    def _start(self, request: Request, now: float) -> None:
        assert request.model == self._ready, "answered by another model"
        assert len(self._answering) < self._scenario.slots, "more answers than slots"
        self._answering[request.id] = self._waiting.pop(request.id)
        self.outcome.waits_s[request.tier].append(now - request.arrived_s)
        self._at(now + self._askers[request.id].answer_s, "answered", request.id)


def simulate(scenario: Scenario, rules: Iterator[Rule], seeds: range, hours: float) -> Outcome:
    """One Outcome over all seeds together; ``rules`` gives a fresh rule for each."""
    total = Outcome(hours, [], [], [])
    for seed, rule in zip(seeds, rules, strict=False):
        outcome = World(scenario, rule, seed, hours).run()
        total.switches += outcome.switches
        total.loading_s += outcome.loading_s
        total.answers += outcome.answers
        total.still_waiting += outcome.still_waiting
        total.stretches += outcome.stretches
        for tier, waits in outcome.waits_s.items():
            total.waits_s[tier] += waits
    return total
