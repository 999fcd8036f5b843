"""What the scripts ``waiting.py``, ``restart.py`` and ``systemd_restart.py`` share: they run test files.

The design names them as programs; the code is in tests/system, once. pytest is started as a process of
its own, in the checkout's environment where the calling Python has none.
"""

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run_tests(patterns: Iterable[str], environment: Mapping[str, str] | None = None) -> int:
    """Run the test files that match, verbosely; pytest's exit status.

    patterns: below tests/, sorted within each; one without a match is left out.
    """
    files = [str(path) for pattern in patterns for path in sorted((ROOT / "tests").glob(pattern))]
    command = [_python(), "-m", "pytest", "-v", *files]
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, **(environment or {})}, check=False
    ).returncode


def _python() -> str:
    """This interpreter if it can run the tests, else the one that ``make test`` has installed."""
    if all(find_spec(name) for name in ("pytest", "trio", "h11", "quart_trio")):
        return sys.executable
    installed = ROOT / ".venv" / "bin" / "python"
    if not installed.exists():
        sys.exit("the tests' packages are not installed: run 'make test' once, or use its Python")
    return str(installed)
