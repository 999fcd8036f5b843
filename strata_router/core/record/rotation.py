"""Arithmetic of the log file: when it rotates, which file becomes which, where a torn tail begins.

Sizes in, decisions out; ``runtime.record_file`` carries them out.
Source: design, "The active file contains append-only JSONL ...".
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Append:
    """The line goes into the active file as it is."""


@dataclass(frozen=True, slots=True)
class Rotate:
    """The active file is moved aside first, then the line starts a new one.

    renames: (from, to) in this order; 0 is the active file, n its n-th backup. A missing source is
    no fault, and the last target is replaced. Empty: no backups are kept, the active file is
    emptied instead.
    """

    renames: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Drop:
    """The line alone is larger than a file may be."""


Placement = Append | Rotate | Drop


def place(active_bytes: int, line_bytes: int, max_bytes: int, backups: int) -> Placement:
    """Decide where a line goes. line_bytes counts its LF; max_bytes bounds every file."""
    if line_bytes > max_bytes:
        return Drop()
    if active_bytes + line_bytes <= max_bytes:
        return Append()
    return Rotate(tuple((n - 1, n) for n in range(backups, 0, -1)))


def end_of_whole_lines(block: bytes, block_start: int) -> int | None:
    """Return the file size that keeps only whole lines, judged by the file's last bytes.

    block: the file from offset ``block_start`` to its end. None: the block holds no line end, so
    the answer lies before it.
    """
    end = block.rfind(b"\n") + 1
    if end or block_start == 0:
        return block_start + end
    return None
