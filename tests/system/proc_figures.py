"""What the kernel says a process uses. From /proc, so it needs no help of the process."""

import re
from contextlib import suppress
from pathlib import Path

MIB = 1024 * 1024


def resident_bytes(pid: int) -> int:
    """Memory of the process that is in RAM now."""
    match = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert match is not None
    return int(match[1]) * 1024


def threads(pid: int) -> int:
    """How many threads the process has now, its first included."""
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def descriptors(pid: int) -> int:
    """How many files and sockets the process has open now."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def open_files(pid: int) -> list[str]:
    """What each of the process's descriptors refers to, as the kernel names it."""
    found = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            found.append(str(entry.readlink()))
    return found
