"""Reading /proc: whatever a process calls itself, whatever vanishes meanwhile, whoever holds a port."""

import ipaddress
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_router.runtime import procfs
from strata_router.runtime.procfs import (
    Holder,
    Listener,
    Process,
    descendants,
    descendants_in,
    group_alive,
    kin_in,
    listener_belongs_to,
    parse_listeners,
    parse_stat,
    port_holder,
    port_is_free,
    processes,
    reached_on_loopback,
    read_process,
)
from tests.runtime.child_programs import Notes, free_port, no_descriptor_left, state_of, wait_until

NOBODY = 65534


@pytest.fixture
def notes(tmp_path: Path) -> Iterator[Notes]:
    notes = Notes(tmp_path)
    yield notes
    for pid in notes.left():
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: notes.left() == [])


@pytest.fixture
def engine(notes: Notes) -> Iterator[Callable[..., int]]:
    """Starts a child_engine in a session of its own and returns its pid, set up."""
    started: list[subprocess.Popen[bytes]] = []

    def start(**settings: object) -> int:
        child = subprocess.Popen(notes.command(**settings), start_new_session=True)
        started.append(child)
        wait_until(lambda: child.pid in notes.pids("engine"))
        return child.pid

    yield start
    for child in started:
        child.kill()
        child.wait()


# ---- one process ------------------------------------------------------------------------------------


def stat_line(pid: int, name: bytes, state: str, numbers: list[int]) -> bytes:
    return (
        b"%d (%s) %s " % (pid, name, state.encode()) + b" ".join(b"%d" % n for n in numbers) + b"\n"
    )


@given(
    pid=st.integers(1, 2**22),
    name=st.binary(max_size=64).filter(lambda name: b"\0" not in name),
    state=st.sampled_from("RSDTtZXIPK"),
    numbers=st.lists(st.integers(-(2**31), 2**63), min_size=49, max_size=49),
)
def test_every_stat_line_is_read_whatever_the_name_in_it(
    pid: int, name: bytes, state: str, numbers: list[int]
) -> None:
    process = parse_stat(stat_line(pid, name, state, numbers))
    assert (process.pid, process.state) == (pid, state)
    # Fields 4, 5, 6, 20 and 22 of proc(5), counted from 1; the numbers begin with field 4.
    assert process.ppid == numbers[0]
    assert process.pgrp == numbers[1]
    assert process.session == numbers[2]
    assert process.threads == numbers[16]
    assert process.start_ticks == numbers[18]
    assert len(process.name) == len(name)
    assert process.name.isascii()
    assert process.name.isprintable() or not name


@given(st.binary(max_size=300))
def test_what_is_no_stat_line_is_a_value_error_and_nothing_else(content: bytes) -> None:
    try:
        parse_stat(content)
    except ValueError:
        return
    assert content.count(b" ") >= 20


@given(st.integers(0, 200))
def test_a_torn_stat_line_is_never_read_as_another_one(length: int) -> None:
    whole = stat_line(12, b"a b) S", "S", list(range(4, 53)))
    try:
        process = parse_stat(whole[:length])
    except ValueError:
        return
    assert process.pid == 12
    assert process.ppid == 4


def test_our_own_line_agrees_with_the_system_calls() -> None:
    # A worker thread of an earlier test may end at any moment: only a look without one counts.
    for _ in range(100):
        before = os.listdir("/proc/self/task")
        me = read_process(os.getpid())
        if os.listdir("/proc/self/task") == before:
            break
    assert me is not None
    assert (me.pid, me.ppid, me.pgrp, me.session) == (
        os.getpid(),
        os.getppid(),
        os.getpgrp(),
        os.getsid(0),
    )
    assert me.threads == len(os.listdir("/proc/self/task"))
    assert me.is_alive


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (b") R 1 (x", ") R 1 (x"),
        (b"a b", "a b"),
        (b"\n\x1b[31m", "??[31m"),
        (b"\xc3\xa9", "??"),
    ],
)
def test_a_real_process_with_a_hostile_name_is_read(name: bytes, shown: str) -> None:
    script = f"import ctypes,time; ctypes.CDLL(None).prctl(15, {name!r}); print(flush=True); time.sleep(99)"
    child = subprocess.Popen([sys.executable, "-I", "-S", "-c", script], stdout=subprocess.PIPE)
    with child:
        assert child.stdout is not None
        child.stdout.readline()
        process = processes()[child.pid]
        child.kill()
    assert process.name == shown
    assert (process.pid, process.ppid) == (child.pid, os.getpid())


