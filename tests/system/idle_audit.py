"""What a daemon may still hold when no client is connected: nothing but its engine.

Read from /proc, from one answer of ``status`` and from what ``watched_daemon`` says of the tasks;
``harness.daemon`` calls it at the end of every test.
Source: reliability.md, invariant 3; issue 9, "Resource audit".
"""

from collections import Counter
from pathlib import Path
from typing import Any

from tests.system import proc_figures

DESCRIPTORS = 20
"""Of an idle daemon 11, of its engine and guard 3 (6 while one follows another), and the record file."""


STANDING_TASKS = frozenset(
    {
        "control_socket.ControlServer.serve",
        "coordinator.Coordinator.run",
        "daemon.Daemon._end_at_second_signal",
        "daemon.Daemon._serve",
        "daemon.Daemon.run",
        "engine_log.keep_bounded",
        "engine_supervisor.EngineSupervisor.run",
        "http.pump.Pump.run",
        "http.watcher.DisconnectWatcher.run",
        "record_log.RecordLog.run",
        "service_manager.ServiceManager.run",
        "timers.Timers.run",
    }
)
"""What a daemon consists of. A new task of its own comes into this list; a client's never does."""

ENGINE_TASKS = frozenset(
    {
        "engine_process.EngineProcess._watch_engine",
        "engine_process._oversee",
        "engine_supervisor.EngineSupervisor._watch",
    }
)

CLIENT_TASK = "http.server.Server.serve"

THREADS = 2
"""The daemon's one, and perhaps the record log's, which may be writing the last line. Worker threads end
after a second here; see ``watched_daemon.THREAD_IDLE_S``."""


def held(
    pid: int, port: int, engine_port: int, status: dict[str, Any], tasks: list[str]
) -> list[str]:
    """A sentence per thing that is held and should not be. port: the daemon's. tasks: their names."""
    has_engine = status["child_pid"] is not None
    found = [
        f"{name} is {status[name]}" for name in ("in_flight", "queue_depth") if status[name] != 0
    ]
    upstream = engine_connections(pid, engine_port)
    if upstream:
        found.append(f"{upstream} connections to the engine's port {engine_port}")
    found += _children_held(_children(pid), has_engine=has_engine)
    found += _tasks_held(tasks, _clients_connected(pid, port), has_engine=has_engine)
    threads = proc_figures.threads(pid)
    if threads > THREADS:
        found.append(f"{threads} threads")
    descriptors = proc_figures.descriptors(pid)
    if descriptors > DESCRIPTORS:
        found.append(f"{descriptors} descriptors")
    return found


def _children_held(commands: list[bytes], *, has_engine: bool) -> list[str]:
    """An engine's guard is the one child that a daemon has."""
    guards = sum(b"guard.py" in command for command in commands)
    found = []
    if guards > has_engine:
        found.append(f"{guards} guards, with{'' if has_engine else 'out'} an engine")
    if guards < len(commands):
        strangers = [command for command in commands if b"guard.py" not in command]
        found.append(f"children that are no guard: {strangers}")
    return found


def _tasks_held(names: list[str], clients: int, *, has_engine: bool) -> list[str]:
    """There is one task of each kind at most, and one per client that is still there (a browser, say)."""
    left = Counter(name.removeprefix("strata_router.runtime.") for name in names)
    left.subtract(STANDING_TASKS)
    left.subtract(ENGINE_TASKS if has_engine else ())
    left.subtract({CLIENT_TASK: clients})
    return [f"{count} tasks {name}" for name, count in (+left).items()]


def engine_connections(pid: int, engine_port: int) -> int:
    """The process's TCP connections to that port of the loopback address."""
    remote = _loopback(engine_port)
    return _owned(pid, {row[9] for row in _tcp_rows(pid) if row[2] == remote})


def _clients_connected(pid: int, port: int) -> int:
    """The process's connections on that port whose other end has not been closed."""
    ours, established = _loopback(port), "01"
    rows = _tcp_rows(pid)
    return _owned(pid, {row[9] for row in rows if (row[1], row[3]) == (ours, established)})


def _loopback(port: int) -> str:
    return f"0100007F:{port:04X}"


def _tcp_rows(pid: int) -> list[list[str]]:
    return [row.split() for row in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]


def _owned(pid: int, inodes: set[str]) -> int:
    """How many of these sockets are the process's."""
    if not inodes:
        return 0
    files = proc_figures.open_files(pid)
    return sum(f"socket:[{inode}]" in files for inode in inodes)


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
