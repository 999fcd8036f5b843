"""Asks an engine's ``--help`` whether an option exists; remembered until its source changes."""

import os
import subprocess
from pathlib import Path

import trio

from strata_router.core.engine.kinds import LaunchPlan
from strata_router.runtime.engine_process import engine_environment

HELP_S = 30.0
"""Importing a server's modules from a cold disk takes seconds; a hung one is taken for "no"."""


class HelpProbe:
    """Answers ``offers``; a failing or hanging command counts as "does not offer it"."""

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[str, ...], str | None, float], str] = {}

    async def offers(self, plan: LaunchPlan, option: str) -> bool:
        """Does the help text of ``plan`` mention ``option`` as a word of its own?"""
        key = (plan.argv, plan.cwd, _changed_at(plan))
        if key not in self._known:
            self._known[key] = await trio.to_thread.run_sync(
                _help_text, plan, abandon_on_cancel=True
            )
        return option in self._known[key].replace(",", " ").replace("[", " ").split()


def _changed_at(plan: LaunchPlan) -> float:
    """When the server's source was last changed; 0 where it is not a file we know."""
    if plan.cwd is None:
        return 0.0
    try:
        return Path(plan.cwd, "serve", "server.py").stat().st_mtime
    except OSError:
        return 0.0


def _help_text(plan: LaunchPlan) -> str:
    # In a thread and without the guard: it holds no memory worth guarding and ends by itself.
    try:
        done = subprocess.run(
            plan.argv,
            cwd=plan.cwd,
            env=engine_environment(os.environ, plan.environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=HELP_S,
            start_new_session=True,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace")
