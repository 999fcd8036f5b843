"""Tells the tally what became of engines: loads, failed loads, deaths.

Follows the coordinator's engine reports for the daemon's whole life, so a load that an operator asked
for counts as one that a request caused.
"""

from strata_router.core.metrics import Tally
from strata_router.runtime.engine_supervisor import (
    EngineDied,
    EngineReady,
    EngineReport,
    LoadFailed,
)


class EngineTally:
    """The coordinator's Observer."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    def engine_report(self, report: EngineReport) -> None:
        match report:
            case EngineReady(model=model, load_ms=load_ms):
                self._tally.loaded(model, load_ms)
            case LoadFailed(model=model):
                self._tally.load_failed(model)
            case EngineDied(model=model):
                self._tally.engine_died(model)
            case _:
                pass  # starts, stops and called-off loads are not counted

    def engine_progress(self, phase: str, message: str) -> None:
        """Nothing to count."""
