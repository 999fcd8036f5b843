"""Check the shipped units with an installed program: ``python3 tests/systemd_restart.py PATH``, as root.

PATH is an installed ``strata-router``. It runs under a systemd of its own, in namespaces, with the
simulated engine: neither the machine's services nor a real model are touched.
"""

import os
import sys
from pathlib import Path

# Run as a script, the checkout is not on the path, but this folder is.
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from tests.entry import run_tests  # noqa: E402 - only now can it be found

if __name__ == "__main__":
    if len(sys.argv) != 2 or not os.access(sys.argv[1], os.X_OK) or not os.path.isabs(sys.argv[1]):
        sys.exit("usage: systemd_restart.py /absolute/path/to/strata-router")
    sys.exit(run_tests(["system/test_service_systemd.py"], {"STRATA_ROUTER_PROGRAM": sys.argv[1]}))
