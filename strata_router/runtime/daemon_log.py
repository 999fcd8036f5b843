"""Where the daemon's log goes and how a line of it looks.

One line per record on standard error: time, level, logger, text. The journal has a time of its own, so
there the time is left out. Called once, by ``runtime.daemon``.
"""

import logging
import os
import sys
import time
from collections.abc import Mapping

STDERR = 2
LINE = "%(levelname)s %(name)s: %(message)s"
TIMED_LINE = f"%(asctime)s.%(msecs)03dZ {LINE}"

CHATTY = ("httpx", "httpcore", "hypercorn", "quart")
"""Libraries whose lines about every request say nothing that ours do not."""


def write_log_to_stderr(level: str, environment: Mapping[str, str]) -> None:
    """level: a name that ``logging`` knows, in any case."""
    is_journal = leads_to_journal(STDERR, environment)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(log_format(is_journal))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    for chatty in CHATTY:
        logging.getLogger(chatty).setLevel(logging.WARNING)


def log_format(is_journal: bool) -> logging.Formatter:
    """Times are RFC 3339 in UTC with milliseconds, as in the request log."""
    formatter = logging.Formatter(LINE if is_journal else TIMED_LINE, datefmt="%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    return formatter


def leads_to_journal(descriptor: int, environment: Mapping[str, str]) -> bool:
    """Whether the descriptor is the stream that systemd has connected to its journal.

    The variable alone does not say so: whatever is started from such a service inherits it, also with
    its output in a file. It names device and inode. Source: systemd.exec(5), JOURNAL_STREAM.
    """
    named = environment.get("JOURNAL_STREAM")
    if named is None:
        return False
    try:
        status = os.fstat(descriptor)
    except OSError:
        return False
    return named == f"{status.st_dev}:{status.st_ino}"
