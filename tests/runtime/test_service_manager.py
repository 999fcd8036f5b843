"""What the service manager is told, read from a datagram socket in its place (contract 11)."""

import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio
import trio.testing

from strata_router.core.admission.snapshot import Snapshot
from strata_router.core.vocabulary import ModelId
from strata_router.runtime.service_manager import ServiceManager, status_line


@dataclass
class Manager:
    """The other end. status: what the daemon answers when it is asked."""

    sock: socket.socket
    address: str
    status: str = "serving"
    asked: list[str] = field(default_factory=list)

    def heard(self) -> list[str]:
        """The messages since the last look."""
        messages = []
        while True:
            try:
                messages.append(self.sock.recv(4096).decode())
            except BlockingIOError:
                return messages

    def fill(self) -> None:
        """Have as many unread messages as the kernel keeps."""
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as other,
            suppress(BlockingIOError),
        ):
            while True:
                other.sendto(b"noise", self.sock.getsockname())

    def leave(self) -> None:
        self.sock.close()
        if not self.address.startswith("@"):
            Path(self.address).unlink()

    def say_status(self) -> str:
        self.asked.append(self.status)
        return self.status


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    name = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock:
        sock.bind(name if request.param == "path" else f"\0{name}")
        yield Manager(sock, name if request.param == "path" else f"@{name}")


@asynccontextmanager
async def told(service: ServiceManager, status: Callable[[], str]) -> AsyncIterator[None]:
    """A running ServiceManager whose first message has been sent."""
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(service.run, status)
            await trio.testing.wait_all_tasks_blocked()
            yield
            nursery.cancel_scope.cancel()
    finally:
        service.close()


async def test_ready_is_said_first_and_once(
    autojump_clock: trio.testing.MockClock, manager: Manager
) -> None:
    async with told(ServiceManager(manager.address), manager.say_status):
        assert manager.heard() == ["READY=1\nSTATUS=serving"]
        await trio.sleep(10)
        assert manager.heard() == []


async def test_a_changed_status_is_said_within_a_second(
    autojump_clock: trio.testing.MockClock, manager: Manager
) -> None:
    async with told(ServiceManager(manager.address), manager.say_status):
        manager.heard()
        manager.status = "loading"
        await trio.sleep(1.01)
        assert manager.heard() == ["STATUS=loading"]


async def test_stopping_is_said_at_once_and_more_time_is_asked_for_with_every_tick(
    autojump_clock: trio.testing.MockClock, manager: Manager
) -> None:
    service = ServiceManager(manager.address)
    async with told(service, manager.say_status):
        manager.heard()
        manager.status = "draining"
        service.stopping()
        assert manager.heard() == ["STOPPING=1\nEXTEND_TIMEOUT_USEC=30000000\nSTATUS=draining"]
        await trio.sleep(3.5)
        assert manager.heard() == ["EXTEND_TIMEOUT_USEC=30000000"] * 3


@pytest.mark.parametrize(("watchdog_s", "signs"), [(60.0, 10), (1.0, 20), (0.2, 100)])
async def test_signs_of_life_come_at_least_twice_per_watchdog_interval(
    autojump_clock: trio.testing.MockClock, manager: Manager, watchdog_s: float, signs: int
) -> None:
    async with told(ServiceManager(manager.address, watchdog_s), manager.say_status):
        assert manager.heard() == ["READY=1\nWATCHDOG=1\nSTATUS=serving"]
        heard = []
        for _ in range(signs):
            await trio.sleep(10 / signs)
            heard += manager.heard()
        assert len(heard) in (signs - 1, signs)
        assert set(heard) == {"WATCHDOG=1"}


async def test_the_watchdog_is_fed_while_stopping(
    autojump_clock: trio.testing.MockClock, manager: Manager
) -> None:
    service = ServiceManager(manager.address, 60.0)
    async with told(service, manager.say_status):
        service.stopping()
        manager.heard()
        await trio.sleep(1.5)
        assert manager.heard() == ["WATCHDOG=1\nEXTEND_TIMEOUT_USEC=30000000"]


