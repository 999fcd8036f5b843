"""Talks to a running daemon over its control socket, with plain blocking calls.

What is printed is the caller's business; failures come out as ``CommandFailedError`` with the line
to print. Source: design document, "Control the existing daemon"; contract 10.
"""

import contextlib
import os
import pwd
import socket
import stat
from collections.abc import Callable, Iterator
from typing import Any

import orjson

from strata_router.cli.outcome import CommandFailedError, ExitStatus
from strata_router.cli.socket_choice import ENVIRONMENT_VARIABLE, Choice
from strata_router.core.control import (
    SYSTEM_SOCKET_PATH,
    UNKNOWN_COMMAND,
    Done,
    Off,
    On,
    Progress,
    Rejected,
    Status,
    read_event,
)

STATUS_S = 10.0
"""How long ``status`` waits. The daemon answers at once or hangs; on and off have no such bound."""

_ANSWER_LIMIT_BYTES = 1024 * 1024


def fetch_status(choice: Choice) -> dict[str, Any]:
    """The daemon's answer to ``status``, parsed.

    Raises CommandFailedError: UNREACHABLE without a daemon that answers, FAILED for a wrong answer.
    """
    with _connect(choice, timeout_s=STATUS_S) as channel:
        try:
            channel.sendall(Status().to_line())
            answer = next(_lines(channel), b"")
        except TimeoutError as failure:
            raise CommandFailedError(
                ExitStatus.UNREACHABLE,
                f"a daemon listens on {choice.path} but did not answer within {STATUS_S:.0f} s; "
                "it hangs or was stopped: systemctl status strata-router",
            ) from failure
    try:
        status = orjson.loads(answer)
    except orjson.JSONDecodeError:
        status = None
    match status:
        case {"error": str(error)}:
            raise CommandFailedError(ExitStatus.FAILED, f"the daemon refused: {error}")
        case dict():
            return status
    raise CommandFailedError(
        ExitStatus.FAILED,
        f"what listens on {choice.path} does not answer like a strata-router daemon",
    )


def operate(
    choice: Choice, command: Off | On, tell: Callable[[Progress], None]
) -> tuple[Done, bytes]:
    """Have the daemon carry out an operation; ends with it, however long that takes.

    tell: gets every progress event. Returns the outcome and the daemon's final line, newline
    included. Leaving early (an exception, Ctrl-C) closes the connection, which cancels the
    operation. Raises CommandFailedError when there is no final event.
    """
    with _connect(choice, timeout_s=None) as channel:
        # A daemon that refuses and closes while we send has still told us why.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            channel.sendall(command.to_line())
        for line in _lines(channel):
            match read_event(line):
                case Progress() as progress:
                    tell(progress)
                case Done() as done:
                    return done, line
                case Rejected(error):
                    raise _rejection(command, error)
    raise CommandFailedError(
        ExitStatus.FAILED,
        f"the daemon closed the connection before '{command.op}' was finished; see how things "
        "stand: strata-router status",
    )


def _rejection(command: Off | On, error: str) -> CommandFailedError:
    if error == UNKNOWN_COMMAND:
        error = (
            f"the running daemon is older than this command and does not know '{command.op}'; "
            "restart it after the upgrade: systemctl restart strata-router"
        )
    else:
        error = f"the daemon refused '{command.op}': {error}"
    return CommandFailedError(ExitStatus.FAILED, error)


def _lines(channel: socket.socket) -> Iterator[bytes]:
    """Complete lines until the daemon closes or resets the connection."""
    with channel.makefile("rb") as incoming, contextlib.suppress(ConnectionResetError):
        while (line := incoming.readline(_ANSWER_LIMIT_BYTES)).endswith(b"\n"):
            yield line


def _connect(choice: Choice, timeout_s: float | None) -> socket.socket:
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    channel.settimeout(timeout_s)
    try:
        channel.connect(choice.path)
    except OSError as failure:
        channel.close()
        raise CommandFailedError(ExitStatus.UNREACHABLE, _unreachable(choice, failure)) from failure
    except BaseException:
        channel.close()
        raise
    return channel


def _unreachable(choice: Choice, failure: OSError) -> str:
    """Why nobody answers at the path, and what the operator can do about it."""
    path = choice.path
    match failure:
        case FileNotFoundError() | NotADirectoryError():
            return f"the daemon is not running: there is no control socket {path}{_hint(choice)}"
        case ConnectionRefusedError() if not _is_socket(path):
            return f"{path} is not a control socket; name the daemon's own"
        case ConnectionRefusedError():
            return (
                f"the daemon is not running: control socket {path} is stale, left by a daemon that "
                "was killed; make sure that it is dead, remove the file, start the service"
            )
        case PermissionError():
            return f"no permission to use control socket {path}{_owner_hint(path)}"
        case BlockingIOError():
            return f"the daemon at {path} accepts no connection: it hangs or was stopped"
    # For example a path that is too long, which has no errno and no strerror.
    return f"control socket {path} cannot be used: {failure.strerror or failure}"


def _hint(choice: Choice) -> str:
    if not choice.is_default:
        return ""
    if choice.path != SYSTEM_SOCKET_PATH and os.path.isdir(os.path.dirname(SYSTEM_SOCKET_PATH)):
        return f"; the system service has {SYSTEM_SOCKET_PATH}: give that as an argument"
    return f"; if it has another one, give its path or set {ENVIRONMENT_VARIABLE}"


def _owner_hint(path: str) -> str:
    with contextlib.suppress(OSError, KeyError):
        owner = pwd.getpwuid(os.stat(os.path.dirname(path)).st_uid).pw_name
        return f"; run this as {owner}, for example: sudo -u {owner} strata-router status {path}"
    return "; run this as the daemon's user or as root"


def _is_socket(path: str) -> bool:
    with contextlib.suppress(OSError):
        return stat.S_ISSOCK(os.stat(path).st_mode)
    return False