def test_a_process_that_is_not_there_is_none() -> None:
    assert read_process(2**22 + 1) is None


def test_a_zombie_is_not_alive() -> None:
    child = subprocess.Popen(["/bin/true"])
    wait_until(lambda: state_of(child.pid) == "Z")
    process = read_process(child.pid)
    assert process is not None
    assert not process.is_alive
    child.wait()


def test_a_process_whose_first_thread_alone_has_ended_is_alive() -> None:
    """Its state reads Z, but its other threads run and hold its memory and ports."""
    script = (
        "import ctypes, threading, time\n"
        "threading.Thread(target=time.sleep, args=(99,)).start()\n"
        "ctypes.CDLL(None).pthread_exit(None)"
    )
    child = subprocess.Popen([sys.executable, "-I", "-S", "-c", script])
    try:
        wait_until(lambda: state_of(child.pid) == "Z")
        process = read_process(child.pid)
        assert process is not None
        assert process.is_alive
    finally:
        child.kill()
        child.wait()


def test_processes_that_come_and_go_meanwhile_do_no_harm() -> None:
    script = "for i in $(seq 400); do /bin/true & done; wait"
    with subprocess.Popen(["/bin/sh", "-c", script]) as busy:
        rounds = 0
        while busy.poll() is None:
            assert os.getpid() in processes()
            rounds += 1
    assert rounds > 1


# ---- families ---------------------------------------------------------------------------------------


def make(pid: int, ppid: int = 0, pgrp: int = 0, session: int = 0, state: str = "S") -> Process:
    return Process(pid, "x", state, ppid, pgrp, session, 1, 0)


trees = st.lists(st.integers(0, 40), max_size=40).map(
    # The parent of process n+2 is one of the processes before it, or an unseen one.
    lambda picks: {n + 2: pick % (n + 2) for n, pick in enumerate(picks)}
)


@given(parents=trees, root=st.integers(1, 41))
def test_what_descends_from_a_process_is_what_leads_up_to_it(
    parents: dict[int, int], root: int
) -> None:
    def leads_up(pid: int) -> bool:
        while pid in parents:
            pid = parents[pid]
            if pid == root:
                return True
        return False

    table = {pid: make(pid, ppid) for pid, ppid in parents.items()}
    assert set(descendants_in(table, [root])) == {pid for pid in parents if leads_up(pid)}


def test_a_table_with_a_circle_in_it_ends() -> None:
    """A pass over /proc is no snapshot: with reused numbers it may show what never was."""
    table = {2: make(2, 3), 3: make(3, 2)}
    assert set(descendants_in(table, [2])) == {2, 3}


def test_kin_are_the_leader_its_group_its_session_and_what_is_below_them() -> None:
    table = {
        process.pid: process
        for process in (
            make(20, 1, 20, 20),
            make(21, 1, 20, 99),  # in its group
            make(22, 1, 99, 20),  # in its session
            make(23, 20, 99, 99),  # its child
            make(24, 22, 99, 99),  # a child of its session
            make(30, 1, 30, 30),  # a stranger
        )
    }
    assert set(kin_in(table, 20)) == {20, 21, 22, 23, 24}


def test_a_real_tree_is_found_through_all_generations(
    notes: Notes, engine: Callable[..., int]
) -> None:
    leader = engine(deep=4, worker_s=100)
    wait_until(lambda: len(notes.pids("deep")) == 4 and bool(notes.pids("worker")))
    assert set(descendants(leader)) == {*notes.pids("deep"), *notes.pids("worker")}


