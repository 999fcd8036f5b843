"""Random stories for the coordinator, on virtual time.

While nobody waits it decides at once what it otherwise leaves to its next turn. That must change nothing but
the moment: told the same story, one that never decides at once comes to the same decisions. And however many
things happen in one instant, nothing is left to decide once all is settled.
"""

import random
from collections.abc import Callable

import pytest
import trio
import trio.testing

from strata_router.core.refusal import Refusal
from strata_router.core.vocabulary import Tier
from strata_router.runtime.coordinator import Coordinator
from strata_router.runtime.engine_supervisor import (
    EngineDied,
    EngineReady,
    EngineStopped,
    LoadCancelled,
    LoadFailed,
)
from tests.runtime.test_coordinator import LOAD_MS, PORT, STRATA, A, B, Guest, House, house
from tests.system.harness import rounds

ACCEPTS = ((A,), (A,), (B,), (A, B))


def configuration(dice: random.Random) -> dict[str, object]:
    return {
        "wait_when_busy": dice.random() < 0.6,
        "max_pending": dice.choice([1, 2, 4]),
        "model_grace_ms": dice.choice([0, 300, 2000]),
        "idle_ms": dice.choice([0, 500, 3000]),
        "queue_ms": dice.choice([100, 1000, 5000]),
        "cooldown_ms": 1000,
    }


class Story:
    """One house, what happens in it, and what it did about it: (second, what)."""

    def __init__(self, it: House, dice: random.Random) -> None:
        self.it = it
        self.dice = dice
        self.guests: list[Guest] = []
        self.told: dict[int, tuple[str, bool]] = {}
        self.log: list[tuple[float, str]] = []
        self._answered = self._noted = 0
        self._loading = A
        self._began_s = trio.current_time()

    def happen(self) -> None:
        """One thing, without any time passing."""
        dice, staying = self.dice, [guest for guest in self.guests if not guest.place.left]
        chance, which = dice.random(), dice.random()
        with_engine = [guest for guest in staying if guest.place.engine is not None]
        if chance < 0.4:
            accepts = dice.choice(ACCEPTS)
            self.guests.append(self.it.enter_now(*accepts, tier=dice.choice(list(Tier))))
        elif chance < 0.6 and staying:
            staying[int(which * len(staying))].place.leave()
        elif chance < 0.7 and with_engine:
            with_engine[int(which * len(with_engine))].place.headers_arrived()
        elif chance < 0.92:
            self._engine_speaks(which)
        elif chance > 0.96:
            self._operator_speaks(dice.choice(["load", "unload", "cancel", "off", "on"]))

    def _engine_speaks(self, chance: float) -> None:
        tell = self.it.coordinator.engine_report
        if len(self.it.asked) == self._answered:
            loaded = self.it.coordinator.snapshot().loaded
            if chance < 0.1 and loaded is not None:
                tell(EngineDied(loaded))
            return
        asked = self.it.asked[self._answered]
        self._answered += 1
        if asked.startswith("load"):
            self._loading = A if asked.endswith("a") else B
            if chance < 0.8:
                tell(EngineReady(self._loading, STRATA, PORT, LOAD_MS, 0))
            else:
                tell(LoadFailed(self._loading, "no", 5))
        elif asked == "unload":
            tell(EngineStopped())
        else:
            tell(LoadCancelled(self._loading))

    def _operator_speaks(self, wish: str) -> None:
        coordinator = self.it.coordinator
        wishes: dict[str, Callable[[], None]] = {
            "load": lambda: coordinator.operator_load(A),
            "unload": coordinator.operator_unload,
            "cancel": coordinator.operator_cancel,
            "off": lambda: coordinator.set_routing(False),
            "on": lambda: coordinator.set_routing(True),
        }
        wishes[wish]()

    async def settle(self) -> None:
        """Everybody does what can be done now; who was refused leaves; what happened is noted."""
        await self.it.settle()
        for guest in self.guests:
            if isinstance(guest.ready or guest.admitted, Refusal) and not guest.place.left:
                guest.place.leave()
        await self.it.settle()
        now_s = round(trio.current_time() - self._began_s, 6)
        self.log += [(now_s, asked) for asked in self.it.asked[self._noted :]]
        self._noted = len(self.it.asked)
        for number, guest in enumerate(self.guests):
            state = (repr(guest.admitted and type(guest.admitted)), guest.has_engine)
            if self.told.get(number) != state:
                self.told[number] = state
                self.log.append((now_s, f"guest {number}: {state}"))

    def expect_nothing_left_to_decide(self) -> None:
        coordinator = self.it.coordinator
        staying = sum(not guest.place.left for guest in self.guests)
        assert coordinator.busy_places == staying
        assert coordinator.scheduler.take_decisions(trio.current_time()) == []
        deadline_s = coordinator.scheduler.next_deadline()
        assert deadline_s is None or coordinator._sleeps_until_s <= deadline_s


def played(seed: int, at_a_time: tuple[int, ...]) -> list[tuple[float, str]]:
    """What came of a story in which so many things happen in one instant."""
    dice = random.Random(seed)
    log: list[tuple[float, str]] = []

    async def play() -> None:
        async with house(**configuration(dice)) as it:
            story = Story(it, dice)
            for _ in range(40):
                for _ in range(dice.choice(at_a_time)):
                    story.happen()
                await story.settle()
                story.expect_nothing_left_to_decide()
                if dice.random() < 0.5:
                    # Never just to a deadline: what comes in that instant may be told before or after it.
                    await trio.sleep(dice.uniform(0.01, 0.5) * dice.choice([1, 1, 5]))
            await trio.sleep(20)
            await story.settle()
            log.extend(story.log)

    trio.run(play, clock=trio.testing.MockClock(autojump_threshold=0))
    return log


@pytest.mark.parametrize("block", range(4))
def test_deciding_at_once_decides_nothing_else(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One thing at a time: of several in one instant it may well be told one by one."""
    for seed in range(block * 1000, block * 1000 + rounds(15, 150)):
        at_once = played(seed, (1,))
        with monkeypatch.context() as patch:
            patch.setattr(Coordinator, "_is_quiet", property(lambda _: False))
            in_turns = played(seed, (1,))
        assert at_once == in_turns, seed
        assert at_once


@pytest.mark.parametrize("block", range(4))
def test_nothing_is_left_to_decide_however_much_happens_at_once(block: int) -> None:
    for seed in range(block * 1000, block * 1000 + rounds(15, 150)):
        assert played(seed, (1, 2, 3, 5))
