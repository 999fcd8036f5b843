"""What /proc says about processes and listening ports: who is alive, whose child, who holds a port.

Reads only; kills nothing and waits for nothing. Everything that asks about many processes opens a few
files per process of the host (0.02 ms each) and blocks for that long. A process that has gone or is
hidden is left out; any other failure (no descriptor left) is raised as OSError, because an incomplete
answer would read "nobody". The functions that take a table or text are pure. Called by the engine's
readiness check, the stop path, ``check`` and ``orphans``.
"""

import os
import socket
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

PROC = Path("/proc")
LISTEN = "0A"
"""TCP_LISTEN in the state column of /proc/net/tcp."""
LOOPBACK = IPv4Address("127.0.0.1")
LOOPBACK_V6 = IPv6Address("::1")
DEAD_STATES = frozenset("ZXx")

GONE_OR_HIDDEN = (FileNotFoundError, ProcessLookupError, PermissionError)

Address = IPv4Address | IPv6Address
ProcessTable = Mapping[int, "Process"]


@dataclass(frozen=True, slots=True)
class Process:
    """One process as /proc/PID/stat shows it.

    name: at most 15 characters, printable ASCII, other bytes as ``?``; chosen by the process.
    state: the kernel's letter (R, S, D, T, Z, ...).
    start_ticks: clock ticks from boot to its start; with pid, the one safe identity of a process.
    """

    pid: int
    name: str
    state: str
    ppid: int
    pgrp: int
    session: int
    threads: int
    start_ticks: int

    @property
    def is_alive(self) -> bool:
        """False for a zombie; but one whose first thread has ended while others run is alive."""
        return self.state not in DEAD_STATES or self.threads > 1


@dataclass(frozen=True, slots=True)
class Listener:
    """One listening TCP socket of this network namespace."""

    address: Address
    port: int
    inode: int


@dataclass(frozen=True, slots=True)
class Holder:
    """Who listens on a port.

    Both None when the process cannot be seen: another user's, or one in another namespace.
    """

    pid: int | None
    name: str | None

    def __str__(self) -> str:
        if self.pid is None:
            return "a process that cannot be seen from here"
        return f"pid {self.pid} ({self.name})"


def parse_stat(content: bytes) -> Process:
    """Read the content of /proc/PID/stat; raises ValueError when it is none.

    The name may hold spaces, parentheses and newlines, so it ends at the *last* parenthesis.
    """
    head, closed, tail = content.rpartition(b")")
    pid, opened, name = head.partition(b" (")
    fields = tail.split()
    if not closed or not opened or len(fields) < 20:
        raise ValueError("not the content of /proc/PID/stat")
    return Process(
        pid=int(pid),
        name="".join(chr(byte) if 0x20 <= byte < 0x7F else "?" for byte in name),
        state=chr(fields[0][0]),
        ppid=int(fields[1]),
        pgrp=int(fields[2]),
        session=int(fields[3]),
        threads=int(fields[17]),
        start_ticks=int(fields[19]),
    )


def read_process(pid: int) -> Process | None:
    """None: no such process, or one that is hidden from us (hidepid)."""
    try:
        return parse_stat((PROC / str(pid) / "stat").read_bytes())
    except GONE_OR_HIDDEN:
        return None


def processes() -> dict[int, Process]:
    """Every process that we can see, by pid. Not a snapshot: they come and go while it is made."""
    found = (read_process(int(entry)) for entry in os.listdir(PROC) if entry.isdigit())
    return {process.pid: process for process in found if process is not None}


def descendants_in(table: ProcessTable, roots: Iterable[int]) -> dict[int, Process]:
    """Everything in the table below the roots, without the roots themselves."""
    children: dict[int, list[Process]] = {}
    for process in table.values():
        children.setdefault(process.ppid, []).append(process)
    found: dict[int, Process] = {}
    parents = list(roots)
    while parents:
        for child in children.get(parents.pop(), ()):
            if child.pid not in found:
                found[child.pid] = child
                parents.append(child.pid)
    return found


def descendants(pid: int) -> dict[int, Process]:
    """Everything below the process now, zombies included, by pid."""
    return descendants_in(processes(), [pid])


