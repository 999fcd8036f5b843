"""When the log rotates and what a torn tail leaves."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_router.core.record.rotation import Append, Drop, Rotate, end_of_whole_lines, place

ROUNDS = int(os.environ.get("ROUNDS", "1"))


def test_a_line_that_just_fits_is_appended() -> None:
    assert place(0, 100, 100, 3) == Append()
    assert place(40, 60, 100, 3) == Append()


def test_a_line_that_would_exceed_the_size_rotates_first_oldest_backup_first() -> None:
    assert place(41, 60, 100, 3) == Rotate(((2, 3), (1, 2), (0, 1)))
    assert place(100, 1, 100, 1) == Rotate(((0, 1),))


def test_without_backups_a_rotation_renames_nothing() -> None:
    assert place(100, 1, 100, 0) == Rotate(())


def test_a_line_larger_than_a_file_is_dropped_whatever_the_file_holds() -> None:
    for active_bytes in (0, 50, 100):
        assert place(active_bytes, 101, 100, 3) == Drop()


def test_a_file_that_is_too_large_already_rotates() -> None:
    """The limit was lowered since it was written."""
    assert place(5000, 1, 100, 1) == Rotate(((0, 1),))


@settings(max_examples=200 * ROUNDS, deadline=None)
@given(
    lines=st.lists(st.integers(1, 130), max_size=60),
    max_bytes=st.integers(20, 100),
    backups=st.integers(0, 4),
)
def test_no_file_ever_exceeds_the_limit_and_the_newest_lines_are_kept_in_order(
    lines: list[int], max_bytes: int, backups: int
) -> None:
    files: dict[int, list[int]] = {0: []}
    kept: list[int] = []
    for line in lines:
        match place(sum(files[0]), line, max_bytes, backups):
            case Drop():
                assert line > max_bytes
                continue
            case Rotate(renames):
                assert sum(files[0]) + line > max_bytes
                for source, target in renames:
                    if source in files:
                        files[target] = files.pop(source)
                files[0] = []
            case Append():
                pass
        files[0].append(line)
        kept.append(line)
        assert all(sum(content) <= max_bytes for content in files.values())
        assert set(files) <= set(range(backups + 1))
        content = [line for n in sorted(files, reverse=True) for line in files[n]]
        assert content == kept[len(kept) - len(content) :]


@pytest.mark.parametrize(
    ("block", "start", "size"),
    [
        (b"", 0, 0),
        (b"whole\n", 0, 6),
        (b"whole\ntorn", 0, 6),
        (b"torn", 0, 0),
        (b"torn", 4096, None),
        (b"", 4096, None),
        (b"tail of a line\n", 4096, 4111),
        (b"tail\ntorn", 4096, 4101),
        (b"\n", 0, 1),
        (b"a\n\0\0\0", 0, 2),
    ],
)
def test_only_what_follows_the_last_line_end_is_torn(
    block: bytes, start: int, size: int | None
) -> None:
    assert end_of_whole_lines(block, start) == size


@given(
    content=st.lists(st.binary(max_size=40) | st.just(b"\n")).map(b"".join),
    block_bytes=st.integers(1, 50),
)
def test_read_backwards_in_blocks_any_file_is_kept_up_to_its_last_line_end(
    content: bytes, block_bytes: int
) -> None:
    start = max(0, len(content) - block_bytes)
    block = content[start:]
    while (size := end_of_whole_lines(block, start)) is None:
        assert b"\n" not in block
        assert start > 0
        start, end = max(0, start - block_bytes), start
        block = content[start:end]
    assert content[:size] == content[: content.rfind(b"\n") + 1]
