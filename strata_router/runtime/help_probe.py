"""Asks an engine's ``--help`` whether an option exists; remembered until its source changes.

The command runs as an engine does, under a guard and with a file for its output: it is the engine's
own code, and whatever it starts or hangs in must end with the load that asked, or with the daemon.
"""

import os
import tempfile
from contextlib import suppress
from pathlib import Path

import trio

from strata_router.core.engine.kinds import LaunchPlan
from strata_router.runtime.engine_process import (
    Launch,
    SpawnFailed,
    engine_environment,
    start_engine,
)

HELP_S = 30.0
"""Importing a server's modules from a cold disk takes seconds; a hung one is taken for "no"."""

HELP_LIMIT_BYTES = 1024 * 1024


class HelpProbe:
    """Answers ``offers``; a failing or hanging command counts as "does not offer it"."""

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[str, ...], str | None, float], str] = {}

    async def offers(self, plan: LaunchPlan, option: str) -> bool:
        """Does the help text of ``plan`` mention ``option`` as a word of its own?

        Raises OSError when there is no room for the text.
        """
        key = (plan.argv, plan.cwd, _changed_at(plan))
        if key not in self._known:
            self._known[key] = await _help_text(plan)
        return option in self._known[key].replace(",", " ").replace("[", " ").split()


def _changed_at(plan: LaunchPlan) -> float:
    """When the server's source was last changed; 0 where it is not a file we know."""
    if plan.cwd is None:
        return 0.0
    try:
        return Path(plan.cwd, "serve", "server.py").stat().st_mtime
    except OSError:
        return 0.0


async def _help_text(plan: LaunchPlan) -> str:
    with tempfile.TemporaryDirectory(
        prefix="strata-router-", ignore_cleanup_errors=True
    ) as private_dir:
        output = os.path.join(private_dir, "help.txt")
        launch = Launch(
            plan.argv, plan.cwd, engine_environment(os.environ, plan.environment), output
        )
        async with trio.open_nursery() as nursery:
            with suppress(SpawnFailed), trio.move_on_after(HELP_S):
                process = await start_engine(launch, nursery)
                await process.wait_exited()
            nursery.cancel_scope.cancel()
        return _read_text(output)


def _read_text(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(HELP_LIMIT_BYTES).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""  # nothing was started
