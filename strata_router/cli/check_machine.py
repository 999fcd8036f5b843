"""What a configuration would meet on this machine: its socket, logs, programs and ports.

Each look gives words for the report of ``check``, and says what would follow: that the daemon would
refuse to start, or that something would not work although it starts. Looks as the user that runs the
command; changes nothing, but calls a daemon that listens on the control socket, and for an instant
takes a free port and an unlocked log's lock. How a verdict is made of it is ``cli.check``'s.
"""

import errno
import fcntl
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path

from strata_router.core.config import Config, EngineKindName
from strata_router.core.record.schema import LINE_START
from strata_router.core.socket_path import default_socket_path
from strata_router.runtime import procfs
from strata_router.runtime.control_endpoint import (
    ControlSocketInUseError,
    ControlSocketRefusedError,
    examine_endpoint,
)

_FOR_OTHERS = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True, slots=True)
class Look:
    """words: for the report. refusal: why the daemon would not start. lack: what it would start
    without. in_use: what is wrong is that a living process has it."""

    words: str
    refusal: str | None = None
    lack: str | None = None
    in_use: bool = False


@dataclass(frozen=True, slots=True)
class Machine:
    """programs: by label, ``python``, ``strata_dir``, ``engine NAME``; those that are configured."""

    socket: Look
    request_log: Look
    engine_log: Look
    programs: dict[str, Look]
    listen: Look
    backend: Look

    @property
    def startup(self) -> tuple[Look, ...]:
        """What the daemon needs or uses before any model."""
        return (self.listen, self.socket, self.request_log, self.engine_log)


def look_around(config: Config) -> Machine:
    return Machine(
        socket=_socket(config),
        request_log=_request_log(config.request_log_path),
        engine_log=_engine_log(config.engine_log_path),
        programs=_programs(config),
        listen=_listen(config),
        backend=_backend(config.backend_port),
    )


def engine_fault(config: Config, machine: Machine, engine: str) -> str | None:
    """Why no process of this engine could be started; None where nothing is known against it."""
    if config.engines[engine].kind is EngineKindName.STRATA:
        labels = ["python", "strata_dir"]
    else:
        labels = [f"engine {engine}"]
    looks = (machine.programs[label] for label in labels if label in machine.programs)
    return next((look.lack for look in looks if look.lack is not None), None)


def _socket(config: Config) -> Look:
    path = config.control_socket
    directory = os.path.dirname(path)
    if config.require_socket_activation and not os.path.lexists(directory):
        # RuntimeDirectory= makes it when the service starts, and removes it when it ends.
        return Look(
            f"{directory} is not there yet; the service's unit makes it, or: "
            f"install -d -m 700 {directory}"
        )
    try:
        return Look(examine_endpoint(path, default_socket_path(os.environ.get("XDG_RUNTIME_DIR"))))
    except ControlSocketRefusedError as refused:
        why = str(refused)
        in_use = isinstance(refused, ControlSocketInUseError)
        return Look(why.removeprefix("control socket directory "), refusal=why, in_use=in_use)


def _request_log(path: str | None) -> Look:
    if path is None:
        return Look("off")
    try:
        status = _regular(path)
        if status is not None and _is_foreign(path):
            raise _NotOursError("holds something else than records; give another path")
        if _is_locked(f"{path}.lock"):
            why = f"{path} is written by another process; give each daemon its own path"
            return Look(why, refusal=f"request_log_path: {why}", in_use=True)
    except _NotOursError as fault:
        return Look(f"{path} {fault}", refusal=f"request_log_path: {path} {fault}")
    except OSError as failure:
        return _no_log(path, f"cannot be used: {failure.strerror}", "no records on disk")
    return _private_log(path, status, "no records on disk")


def _engine_log(path: str | None) -> Look:
    if path is None:
        return Look("off")
    without = "no output of engines"
    try:
        status = _regular(path)
    except _NotOursError as fault:
        return _no_log(path, str(fault), without)
    except OSError as failure:
        return _no_log(path, f"cannot be used: {failure.strerror}", without)
    return _private_log(path, status, without)


class _NotOursError(Exception):
    """What lies at the path is no file that the daemon would write."""


