"""The engine's life as a table: every (state, event) pair, and the document drawn from it."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_router.core.engine.lifecycle import (
    MEANING,
    TRANSITIONS,
    EngineEvent,
    EngineState,
    ImpossibleEvent,
    Lifecycle,
    states_document,
)
from strata_router.core.vocabulary import ModelId

A = ModelId("a")

LIFE = """
    stopped   load            starting
    starting  reported_ready  checking
    starting  failed          stopping
    starting  stop            stopping
    checking  verified        ready
    checking  failed          stopping
    checking  stop            stopping
    ready     stop            stopping
    ready     exited          stopping
    stopping  gone            stopped
    stopping  unkillable      stuck
    stuck     gone            stopped
"""
"""The test's own copy of what may happen, from contract 4.2 and 4.4. Everything else is impossible."""

POSSIBLE = {
    (EngineState(before), EngineEvent(event)): EngineState(after)
    for before, event, after in (line.split() for line in LIFE.split("\n") if line.strip())
}

PATHS: dict[EngineState, tuple[EngineEvent, ...]] = {
    EngineState.STOPPED: (),
    EngineState.STARTING: (EngineEvent.LOAD,),
    EngineState.CHECKING: (EngineEvent.LOAD, EngineEvent.REPORTED_READY),
    EngineState.READY: (EngineEvent.LOAD, EngineEvent.REPORTED_READY, EngineEvent.VERIFIED),
    EngineState.STOPPING: (EngineEvent.LOAD, EngineEvent.STOP),
    EngineState.STUCK: (EngineEvent.LOAD, EngineEvent.STOP, EngineEvent.UNKILLABLE),
}
"""How to come to each state."""


def life_in(state: EngineState) -> Lifecycle:
    life = Lifecycle()
    for event in PATHS[state]:
        if event is EngineEvent.LOAD:
            life.load(A)
        else:
            life.on(event)
    return life


@pytest.mark.parametrize(("state", "event"), list(product(EngineState, EngineEvent)))
def test_every_event_in_every_state_does_what_the_contract_says_or_nothing(
    state: EngineState, event: EngineEvent
) -> None:
    life = life_in(state)
    assert life.state is state
    model = life.model
    after = POSSIBLE.get((state, event))
    if after is None:
        with pytest.raises(ImpossibleEvent, match=f"^{event} in state {state}$"):
            life.on(event)
        assert (life.state, life.model) == (state, model)
    else:
        assert life.on(event) is after
        assert life.state is after


@pytest.mark.parametrize("state", [state for state in EngineState if state != "stopped"])
def test_a_load_of_another_model_is_impossible_while_an_engine_exists(state: EngineState) -> None:
    life = life_in(state)
    with pytest.raises(ImpossibleEvent):
        life.load(ModelId("b"))
    assert (life.state, life.model) == (state, A)


@pytest.mark.parametrize("state", EngineState)
def test_only_a_ready_model_may_be_forwarded_to_and_only_a_starting_one_is_loading(
    state: EngineState,
) -> None:
    life = life_in(state)
    assert life.model == (None if state is EngineState.STOPPED else A)
    assert life.ready_model == (A if state is EngineState.READY else None)
    loading = state in (EngineState.STARTING, EngineState.CHECKING)
    assert life.loading_model == (A if loading else None)


def test_a_model_is_forgotten_when_nothing_of_its_engine_exists() -> None:
    life = life_in(EngineState.STUCK)
    life.on(EngineEvent.GONE)
    assert life.model is None


@given(st.lists(st.sampled_from(EngineEvent), max_size=40))
def test_any_history_is_a_walk_through_the_contracts_table(history: list[EngineEvent]) -> None:
    life = Lifecycle()
    state = EngineState.STOPPED
    for event in history:
        after = POSSIBLE.get((state, event))
        if after is None:
            with pytest.raises(ImpossibleEvent):
                life.on(event)
        else:
            life.on(event)
            state = after
        assert life.state is state


def test_every_state_can_be_left_for_stopped() -> None:
    """So no engine's end can be a dead end for the daemon."""
    reaches = {EngineState.STOPPED}
    while True:
        more = {before for (before, _), after in POSSIBLE.items() if after in reaches} - reaches
        if not more:
            break
        reaches |= more
    assert reaches == set(EngineState)


def test_the_document_shows_every_transition_in_words_and_in_the_diagram() -> None:
    document = states_document()
    for (before, event), after in POSSIBLE.items():
        assert f"    {before} --> {after}: {event}\n" in document
        assert f"| {event} | {after} |\n" in document
    assert document.count(" --> ") == len(POSSIBLE) + 1
    assert "    [*] --> stopped\n" in document
    assert document.endswith("|\n")


def test_the_document_says_once_what_each_state_means() -> None:
    document = states_document()
    assert set(MEANING) == set(TRANSITIONS) == set(EngineState)
    for state, meaning in MEANING.items():
        assert document.count(meaning) == 1
        assert f"| {state} | {meaning} | " in document
