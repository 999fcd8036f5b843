"""``strata-router top``: the queue, the answers and the last requests, live in a terminal.

Needs the package rich, the optional extra ``top``; nothing else of the program does.
"""

import os
import select
import shlex
import sys
import termios
import tty
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from strata_router.cli.daemon_http import DaemonHttp, UnreachableError
from strata_router.cli.outcome import CommandFailedError, ExitStatus

PERIOD_S = 1.0
"""Between two questions; the page asks as often."""

RECORDS = 50
"""More than any screen shows."""

LEAVE = "q to leave"

_WITHOUT_RICH = (
    f"needs the Python package rich, which is not installed: {shlex.quote(sys.executable)} -m pip "
    "install 'rich>=13'; 'strata-router status' shows the same once"
)
_WITHOUT_TERMINAL = "needs a terminal; 'strata-router status' also writes into a pipe"


def run(daemon: DaemonHttp) -> int:
    """Show until the reader leaves. Raises CommandFailedError: at the first question as any command
    does, later for an answer that is no daemon's; a daemon that is gone is waited for."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise CommandFailedError(ExitStatus.FAILED, _WITHOUT_TERMINAL)
    try:
        from rich.console import Console
        from rich.live import Live

        from strata_router.cli.top_view import screen
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != "rich":
            raise
        raise CommandFailedError(ExitStatus.FAILED, _WITHOUT_RICH) from missing
    view = read(daemon)
    console = Console()
    with keys_at_once(), Live(console=console, screen=True, auto_refresh=False) as live:
        note = LEAVE
        while True:
            live.update(screen(view, console.width, console.height, note), refresh=True)
            if _wants_to_leave():
                return ExitStatus.DONE
            try:
                view, note = read(daemon), LEAVE
            except UnreachableError:
                note = f"no answer from {daemon.url}; this is how it was, trying again   {LEAVE}"


def read(daemon: DaemonHttp) -> Mapping[str, Any]:
    """The daemon's view. Raises what ``DaemonHttp.get_json`` raises, and CommandFailedError for a
    daemon that is too old to have one."""
    view = daemon.get_json("/queue", f"limit={RECORDS}")
    if isinstance(view, dict) and {"engine", "waiting", "active", "records"} <= view.keys():
        return view
    raise daemon.wrong("the answer is not a view of the queue")


@contextmanager
def keys_at_once() -> Iterator[None]:
    """Have single keys delivered, unechoed; the terminal is as it was afterwards."""
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _wants_to_leave() -> bool:
    """Wait for keys, at most one period. The terminal's end counts as q."""
    pressed, _, _ = select.select([sys.stdin], [], [], PERIOD_S)
    if not pressed:
        return False
    keys = os.read(sys.stdin.fileno(), 64)  # past Python's buffer, which select cannot see
    return not keys or b"q" in keys.lower()
