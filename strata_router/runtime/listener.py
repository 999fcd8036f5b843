"""The one listening socket: adopted from systemd, or bound by us on loopback.

An activation that is present but wrong is an error and never falls back to binding: two listeners on
two addresses would be worse than none. Source: design, "Service deployment"; contract 11.
"""

import os
import socket
from collections.abc import MutableMapping
from dataclasses import dataclass

from strata_router.core.config.schema import ListenAddress

FIRST_FD = 3
BACKLOG = 4096
"""The kernel caps it at net.core.somaxconn; clients wait there, so it should not be small."""

ACTIVATION_VARIABLES = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")


class ListenerError(Exception):
    """The listener cannot be had; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Listener:
    """adopted: it belongs to a service manager, which keeps it open beyond this process."""

    sock: socket.socket
    adopted: bool


def open_listener(
    address: ListenAddress, require_activation: bool, environment: MutableMapping[str, str]
) -> Listener:
    """Adopt or bind. Removes the activation variables from the environment. Raises ListenerError."""
    values = {name: environment.pop(name, None) for name in ACTIVATION_VARIABLES}
    if values["LISTEN_PID"] is None and values["LISTEN_FDS"] is None:
        if require_activation:
            raise ListenerError(
                "require_socket_activation is true, but no socket was passed; start the .socket unit"
            )
        return Listener(_bind(address), adopted=False)
    return Listener(_adopt(address, values["LISTEN_PID"], values["LISTEN_FDS"]), adopted=True)


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
        reason = (exc.strerror or "not possible").lower()
        raise ListenerError(f"cannot listen on {address.host}:{address.port}: {reason}") from exc
    return sock


def _adopt(address: ListenAddress, pid: str | None, count: str | None) -> socket.socket:
    if pid != str(os.getpid()):
        raise ListenerError("LISTEN_PID does not name this process; the socket is not for us")
    if count != "1":
        raise ListenerError("LISTEN_FDS must be 1: exactly one listening socket is adopted")
    # systemd passes descriptors without close-on-exec; the engine must never inherit this one.
    try:
        os.set_inheritable(FIRST_FD, False)
        sock = socket.socket(fileno=FIRST_FD)
    except OSError as exc:
        raise ListenerError("descriptor 3 is not a socket") from exc
    if sock.type != socket.SOCK_STREAM or sock.family not in (socket.AF_INET, socket.AF_INET6):
        raise ListenerError("descriptor 3 is not a TCP socket")
    if not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        raise ListenerError("descriptor 3 does not listen; the .socket unit needs Accept=no")
    host, port = sock.getsockname()[:2]
    if (host, port) != (address.host, address.port):
        raise ListenerError(
            f"the passed socket listens on {host}:{port}, but 'listen' says "
            f"{address.host}:{address.port}; make ListenStream and 'listen' the same"
        )
    # Not listen() again: that would shrink the backlog (reports.md B26).
    sock.setblocking(False)
    return sock
