"""The shipped units under a private systemd, with the daemon of this checkout or of another installation.

Only what must differ on a test machine is changed, by drop-ins: the port, the command line, and which
folders the sandbox lets through to the program. The account is made with the guide's own command.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from tests.system.harness import DaemonUnderTest, daemon
from tests.system.systemd_namespace import PrivateSystemd

ROOT = Path(__file__).resolve().parent.parent.parent
CONTRIB = ROOT / "contrib" / "systemd"

SERVICE = "strata-router.service"
SOCKET = "strata-router.socket"

PROGRAM_VARIABLE = "STRATA_ROUTER_PROGRAM"
"""An installed ``strata-router`` to test instead of this checkout (tests/systemd_restart.py sets it)."""

INNER_CONTROL_SOCKET = "/run/strata-router/control.sock"


@dataclass
class Service:
    """daemon: requests and what the engines saw; its process is systemd's affair."""

    systemd: PrivateSystemd
    daemon: DaemonUnderTest

    def write_config(self) -> None:
        """Put the configuration where the unit reads it, readable by the account."""
        config = self.daemon.config | {"control_socket": INNER_CONTROL_SOCKET}
        path = self.daemon.directory / "config.json"
        path.write_text(json.dumps(config))
        self.give_to_account(path)

    def give_to_account(self, path: Path) -> None:
        uid = int(self.systemd.run("id", "-u", "strata-router").stdout)
        gid = int(self.systemd.run("id", "-g", "strata-router").stdout)
        os.chown(path, uid, gid)

    def start(self) -> None:
        """As the guide says: the socket first, then the service."""
        self.systemd.ctl("start", SOCKET)
        self.systemd.ctl("start", SERVICE)

    def stop(self) -> None:
        self.systemd.ctl("stop", SOCKET, SERVICE)

    def state(self, unit: str = SERVICE) -> str:
        return self.systemd.show(unit, "ActiveState")

    def has_runtime_directory(self) -> bool:
        """The control socket's folder is there; if so, it is the account's alone."""
        path = Path(f"{self.systemd.root}/run/strata-router")
        if not path.exists():
            return False
        assert path.stat().st_mode & 0o777 == 0o700
        return True

    def status_text(self) -> str:
        return self.systemd.show(SERVICE, "StatusText")

    async def ctl(self, *arguments: str) -> str:
        """``systemctl``, without holding up the clients of this event loop."""
        return await trio.to_thread.run_sync(self.systemd.ctl, *arguments)

    async def restart(self) -> None:
        await self.ctl("restart", SERVICE)


@asynccontextmanager
async def service(
    work: Path,
    models: Mapping[str, Mapping[str, Any]],
    config: Mapping[str, Any] | None = None,
    unit: Mapping[str, str | list[str]] | None = None,
) -> AsyncIterator[Service]:
    """A booted systemd with both units installed, nothing started. unit: keys over [Service]'s."""
    keys = {"require_socket_activation": True, **(config or {})}
    output = work / "daemon.log"
    output.touch()
    async with daemon(work, models, keys, start=False) as it:
        with PrivateSystemd(work, output) as systemd:
            yield _install(Service(systemd, it), unit or {})


def _install(it: Service, unit: Mapping[str, str | list[str]]) -> Service:
    systemd, work = it.systemd, it.daemon.directory
    _make_account(systemd)
    for name in (SOCKET, SERVICE):
        shutil.copy(CONTRIB / name, systemd.units)
    systemd.drop_in(SOCKET, Socket={"ListenStream": ["", it.daemon.config["listen"]]})
    command, folders = _program()
    if PROGRAM_VARIABLE not in os.environ:
        systemd.drop_in(SERVICE, Service={"Environment": f"PYTHONPATH={ROOT}"})
    systemd.drop_in(
        SERVICE,
        Service={
            "ExecStart": ["", f"{command} daemon {work}/config.json"],
            # What the program is made of may lie in a home directory, and the tests' files in /tmp.
            "ProtectHome": "tmpfs",
            "BindReadOnlyPaths": " ".join(map(str, folders)),
            "BindPaths": str(work),
            "ReadWritePaths": ["", str(work)],
            **unit,
        },
    )
    systemd.ctl("daemon-reload")
    it.write_config()
    for path in (work, *work.glob("strata-*.json")):
        it.give_to_account(path)
    it.daemon.config["control_socket"] = f"{systemd.root}{INNER_CONTROL_SOCKET}"
    return it


def _make_account(systemd: PrivateSystemd) -> None:
    """The command of docs/deployment.md, taken from there."""
    guide = (ROOT / "docs" / "deployment.md").read_text()
    command = re.search(r"^useradd .*$", guide, re.MULTILINE)
    assert command is not None
    systemd.run(*command.group().split())


def _program() -> tuple[str, list[Path]]:
    """The command line's beginning, and the folders that it needs."""
    installed = os.environ.get(PROGRAM_VARIABLE)
    if installed is None:
        prefixes = {Path(sys.prefix), Path(sys.base_prefix)}
        return f"{sys.executable} -m strata_router", sorted({ROOT, *prefixes})
    interpreter = Path(installed).read_text().splitlines()[0].removeprefix("#!").split()[0]
    asked = subprocess.run(
        [interpreter, "-c", "import sys; print(sys.prefix); print(sys.base_prefix)"],
        capture_output=True,
        text=True,
        check=True,
    )
    prefixes = set(map(Path, asked.stdout.splitlines()))
    # The simulated engine is this checkout's, run by this interpreter.
    ours = {ROOT, Path(sys.prefix), Path(sys.base_prefix)}
    return installed, sorted({Path(installed).parent, *prefixes, *ours})
