"""What to run as an engine, and how it is put to the guard that runs it.

Knows strings and what a program can be given; starts nothing. Launches are made by the engine kinds'
coordinator and carried out by ``runtime.engine_process``.
"""

import marshal
import os
from collections.abc import Mapping
from dataclasses import dataclass

REMOVED_NAMES = frozenset({"STRATA_API_KEY", "NOTIFY_SOCKET"})
REMOVED_PREFIXES = ("LISTEN_", "WATCHDOG_")


@dataclass(frozen=True, slots=True)
class Launch:
    """What to run.

    argv: the program by absolute path (PATH is not searched), then its arguments.
    cwd: absolute; None keeps the daemon's.
    env: the whole environment, see ``engine_environment``.
    log_path: absolute; stdout and stderr are appended to it. None discards them.
    """

    argv: tuple[str, ...]
    cwd: str | None
    env: dict[str, str]
    log_path: str | None


class SpawnFailed(Exception):
    """No engine was started. ``reason``: generic text, without paths, arguments or environment."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def engine_environment(base: Mapping[str, str], extra: Mapping[str, str]) -> dict[str, str]:
    """``base`` with ``extra`` over it, without what concerns only the daemon (contract 4.1)."""
    return {
        name: value
        for name, value in {**base, **extra}.items()
        if name not in REMOVED_NAMES and not name.startswith(REMOVED_PREFIXES)
    }


def encode(launch: Launch, survivors_ms: int) -> bytes:
    """The first message to the guard, as its docstring defines it; raises SpawnFailed."""
    try:
        if any("=" in name or not name for name in launch.env):
            raise ValueError
        spec = (
            [_as_kernel_takes_it(argument) for argument in launch.argv],
            None if launch.cwd is None else _as_kernel_takes_it(launch.cwd),
            {_as_kernel_takes_it(n): _as_kernel_takes_it(v) for n, v in launch.env.items()},
            None if launch.log_path is None else _as_kernel_takes_it(launch.log_path),
            survivors_ms,
        )
    except ValueError as error:  # UnicodeEncodeError is one
        raise SpawnFailed(
            "the engine's command line, environment or paths hold a character that no program can be given"
        ) from error
    content = marshal.dumps(spec)
    return len(content).to_bytes(8, "little") + content


def _as_kernel_takes_it(text: str) -> bytes:
    if "\0" in text:
        raise ValueError
    return os.fsencode(text)
