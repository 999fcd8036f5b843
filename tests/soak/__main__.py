"""``python -m tests.soak --minutes N --seed S``: exit status 0, or 1 with the seed at the first breach."""

import argparse
import json
import os
import platform
import random
import signal
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import trio

from tests.soak.actors import Cast
from tests.soak.books import Books, Breach
from tests.system.failing_disk import DiskUnavailable, FailingDisk
from tests.system.harness import DaemonUnderTest, daemon

CLIENTS = 12
ROUND_S = 15.0
"""Traffic runs so long between two looks at what is left when everybody has gone."""

KNOBS = {"load_s": 0.2, "hash_responses": True, "disconnect_poll_s": 0.1}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    arguments = parser.parse_args()
    print(f"soak: {arguments.minutes} minutes, seed {arguments.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="soak-") as directory:
        books: list[Books] = []
        try:
            trio.run(soak, Path(directory), arguments.minutes * 60, arguments.seed, books)
        except* Exception as group:  # the top: whatever stopped it is the breach
            for breach in leaves(group):
                print(f"BREACH with seed {arguments.seed}: {breach!r}", flush=True)
            with suppress(OSError):
                print(Path(directory, "daemon.log").read_text()[-4000:])
            books.clear()
        if not books:
            return 1
    print(report(books[0], arguments.minutes, arguments.seed))
    return 0


def leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """The exceptions in a tree of groups."""
    found: list[BaseException] = []
    for inner in group.exceptions:
        found += leaves(inner) if isinstance(inner, BaseExceptionGroup) else [inner]
    return found


async def soak(directory: Path, seconds: float, seed: int, books_out: list[Books]) -> None:
    """Run rounds until the time is up; raises on the first breach."""
    chance = random.Random(seed)
    with ExitStack() as stack:
        try:
            disk = FailingDisk(directory)
            stack.callback(disk.close)
        except DiskUnavailable as why:
            print(f"left out: the log's disk is never full, read-only, slow or hung ({why})")
            disk = None
        await soak_on(disk, directory, seconds, chance, books_out)


async def soak_on(
    disk: FailingDisk | None,
    directory: Path,
    seconds: float,
    chance: random.Random,
    books_out: list[Books],
) -> None:
    """The same with the log on this disk, or without a disk that fails."""
    log_directory = (disk.folder if disk else directory) / "log"
    log_directory.mkdir(mode=0o700)
    seen_directory = disk.seen / "log" if disk else log_directory
    config = {
        "aliases": {"test": {"allowed_models": ["b", "a", "c"]}},
        "model_grace_ms": 100,
        "max_wait_ms": {"default": 5000, "flex": 8000},
        "idle_ms": 3000,
        "cooldown_ms": 200,
        "keepalive_ms": 500,
        "shutdown_ms": 3000,
        "write_stall_ms": 10_000,
        "request_log_path": str(seen_directory / "requests.jsonl"),
        "request_log_capacity": 100_000,
        "request_log_rotate_files": 100,
    }
    models = dict.fromkeys(("a", "b", "c"), KNOBS)
    async with daemon(directory, models, config, start=False) as it:
        books = Books(it, log_directory)
        cast = Cast(it, books, chance, disk)
        await start(cast)
        await warm_up(cast)
        end = trio.current_time() + seconds
        while trio.current_time() < end:
            await one_round(cast, min(ROUND_S, end - trio.current_time()))
            await it.control("on")
            await books.settle()
            if chance.random() < 0.3 and end - trio.current_time() > ROUND_S:
                await replace_daemon(cast)
        assert await it.stop() == 0
        if left := it.left_pids():
            raise Breach(f"the daemon has ended, but {left} live")
        books_out.append(books)


async def start(cast: Cast) -> None:
    cast.it.launch(*(cast.disk.through if cast.disk else ()))
    await cast.it.wait_serving()


async def one_round(cast: Cast, seconds: float) -> None:
    """All actors at once; then the clients finish what they began."""
    stop = trio.Event()

    async def repeat(act: object, pause_s: float) -> None:
        assert callable(act)
        while not stop.is_set():
            await act()
            with trio.move_on_after(cast.chance.random() * pause_s):
                await stop.wait()

    async with trio.open_nursery() as nursery:
        for _ in range(CLIENTS):
            nursery.start_soon(repeat, cast.client, 0.2)
        nursery.start_soon(repeat, cast.operate, 4.0)
        nursery.start_soon(repeat, cast.strike_engine, 6.0)
        nursery.start_soon(repeat, cast.strike_log, 8.0)
        nursery.start_soon(repeat, cast.take_descriptors, 12.0)
        nursery.start_soon(repeat, cast.books.check_running, 1.0)
        await trio.sleep(seconds)
        stop.set()


async def replace_daemon(cast: Cast) -> None:
    """The daemon is killed or stopped, whatever it does, and started again."""
    it, chance = cast.it, cast.chance
    act = chance.choice((signal.SIGKILL, signal.SIGTERM))
    cast.books.fault(f"daemon gets {act.name}")
    async with trio.open_nursery() as nursery:
        for _ in range(CLIENTS):
            nursery.start_soon(cast.client)
        await trio.sleep(chance.random())
        it.signal(act)
        await it.wait_ended(60)
        await _expect_nothing_left(it)
        with suppress(FileNotFoundError):
            os.unlink(it.config["control_socket"])
        cast.books.new_daemon()
        nursery.cancel_scope.cancel()
    await start(cast)
    cast.books.new_daemon()
    await warm_up(cast)


async def warm_up(cast: Cast) -> None:
    """Use every path once, large bodies included, so that idle figures are those of a warm daemon."""
    for _ in range(3):
        cast.books.posted()
        reply = await cast.it.chat("a", "x" * 8_000_000, max_tokens=1)
        assert reply.status in (200, 400), reply.body  # the engine may find it too long
    await cast.books.settle()


async def _expect_nothing_left(it: DaemonUnderTest) -> None:
    deadline = trio.current_time() + 2
    while left := it.left_pids():
        if trio.current_time() > deadline:
            raise Breach(f"two seconds after the daemon's end {left} live")
        await trio.sleep(0.02)


def report(books: Books, minutes: float, seed: int) -> str:
    """What was done and what held, for research/."""
    figures = {
        "minutes": minutes,
        "seed": seed,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "requests": books.posts_before + books.posts,
        "times settled": books.settled,
        "log lines, drops counted": [
            books.lines_before + books.lines,
            books.drops_before + books.drops,
        ],
        "slowest /health and status together, s": round(books.worst_health_s, 3),
        "largest resident memory when idle, MB": round(books.worst_memory_bytes / 1e6, 1),
        "faults injected": sum(books.faults.values()),
        "by kind": dict(sorted(books.faults.items())),
    }
    return json.dumps(figures, indent=1)


if __name__ == "__main__":
    sys.exit(main())
