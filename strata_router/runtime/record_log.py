"""Brings finished records to the log file without ever making serving wait for the disk.

``put`` is synchronous and only fills a bounded queue; one task empties it in a thread. A failing disk
costs lines, which are counted; a hanging one fills the queue, and then costs lines, too. The memory
ring knows nothing of all this. What happens to a line on disk is ``record_file``'s.
Source: design, "Serving never waits for disk writes, rotation or synchronization ...".
"""

import logging
from collections import deque
from dataclasses import dataclass

import trio

from strata_router.runtime.record_file import DiskCalls, RecordFile, RecordLogRefused

__all__ = ["QUEUE_LINES", "RecordLog", "RecordLogRefused"]

log = logging.getLogger(__name__)

QUEUE_LINES = 2048
"""Lines that may wait for the writer. Source: design."""

BATCH_LINES = 64
"""Lines per trip to the thread. Each is synchronised by itself all the same; this only saves trips."""

REST_S = 0.1
"""Pause after a trip, unless a whole batch waits or the end is near. A line that comes alone is written
at once; but the thread takes turns with the event loop, and in the wake of every request it would do so
just when the same client sends its next one: 0.15 ms of its time to first token (RESEARCH.md)."""


@dataclass(slots=True)
class _Batch:
    """What one trip to the thread did.

    problem: why the last line failed, None if it did not.
    """

    errors: int = 0
    drops: int = 0
    problem: str | None = None


class RecordLog:
    """The JSONL log of one daemon. Everything but the file's own work runs on the event loop's thread.

    write_errors: file operations that failed.
    write_drops: lines that never got into the files, for whatever reason. Until rotation replaces the
        oldest backup, lines in files plus drops are the records put; a write that was given up counts
        as dropped, though its line may be there.
    problem: what the last attempt to write failed of, None while all is well. The daemon's own log has
        a line whenever it changes.
    """

    def __init__(
        self, path: str, max_bytes: int, rotate_files: int, *, disk: DiskCalls | None = None
    ) -> None:
        """path: absolute. max_bytes bounds every file. rotate_files: backups, 0 for none."""
        self.write_errors = 0
        self.write_drops = 0
        self.problem: str | None = None
        self._path = path
        self._file = RecordFile(path, max_bytes, rotate_files, disk)
        self._lines: deque[bytes] = deque()
        self._lines_in_thread = 0
        self._wake = trio.Event()
        self._is_resting = False
        self._is_closing = False
        self._is_running = False
        self._has_ended = trio.Event()
        self._scope = trio.CancelScope()
        # A limiter of its own: a hung disk holds one thread for as long as it likes.
        self._limiter = trio.CapacityLimiter(1)

    def open(self) -> None:
        """Claim the path and make it ready; blocks, so call it before serving.

        Raises RecordLogRefused for a path that must not be written: a symbolic link, not a regular
        file, in use by another writer. A disk that merely fails is counted, and tried again with
        each line.
        """
        try:
            self._file.open()
        except OSError as error:
            self.write_errors += 1
            self._set_problem(_words(error))

    def put(self, line: bytes) -> None:
        """Queue one JSON line with its LF, or count it as dropped; never waits and never fails."""
        if self._is_closing or len(self._lines) >= QUEUE_LINES:
            self.write_drops += 1
            return
        self._lines.append(line)
        if not self._is_resting or len(self._lines) >= BATCH_LINES:
            self._wake.set()

    async def run(self) -> None:
        """Write what is put until ``close``; the one task, and through it the one thread, to do so."""
        self._is_running = True
        try:
            with self._scope:
                while await self._has_lines():
                    await self._write_batch()
                    await self._rest()
        finally:
            self._end()

    async def close(self, timeout_s: float = 2.0) -> None:
        """Let the writer finish what is queued for so long, then leave the rest, counted as drops.

        A thread that hangs is abandoned with its file; it cannot keep the process from ending.
        """
        self._is_closing = True
        self._wake.set()
        try:
            # With lines queued, a writer that has not begun yet is waited for, too.
            if self._is_running or self._lines:
                with trio.move_on_after(timeout_s):
                    await self._has_ended.wait()
        finally:
            self._scope.cancel()
            if self._is_running:
                # Bounded: the cancelled writer abandons its thread at once and has nothing else to do.
                with trio.CancelScope(shield=True):
                    await self._has_ended.wait()
            else:
                self._end()

    async def _has_lines(self) -> bool:
        """Wait for a line; False once there is none and will be none."""
        while not self._lines:
            if self._is_closing:
                return False
            self._wake = trio.Event()
            await self._wake.wait()
        return True

    async def _rest(self) -> None:
        if self._is_closing or len(self._lines) >= BATCH_LINES:
            return
        self._wake = trio.Event()
        self._is_resting = True
        with trio.move_on_after(REST_S):
            await self._wake.wait()
        self._is_resting = False

    async def _write_batch(self) -> None:
        lines = [self._lines.popleft() for _ in range(min(BATCH_LINES, len(self._lines)))]
        self._lines_in_thread = len(lines)
        done = await trio.to_thread.run_sync(
            _append_all, self._file, lines, abandon_on_cancel=True, limiter=self._limiter
        )
        self._lines_in_thread = 0
        self.write_errors += done.errors
        self.write_drops += done.drops
        self._set_problem(done.problem)

    def _set_problem(self, problem: str | None) -> None:
        if problem == self.problem:
            return
        self.problem = problem
        if problem is None:
            log.info("the request log is written again; %d records were dropped", self.write_drops)
        else:
            log.warning("the request log %s cannot be written: %s", self._path, problem)

    def _end(self) -> None:
        """Synchronous, so that it happens however the writer ends."""
        self._is_closing = True
        self.write_drops += len(self._lines) + self._lines_in_thread
        self._lines.clear()
        if not self._lines_in_thread:
            # Else an abandoned thread still holds the file; the end of the process closes it.
            self._file.close()
        self._lines_in_thread = 0
        self._has_ended.set()


def _append_all(file: RecordFile, lines: list[bytes]) -> _Batch:
    done = _Batch()
    for line in lines:
        done.problem = None
        try:
            if not file.append(line):
                done.drops += 1
        except (OSError, RecordLogRefused) as error:
            done.errors += 1
            done.drops += 1
            done.problem = _words(error)
    return done


def _words(error: Exception) -> str:
    """A failure without the paths that an OSError's own text holds."""
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return str(error)
