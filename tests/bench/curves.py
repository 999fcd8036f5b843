"""Scaling: open streams, queued tickets, records paged. What should be flat is a cost per unit.

The same is guarded without a clock by counting tests: tests/runtime/test_cost_per_event.py,
tests/core/test_admission_cost.py and tests/core/test_ring_cost.py.
"""

import time
from dataclasses import replace
from pathlib import Path
from statistics import median

from strata_router.core.moment import Moment
from strata_router.core.record.builder import RecordBuilder
from strata_router.core.record.ring import RecordRing
from strata_router.core.vocabulary import CHAT_PATH, Reason, RequestId
from tests import bench_admission
from tests.bench.measures import measure, settle
from tests.bench.rounds import STREAMS
from tests.bench.targets import Target

OPEN_STREAMS = (1, 10, 100, 1000)
TOTAL_RATE = 2000
"""Tokens a second over all streams: the same work, divided among more and more of them."""

RING_SIZES = (100, 1_000, 10_000, 100_000)


def open_streams(target: Target, program: Path, rounds: int) -> list[tuple[int, float, float]]:
    """(streams, median CPU microseconds per token, its p99 delay in microseconds) per size."""
    found: dict[int, list[tuple[float, float]]] = {count: [] for count in OPEN_STREAMS}
    for _ in range(rounds):
        for count in OPEN_STREAMS:
            load = replace(STREAMS, connections=count, rate=TOTAL_RATE // count, warm_s=1.5)
            result = measure(load, program, target)
            settle(target)
            if not result.get("failed") and result["tokens"]:
                per_s = result["tokens"] / result["seconds"]
                cost_us = 1e6 * result["cpu_s_per_s"] / per_s
                found[count].append((cost_us, result["delay"]["p99_us"]))
    return [
        (count, median(cost for cost, _ in rows), median(delay for _, delay in rows))
        for count, rows in found.items()
        if rows
    ]


def queued_tickets() -> list[str]:
    """The wait-first rows of ``tests.bench_admission``."""
    chosen = bench_admission.settings()
    return [bench_admission.row("wait-first", chosen, size) for size in bench_admission.SIZES]


def ring_pages() -> list[tuple[int, float]]:
    """(records kept, microseconds for a page of 100 out of the middle) per size; processor time."""
    rows = []
    for size in RING_SIZES:
        ring = filled_ring(size)
        took_us = []
        for _ in range(300):
            began_ns = time.thread_time_ns()
            ring.page(size // 2, 100)
            took_us.append((time.thread_time_ns() - began_ns) / 1000)
        rows.append((size, median(took_us)))
    return rows


def filled_ring(size: int) -> RecordRing:
    """A ring that has just become full."""
    ring = RecordRing(size, "bench")
    for seq in range(1, size + 1):
        at = Moment(float(seq), float(seq))
        builder = RecordBuilder(seq, RequestId(f"bench-{seq}"), CHAT_PATH, at, 0, 0)
        ring.append(builder.finish(at, Reason.COMPLETED))
    return ring
