"""Since when the engine loads or holds its model, told by its reports."""

import pytest
import trio
import trio.testing

from strata_router.core.engine.kinds import LlamaServerKind
from strata_router.core.vocabulary import ModelId
from strata_router.runtime.engine_since import EngineSince
from strata_router.runtime.engine_supervisor import (
    EngineDied,
    EngineReady,
    EngineReport,
    EngineStopped,
    LoadCancelled,
    LoadFailed,
    LoadStarted,
)

A = ModelId("a")
READY = EngineReady(A, LlamaServerKind("/x", {}), 8089, 5, 0)


async def test_a_load_has_a_begin_until_it_ends_and_a_model_until_it_goes(
    autojump_clock: trio.testing.MockClock,
) -> None:
    since = EngineSince()
    assert (since.load_started_s, since.ready_s) == (None, None)
    began_s = trio.current_time()
    since.engine_report(LoadStarted(A))
    await trio.sleep(3)
    since.engine_progress("loading", "still")
    assert (since.load_started_s, since.ready_s) == (began_s, None)
    since.engine_report(READY)
    assert (since.load_started_s, since.ready_s) == (None, began_s + 3)
    await trio.sleep(1)
    since.engine_report(LoadStarted(ModelId("b")))
    assert (since.load_started_s, since.ready_s) == (began_s + 4, None)


@pytest.mark.parametrize(
    "end", [LoadFailed(A, "no", 3), LoadCancelled(A), EngineDied(A), EngineStopped()]
)
@pytest.mark.parametrize("before", [LoadStarted(A), READY])
async def test_every_other_report_leaves_nothing_loading_and_nothing_loaded(
    before: EngineReport, end: EngineReport
) -> None:
    since = EngineSince()
    since.engine_report(before)
    since.engine_report(end)
    assert (since.load_started_s, since.ready_s) == (None, None)
