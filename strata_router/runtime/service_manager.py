"""Tells the service manager how the daemon is: ready, what it does, that it stops, that it lives.

The daemon's half of sd_notify(3), by hand: one datagram of ``NAME=value`` lines to the socket that
NOTIFY_SOCKET names. Without that variable everything here does nothing. Nothing here can fail the
daemon: what cannot be delivered now is tried again, what cannot be delivered at all is given up.

    run         READY=1, then every tick STATUS= when it changed and WATCHDOG=1 where it is watched
    stopping()  STOPPING=1 at once, then EXTEND_TIMEOUT_USEC= with every tick, to the process's end

Built and driven by ``runtime.daemon``. Source: contract 11; sd_notify(3), sd_watchdog_enabled(3).
"""

import logging
import os
import socket
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Self

import trio

from strata_router.core.admission.snapshot import Snapshot

log = logging.getLogger(__name__)

TICK_S = 1.0
"""How old the shown status may be."""

EXTEND_S = 30.0
"""While draining, each tick asks for this much longer. A finite TimeoutStopSec= is thereby kept from
cutting a drain that goes on, and still ends a daemon whose event loop has stood still for so long."""

RETRY_S = 0.05
"""How soon a message is tried again that the manager had no room for."""

NOTIFY_VARIABLE = "NOTIFY_SOCKET"
WATCHDOG_VARIABLES = ("WATCHDOG_USEC", "WATCHDOG_PID")


@dataclass
class ServiceManager:
    """Where messages go, and what was said last.

    address: the manager's datagram socket, a path or ``@name``; None when there is no manager.
    watchdog_s: the manager ends a daemon that has been silent for so long; None: it does not.
    """

    address: str | None
    watchdog_s: float | None = None
    _sock: socket.socket | None = field(default=None, init=False)
    _status: Callable[[], str] = field(default=str, init=False)
    _owed: list[str] = field(
        default_factory=list, init=False
    )  # said once each, as soon as it can be
    _said_status: str = field(default="", init=False)
    _is_stopping: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if self.address is not None:
            self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str]) -> Self:
        """As the environment says. Removes its variables, so that no child can speak for us."""
        address = environment.pop(NOTIFY_VARIABLE, None)
        watchdog_usec, watchdog_pid = (environment.pop(name, "") for name in WATCHDOG_VARIABLES)
        if address is None:
            return cls(None)
        if address[:1] not in ("/", "@"):
            log.warning("%s is neither a path nor an abstract socket; ignored", NOTIFY_VARIABLE)
            return cls(None)
        is_watched = watchdog_pid in ("", str(os.getpid())) and watchdog_usec.isdecimal()
        watchdog_s = int(watchdog_usec) / 1e6 if is_watched else 0.0
        return cls(address, watchdog_s or None)

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()

    async def run(self, status: Callable[[], str]) -> None:
        """Say that the daemon is ready, then keep saying how it is, until cancelled.

        status: one line of text; asked once per tick. Returns at once when there is no manager.
        """
        if self._sock is None:
            return
        self._status = status
        self._owed.append("READY=1")
        while True:
            # A tick proves that the event loop turns. A task that fails takes the daemon down with it,
            # so there is nothing else to prove to a watchdog.
            delivered = self._tell(["WATCHDOG=1"] if self.watchdog_s is not None else [])
            await trio.sleep(self._tick_s() if delivered else RETRY_S)

    def stopping(self) -> None:
        """Say that the daemon ends, and from now on that this takes longer."""
        self._is_stopping = True
        self._owed.append("STOPPING=1")
        self._tell([])

    def _tick_s(self) -> float:
        # Twice as often as needed is what sd_watchdog_enabled(3) recommends.
        return TICK_S if self.watchdog_s is None else min(TICK_S, self.watchdog_s / 2)

    def _tell(self, lines: list[str]) -> bool:
        """Send the lines and whatever else is due. False: the manager had no room for them."""
        if self._sock is None:
            return True
        lines = self._owed + lines
        if self._is_stopping:
            lines.append(f"EXTEND_TIMEOUT_USEC={int(EXTEND_S * 1e6)}")
        status = self._status()
        if status != self._said_status:
            lines.append(f"STATUS={status}")
        if lines:
            try:
                self._send("\n".join(lines))
            except BlockingIOError:
                return False
            except OSError as exc:
                log.debug("the service manager cannot be told: %s", exc.strerror)
        self._owed.clear()
        self._said_status = status
        return True

    def _send(self, message: str) -> None:
        assert self.address is not None
        assert self._sock is not None
        is_abstract = self.address.startswith("@")
        self._sock.sendto(
            message.encode(), "\0" + self.address[1:] if is_abstract else self.address
        )


def status_line(snapshot: Snapshot, *, routing: bool, draining: bool) -> str:
    """What ``systemctl status`` shows: what the daemon does, its model, its queue."""
    if draining:
        doing = "draining"
    elif not routing:
        doing = "routing off"
    else:
        doing = "serving"
    if snapshot.loading is not None:
        model = f"loading model {snapshot.loading}"
    elif snapshot.loaded is not None:
        model = f"model {snapshot.loaded}"
    else:
        model = "no model loaded"
    return f"{doing}; {model}; {snapshot.in_flight} active, {snapshot.queue_depth} waiting"
