"""How a line of the daemon's log looks, and when it has a time of its own."""

import logging
import os
from pathlib import Path

import pytest

from strata_router.runtime.daemon_log import leads_to_journal, log_format

RECORD = logging.LogRecord("some.module", logging.WARNING, "", 0, "text of %d", (7,), None)
RECORD.created, RECORD.msecs = 1_795_996_800.25, 250.0


def test_a_line_begins_with_the_time_in_utc() -> None:
    line = log_format(is_journal=False).format(RECORD)
    assert line == "2026-11-30T00:00:00.250Z WARNING some.module: text of 7"


def test_in_the_journal_which_has_its_own_time_it_does_not() -> None:
    assert log_format(is_journal=True).format(RECORD) == "WARNING some.module: text of 7"


def test_the_journal_is_known_by_the_device_and_inode_that_systemd_names(tmp_path: Path) -> None:
    with (tmp_path / "stream").open("w") as stream, (tmp_path / "file").open("w") as file:
        status = os.fstat(stream.fileno())
        inherited = {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"}
        assert leads_to_journal(stream.fileno(), inherited)
        assert not leads_to_journal(file.fileno(), inherited), "output that was sent to a file"
        assert not leads_to_journal(stream.fileno(), {})


@pytest.mark.parametrize("value", ["", "8", "8:x", "-1:-1"])
def test_a_variable_that_names_nothing_is_no_journal(value: str) -> None:
    with open(os.devnull) as stream:
        assert not leads_to_journal(stream.fileno(), {"JOURNAL_STREAM": value})


def test_a_descriptor_that_is_closed_is_no_journal() -> None:
    descriptor = os.open(os.devnull, os.O_RDONLY)
    os.close(descriptor)
    assert not leads_to_journal(descriptor, {"JOURNAL_STREAM": "1:1"})
