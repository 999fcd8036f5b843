"""A real systemd for one test: PID 1 of namespaces of its own, with units that the test writes.

Needs root, a cgroup2 mount and Debian's systemd and util-linux; no D-Bus, no journal, no network. The
network namespace is the host's, so a test reaches the units' sockets on loopback. /run, /var and the
cgroups are private, writes to /etc and /tmp are thrown away, and everything ends with the block. What
makes this work is in RESEARCH.md, "systemd".

    with PrivateSystemd(tmp_path, tmp_path / "output.log") as systemd:
        (systemd.units / "x.service").write_text(...)
        systemd.ctl("start", "x.service")
"""

import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

SYSTEMD = Path("/lib/systemd/systemd")
BOOT_S = 20.0
CTL_S = 120.0
"""One systemctl call; a restart waits for the whole drain of the old process."""

TARGETS = ("boot", "sysinit", "basic", "sockets", "shutdown", "multi-user", "network")
"""What units may name. The stock ones would pull in the whole machine."""

PRIVATE = ("/run", "/var/lib", "/var/log", "/var/cache")
UNCHANGED = ("/etc", "/tmp", "/var/tmp")

ISOLATE = (
    # If the test is killed, so is unshare, and with it PID 1 and all below it.
    *("setpriv", "--pdeathsig", "SIGKILL"),
    *("unshare", "--pid", "--mount", "--uts", "--ipc", "--fork", "--kill-child"),
    *("--propagation", "private"),
)

# The cgroup namespace is made last and from within a cgroup of our own, which becomes its root; else
# systemd takes the host's root for its own and tries to move the processes there.
ENTER_CGROUP = 'echo 0 > "$CGROUP/cgroup.procs" && exec unshare --cgroup sh -eu -c "$0"'

BOOT = "\n".join(
    [
        "mount -t proc proc /proc",
        # PID 1 would raise fs.file-max and fs.nr_open for the whole host.
        "mount --bind /proc/sys /proc/sys",
        "mount -o remount,ro,bind /proc/sys",
        # Without the version 1 hierarchies, so that nothing can be left in them.
        "umount --recursive /sys/fs/cgroup",
        "mount -t cgroup2 cgroup2 /sys/fs/cgroup",
        *(f"mount -t tmpfs -o mode=755 tmpfs {path}" for path in PRIVATE),
        # The shared folder may lie below /tmp, so it is kept aside while that is covered.
        'mkdir /run/shared && mount --bind "$SHARED" /run/shared',
        *(
            line
            for path in UNCHANGED
            for line in (
                f"mkdir -p /run/over{path}/upper /run/over{path}/scratch",
                f"chmod --reference={path} /run/over{path}/upper",
                f"mount -t overlay -o lowerdir={path},upperdir=/run/over{path}/upper,"
                f"workdir=/run/over{path}/scratch overlay {path}",
            )
        ),
        'mount --bind /run/shared "$SHARED" && umount /run/shared',
        # PID 1 logs to a plain file: the first thing to read when something went wrong.
        'mount --bind "$SHARED/systemd/pid1.log" /dev/kmsg',
        "mount --bind /dev/null /dev/console",
        f"exec {SYSTEMD} --system --unit=boot.target --log-target=kmsg --show-status=no",
    ]
)


@cache
def unsupported() -> str | None:
    """Why this machine cannot do it; None when it can."""
    if os.geteuid() != 0:
        return "a private systemd needs root"
    if cgroup2() is None:
        return "a private systemd needs a cgroup2 mount"
    missing = [name for name in ("unshare", "nsenter", "setpriv") if shutil.which(name) is None]
    if missing or not SYSTEMD.exists():
        return f"a private systemd needs {' '.join(missing) or SYSTEMD}"
    probe = subprocess.run(
        [*ISOLATE, "unshare", "--cgroup", "true"], capture_output=True, check=False
    )
    return "namespaces are not allowed here" if probe.returncode else None


def cgroup2() -> Path | None:
    """Where the cgroup2 hierarchy is mounted."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, mount_point, kind, *_ = line.split()
        if kind == "cgroup2":
            return Path(mount_point)
    return None


class SystemdFailed(AssertionError):
    """A call to systemctl failed, or systemd did not come up; the text has PID 1's last words."""


