"""Check wait-first scheduling on a real daemon: ``python tests/waiting.py``.

Overloaded admission, delayed headers, model groups, tool-gap grace, disconnects, errors, shutdown. With
CLIPROXYAPI_BIN naming a CLIProxyAPI program, its tests are run with it too. No model, no GPU.
"""

import sys
from pathlib import Path

# Run as a script, the checkout is not on the path, but this folder is.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from tests.entry import run_tests  # noqa: E402 - only now can it be found

if __name__ == "__main__":
    sys.exit(run_tests(["system/test_service_waiting.py", "system/test_*cliproxy*.py"]))
