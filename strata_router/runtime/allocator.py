"""Has the C library give large buffers back to the kernel when they are freed.

glibc raises its mmap threshold after the first large free, so that later request bodies come from the
heap, where one small survivor behind them keeps megabytes resident; and each worker thread that parses
a body gets a heap of its own. A daemon that runs for months should look idle when it is (reliability.md,
invariant 3). Elsewhere than on glibc this does nothing.
"""

import ctypes

_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
"""Numbers of mallopt(3)."""

LARGE_BYTES = 128 * 1024
"""glibc's own initial threshold; naming it is what stops it from moving."""

HEAPS = 2


def return_large_buffers() -> bool:
    """Call once at start; False where the C library has no such setting."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)) and bool(mallopt(_M_ARENA_MAX, HEAPS))