def test_a_group_is_alive_until_its_last_member_that_is_no_zombie_has_ended(
    notes: Notes, engine: Callable[..., int]
) -> None:
    leader = engine(worker_s=0.2)
    wait_until(lambda: bool(notes.pids("worker")))
    os.kill(leader, signal.SIGKILL)
    wait_until(lambda: state_of(leader) == "Z")
    assert group_alive(leader), "the worker lives on in it"
    wait_until(lambda: not notes.left())
    assert not group_alive(leader)
    os.killpg(leader, 0)  # although the kernel still counts the zombie


# ---- listening sockets ------------------------------------------------------------------------------

HEADING = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def row(address: str, state: str = "0A", inode: int = 7) -> str:
    queues_and_timers = "00000000:00000000 00:00000000 00000000"
    return f"   0: {address} 00000000:0000 {state} {queues_and_timers} 0 0 {inode} 1 f 99\n"


@pytest.mark.skipif(
    sys.byteorder != "little", reason="the rows are as little-endian machines print them"
)
@pytest.mark.parametrize(
    ("digits", "address", "port"),
    [
        ("0100007F:1F99", "127.0.0.1", 8089),
        ("00000000:0016", "0.0.0.0", 22),
        ("00000000000000000000000000000000:1F99", "::", 8089),
        ("00000000000000000000000001000000:1F99", "::1", 8089),
        ("0000000000000000FFFF00000100007F:1F99", "127.0.0.1", 8089),
        ("B80D0120000000000000000001000000:FFFF", "2001:db8::1", 65535),
    ],
)
def test_addresses_are_read_in_the_kernels_byte_order(digits: str, address: str, port: int) -> None:
    expected = Listener(ipaddress.ip_address(address), port, 7)
    assert parse_listeners(HEADING + row(digits)) == [expected]


def test_only_listening_sockets_are_listeners() -> None:
    states = [f"{number:02X}" for number in range(1, 13)]
    text = HEADING + "".join(row("0100007F:1F99", state, int(state, 16)) for state in states)
    assert [listener.inode for listener in parse_listeners(text)] == [10]


@given(st.text(max_size=300))
def test_any_text_is_read_without_an_error(text: str) -> None:
    assert parse_listeners(text) == []


@given(st.text(alphabet="0123456789ABCDEFx:- ", max_size=80), st.text(max_size=20))
def test_rows_with_nonsense_in_them_are_left_out_alone(address: str, inode: str) -> None:
    text = row(address).replace(" 7 ", f" {inode} ") + row("0100007F:1F99")
    assert parse_listeners(text)[-1] == Listener(ipaddress.IPv4Address("127.0.0.1"), 8089, 7)


