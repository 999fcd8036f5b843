"""An Operator whose operations are written by the test, and a control server around it.

``ScriptedOperator`` notes what it was asked; each operation runs the script that the test gave.
``control_daemon`` serves it from a thread of its own, for tests that run the real command line.
"""

import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import trio

from strata_router.core.control import JSON, Done, Report
from strata_router.runtime.control_endpoint import claim_endpoint
from strata_router.runtime.control_socket import ControlServer

Script = Callable[[Report], Awaitable[Done]]


async def finish_at_once(report: Report) -> Done:
    return Done(True, "nothing to do")


class ScriptedOperator:
    """asked: every call in order, for example ``("off", True)`` or ``("on", None)``.

    ended: how each operation ended: "done", "cancelled" or "failed".
    """

    def __init__(self, off: Script = finish_at_once, on: Script = finish_at_once) -> None:
        self.asked: list[tuple[str, object]] = []
        self.ended: list[str] = []
        self.facts: dict[str, JSON] = {
            "pid": os.getpid(),
            "child_pid": 4713,
            "loaded": "model-a",
            "last_startup_error": None,
            "routing": True,
            "draining": False,
            "busy": False,
        }
        self._off = off
        self._on = on

    def status(self) -> dict[str, JSON]:
        return dict(self.facts)

    def set_routing(self, on: bool) -> None:
        self.asked.append(("set_routing", on))
        self.facts["routing"] = on

    async def off(self, now: bool, report: Report) -> Done:
        self.asked.append(("off", now))
        return await self._follow(self._off, report)

    async def on(self, model: str | None, report: Report) -> Done:
        self.asked.append(("on", model))
        return await self._follow(self._on, report)

    async def _follow(self, script: Script, report: Report) -> Done:
        ending = "failed"
        try:
            done = await script(report)
            ending = "done"
            return done
        except trio.Cancelled:
            ending = "cancelled"
            raise
        finally:
            self.ended.append(ending)


@contextmanager
def control_daemon(path: Path, operator: ScriptedOperator) -> Iterator[Callable[[], None]]:
    """Serve ``operator`` at ``path`` until the block ends, or the given function is called."""
    started = threading.Event()
    stop: list[Callable[[], None]] = []

    async def serve() -> None:
        with trio.CancelScope() as scope:
            token = trio.lowlevel.current_trio_token()
            stop.append(lambda: token.run_sync_soon(scope.cancel))
            started.set()
            await ControlServer(operator).serve(endpoint.listener)

    with claim_endpoint(str(path), default_path="") as endpoint:
        thread = threading.Thread(target=trio.run, args=(serve,), name="control daemon")
        thread.start()
        started.wait()
        try:
            yield stop[0]
        finally:
            with suppress(trio.RunFinishedError):  # the test has stopped it already
                stop[0]()
            thread.join()
