"""Claims the control socket's path, and gives it back: whose directory, what lies there, who listens.

Everything here is synchronous and happens once, before the event loop has work; who is served on
the socket is ``runtime.control_socket``'s business. Called by ``runtime.daemon``; ``strata-router
check`` asks what would be found without claiming anything.

Nothing that exists at the path is ever removed: a live socket belongs to another daemon, a dead one
is evidence that a daemon was killed (its engine may still hold memory), and anything else is not
ours. The message says which and what to do. Source: design document, "Control the existing daemon".
"""

import contextlib
import os
import pwd
import socket
import stat
import struct
from dataclasses import dataclass
from types import TracebackType
from typing import Self

BACKLOG = 128
"""Connections the kernel keeps until accepted; more than an operator and a monitor ever open."""

PATH_LIMIT_BYTES = 107
"""What fits into sockaddr_un.sun_path before its closing NUL. Source: unix(7)."""

_PROBE_S = 1.0

_SHARED_PARENTS = ("/", "/dev", "/home", "/run/user", "/usr", "/var")
"""What lies directly in these is used by more than one program; nobody should get the advice to make
it private or to give it away."""


class ControlSocketRefusedError(Exception):
    """The path cannot be claimed; the text names the thing, what was found and the remedy."""


class ControlSocketInUseError(ControlSocketRefusedError):
    """A living daemon listens there."""


@dataclass(slots=True)
class ControlEndpoint:
    """A listening control socket that this process put there; close it, or use it as a context.

    listener: bound, listening, non-blocking, close-on-exec, mode 0600.
    """

    path: str
    listener: socket.socket
    _inode: tuple[int, int]

    def close(self) -> None:
        """Remove the socket file if it is still ours, then stop listening. Idempotent."""
        if self.listener.fileno() == -1:
            return
        # The bound socket keeps its inode in use, so the number cannot have been given to another
        # file yet: compare first, close afterwards. What cannot be removed (the directory is gone,
        # or read-only) must not keep the daemon from ending; the next start reports it.
        with contextlib.suppress(OSError):
            if _inode_at(self.path) == self._inode:
                os.unlink(self.path)
        self.listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def claim_endpoint(path: str, default_path: str) -> ControlEndpoint:
    """Check the directory and put a listening socket at ``path``.

    path: absolute. default_path: ``core.control.default_socket_path`` of this environment; only its
    own directory is made (0700) when missing, a configured one must exist.
    Raises ControlSocketRefusedError.
    """
    _refuse_long(path)
    directory = os.path.dirname(path)
    if path == default_path:
        _make_default_directory(directory)
    problem = directory_problem(directory)
    if problem is not None:
        raise ControlSocketRefusedError(problem)
    _refuse_what_exists(path)
    return _listen(path)


def examine_endpoint(path: str, default_path: str) -> str:
    """What ``claim_endpoint`` would find, in words; makes and removes nothing.

    A living daemon at the path is called, and sees a connection that says nothing.
    Raises ControlSocketRefusedError with what it would be refused for.
    """
    _refuse_long(path)
    directory = os.path.dirname(path)
    if path == default_path and _can_be_made(directory):
        return f"{directory} will be made, mode 0700"
    problem = directory_problem(directory)
    if problem is not None:
        raise ControlSocketRefusedError(problem)
    if not os.access(directory, os.W_OK | os.X_OK):
        raise ControlSocketRefusedError(
            f"control socket directory {directory} is not writable by {user_name(os.geteuid())}"
        )
    _refuse_what_exists(path)
    return f"{directory} is ours, and nothing is in the way"


def directory_problem(directory: str) -> str | None:
    """Why this directory may not hold the control socket of a daemon run by the calling user.

    None when it may: a directory that belongs to the user and that nobody else can enter.
    """
    user = os.geteuid()
    try:
        found = os.stat(directory)
    except PermissionError as failure:
        return (
            f"control socket directory {directory} cannot be reached by {user_name(user)}: "
            f"{failure.strerror}; let that user through the directories above it, or choose another "
            "control_socket"
        )
    except OSError as failure:
        return (
            f"control socket directory {directory} cannot be used: {failure.strerror}; create it "
            f"as the daemon's user with: install -d -m 700 {directory}"
        )
    if not stat.S_ISDIR(found.st_mode):
        return f"control socket directory {directory} is not a directory; move that file away"
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid != user:
        fault = (
            f"control socket directory {directory} belongs to {user_name(found.st_uid)}, but the "
            f"daemon runs as {user_name(user)}"
        )
        if _is_shared(directory, mode):
            return f"{fault}; {_own_directory(directory, user_name(user))}"
        return (
            f"{fault}; run it as {user_name(found.st_uid)}, or: chown {user_name(user)} {directory}"
        )
    if mode & 0o077:
        fault = (
            f"control socket directory {directory} has mode {mode:04o}; group and others must have "
            "no permission"
        )
        if _is_shared(directory, mode):
            return f"{fault}, and others use this one: {_own_directory(directory, None)}"
        return f"{fault}: chmod 700 {directory}"
    return None


