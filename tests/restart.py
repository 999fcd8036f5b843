"""Check that a restart drops nobody: ``python tests/restart.py``. No root, no systemd.

A real process handoff with a retained descriptor, with queued requests, loads and delayed headers.
"""

import sys
from pathlib import Path

# Run as a script, the checkout is not on the path, but this folder is.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from tests.entry import run_tests  # noqa: E402 - only now can it be found

if __name__ == "__main__":
    sys.exit(run_tests(["runtime/http/test_server_drain.py", "system/test_service_handoff.py"]))
