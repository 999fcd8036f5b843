"""Helpers, the life lock, and the proof that two engines never lived at once."""

import os
import signal
import time
from pathlib import Path

import pytest
import trio

from strata_router.simulated.events import (
    Stamp,
    anyone_alive,
    disconnects,
    engine_intervals,
    overlaps,
    read_stamps,
    requests,
    stamped,
    stamped_now,
)
from tests.simulated.harness import Yard, is_alive, wait_until


def test_engines_one_after_the_other_do_not_overlap(yard: Yard) -> None:
    for model in ("a", "b", "a"):
        engine = yard.start(model)
        assert anyone_alive(yard.event_file)
        engine.process.terminate()
        engine.ends()
        assert not anyone_alive(yard.event_file)
    stamps = read_stamps(yard.event_file)
    assert overlaps(stamps) == []
    intervals = engine_intervals(stamps)
    assert [interval.model for interval in intervals] == ["a", "b", "a"]
    for interval in intervals:
        assert interval.alone
        assert interval.status == 0
        assert interval.ready_at is not None
        assert interval.ended_at is not None
        assert interval.spawned_at <= interval.started_at < interval.ready_at < interval.ended_at


def test_two_engines_at_once_are_told(yard: Yard) -> None:
    first = yard.start("a")
    second = yard.start("b")
    told = overlaps(read_stamps(yard.event_file))
    assert any(str(first.process.pid) in line and str(second.process.pid) in line for line in told)
    assert [interval.alone for interval in engine_intervals(first.stamps())] == [True, False]


def test_a_third_engine_overlaps_with_a_second_that_outlived_the_first(yard: Yard) -> None:
    first, second = yard.start("a"), yard.start("b")
    first.process.terminate()
    first.ends()
    wait_until(lambda: str(second.process.pid) in (yard.folder / "events.jsonl.lock").read_text())
    yard.start("c")
    assert [interval.alone for interval in engine_intervals(first.stamps())] == [True, False, False]


def test_a_native_engine_that_outlives_its_killed_server_overlaps_with_the_next(yard: Yard) -> None:
    first = yard.spawn(yard.profile(load_s=1.5))
    native = first.stamped("native_start").pid
    first.process.kill()
    first.ends()
    assert is_alive(native)
    assert anyone_alive(yard.event_file)
    yard.start("b")
    assert len(overlaps(read_stamps(yard.event_file))) == 1


def test_a_killed_engine_has_no_end_stamp_but_the_next_was_alone(yard: Yard) -> None:
    first = yard.start("a")
    os.killpg(first.process.pid, signal.SIGKILL)
    first.ends()
    wait_until(lambda: not anyone_alive(yard.event_file))
    yard.start("b")
    stamps = read_stamps(yard.event_file)
    assert [interval.ended_at is None for interval in engine_intervals(stamps)] == [True, True]
    assert overlaps(stamps) == []


def start(pid: int, spawned_at: float) -> Stamp:
    facts = {"alone": True, "spawned_at": spawned_at}
    return Stamp("start", spawned_at + 0.05, pid, "m", facts)


def test_an_orderly_end_after_the_next_spawn_is_told_by_the_stamps_alone() -> None:
    end = Stamp("exit", 10.0, 1, "m", {"status": 0})
    assert overlaps([start(1, 5.0), start(2, 9.9), end]) != []
    assert overlaps([start(1, 5.0), end, start(2, 10.1)]) == []


def test_a_process_id_that_comes_round_again_is_another_engine() -> None:
    stamps = [start(1, 5.0), Stamp("exit", 6.0, 1, "m", {"status": 0}), start(1, 7.0)]
    assert [interval.ended_at for interval in engine_intervals(stamps)] == [6.0, None]


def test_an_event_file_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert read_stamps(tmp_path / "none") == []
    assert anyone_alive(tmp_path / "none") is False


async def test_waiting_for_a_stamp_is_possible_in_trio(yard: Yard) -> None:
    engine = yard.spawn(yard.profile())
    assert (await stamped(yard.event_file, "ready")).pid == engine.process.pid
    with pytest.raises(TimeoutError, match="never was stamped 0 of 1 times; seen: start"):
        await stamped(yard.event_file, "never", within_s=0.05)
    with pytest.raises(TimeoutError):
        await trio.to_thread.run_sync(lambda: stamped_now(yard.event_file, "never", 0.05))


def test_requests_and_disconnects_are_read_back(yard: Yard) -> None:
    engine = yard.start("a", disconnect_poll_s=0.1)
    engine.chat(stream=True)
    peer = engine.open_chat("FX:hang_after_chunks=2", stream=True)
    engine.stamped("first_chunk", 2)
    peer.close()
    engine.stamped("done", 2)
    first, second = requests(engine.stamps())
    assert (first.seq, first.model, first.status, first.finish) == (1, "a", 200, "stop")
    assert first.first_chunk_at is not None
    assert first.done_at is not None
    assert first.at < first.first_chunk_at < first.done_at
    assert disconnects(engine.stamps()) == [second]
    assert (second.left_how, second.chunks) == ("eof", 2)
    assert second.peer.startswith("127.0.0.1:")


def test_workers_stay_in_the_group_and_end_with_the_server(yard: Yard) -> None:
    engine = yard.start(workers=2)
    engine.stamped("worker_start", 2)
    workers = [stamp.pid for stamp in engine.stamps() if stamp.event == "worker_start"]
    assert [os.getpgid(pid) for pid in workers] == [engine.process.pid] * 2
    engine.process.kill()
    engine.ends()
    engine.stamped("worker_exit", 2)


def test_b05_a_lingering_worker_keeps_the_memory_and_fails_the_next_engine(yard: Yard) -> None:
    first = yard.start("a", workers=1, worker_linger_s=0.5)
    first.process.terminate()
    assert first.ends() == 0
    assert anyone_alive(yard.event_file)
    assert yard.spawn(yard.profile("b", needs_alone=True)).ends() == 1
    wait_until(lambda: not anyone_alive(yard.event_file))
    yard.start("c", needs_alone=True)


def test_b12_workers_exist_before_the_load_and_can_leave_the_group(yard: Yard) -> None:
    engine = yard.spawn(yard.profile(workers=1, worker_setsid=True, worker_linger_s=-1, load_s=30))
    worker = engine.stamped("worker_start").pid
    assert os.getpgid(worker) == worker
    os.killpg(engine.process.pid, signal.SIGKILL)
    engine.ends()
    assert is_alive(worker)


def test_b11_a_worker_can_be_stopped_and_deaf(yard: Yard) -> None:
    engine = yard.start(workers=1, worker_stopped=True, worker_ignores_sigterm=True)
    worker = engine.stamped("worker_start").pid

    def state() -> str:
        text = Path(f"/proc/{worker}/stat").read_text(encoding="latin-1")
        return text.rpartition(")")[2].split()[0]

    wait_until(lambda: state() == "T")
    os.kill(worker, signal.SIGTERM)
    os.kill(worker, signal.SIGCONT)
    time.sleep(0.05)
    assert is_alive(worker)