class PrivateSystemd:
    """shared: the one folder that both sides see and write. output: what all services print, in there.

    units: its whole unit search path. log: PID 1's own.
    """

    def __init__(self, shared: Path, output: Path) -> None:
        self.shared = shared
        self.output = output
        self.units = shared / "systemd" / "units"
        self.log = shared / "systemd" / "pid1.log"
        self._cgroup: Path | None = None
        self._unshare: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.units.mkdir(parents=True)
        self.log.touch()
        for target in TARGETS:
            (self.units / f"{target}.target").write_text("[Unit]\n")
        self.drop_in("service", Service={"StandardOutput": f"append:{self.output}"})
        mount_point = cgroup2()
        assert mount_point is not None
        self._cgroup = mount_point / f"strata-router-test-{os.getpid()}-{time.monotonic_ns()}"
        self._cgroup.mkdir()
        environment = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "SHARED": str(self.shared),
            "CGROUP": str(self._cgroup),
            # A container has no hardware, terminals or kernel settings of its own to look after.
            "container": "strata-router-test",
            "SYSTEMD_UNIT_PATH": str(self.units),
            "SYSTEMD_GENERATOR_PATH": "/nonexistent",
            "SYSTEMD_ENVIRONMENT_GENERATOR_PATH": "/nonexistent",
        }
        with self.log.open("ab") as log:
            self._unshare = subprocess.Popen(
                [*ISOLATE, "sh", "-eu", "-c", ENTER_CGROUP, BOOT],
                env=environment,
                stdin=subprocess.DEVNULL,
                stderr=log,
            )
        try:
            self._wait_running(self._unshare)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end()

    def _wait_running(self, unshare: "subprocess.Popen[bytes]") -> None:
        end_s = time.monotonic() + BOOT_S
        while True:
            # Only once the child is systemd itself: before, an answer would be the host's.
            if self._pid1() is not None and self._is_running():
                return
            if unshare.poll() is not None or time.monotonic() > end_s:
                raise SystemdFailed(f"systemd did not come up:\n{self.last_words()}")
            time.sleep(0.01)

    def _is_running(self) -> bool:
        state = self.run("systemctl", "is-system-running", check=False).stdout.strip()
        return state in ("running", "degraded")

    def _pid1(self) -> int | None:
        assert self._unshare is not None
        outer = self._unshare.pid
        try:
            children = Path(f"/proc/{outer}/task/{outer}/children").read_text().split()
            name = Path(f"/proc/{children[0]}/comm").read_text().strip()
        except (OSError, IndexError):
            return None
        return int(children[0]) if name == "systemd" else None

    def _end(self) -> None:
        assert self._unshare is not None
        assert self._cgroup is not None
        self._unshare.kill()
        self._unshare.wait()
        end_s = time.monotonic() + BOOT_S
        while self._cgroup.exists() and time.monotonic() < end_s:
            for directory, _, _ in os.walk(self._cgroup, topdown=False):
                with suppress(OSError):  # a killed process is still on its way out
                    os.rmdir(directory)
            time.sleep(0.005)

    # ---- what a test does ----------------------------------------------------------------------

    @property
    def root(self) -> Path:
        """The namespace's root directory as seen from here."""
        return Path(f"/proc/{self._pid1()}/root")

    def run(self, *command: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        """Run a command inside. Raises SystemdFailed."""
        done = subprocess.run(
            ["nsenter", "--all", "--root", "--target", str(self._pid1()), *command],
            text=True,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=CTL_S,
            check=False,
        )
        if check and done.returncode:
            raise SystemdFailed(f"{' '.join(command)}: {done.stderr}\n{self.last_words()}")
        return done

    def ctl(self, *arguments: str, check: bool = True) -> str:
        """``systemctl ARGUMENTS``; what it prints. Raises SystemdFailed."""
        return self.run("systemctl", "--no-pager", *arguments, check=check).stdout.strip()

    def show(self, unit: str, name: str) -> str:
        """One property of a unit."""
        return self.ctl("show", "--value", "--property", name, unit)

    def drop_in(self, unit: str, **sections: Mapping[str, str | list[str]]) -> None:
        """Change a unit before it is loaded. A list gives one line per value; "" empties a list first."""
        directory = self.units / f"{unit}.d"
        directory.mkdir(exist_ok=True)
        lines = []
        for section, keys in sections.items():
            lines.append(f"[{section}]")
            for key, values in keys.items():
                lines += [
                    f"{key}={value}" for value in ([values] if isinstance(values, str) else values)
                ]
        (directory / f"{unit}-{len(list(directory.iterdir()))}.conf").write_text(
            "\n".join(lines) + "\n"
        )

    def pids(self, unit: str) -> list[int]:
        """All processes in the unit's cgroup, with the numbers they have outside."""
        assert self._cgroup is not None
        name = self.show(unit, "ControlGroup")
        if not name:
            return []
        found = []
        for path in (self._cgroup / name.lstrip("/")).rglob("cgroup.procs"):
            with suppress(OSError):
                found += [int(pid) for pid in path.read_text().split()]
        return found

    def main_pid(self, unit: str) -> int | None:
        """The unit's main process, with the number it has outside."""
        inside = self.show(unit, "MainPID")
        for pid in self.pids(unit):
            with suppress(OSError):
                status = Path(f"/proc/{pid}/status").read_text()
                numbers = next(line for line in status.splitlines() if line.startswith("NSpid:"))
                if numbers.split()[-1] == inside:
                    return pid
        return None

    def last_words(self) -> str:
        """The ends of both logs."""
        logs = [
            path.read_text(errors="replace") for path in (self.log, self.output) if path.exists()
        ]
        return "\n---\n".join(text[-2000:] for text in logs)
