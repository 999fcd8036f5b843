"""Telling what a dead guard's engine left from everything else, and ending exactly that."""

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_router.runtime import orphans
from strata_router.runtime.orphans import Identity, left_behind
from strata_router.runtime.procfs import Process, read_process

DAEMON = 10
OWN_SESSION = 5
GUARD_START = 100


def process(pid: int, ppid: int, session: int, start_ticks: int = 200, pgrp: int = 0) -> Process:
    return Process(pid, "x", "S", ppid, pgrp or session, session, 1, start_ticks)


LEADER = Identity(20, 200)


def found(*others: Process, leader: Identity | None = LEADER) -> set[int]:
    daemon = process(DAEMON, 1, OWN_SESSION, 50)
    table = {p.pid: p for p in (daemon, process(1, 0, 1, 0), *others)}
    return set(left_behind(table, daemon=DAEMON, leader=leader, since_ticks=GUARD_START))


def test_the_engines_session_is_found_whoever_adopted_it() -> None:
    assert found(process(20, 1, 20), process(21, 1, 20), process(22, 20, 20)) == {20, 21, 22}


def test_a_session_that_has_lost_its_leader_is_found() -> None:
    assert found(process(21, 1, 20)) == {21}


def test_an_orphan_of_another_session_that_came_to_the_daemon_is_found_with_its_children() -> None:
    assert found(process(30, DAEMON, 30), process(31, 30, 31), process(32, 31, 32)) == {30, 31, 32}


def test_without_a_leaders_name_adopted_orphans_are_still_found() -> None:
    assert found(process(30, DAEMON, 30), process(21, 1, 20), leader=None) == {30}


def test_the_daemons_own_children_are_left_alone() -> None:
    assert found(process(40, DAEMON, OWN_SESSION)) == set()


def test_what_is_older_than_the_guard_is_left_alone() -> None:
    assert found(process(40, DAEMON, 40, start_ticks=GUARD_START - 1)) == set()


def test_strangers_are_left_alone() -> None:
    assert found(process(50, 1, 50), process(51, 50, 51)) == set()


def test_a_session_whose_number_means_another_process_by_now_is_left_alone() -> None:
    assert found(process(20, 1, 20, start_ticks=900), process(21, 20, 20, start_ticks=901)) == set()


@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.booleans(), st.integers(60, 140)), min_size=1, max_size=30
    )
)
def test_exactly_what_descends_from_the_engine_is_found_in_any_tree(
    births: list[tuple[int, bool, int]],
) -> None:
    """A model that forks, leaves sessions and dies by the kernel's rules, after the guard's death.

    Each birth: the parent (by order, modulo those there are), whether it makes a session of its own, and
    (for the daemon's children before the guard) when it started.
    """
    daemon = process(DAEMON, 1, OWN_SESSION, 50)
    table = {DAEMON: daemon, 20: process(20, DAEMON, 20, 200)}
    of_the_engine = {20}
    for number, (parent_index, leaves_session, start_ticks) in enumerate(births):
        pid = 100 + number
        parent = table[sorted(table)[parent_index % len(table)]]
        is_engines = parent.pid in of_the_engine
        if not is_engines and leaves_session and start_ticks >= GUARD_START:
            leaves_session = False  # the daemon's promise: nothing of its own gets a session
        session = pid if leaves_session else parent.session
        start = 200 + number if is_engines else start_ticks
        table[pid] = process(pid, parent.pid, session, start)
        if is_engines:
            of_the_engine.add(pid)
    # Every third process of the engine has died; its children came to the daemon, their subreaper.
    for pid in sorted(of_the_engine)[::3]:
        del table[pid]
        of_the_engine.remove(pid)
        for child in [p for p in table.values() if p.ppid == pid]:
            table[child.pid] = process(child.pid, DAEMON, child.session, child.start_ticks)
    result = left_behind(table, daemon=DAEMON, leader=Identity(20, 200), since_ticks=GUARD_START)
    assert set(result) == of_the_engine


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(["/bin/sleep", "1000"])
    yield child
    child.kill()
    child.wait()


def test_a_process_is_killed_and_reaped_with_its_status(child: subprocess.Popen[bytes]) -> None:
    victim = read_process(child.pid)
    assert victim is not None
    assert orphans.reap(victim) is None, "not ended yet"
    orphans.kill(victim)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert orphans.reap(victim) == -signal.SIGKILL
    assert orphans.reap(victim) is None, "not ours any more"
    orphans.kill(victim)


def test_a_number_that_means_another_process_by_now_is_not_killed(
    child: subprocess.Popen[bytes],
) -> None:
    now = read_process(child.pid)
    assert now is not None
    orphans.kill(Process(now.pid, now.name, "S", 1, 1, 1, 1, now.start_ticks - 1))
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.2)