def kin_in(table: ProcessTable, leader: int) -> dict[int, Process]:
    """The leader, its session, its process group, and everything below any of them."""
    kin = {
        process.pid: process
        for process in table.values()
        if leader in (process.pid, process.pgrp, process.session)
    }
    return kin | descendants_in(table, kin)


def group_alive(pgid: int) -> bool:
    """Whether the process group has a member that is no zombie (kill(-pgid, 0) counts those)."""
    return any(p.pgrp == pgid and p.is_alive for p in processes().values())


def parse_listeners(text: str) -> list[Listener]:
    """The listening sockets in the content of /proc/net/tcp or tcp6, in its order.

    Lines that are no sockets (the heading) and sockets in other states are left out.
    """
    found = []
    for line in text.splitlines():
        fields = line.split()
        if len(fields) < 10 or fields[3] != LISTEN:
            continue
        try:
            address, port = fields[1].split(":")
            found.append(Listener(_parse_address(address), int(port, 16), int(fields[9])))
        except ValueError:
            continue
    return found


def _parse_address(digits: str) -> Address:
    """The kernel prints an address as 32-bit words, each in the machine's byte order."""
    raw = bytes.fromhex(digits)
    if sys.byteorder == "little":
        raw = b"".join(raw[i : i + 4][::-1] for i in range(0, len(raw), 4))
    if len(raw) == 4:
        return IPv4Address(raw)
    address = IPv6Address(raw)
    return address.ipv4_mapped or address


def listeners_on(port: int) -> list[Listener]:
    """Every listening TCP socket on the port, whatever its address."""
    found = []
    for name in ("tcp", "tcp6"):
        try:
            text = (PROC / "net" / name).read_text()
        except FileNotFoundError:
            continue  # a kernel without IPv6 has no tcp6
        found += [listener for listener in parse_listeners(text) if listener.port == port]
    return found


def reached_on_loopback(listeners: Iterable[Listener]) -> list[Listener]:
    """Those that a connection to 127.0.0.1 can reach: bound to it, or else to every address."""
    listeners = list(listeners)
    exact = [listener for listener in listeners if listener.address == LOOPBACK]
    return exact or [listener for listener in listeners if listener.address.is_unspecified]


def socket_inodes(pid: int) -> set[int]:
    """The inodes of the sockets that the process has open; empty when it may not be looked into."""
    folder = PROC / str(pid) / "fd"
    inodes = set()
    try:
        for entry in os.listdir(folder):
            try:
                target = os.readlink(folder / entry)
            except GONE_OR_HIDDEN:
                continue  # closed meanwhile
            if target.startswith("socket:["):
                inodes.add(int(target[8:-1]))
    except GONE_OR_HIDDEN:
        pass
    return inodes


def port_holder(port: int) -> Holder | None:
    """Who listens on the port where an engine on 127.0.0.1, or a client of ``localhost``, would meet it.

    Looks at 127.0.0.1 and every-address sockets first, then at ::1, which does not keep an engine from
    127.0.0.1. None: nobody listens there.
    """
    everyone = listeners_on(port)
    on_v6_loopback = [listener for listener in everyone if listener.address == LOOPBACK_V6]
    inodes = {listener.inode for listener in reached_on_loopback(everyone) or on_v6_loopback}
    if not inodes:
        return None
    for process in processes().values():
        if inodes & socket_inodes(process.pid):
            return Holder(process.pid, process.name)
    return Holder(None, None)


def port_is_free(port: int) -> bool:
    """Whether an engine could bind 127.0.0.1:port now; TIME_WAIT is no obstacle (SO_REUSEADDR).

    Raises OSError when that cannot be asked (no descriptor left).
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((str(LOOPBACK), port))
        except OSError:
            return False
    return True


def listener_belongs_to(port: int, pid: int) -> bool:
    """Whether whatever answers on 127.0.0.1:port is the process or one of its group, session or tree.

    False too when nobody listens, or when a stranger shares the port (SO_REUSEPORT).
    """
    wanted = {listener.inode for listener in reached_on_loopback(listeners_on(port))}
    if not wanted:
        return False
    held: set[int] = set()
    for member in kin_in(processes(), pid):
        held |= socket_inodes(member)
    return wanted <= held
