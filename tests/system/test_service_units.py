"""The unit files, read as text: systemd takes every line, the sandbox is as tight as a CUDA child allows,
and the copies (user units, NixOS module) say the same. How they behave: test_service_systemd.py.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from strata_router import __version__
from tests.system.service_under_test import CONTRIB, ROOT

UNITS = {"system": CONTRIB, "user": CONTRIB / "user"}
SERVICE, SOCKET = "strata-router.service", "strata-router.socket"

EXPOSURE_LIMIT = 1.5
"""Of 10, by systemd-analyze security; every line that is given up has its reason in docs/deployment.md."""

needs_systemd_analyze = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)
needs_nix = pytest.mark.skipif(
    shutil.which("nix") is None or shutil.which("nix-instantiate") is None,
    reason="nix is not installed (Debian: nix-bin)",
)

Unit = Mapping[str, Mapping[str, list[str]]]


def parse_unit(path: Path) -> Unit:
    """Section -> key -> values, one per line."""
    sections: dict[str, dict[str, list[str]]] = {}
    keys: dict[str, list[str]] = {}
    for line in path.read_text().splitlines():
        if heading := re.fullmatch(r"\[(\w+)\]", line):
            keys = sections.setdefault(heading.group(1), {})
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            keys.setdefault(key, []).append(value)
    return sections


# ---- systemd's own opinion -----------------------------------------------------------------------


@needs_systemd_analyze
@pytest.mark.parametrize("kind", UNITS)
def test_systemd_takes_every_line(tmp_path: Path, kind: str) -> None:
    """Unknown keys and bad values are warnings with exit status 0, so nothing at all may be said."""
    for name in (SERVICE, SOCKET):
        text = (UNITS[kind] / name).read_text()
        # The program must exist, and is not where an installation would put it.
        (tmp_path / name).write_text(
            re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", text, flags=re.M)
        )
    manager = ["--user"] if kind == "user" else []
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *manager, tmp_path / SERVICE, tmp_path / SOCKET],
        capture_output=True,
        text=True,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path)},
        check=False,
    )
    assert (verified.returncode, verified.stderr) == (0, "")


@needs_systemd_analyze
def test_the_sandbox_leaves_open_only_what_the_guide_gives_a_reason_for() -> None:
    """By the names that systemd 252 gives its findings; other versions have others."""
    if "systemd 252 " not in run("systemd-analyze", "--version").stdout:
        pytest.skip("the guide's table has the names of systemd 252")
    findings = json.loads(analyze_security("--json=short").stdout)
    given_up = {item["name"] for item in findings if float(item["exposure"] or 0) > 0}
    guide = (ROOT / "docs" / "deployment.md").read_text()
    rows = re.findall(r"^\| `([^`]+)` \|", guide, re.MULTILINE)
    assert {row.replace("\\|", "|") for row in rows} == given_up


@needs_systemd_analyze
def test_the_sandboxs_exposure_is_within_its_limit() -> None:
    assessed = analyze_security(f"--threshold={int(EXPOSURE_LIMIT * 10)}")
    assert assessed.returncode == 0, assessed.stdout.splitlines()[-1]


def analyze_security(*options: str) -> "subprocess.CompletedProcess[str]":
    return run(
        *("systemd-analyze", "security", "--offline=true", "--no-pager"),
        *options,
        str(CONTRIB / SERVICE),
    )


def run(*command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, capture_output=True, text=True, check=False)


# ---- what contract and design demand -------------------------------------------------------------


@pytest.mark.parametrize("kind", UNITS)
def test_the_units_have_the_settings_that_a_restart_without_loss_needs(kind: str) -> None:
    service, socket = (parse_unit(UNITS[kind] / name) for name in (SERVICE, SOCKET))
    wanted: dict[str, dict[str, str]] = {
        "Unit": {"StartLimitIntervalSec": "0", "Requires": SOCKET},
        "Service": {
            "Type": "notify",
            "KillMode": "mixed",
            "SendSIGKILL": "yes",
            "TimeoutStopSec": "infinity",
            "Restart": "on-failure",
            "RuntimeDirectory": "strata-router",
            "RuntimeDirectoryMode": "0700",
            "StateDirectory": "strata-router",
            "StateDirectoryMode": "0700",
            "UMask": "0077",
            "LimitCORE": "0",
        },
    }
    for section, keys in wanted.items():
        for key, value in keys.items():
            assert service[section][key] == [value], key
    assert socket["Socket"]["ListenStream"] == ["127.0.0.1:8088"]
    assert socket["Socket"]["Accept"] == ["no"]
    assert socket["Socket"]["FlushPending"] == ["no"]
    # Both would let a loop of failures end the socket, or never end it.
    assert not {"TriggerLimitIntervalSec", "TriggerLimitBurst"} & socket["Socket"].keys()
    assert "RestartPreventExitStatus" not in service["Service"]


def test_the_system_service_has_a_static_account_and_may_write_where_profiles_are() -> None:
    keys = parse_unit(CONTRIB / SERVICE)["Service"]
    assert keys["User"] == keys["Group"] == ["strata-router"]
    assert "DynamicUser" not in keys
    assert keys["ReadWritePaths"] == ["-/opt/strata"]


def test_the_user_units_say_nothing_that_the_system_units_do_not() -> None:
    differ = {"ExecStart", "WantedBy", "After", "SystemCallFilter", "Also"}
    for name in (SERVICE, SOCKET):
        ours, theirs = parse_unit(UNITS["user"] / name), parse_unit(UNITS["system"] / name)
        for section, keys in ours.items():
            assert {k: v for k, v in keys.items() if k not in differ} == {
                key: theirs[section].get(key) for key in keys if key not in differ
            }


# ---- Nix -----------------------------------------------------------------------------------------

NIX_FILES = ("flake.nix", "contrib/nixos/module.nix", "contrib/nixos/package.nix")
NIX_CONFIG = """
experimental-features = nix-command flakes
substituters =
flake-registry =
build-users-group =
"""
STUB = ROOT / "tests" / "data" / "nix"


def nix(tmp_path: Path, *command: str, cwd: Path = ROOT) -> str:
    """Run a Nix program offline, with a store and a home of its own."""
    done = subprocess.run(
        command,
        cwd=cwd,
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "HOME": str(tmp_path / "home"),
            "NIX_CONFIG": NIX_CONFIG,
        },
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def flake(tmp_path: Path) -> Path:
    """A copy of what the flake reads; the whole checkout would be copied into the store."""
    copy = tmp_path / "flake"
    for name in (*NIX_FILES, "flake.lock", "strata_router/__init__.py"):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    return copy


@needs_nix
@pytest.mark.parametrize("name", NIX_FILES)
def test_every_nix_file_parses(tmp_path: Path, name: str) -> None:
    nix(tmp_path, "nix-instantiate", "--parse", str(ROOT / name))


@needs_nix
def test_the_lock_fits_the_flake(tmp_path: Path, flake: Path) -> None:
    """Else Nix would try to fetch, which offline is an error."""
    store = ("--store", str(tmp_path / "store"))
    shown = nix(
        tmp_path,
        *("nix", "flake", "metadata", "--offline", "--no-update-lock-file", *store, "path:."),
        cwd=flake,
    )
    assert "github:NixOS/nixpkgs/f5c082a40f7571c266e74e80ae2e68aadd8a9fc7" in shown


@needs_nix
def test_all_outputs_evaluate_against_a_stub_of_nixpkgs(tmp_path: Path, flake: Path) -> None:
    """Shows that names and shapes are right, not that the package builds: that needs nixpkgs."""
    store = ("--store", str(tmp_path / "store"))
    override = ("--no-write-lock-file", "--override-input", "nixpkgs", f"path:{STUB}")
    nix(
        tmp_path,
        *("nix", "flake", "check", "--offline", "--no-build", *store, *override, "path:."),
        cwd=flake,
    )
    package = "path:.#packages.x86_64-linux.default.name"
    shown = nix(tmp_path, "nix", "eval", "--offline", *store, *override, package, cwd=flake)
    assert json.loads(shown) == f"strata-router-{__version__}"


@pytest.fixture
def module(tmp_path: Path) -> dict[str, Any]:
    expression = f"import {STUB}/module.nix {{ module = {ROOT}/contrib/nixos/module.nix; }}"
    evaluate = ("nix-instantiate", "--eval", "--strict", "--json", "--store", "dummy://")
    evaluated: dict[str, Any] = json.loads(nix(tmp_path, *evaluate, "-E", expression))
    return evaluated


def as_lines(keys: Mapping[str, Any]) -> dict[str, list[str]]:
    """NixOS writes one line per list element."""
    return {
        key: [str(value) for value in (values if isinstance(values, list) else [values])]
        for key, values in keys.items()
    }


@needs_nix
def test_the_nixos_module_equals_the_unit_files_key_by_key(module: dict[str, Any]) -> None:
    service, socket = parse_unit(CONTRIB / SERVICE), parse_unit(CONTRIB / SOCKET)
    expected = dict(service["Service"])
    expected["Environment"] = " ".join(expected["Environment"]).split()
    assert as_lines(module["service"]["serviceConfig"]) == expected
    assert as_lines(module["socket"]["socketConfig"]) == socket["Socket"]

    unit = service["Unit"]
    assert module["service"]["description"] == unit["Description"][0]
    assert module["service"]["requires"] == unit["Requires"]
    assert module["service"]["after"] == unit["After"][0].split()
    assert as_lines(module["service"]["unitConfig"]) == {
        "StartLimitIntervalSec": unit["StartLimitIntervalSec"]
    }
    assert module["service"]["wantedBy"] == service["Install"]["WantedBy"]
    assert module["socket"]["wantedBy"] == socket["Install"]["WantedBy"]
    assert module["socket"]["description"] == socket["Unit"]["Description"][0]


@needs_nix
def test_the_nixos_module_keeps_the_socket_and_configures_for_it(module: dict[str, Any]) -> None:
    assert module["service"]["stopIfChanged"] is False
    settings = module["settings"]
    assert settings["require_socket_activation"] is True
    assert settings["response_ms"] == settings["drain_ms"] == 0
    assert settings["listen"] == module["socket"]["socketConfig"]["ListenStream"]
    assert settings["control_socket"] == "/run/strata-router/control.sock"
    assert module["account"]["users"]["strata-router"]["isSystemUser"] is True
