"""Adoption and binding of the one listening socket (contract 11; reports.md B26)."""

import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from strata_router.core.config.schema import ListenAddress
from strata_router.runtime import listener
from strata_router.runtime.listener import ListenerError, open_listener

SMALL_BACKLOG = 77
TCP_INFO_BYTES = 104


def backlog_of(sock: socket.socket) -> int:
    """The accept queue's limit: the kernel shows it as tcpi_sacked of a listening socket."""
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
    return int(struct.unpack_from("8B7I", info)[8 + 5])


def address_of(sock: socket.socket) -> ListenAddress:
    host, port = sock.getsockname()[:2]
    return ListenAddress(host, port)


def passed_to_us(count: str = "1") -> dict[str, str]:
    return {
        "LISTEN_PID": str(os.getpid()),
        "LISTEN_FDS": count,
        "LISTEN_FDNAMES": "api",
        "LISTEN_PIDFDID": "4711",
        "PATH": "/bin",
    }


@pytest.fixture
def manager() -> Iterator[socket.socket]:
    """The service manager's own copy of a listening socket."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(SMALL_BACKLOG)
        yield sock


def hand_over(monkeypatch: pytest.MonkeyPatch, sock: socket.socket) -> int:
    """Pass a copy, blocking and inheritable as systemd does it; the descriptor it is passed as."""
    fd = os.dup(sock.fileno())
    os.set_inheritable(fd, True)
    monkeypatch.setattr(listener, "FIRST_FD", fd)
    return fd


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


# ---- adopting ----------------------------------------------------------------------------------


def test_b26_an_adopted_socket_keeps_its_backlog(
    monkeypatch: pytest.MonkeyPatch, manager: socket.socket
) -> None:
    hand_over(monkeypatch, manager)
    adopted = open_listener(address_of(manager), True, passed_to_us())
    with adopted.sock:
        assert adopted.adopted
        assert backlog_of(manager) == backlog_of(adopted.sock) == SMALL_BACKLOG


def test_b26_an_adopted_socket_is_no_longer_inherited(
    monkeypatch: pytest.MonkeyPatch, manager: socket.socket
) -> None:
    fd = hand_over(monkeypatch, manager)
    with open_listener(address_of(manager), False, passed_to_us()).sock as sock:
        assert sock.fileno() == fd
        assert not os.get_inheritable(fd)
        assert not sock.getblocking()


def test_the_activation_variables_are_removed_and_no_others(
    monkeypatch: pytest.MonkeyPatch, manager: socket.socket
) -> None:
    hand_over(monkeypatch, manager)
    environment = passed_to_us()
    open_listener(address_of(manager), True, environment).sock.close()
    assert environment == {"PATH": "/bin"}


def test_connections_that_came_before_adoption_are_accepted(
    monkeypatch: pytest.MonkeyPatch, manager: socket.socket
) -> None:
    with socket.create_connection(manager.getsockname()) as client:
        hand_over(monkeypatch, manager)
        with open_listener(address_of(manager), True, passed_to_us()).sock as sock:
            accepted, address = sock.accept()
            accepted.close()
            assert address == client.getsockname()


def test_an_ipv6_socket_is_adopted(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_INET6) as manager:
        try:
            manager.bind(("::1", 0))
        except OSError:
            pytest.skip("this host has no IPv6 loopback")
        manager.listen()
        hand_over(monkeypatch, manager)
        with open_listener(address_of(manager), True, passed_to_us()).sock as sock:
            assert sock.family == socket.AF_INET6


# ---- malformed activation never falls back to binding -------------------------------------------


def refusal(address: ListenAddress, environment: dict[str, str], *, required: bool = False) -> str:
    """The error's text. The variables are removed all the same."""
    with pytest.raises(ListenerError) as raised:
        open_listener(address, required, environment)
    assert not {name for name in environment if name.startswith("LISTEN_")}
    return str(raised.value)


FREE = ListenAddress("127.0.0.1", 1)
"""Binding it would need a privilege and fail with another text; nothing here may come so far."""


# Ids without our pid in them: the tests' names must be the same in every worker that runs some of them.
@pytest.mark.parametrize(
    "pid", ["1", "", "0", "x", pytest.param(f" {os.getpid()}", id="ours with a blank"), None]
)
def test_a_socket_for_another_process_is_refused(pid: str | None) -> None:
    environment = passed_to_us()
    del environment["LISTEN_PID"]
    if pid is not None:
        environment["LISTEN_PID"] = pid
    assert "LISTEN_PID does not name this process" in refusal(FREE, environment)


