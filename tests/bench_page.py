"""What being watched costs the daemon: ``python -m tests.bench_page [SECONDS]`` prints the figures.

A daemon with a thousand records and a hundred waiting requests behind one answer that stands still; its
processor time is read from /proc while nobody looks, while the page is open in headless Chromium, and
while ``GET /queue`` is asked back to back. Then what the queue's order costs by its length. Numbers are
in research/page.md; no test decides by them.
"""

import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import thread_time_ns

import trio

from strata_router.core.admission import in_words
from tests.bench_admission import FullHouse, settings
from tests.runtime.http.raw import get
from tests.system.browser import MISSING, browser
from tests.system.crowd import QUICK, frozen
from tests.system.harness import DaemonUnderTest, daemon

RECORDS = 1_000
WAITING = 100
SECONDS = 20.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """Processor seconds of the process so far, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


async def share(it: DaemonUnderTest, seconds: float) -> float:
    """Per cent of one core that the daemon uses in the next ``seconds``."""
    before, began = cpu_s(it.pid), trio.current_time()
    await trio.sleep(seconds)
    return 100 * (cpu_s(it.pid) - before) / (trio.current_time() - began)


async def fill(it: DaemonUnderTest) -> None:
    async def ask(each: int) -> None:
        for _ in range(each):
            await it.chat("a", max_tokens=2)

    async with trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(ask, RECORDS // 8)


async def watched_by_a_page(it: DaemonUnderTest, directory: Path, seconds: float) -> float:
    with browser(directory) as chromium:
        url = f"http://127.0.0.1:{it.port}/"
        await trio.to_thread.run_sync(chromium.open, url)
        await trio.sleep(3)  # its first answer brings a hundred records
        return await share(it, seconds)


async def asked_back_to_back(it: DaemonUnderTest, path: str, times: int = 300) -> float:
    """Milliseconds of the daemon's processor time per answer."""
    client = await it.connect()
    before = cpu_s(it.pid)
    for _ in range(times):
        await client.send(get(path))
        await client.reply()
    return 1000 * (cpu_s(it.pid) - before) / times


def best_ms(work: Callable[[], object]) -> float:
    times = []
    for _ in range(20):
        began = thread_time_ns()
        work()
        times.append(thread_time_ns() - began)
    return min(times) / 1e6


async def main(seconds: float) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        async with daemon(directory, {"a": QUICK}, {"max_pending": 1}) as it:
            await fill(it)
            with frozen(it):
                for _ in range(WAITING + 1):
                    await it.send_chat("a", stream=True)
                await trio.sleep(1)
                alone = await share(it, seconds)
                print(f"{RECORDS} records, {WAITING} waiting, {seconds:.0f} s each:")
                print(f"  nobody looks        {alone:.2f} % of a core")
                if MISSING:
                    print(f"  the page is open    not measured: {MISSING}")
                else:
                    watched = await watched_by_a_page(it, directory, seconds)
                    print(f"  the page is open    {watched:.2f} %, {watched - alone:.2f} % added")
                for path in ("/health", "/queue", "/queue?limit=1", "/queue?limit=100"):
                    print(f"  GET {path:<17} {await asked_back_to_back(it, path):.2f} ms of CPU")
                for client in it.clients:
                    client.stream.socket.close()
    print("the scheduler's part:")
    for waiting in (100, 1_000, 10_000):
        scheduler = (house := FullHouse(settings(), waiting)).scheduler
        first = best_ms(lambda: [in_words(w) for w in scheduler.queue(house.now, 200)])  # noqa: B023 - used at once
        print(f"  {waiting:>6,} waiting: first 200 with reasons {first:.2f} ms, ", end="")
        print(f"the whole order {best_ms(scheduler.order):.2f} ms")


if __name__ == "__main__":
    trio.run(main, float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS)
