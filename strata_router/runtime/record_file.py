"""The request log on disk: one file of whole lines, its backups, and the lock that keeps it ours.

Everything here blocks, so it runs in ``record_log``'s thread and never on the event loop. Where a line
goes is ``core.record.rotation``'s decision. Every call leaves files of whole lines behind, or closes
the file so that the next call repairs it first.
Source: design, "The active file contains append-only JSONL ..."; contract, issue 4.
"""

import errno
import fcntl
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from strata_router.core.record.rotation import Append, Drop, Rotate, end_of_whole_lines, place
from strata_router.core.record.schema import LINE_START

PRIVATE = 0o600
TAIL_BLOCK_BYTES = 64 * 1024
LONGEST_TORN_TAIL_BYTES = 1024 * 1024
"""An interrupted write leaves less than one line, some KiB; what is longer is nothing of ours."""

_OPEN_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
"""A symbolic link is not followed; a FIFO or terminal neither blocks nor becomes ours."""


class RecordLogRefused(Exception):
    """The path must not be written to; the text names it and says what to do."""


@dataclass(frozen=True, slots=True)
class DiskCalls:
    """The calls that a failing disk makes fail or hang, so that a test can stand in for the disk."""

    write: Callable[[int, bytes], int] = os.write
    sync: Callable[[int], None] = os.fdatasync
    cut: Callable[[int, int], None] = os.ftruncate
    rename: Callable[[str, str], None] = os.rename


class RecordFile:
    """The active file at ``path`` and its backups ``path.1`` .. ``path.N``.

    Every method may raise OSError, and RecordLogRefused where the path is not ours to write; both
    leave the object usable, and the next ``append`` starts from what it finds on disk.
    """

    def __init__(
        self, path: str, max_bytes: int, backups: int, disk: DiskCalls | None = None
    ) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._backups = backups
        self._disk = disk or DiskCalls()
        self._active: int | None = None
        self._lock: int | None = None

    def open(self) -> None:
        """Take the lock, open or create the file, and cut off what a crash left of a line."""
        try:
            self._take_lock()
            self._close_active()
            self._active = self._open_whole()
        except RecordLogRefused:
            self.close()
            raise

    def append(self, line: bytes) -> bool:
        """Write one line with its LF and synchronise it; False if it is larger than a file may be.

        On OSError the line is not in the file, unless the disk neither synchronises it nor lets it be
        cut off again: then it may be there all the same.
        """
        if self._active is None or not _is_same(self._path, self._active):
            # First line, or the file or its directory was taken away meanwhile.
            self.open()
        assert self._active is not None
        before = os.fstat(self._active).st_size
        match place(before, len(line), self._max_bytes, self._backups):
            case Drop():
                return False
            case Rotate(renames):
                self._rotate(renames)
                before = 0
            case Append():
                pass
            case never:
                assert_never(never)
        self._write_whole(line, before)
        return True

    def close(self) -> None:
        """Give the file and the lock back. Idempotent."""
        self._close_active()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _take_lock(self) -> None:
        """Hold ``path.lock``; a file of its own, since the active one changes with each rotation."""
        lock_path = f"{self._path}.lock"
        if self._lock is not None:
            if _is_same(lock_path, self._lock):
                return
            # The directory was replaced, and another daemon may have come to the new one first.
            os.close(self._lock)
            self._lock = None
        lock = _open_regular(lock_path, 0)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            os.close(lock)
            why = "is written by another process; stop that, or give each daemon its own path"
            raise _refusal(self._path, why) from exc
        except OSError:
            os.close(lock)
            raise
        self._lock = lock

    def _open_whole(self) -> int:
        active = _open_regular(self._path, os.O_APPEND)
        try:
            self._refuse_foreign(active)
            self._cut_torn_tail(active)
        except BaseException:
            os.close(active)
            raise
        return active

    def _refuse_foreign(self, active: int) -> None:
        """Rotation and repair would destroy a file that is something else than a request log."""
        head = os.pread(active, len(LINE_START), 0)
        # A power cut may leave the length of a line that was never written: NUL bytes.
        if head.strip(b"\0") and not LINE_START.startswith(head):
            raise _refusal(self._path, "holds something else than records; give another path")

    def _cut_torn_tail(self, active: int) -> None:
        size = start = os.fstat(active).st_size
        tail = b""
        while (whole := end_of_whole_lines(tail, start)) is None:
            if len(tail) >= LONGEST_TORN_TAIL_BYTES:
                raise _refusal(self._path, "ends in something else than records; move it away")
            start = max(0, start - TAIL_BLOCK_BYTES)
            tail = os.pread(active, size - start, start)
        if whole < size:
            self._disk.cut(active, whole)

    def _rotate(self, renames: tuple[tuple[int, int], ...]) -> None:
        if not renames:
            assert self._active is not None
            self._disk.cut(self._active, 0)
            return
        for source, target in renames:
            try:
                self._disk.rename(self._name(source), self._name(target))
            except FileNotFoundError:
                # A backup that does not exist yet, or was removed. The active file must exist.
                if source == 0:
                    raise
        self._take_lock()
        self._close_active()
        self._active = self._open_whole()

    def _name(self, number: int) -> str:
        return f"{self._path}.{number}" if number else self._path

    def _write_whole(self, line: bytes, before: int) -> None:
        assert self._active is not None
        rest = line
        try:
            # A full disk first takes part of a line and only then says so.
            while rest:
                written = self._disk.write(self._active, rest)
                if written == 0:
                    raise OSError(errno.EIO, "the disk takes no more bytes and gives no reason")
                rest = rest[written:]
            self._disk.sync(self._active)
        except OSError:
            self._cut_back(before)
            raise

    def _cut_back(self, before: int) -> None:
        """Remove what a failed write left; where even that fails, the next ``open`` does it."""
        assert self._active is not None
        try:
            self._disk.cut(self._active, before)
        except OSError:
            self._close_active()

    def _close_active(self) -> None:
        if self._active is not None:
            os.close(self._active)
            self._active = None


def _open_regular(path: str, flags: int) -> int:
    """Open or create a private regular file; raises RecordLogRefused for anything else."""
    try:
        opened = os.open(path, _OPEN_FLAGS | flags, PRIVATE)
    except OSError as exc:
        if exc.errno == errno.ELOOP:
            raise _refusal(path, "is a symbolic link; give the path of the file itself") from exc
        if exc.errno in (errno.EISDIR, errno.ENXIO):
            raise _refusal(path, "is not a regular file; give the path of a file") from exc
        raise
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise _refusal(path, "is not a regular file; give the path of a file")
    return opened


def _refusal(path: str, why: str) -> RecordLogRefused:
    return RecordLogRefused(f"request_log_path: {path} {why}")


def _is_same(path: str, opened: int) -> bool:
    """Whether ``path`` still names the open file; False if nothing is there."""
    try:
        return os.path.samestat(os.lstat(path), os.fstat(opened))
    except FileNotFoundError:
        return False
