"""A release as a user gets it: built, installed into an empty environment, run from there (contract 2).

Nothing is fetched: the build backend and the dependencies are those of the running environment.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from strata_router import __version__
from tests.system.harness import CHAT, chat_body
from tests.system.service_under_test import ROOT

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")

START_S = 20.0


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that ``make dist`` has filled."""
    folder = tmp_path_factory.mktemp("dist")
    # --old-file: the environment that runs this test is the one that is built with, as it is.
    stamp = ("VENV=" + sys.prefix, f"--old-file={sys.prefix}/.run")
    subprocess.run(["make", "--silent", "dist", f"DIST={folder}", *stamp], cwd=ROOT, check=True)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    return built / f"strata_router-{__version__}-py3-none-any.whl"


@pytest.fixture(scope="module")
def unpacked(built: Path) -> Path:
    """The sdist's tree."""
    # Not tarfile: its safe filter is missing in Python 3.11.2, and leaving it out is a warning in 3.12.
    subprocess.run(["tar", "xf", f"strata_router-{__version__}.tar.gz"], cwd=built, check=True)
    return built / f"strata_router-{__version__}"


@pytest.fixture(scope="module")
def program(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``strata-router`` in an environment that had nothing in it."""
    environment = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    python = environment / "bin" / "python"
    options = ("--disable-pip-version-check", "--quiet", "--no-index", "--no-deps")
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", python, "install", *options, wheel], check=True
    )
    # The dependencies, and nothing but: this checkout is on the path of the running environment through a
    # .pth file, and those are not followed from here.
    (site_packages,) = environment.glob("lib/python3*/site-packages")
    (site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return environment / "bin" / "strata-router"


def run(*command: str | Path, cwd: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command, cwd=cwd, env=clean_environment(), capture_output=True, text=True, check=False
    )


def clean_environment() -> dict[str, str]:
    return {"PATH": os.defpath, "HOME": "/nonexistent", "LC_ALL": "C.UTF-8"}


def test_the_installed_program_is_the_wheels_and_knows_its_version(
    program: Path, tmp_path: Path
) -> None:
    assert run(program, "--version", cwd=tmp_path).stdout == f"strata-router {__version__}\n"
    ask = (
        "import strata_router, importlib.metadata as metadata\n"
        "print(strata_router.__file__, metadata.version('strata-router'))"
    )
    module, version = run(program.with_name("python"), "-c", ask, cwd=tmp_path).stdout.split()
    assert Path(module).is_relative_to(program.parent.parent)
    assert version == __version__


def test_the_installed_program_checks_the_shipped_example(
    program: Path, unpacked: Path, tmp_path: Path
) -> None:
    checked = run(program, "check", unpacked / "config.example.json", cwd=tmp_path)
    # Whether it would start here is the matter of this machine.
    assert checked.returncode in (0, 1), checked.stderr
    assert [row.split()[2] for row in checked.stdout.splitlines()[1:24]] == ["not_installed"] * 23


def test_the_installed_program_runs_the_demo_and_leaves_nothing(
    program: Path, tmp_path: Path
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    with demo(program, temporary) as (process, url):
        request = urllib.request.Request(
            url + CHAT,
            data=chat_body("demo-small", stream=True),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            assert response.read().endswith(b"data: [DONE]\n\n")
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
    assert list(temporary.iterdir()) == []
    assert processes_with(f"TMPDIR={temporary}") == []


@contextmanager
def demo(program: Path, temporary: Path) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """The running demo and its URL."""
    environment = clean_environment() | {"TMPDIR": str(temporary)}
    log = temporary.with_name("demo.log")
    with log.open("w") as output:
        process = subprocess.Popen(
            [program, "demo"],
            cwd=temporary.parent,
            env=environment,
            stdout=output,
            stderr=output,
            text=True,
        )
    try:
        end_s = time.monotonic() + START_S
        while "listens on" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end_s, log.read_text()
            time.sleep(0.02)
        url = re.search(r"strata-router demo: (\S+)", log.read_text())
        assert url is not None
        yield process, url.group(1)
    finally:
        process.kill()
        process.wait()


def processes_with(variable: str) -> list[str]:
    """Command lines of what was started with this in its environment and still lives."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if variable.encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append((entry / "cmdline").read_text())
        except OSError:
            continue
    return found


def test_the_wheel_has_the_package_and_the_engines_stand_in_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0] for name in names} == {
        "strata_router",
        f"strata_router-{__version__}.dist-info",
    }
    for needed in ("py.typed", "runtime/guard.py", "simulated/checkout/serve/server.py"):
        assert f"strata_router/{needed}" in names
    assert not [name for name in names if "__pycache__" in name]


def test_the_sdist_has_what_an_installation_and_a_developer_need_and_makes_the_same_wheel(
    unpacked: Path, wheel: Path, tmp_path: Path
) -> None:
    for needed in (
        *("LICENSE", "README.md", "CHANGELOG.md", "Makefile", "config.example.json", "flake.lock"),
        *("docs/strata-router.1", "docs/deployment.md", "contrib/systemd/strata-router.socket"),
        *("contrib/nixos/module.nix", "requirements/test.lock", "tests/conftest.py"),
    ):
        assert (unpacked / needed).is_file(), needed
    build = "from flit_core.buildapi import build_wheel; import sys; build_wheel(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, str(tmp_path)], cwd=unpacked, check=True)

    def record(path: Path) -> str:
        with zipfile.ZipFile(path) as archive:
            return archive.read(f"strata_router-{__version__}.dist-info/RECORD").decode()

    assert record(tmp_path / wheel.name) == record(wheel)


def test_the_version_is_said_in_one_place_only() -> None:
    said = [
        path.relative_to(ROOT)
        for pattern in ("pyproject.toml", "Makefile", "flake.*", "contrib/**/*", "docs/**/*")
        for path in ROOT.glob(pattern)
        if path.is_file() and f'"{__version__}"' in path.read_text(errors="replace")
    ]
    assert said == []
    assert (ROOT / "strata_router" / "__init__.py").read_text().count(__version__) == 1


def test_the_example_in_the_guide_fits_the_units_and_the_configuration() -> None:
    guide = (ROOT / "docs" / "deployment.md").read_text()
    (snippet,) = re.findall(r"```json\n(.*?)```", guide, re.DOTALL)
    keys = json.loads(snippet)
    assert keys["require_socket_activation"] is True
    assert keys["drain_ms"] == keys["response_ms"] == 0
    example = json.loads((ROOT / "config.example.json").read_text())
    assert keys.keys() - {"control_socket"} <= example.keys()
    socket_unit = (ROOT / "contrib" / "systemd" / "strata-router.socket").read_text()
    assert f"ListenStream={keys['listen']}\n" in socket_unit
