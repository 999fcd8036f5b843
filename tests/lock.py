"""``make lock``: write requirements/*.lock from *.in, with hashes and without registry addresses."""

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OPTIONS = [
    "--quiet",
    "--strip-extras",
    "--generate-hashes",
    "--no-header",
    "--no-emit-index-url",
    "--no-emit-find-links",
    "--no-emit-trusted-host",
    "--no-emit-options",
]


def main() -> int:
    """live.lock is kept by hand: two wheels, installed without their dependencies."""
    with tempfile.TemporaryDirectory() as scratch:
        venv.create(scratch, with_pip=True)
        python = str(Path(scratch, "bin", "python"))
        subprocess.run([python, "-m", "pip", "install", "--quiet", "pip-tools"], check=True)
        for name in ("run", "test", "bench", "agents"):
            command = [
                python,
                "-m",
                "piptools",
                "compile",
                *OPTIONS,
                "-o",
                f"{name}.lock",
                f"{name}.in",
            ]
            subprocess.run(command, cwd=ROOT / "requirements", check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
