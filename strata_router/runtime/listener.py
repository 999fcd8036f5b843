"""The one listening socket: adopted from a service manager, or bound by us on loopback.

An activation that is present but wrong is an error and never falls back to binding: two listeners on
two addresses would be worse than none. Who accepts on it is ``runtime.http.server``'s business.
Called once by ``runtime.daemon``, before anything is started. Source: design, "Service deployment";
contract 11; sd_listen_fds(3).
"""

import os
import socket
from collections.abc import MutableMapping
from dataclasses import dataclass

from strata_router.core.config.schema import ListenAddress
from strata_router.runtime import procfs

FIRST_FD = 3
"""Where the passed descriptors begin (sd_listen_fds(3))."""

BACKLOG = 4096
"""The kernel caps it at net.core.somaxconn; clients wait there, so it should not be small."""

ACTIVATION_VARIABLES = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PIDFDID")


class ListenerError(Exception):
    """The listener cannot be had; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Listener:
    """sock: listening, non-blocking, close-on-exec. adopted: it belongs to a service manager, which
    keeps it open beyond this process."""

    sock: socket.socket
    adopted: bool


def open_listener(
    address: ListenAddress, require_activation: bool, environment: MutableMapping[str, str]
) -> Listener:
    """Adopt or bind. Removes the activation variables from the environment. Raises ListenerError."""
    found = [environment.pop(name, None) for name in ACTIVATION_VARIABLES]
    if any(value is not None for value in found):
        pid, count, *_ = found
        return Listener(_adopt(address, pid, count), adopted=True)
    if require_activation:
        raise ListenerError(
            "require_socket_activation is true, but no socket was passed; start the .socket unit, "
            "which starts this service"
        )
    return Listener(_bind(address), adopted=False)


def _bind(address: ListenAddress) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address.host, address.port))
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError as exc:
        sock.close()
        raise ListenerError(_bind_failure(address, exc)) from exc
    return sock


def _bind_failure(address: ListenAddress, failure: OSError) -> str:
    text = f"cannot listen on {address}: {(failure.strerror or 'not possible').lower()}"
    holder = procfs.port_holder(address.port)
    if holder is None:
        return f"{text}; choose another 'listen'"
    return f"{text}, held by {holder}; stop it or choose another 'listen'"


def _adopt(address: ListenAddress, pid: str | None, count: str | None) -> socket.socket:
    if pid != str(os.getpid()):
        raise ListenerError(
            "LISTEN_PID does not name this process: the socket was passed to another one; start the "
            "daemon itself, not a program that starts it, or unset LISTEN_PID and LISTEN_FDS"
        )
    if count != "1":
        raise ListenerError(
            "LISTEN_FDS must be 1: exactly one socket is adopted; the .socket unit needs exactly one "
            "ListenStream"
        )
    try:
        # Passed descriptors come without close-on-exec; the engine must never inherit this one.
        os.set_inheritable(FIRST_FD, False)
        sock = socket.socket(fileno=FIRST_FD)
    except OSError as exc:
        raise ListenerError(f"LISTEN_FDS is set, but descriptor {FIRST_FD} is no socket") from exc
    problem = _unfit(sock, address)
    if problem is not None:
        sock.close()
        raise ListenerError(problem)
    # Not listen() again: that would set the backlog anew, for the service manager too (reports.md B26).
    sock.setblocking(False)
    return sock


def _unfit(sock: socket.socket, address: ListenAddress) -> str | None:
    """Why the passed socket is not the one that ``listen`` names; None when it is."""
    if sock.type != socket.SOCK_STREAM or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return (
            "the passed socket is no TCP socket; the .socket unit needs "
            f"ListenStream={address} and nothing else"
        )
    if not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return "the passed socket does not listen; the .socket unit needs Accept=no"
    host, port = sock.getsockname()[:2]
    if (host, port) != (address.host, address.port):
        return (
            f"the passed socket listens on {ListenAddress(host, port)}, but 'listen' says {address}; "
            "make ListenStream and 'listen' the same"
        )
    return None
