"""runtime.allocator: what large bodies took goes back to the kernel."""

import subprocess
import sys

PROGRAM = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from strata_router.core.chat_request import read_chat_request
from strata_router.runtime.allocator import return_large_buffers

def resident_mb():
    text = Path("/proc/self/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0]) // 1024

def body():
    return b'{"model":"a","messages":[{"content":"' + b"x" * 30_000_000 + b'"}]}'

if sys.argv[1] == "set":
    assert return_large_buffers()
before = resident_mb()
kept = []
with ThreadPoolExecutor(8) as pool:
    for _ in range(3):
        for request in pool.map(lambda _: read_chat_request(body()), range(8)):
            kept.append(bytes(1000))  # what survives a request lies among its buffers
print(resident_mb() - before)
"""


def test_memory_of_large_bodies_is_given_back() -> None:
    outcome = subprocess.run(
        [sys.executable, "-c", PROGRAM, "set"], capture_output=True, text=True, check=True
    )
    assert int(outcome.stdout) < 40