def test_the_listener_on_the_loopback_address_itself_is_reached_before_one_on_all() -> None:
    on_all = Listener(ipaddress.ip_address("0.0.0.0"), 1, 1)
    on_all_v6 = Listener(ipaddress.ip_address("::"), 1, 2)
    exact = Listener(ipaddress.ip_address("127.0.0.1"), 1, 3)
    elsewhere = Listener(ipaddress.ip_address("192.0.2.1"), 1, 4)
    v6_loopback = Listener(ipaddress.ip_address("::1"), 1, 5)
    assert reached_on_loopback([on_all, exact, elsewhere]) == [exact]
    assert reached_on_loopback([elsewhere, on_all, on_all_v6, v6_loopback]) == [on_all, on_all_v6]
    assert reached_on_loopback([elsewhere, v6_loopback]) == []


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::"])
def test_a_taken_port_is_not_free_and_names_its_holder(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server(
        (address, 0), family=family, dualstack_ipv6=family == socket.AF_INET6
    ) as server:
        port = server.getsockname()[1]
        me = read_process(os.getpid())
        assert me is not None
        assert not port_is_free(port)
        assert port_holder(port) == Holder(os.getpid(), me.name)
        assert str(port_holder(port)) == f"pid {os.getpid()} ({me.name})"
    assert port_is_free(port)
    assert port_holder(port) is None


def test_a_listener_on_the_v6_loopback_alone_is_named_but_does_not_take_the_port() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        port = server.getsockname()[1]
        assert port_is_free(port)
        holder = port_holder(port)
        assert holder is not None
        assert holder.pid == os.getpid()


def test_b07_a_port_in_time_wait_is_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        served, _ = server.accept()
        served.close()  # the side that closes first keeps TIME_WAIT
        assert client.recv(1) == b""
        client.close()
    wait_until(lambda: f":{port:04X} 0100007F" in Path("/proc/net/tcp").read_text())
    assert port_is_free(port)
    assert port_holder(port) is None


def test_a_port_that_may_not_be_bound_is_not_free() -> None:
    with as_nobody():
        assert not port_is_free(1)


class as_nobody:  # noqa: N801 - read as a statement
    """The rest of the block without root's rights; skips without root."""

    def __enter__(self) -> None:
        if os.geteuid() != 0:
            pytest.skip("needs root, to give its rights up")
        os.seteuid(NOBODY)

    def __exit__(self, *_: object) -> None:
        os.seteuid(0)


def test_a_holder_that_cannot_be_looked_into_is_told_as_such(engine: Callable[..., int]) -> None:
    port = free_port()
    engine(port=port)
    with as_nobody():
        holder = port_holder(port)
    assert holder == Holder(None, None)
    assert str(holder) == "a process that cannot be seen from here"


def test_a_listener_of_the_engine_belongs_to_it(engine: Callable[..., int]) -> None:
    port = free_port()
    assert listener_belongs_to(port, engine(port=port))


def test_a_listener_that_only_a_worker_still_holds_belongs_to_the_engine(
    notes: Notes, engine: Callable[..., int]
) -> None:
    port = free_port()
    leader = engine(port=port, worker_s=100)
    wait_until(lambda: bool(notes.pids("worker")))
    os.kill(leader, signal.SIGKILL)
    wait_until(lambda: state_of(leader) == "Z")
    assert listener_belongs_to(port, leader), "its worker in the same session inherited the socket"


def test_a_strangers_listener_does_not_belong_to_the_engine(engine: Callable[..., int]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        assert not listener_belongs_to(stranger.getsockname()[1], engine())


def test_nobodys_listener_belongs_to_nobody() -> None:
    assert not listener_belongs_to(free_port(), os.getpid())


def test_a_port_shared_with_a_stranger_does_not_belong_to_the_engine(
    engine: Callable[..., int],
) -> None:
    """With SO_REUSEPORT the kernel would give some of our connections to the other."""
    with socket.socket() as ours, socket.socket() as theirs:
        for one in (ours, theirs):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        ours.bind(("127.0.0.1", 0))
        port = ours.getsockname()[1]
        theirs.bind(("127.0.0.1", port))
        ours.listen()
        theirs.listen()
        theirs.set_inheritable(True)
        command = ["/bin/sleep", "1000"]
        holder = subprocess.Popen(command, start_new_session=True, pass_fds=[theirs.fileno()])
        try:
            assert not listener_belongs_to(port, holder.pid)
            ours.close()
            assert listener_belongs_to(port, holder.pid)
        finally:
            holder.kill()
            holder.wait()


def test_a_kernel_without_ipv6_has_no_such_listeners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "tcp").write_text(HEADING + row("0100007F:1F99"))
    monkeypatch.setattr(procfs, "PROC", tmp_path)
    assert len(procfs.listeners_on(8089)) == 1


@pytest.mark.parametrize(
    "question",
    [
        processes,
        lambda: read_process(1),
        lambda: port_is_free(8089),
        lambda: port_holder(8089),
        lambda: listener_belongs_to(8089, 1),
        lambda: group_alive(1),
    ],
)
def test_without_a_free_descriptor_the_answer_is_an_error_and_not_nobody(
    question: Callable[[], object],
) -> None:
    with no_descriptor_left(), pytest.raises(OSError, match="Too many open files"):
        question()
