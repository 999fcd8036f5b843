"""Keeps the engine's log file private and small; nothing that goes wrong here stops an engine.

The engine writes the file itself: ``runtime.guard`` opens it for appending and makes it the engine's
stdout and stderr. This module makes the file ready before each start and shortens it while the engine
runs. Shortening is copy and truncate, because the engine keeps its descriptor: an appending writer goes
on at the new end. What it writes between the last byte copied and the truncation is lost.
Off unless ``engine_log_path`` is set (contract section 3). Called by the coordinator and the daemon.
"""

import os
import stat
from contextlib import suppress

import trio

MAX_BYTES = 16 * 1024 * 1024
"""An engine prints a line per request and some per load: weeks. A loop of tracebacks fills it in minutes."""
BACKUPS = 3
"""Rotated at each start: enough to see how the last few starts failed."""
CHECK_S = 1.0
"""How often the size is looked at: a stat per second, against the growth of one second above the limit."""
PREPARE_S = 5.0
"""A disk that takes longer than this is hung or as good as; the engine then starts without a log."""
PRIVATE = 0o600


class LogRefused(Exception):
    """The path cannot be the engine's log; the text says why, without naming it."""


async def prepare_log(path: str, backups: int = BACKUPS) -> str | None:
    """Move the last engine's output to ``path.1`` and leave an empty private file at ``path``.

    None: ready. Otherwise why the engine has to start without a log, for status and daemon log.
    """
    with trio.move_on_after(PREPARE_S):
        try:
            # Abandoned rather than waited for: a hung disk must not hold up a start.
            await trio.to_thread.run_sync(rotate_for_start, path, backups, abandon_on_cancel=True)
        except LogRefused as refused:
            return str(refused)
        except OSError as error:
            return _words(error)
        return None
    return f"the disk did not answer within {PREPARE_S:.0f} s"


async def keep_bounded(
    path: str, max_bytes: int = MAX_BYTES, backups: int = BACKUPS, check_s: float = CHECK_S
) -> None:
    """Rotate by copy and truncate whenever the file has passed ``max_bytes``; runs until cancelled."""
    while True:
        await trio.sleep(check_s)
        # A file that is missing, replaced or on a failing disk is looked at again the next time.
        with suppress(OSError, LogRefused):
            await trio.to_thread.run_sync(
                rotate_if_larger, path, max_bytes, backups, abandon_on_cancel=True
            )


def rotate_for_start(path: str, backups: int) -> None:
    """The work of ``prepare_log``, blocking; raises LogRefused and OSError."""
    with suppress(FileNotFoundError):
        status = os.lstat(path)
        if not stat.S_ISREG(status.st_mode):
            raise LogRefused("is not a regular file")
        if status.st_size > 0:
            _make_private(path)
            _shift_backups(path, backups)
            if backups > 0:
                os.replace(path, _backup(path, 1))
            else:
                os.unlink(path)
    _make_private(path, os.O_CREAT)


def rotate_if_larger(path: str, max_bytes: int, backups: int) -> bool:
    """The work of ``keep_bounded``, blocking: True when the file was shortened."""
    if os.lstat(path).st_size <= max_bytes:
        return False
    descriptor = _open_regular(path, os.O_RDWR)
    try:
        if backups > 0:
            # The bound is the promise, the backup a courtesy: without room for it, it is left out.
            with suppress(OSError):
                _shift_backups(path, backups)
                _copy(descriptor, _backup(path, 1))
        os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)
    return True


def _make_private(path: str, create: int = 0) -> None:
    descriptor = _open_regular(path, os.O_WRONLY | create)
    try:
        os.fchmod(descriptor, PRIVATE)  # it may have been there with another mode
    finally:
        os.close(descriptor)


def _open_regular(path: str, flags: int) -> int:
    # Never through a link, and never waiting for a pipe's reader.
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, PRIVATE)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise LogRefused("is not a regular file")
    return descriptor


def _shift_backups(path: str, backups: int) -> None:
    """Free ``path.1`` by moving each backup to the next number; the last one is overwritten."""
    for number in range(backups - 1, 0, -1):
        with suppress(FileNotFoundError):
            os.replace(_backup(path, number), _backup(path, number + 1))


def _copy(source: int, target_path: str) -> None:
    """Copy everything there is by now; a copy that cannot be completed is removed again."""
    with suppress(FileNotFoundError):
        os.unlink(target_path)  # a lone backup that was not moved on
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    target = os.open(target_path, flags, PRIVATE)
    try:
        offset = 0
        while sent := os.sendfile(target, source, offset, 1 << 20):
            offset += sent
    except OSError:
        os.unlink(target_path)
        raise
    finally:
        os.close(target)


def _backup(path: str, number: int) -> str:
    return f"{path}.{number}"


def _words(error: OSError) -> str:
    return os.strerror(error.errno or 0).lower()