def _is_shared(directory: str, mode: int) -> bool:
    """Whether the directory serves others too, so that its owner and mode must stay as they are."""
    real = os.path.realpath(directory)
    return (
        bool(mode & stat.S_ISVTX)
        or os.path.dirname(real) in _SHARED_PARENTS
        or real == os.path.realpath(os.path.expanduser("~"))
    )


def _own_directory(directory: str, owner: str | None) -> str:
    """The advice to leave a shared directory alone. owner: None where the reader is the owner."""
    own = os.path.join(directory, "strata-router")
    as_owner = f" -o {owner}" if owner else ""
    return (
        "give the socket a directory of its own, for example "
        f"{os.path.join(own, 'control.sock')} (install -d -m 700{as_owner} {own})"
    )


def user_name(uid: int) -> str:
    """The account's name, or ``uid 1234`` where there is none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _make_default_directory(directory: str) -> None:
    # Whatever hinders it (no parent, no permission, there already) is for directory_problem to say.
    with contextlib.suppress(OSError):
        os.mkdir(directory, 0o700)


def _can_be_made(directory: str) -> bool:
    return not os.path.lexists(directory) and os.access(
        os.path.dirname(directory), os.W_OK | os.X_OK
    )


def _refuse_long(path: str) -> None:
    length = len(os.fsencode(path))
    if length > PATH_LIMIT_BYTES:
        raise ControlSocketRefusedError(
            f"control socket path {path} has {length} bytes; Linux allows at most "
            f"{PATH_LIMIT_BYTES}: choose a shorter control_socket"
        )


def _refuse_what_exists(path: str) -> None:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    except OSError as failure:
        raise ControlSocketRefusedError(
            f"control socket path {path} cannot be examined: {failure.strerror}"
        ) from failure
    if not stat.S_ISSOCK(found.st_mode):
        raise ControlSocketRefusedError(
            f"{path} is {_kind(found.st_mode)}, not a socket, and was left alone; move it away or "
            "choose another control_socket"
        )
    _refuse_socket(path)


def _refuse_socket(path: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_S)
        try:
            probe.connect(path)
            owner = _listening_process(probe)
        except ConnectionRefusedError as failure:
            raise ControlSocketRefusedError(
                f"stale control socket {path}: nobody listens on it, so the daemon that made it "
                "was probably killed. First make sure that it is dead "
                "(systemctl status strata-router; pgrep -af 'strata-router daemon'), "
                f"then: rm {path}"
            ) from failure
        except OSError:
            # Not refused: somebody listens, with a full backlog or for another user only.
            owner = ""
    raise ControlSocketInUseError(
        f"another daemon{owner} listens on control socket {path} and was left alone; stop it "
        "first, or give this one another control_socket"
    )


def _listening_process(probe: socket.socket) -> str:
    # The kernel notes who called listen(), so even a daemon that hangs is named.
    credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, _, _ = struct.unpack("3i", credentials)
    # 0: a process of another pid namespace, which has no number here.
    return f" (pid {pid})" if pid else ""


def _listen(path: str) -> ControlEndpoint:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # The umask makes the mode right from the first instant; it belongs to the whole process, which
    # has one thread at this point.
    umask = os.umask(0o177)
    try:
        listener.bind(path)
    except OSError as failure:
        listener.close()
        raise ControlSocketRefusedError(
            f"control socket {path} cannot be made: {failure.strerror}"
        ) from failure
    finally:
        os.umask(umask)
    listener.listen(BACKLOG)
    listener.setblocking(False)
    return ControlEndpoint(path, listener, _inode_at(path))


def _inode_at(path: str) -> tuple[int, int]:
    found = os.lstat(path)
    return found.st_dev, found.st_ino


def _kind(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "a directory"
    if stat.S_ISLNK(mode):
        return "a symbolic link"
    if stat.S_ISREG(mode):
        return "a regular file"
    return "a special file"