async def test_what_a_busy_manager_has_no_room_for_is_said_as_soon_as_it_has(
    autojump_clock: trio.testing.MockClock, manager: Manager
) -> None:
    service = ServiceManager(manager.address)
    manager.fill()
    async with told(service, manager.say_status):
        await trio.sleep(0.5)
        assert set(manager.heard()) == {"noise"}
        await trio.sleep(0.06)
        assert manager.heard() == ["READY=1\nSTATUS=serving"]
        manager.fill()
        manager.status = "draining"
        service.stopping()
        assert set(manager.heard()) == {"noise"}
        await trio.sleep(1.01)
        assert manager.heard() == ["STOPPING=1\nEXTEND_TIMEOUT_USEC=30000000\nSTATUS=draining"]


async def test_a_manager_that_has_gone_is_no_trouble(
    autojump_clock: trio.testing.MockClock, manager: Manager
) -> None:
    service = ServiceManager(manager.address, 0.5)
    manager.leave()
    async with told(service, manager.say_status):
        await trio.sleep(5)
        service.stopping()


async def test_without_a_manager_nothing_happens() -> None:
    def never_asked() -> str:
        raise AssertionError

    service = ServiceManager.from_environment({})
    service.stopping()
    await service.run(never_asked)
    service.close()


# ---- the environment -----------------------------------------------------------------------------


def from_environment(**variables: str) -> tuple[str | None, float | None]:
    """(address, watchdog_s). The variables are gone afterwards, others are left."""
    environment = {**variables, "PATH": "/bin"}
    service = ServiceManager.from_environment(environment)
    service.close()
    assert environment == {"PATH": "/bin"}
    return service.address, service.watchdog_s


def test_the_environment_names_the_socket_and_the_watchdog() -> None:
    assert from_environment() == (None, None)
    assert from_environment(NOTIFY_SOCKET="/run/systemd/notify") == ("/run/systemd/notify", None)
    assert from_environment(NOTIFY_SOCKET="@n", WATCHDOG_USEC="30000000") == ("@n", 30.0)
    own = str(os.getpid())
    assert from_environment(NOTIFY_SOCKET="@n", WATCHDOG_USEC="500000", WATCHDOG_PID=own) == (
        "@n",
        0.5,
    )


@pytest.mark.parametrize(
    "watchdog",
    [
        {"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"},
        {"WATCHDOG_USEC": "0"},
        {"WATCHDOG_USEC": ""},
        {"WATCHDOG_USEC": "-5"},
        {"WATCHDOG_USEC": "soon"},
        {"WATCHDOG_PID": "1"},
    ],
)
def test_a_watchdog_for_another_process_or_of_no_length_is_none(watchdog: dict[str, str]) -> None:
    assert from_environment(NOTIFY_SOCKET="@n", **watchdog) == ("@n", None)


@pytest.mark.parametrize("address", ["", "vsock:2:1234", "relative"])
def test_an_address_of_another_kind_is_no_manager(address: str) -> None:
    assert from_environment(NOTIFY_SOCKET=address, WATCHDOG_USEC="1000000") == (None, None)


# ---- the status line -----------------------------------------------------------------------------


def snapshot(loaded: str | None = None, loading: str | None = None) -> Snapshot:
    return Snapshot(
        queue_depth=3,
        queue_depth_by_tier={},
        in_flight=2,
        loaded=None if loaded is None else ModelId(loaded),
        loading=None if loading is None else ModelId(loading),
        stopping=False,
        cooling_s={},
    )


def test_the_status_names_the_model_and_the_queue() -> None:
    def line(loaded: str | None = None, loading: str | None = None, *, off: bool = False) -> str:
        return status_line(snapshot(loaded, loading), routing=not off, draining=False)

    assert line() == "serving; no model loaded; 2 active, 3 waiting"
    assert line("a") == "serving; model a; 2 active, 3 waiting"
    assert line(None, "a") == "serving; loading model a; 2 active, 3 waiting"
    assert line("a", off=True) == "routing off; model a; 2 active, 3 waiting"


def test_the_status_says_that_it_drains_whatever_else_holds() -> None:
    for routing in (True, False):
        assert status_line(snapshot("a"), routing=routing, draining=True) == (
            "draining; model a; 2 active, 3 waiting"
        )