def _regular(path: str) -> os.stat_result | None:
    """None: nothing is there. Raises _NotOursError for what is no regular file, and OSError."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(status.st_mode):
        raise _NotOursError("is a symbolic link; give the path of the file itself")
    if not stat.S_ISREG(status.st_mode):
        raise _NotOursError("is not a regular file; give the path of a file")
    return status


def _is_foreign(path: str) -> bool:
    """As ``runtime.record_file`` judges, which opens it for reading and writing. Raises OSError."""
    with open(path, "rb") as file:
        head = file.read(len(LINE_START))
    return bool(head.strip(b"\0")) and not LINE_START.startswith(head)


def _is_locked(path: str) -> bool:
    try:
        lock = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _private_log(path: str, status: os.stat_result | None, without: str) -> Look:
    if status is None:
        return _new_log(Path(path), without)
    if not os.access(path, os.W_OK):
        return _no_log(path, f"is not writable by uid {os.geteuid()}", without)
    if status.st_mode & _FOR_OTHERS:
        return Look(f"{path} has mode {_mode(status)}: chmod 600 {path}")
    return Look(f"{path} is writable, mode {_mode(status)}")


def _new_log(path: Path, without: str) -> Look:
    try:
        status = path.parent.stat()
    except OSError as failure:
        return _no_log(str(path), f"cannot be made: its directory: {failure.strerror}", without)
    if not os.access(path.parent, os.W_OK | os.X_OK):
        why = f"cannot be made: its directory is not writable by uid {os.geteuid()}"
        return _no_log(str(path), why, without)
    return Look(f"{path} will be made, mode 0600, in a directory of mode {_mode(status)}")


def _no_log(path: str, why: str, without: str) -> Look:
    return Look(f"{path} {why}", lack=f"{without}: {path} {why}")


def _mode(status: os.stat_result) -> str:
    return f"{stat.S_IMODE(status.st_mode):04o}"


def _programs(config: Config) -> dict[str, Look]:
    looks = {}
    if config.python is not None:
        looks["python"] = _program("python", config.python)
    if config.strata_dir is not None:
        looks["strata_dir"] = _checkout(config.strata_dir)
    for engine in config.engines.values():
        if engine.command is not None:
            label = f"engine {engine.name}"
            looks[label] = _program(label, engine.command)
    return looks


def _program(label: str, path: str) -> Look:
    fault = _file_fault(path)
    if fault is None and not os.access(path, os.X_OK):
        fault = f"is not executable by uid {os.geteuid()}: chmod +x {path}"
    if fault is not None:
        return Look(f"{path} {fault}", lack=f"{label} {path} {fault}")
    return Look(f"{path} is executable")


def _checkout(directory: str) -> Look:
    fault = _file_fault(os.path.join(directory, "serve", "server.py"))
    if fault is None:
        return Look(f"{directory} has serve/server.py")
    if fault == _MISSING:
        why = f"{directory} has no serve/server.py: not a Strata checkout"
    else:
        why = f"{directory}/serve/server.py {fault}"
    return Look(why, lack=f"strata_dir {why}")


_MISSING = "is missing"


def _file_fault(path: str) -> str | None:
    """Why there is no file to use at the path."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return _MISSING
    except OSError as failure:
        return f"cannot be reached by uid {os.geteuid()}: {failure.strerror}"
    return None if stat.S_ISREG(status.st_mode) else "is not a file"


def _listen(config: Config) -> Look:
    holder = procfs.port_holder(config.listen.port)
    words = "free" if holder is None else f"held by {holder}"
    by_service_manager = holder is not None and holder.name == "systemd"
    if config.require_socket_activation or by_service_manager:
        return Look(words)
    failure = _bind_failure(config)
    if failure is None:
        return Look(words)
    if failure.errno == errno.EADDRINUSE:
        held = (
            f"port {config.listen.port} is held by {holder or 'a process that just came or went'}"
        )
        return Look(words, refusal=held, in_use=True)
    why = f"{config.listen} cannot be listened on: {failure.strerror}"
    return Look(f"cannot be listened on: {failure.strerror}", refusal=why)


def _bind_failure(config: Config) -> OSError | None:
    """The kernel's answer to the daemon's bind. A port that is bound, not listened on, is in nobody's
    way who binds it as the daemon does."""
    family = socket.AF_INET6 if ":" in config.listen.host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((config.listen.host, config.listen.port))
    except OSError as failure:
        return failure
    return None


def _backend(port: int) -> Look:
    holder = procfs.port_holder(port)
    if holder is None:
        return Look("free")
    held = f"held by {holder}"
    return Look(held, lack=f"no model can be loaded while port {port} is {held}", in_use=True)
