"""What a daemon may still hold when no client is connected: nothing but its engine.

Read from /proc and from one answer of ``status``; ``harness.daemon`` calls it at the end of every test.
Source: reliability.md, invariant 3; issue 9, "Resource audit".
"""

from pathlib import Path
from typing import Any

from tests.system import proc_figures

DESCRIPTORS = 20
"""Of an idle daemon 11, of its engine and guard 3 (6 while one follows another), and the record file."""


def held(pid: int, engine_port: int, status: dict[str, Any]) -> list[str]:
    """A sentence per thing that is held and should not be."""
    found = [
        f"{name} is {status[name]}" for name in ("in_flight", "queue_depth") if status[name] != 0
    ]
    connections = engine_connections(pid, engine_port)
    if connections:
        found.append(f"{connections} connections to the engine's port {engine_port}")
    strangers = [command for command in _children(pid) if b"guard.py" not in command]
    if strangers:
        found.append(f"children that are no guard: {strangers}")
    descriptors = proc_figures.descriptors(pid)
    if descriptors > DESCRIPTORS:
        found.append(f"{descriptors} descriptors")
    return found


def engine_connections(pid: int, engine_port: int) -> int:
    """The process's TCP connections to that port of the loopback address."""
    remote = f"0100007F:{engine_port:04X}"
    rows = Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
    inodes = {columns[9] for columns in map(str.split, rows) if columns[2] == remote}
    if not inodes:
        return 0
    return sum(f"socket:[{inode}]" in proc_figures.open_files(pid) for inode in inodes)


def _children(pid: int) -> list[bytes]:
    """Command lines of the process's children; an ended one that is not reaped yet has an empty one."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            children = (task / "children").read_text().split()
        except (FileNotFoundError, ProcessLookupError):  # a thread that has ended meanwhile
            continue
        for child in children:
            try:
                found.append(Path(f"/proc/{child}/cmdline").read_bytes())
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found
