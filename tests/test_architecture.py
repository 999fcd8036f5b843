"""The rules of docs/ARCHITECTURE.md that a machine can hold: imports, head texts, no foreign addresses."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "strata_router"
LINT_IMPORTS = Path(sys.executable).with_name("lint-imports")


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [LINT_IMPORTS, "--no-cache", str(root / ".importlinter")],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_import_contract_holds() -> None:
    outcome = lint_imports(ROOT)
    assert outcome.returncode == 0, outcome.stdout


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("core/moment.py", "import time"),
        ("core/tap/facts.py", "import trio"),
        ("core/config/schema.py", "from pathlib import Path"),
        ("core/tap/facts.py", "import strata_router.core.admission.ticket"),
        ("runtime/http/connection.py", "import strata_router.runtime.reply"),
        ("runtime/upstream.py", "import strata_router.runtime.coordinator"),
    ],
)
def test_the_import_contract_bites(tmp_path: Path, module: str, line: str) -> None:
    shutil.copytree(PACKAGE, tmp_path / "strata_router")
    shutil.copy(ROOT / ".importlinter", tmp_path)
    broken = tmp_path / "strata_router" / module
    broken.write_text(f"{broken.read_text()}\n{line}\n")
    assert lint_imports(tmp_path).returncode != 0


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_module_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text())), "a module opens with its purpose"


def test_no_file_names_a_registry_or_a_path_of_a_machine() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    # Spelled in pieces so that this file does not name them either.
    forbidden = [
        "py" + "pi.org",
        "python" + "hosted",
        "registry.npm" + "js",
        "/wo" + "rk/",
        "/ro" + "ot/",
    ]
    found = []
    for name in listed.stdout.splitlines():
        path = ROOT / name
        if path.is_file() and path.suffix not in (".png",):
            text = path.read_text(errors="replace")
            found += [f"{name}: {word}" for word in forbidden if word in text]
    assert not found
