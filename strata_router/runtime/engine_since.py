"""Remembers since when the engine loads, and since when it holds its model.

Follows the coordinator's engine reports for the daemon's whole life, as ``engine_tally`` does.
"""

import trio

from strata_router.runtime.engine_supervisor import EngineReady, EngineReport, LoadStarted


class EngineSince:
    """The coordinator's Observer.

    load_started_s: second on the event loop's clock at which the running load began, None while none
    runs (or the decided one has not begun). ready_s: the same of the model that is loaded.
    """

    def __init__(self) -> None:
        self.load_started_s: float | None = None
        self.ready_s: float | None = None

    def engine_report(self, report: EngineReport) -> None:
        match report:
            case LoadStarted():
                self.load_started_s, self.ready_s = trio.current_time(), None
            case EngineReady():
                self.load_started_s, self.ready_s = None, trio.current_time()
            case _:  # each of the others leaves nothing loaded and nothing loading
                self.load_started_s = self.ready_s = None

    def engine_progress(self, phase: str, message: str) -> None:
        """No report of a load changes when it began."""
