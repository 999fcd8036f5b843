"""Half a minute of the soak, so that a breach of an invariant is found before it is released."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def test_half_a_minute_of_random_faults_breaks_no_invariant() -> None:
    outcome = subprocess.run(
        [sys.executable, "-m", "tests.soak", "--minutes", "0.5", "--seed", "20261129"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stdout[-5000:] + outcome.stderr[-3000:]