@pytest.mark.parametrize("count", ["0", "2", "", "-1", "one", "01", None])
def test_any_number_of_sockets_but_one_is_refused(count: str | None) -> None:
    environment = passed_to_us()
    del environment["LISTEN_FDS"]
    if count is not None:
        environment["LISTEN_FDS"] = count
    assert "LISTEN_FDS must be 1" in refusal(FREE, environment)


@pytest.mark.parametrize("name", ["LISTEN_FDNAMES", "LISTEN_PIDFDID"])
def test_a_remnant_of_an_activation_is_refused_too(name: str) -> None:
    assert "LISTEN_PID does not name this process" in refusal(FREE, {name: "1"})


def test_a_descriptor_that_is_not_open_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    fd = os.open("/dev/null", os.O_RDONLY)
    os.close(fd)
    monkeypatch.setattr(listener, "FIRST_FD", fd)
    assert "is no socket" in refusal(FREE, passed_to_us())


def test_a_descriptor_that_is_no_socket_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    fd = os.open("/dev/null", os.O_RDONLY)
    monkeypatch.setattr(listener, "FIRST_FD", fd)
    assert "is no socket" in refusal(FREE, passed_to_us())
    os.close(fd)


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        (socket.AF_UNIX, socket.SOCK_STREAM),
        (socket.AF_INET, socket.SOCK_DGRAM),
        (socket.AF_UNIX, socket.SOCK_DGRAM),
    ],
)
def test_a_socket_that_is_not_tcp_is_refused_and_closed(
    monkeypatch: pytest.MonkeyPatch, family: socket.AddressFamily, kind: socket.SocketKind
) -> None:
    with socket.socket(family, kind) as manager:
        fd = hand_over(monkeypatch, manager)
        assert "no TCP socket" in refusal(FREE, passed_to_us())
        assert not is_open(fd)


def test_a_connection_in_place_of_a_listener_is_refused(
    monkeypatch: pytest.MonkeyPatch, manager: socket.socket
) -> None:
    with socket.create_connection(manager.getsockname()) as connection:
        fd = hand_over(monkeypatch, connection)
        assert "needs Accept=no" in refusal(address_of(manager), passed_to_us())
        assert not is_open(fd)


def test_a_listener_elsewhere_than_configured_is_refused_with_both_addresses(
    monkeypatch: pytest.MonkeyPatch, manager: socket.socket
) -> None:
    fd = hand_over(monkeypatch, manager)
    text = refusal(FREE, passed_to_us())
    assert str(address_of(manager)) in text
    assert "'listen' says 127.0.0.1:1" in text
    assert not is_open(fd)


def test_another_loopback_address_with_the_same_port_is_refused(
    monkeypatch: pytest.MonkeyPatch, manager: socket.socket
) -> None:
    hand_over(monkeypatch, manager)
    elsewhere = ListenAddress("127.0.0.2", manager.getsockname()[1])
    assert "make ListenStream and 'listen' the same" in refusal(elsewhere, passed_to_us())


def test_without_an_activation_a_required_one_is_an_error() -> None:
    assert "start the .socket unit" in refusal(FREE, {"PATH": "/bin"}, required=True)


# ---- binding -------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_without_an_activation_it_binds() -> None:
    address = ListenAddress("127.0.0.1", free_port())
    bound = open_listener(address, False, {})
    with bound.sock as sock:
        assert not bound.adopted
        assert address_of(sock) == address
        assert not sock.getblocking()
        assert not sock.get_inheritable()
        somaxconn = int(Path("/proc/sys/net/core/somaxconn").read_text())
        assert backlog_of(sock) == min(listener.BACKLOG, somaxconn)


def test_a_port_in_use_is_an_error_that_names_who_holds_it(manager: socket.socket) -> None:
    text = refusal(address_of(manager), {})
    assert text.startswith(f"cannot listen on {address_of(manager)}: address already in use")
    assert f"held by pid {os.getpid()} (" in text


def test_an_address_that_this_host_lacks_is_an_error_with_a_remedy() -> None:
    # 192.0.2.0/24 belongs to no host (RFC 5737); the configuration would not let it through.
    assert "choose another 'listen'" in refusal(ListenAddress("192.0.2.1", 9), {})
