"""The log file against a real file system, and against one that fails."""

import errno
import os
import resource
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_router.runtime.record_file import DiskCalls, RecordFile, RecordLogRefused
from tests.runtime.record_lines import files_of_log, line, numbers_in, numbers_of_log

ROUNDS = int(os.environ.get("ROUNDS", "1"))
ROOT = Path(__file__).parents[2]
MIB = 1024 * 1024


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "requests.jsonl"


def opened(path: Path, max_bytes: int = MIB, backups: int = 3, **disk: object) -> RecordFile:
    calls = DiskCalls(**disk)  # type: ignore[arg-type] # each test gives calls of the right kind
    file = RecordFile(str(path), max_bytes, backups, calls)
    file.open()
    return file


# --- content ----------------------------------------------------------------------------------


def test_lines_are_appended_and_survive_a_restart(path: Path) -> None:
    for number in range(3):
        file = opened(path)
        assert file.append(line(number))
        file.close()
    assert numbers_in(path) == [0, 1, 2]


def test_each_line_is_synchronised_before_the_next_is_written(path: Path) -> None:
    calls: list[str] = []

    def write(fd: int, data: bytes) -> int:
        calls.append("write")
        return os.write(fd, data)

    def sync(fd: int) -> None:
        calls.append("sync")
        os.fdatasync(fd)

    file = opened(path, write=write, sync=sync)
    file.append(line(1))
    file.append(line(2))
    assert calls == ["write", "sync", "write", "sync"]


def test_new_files_are_private_whatever_the_umask(path: Path) -> None:
    before = os.umask(0)
    try:
        file = opened(path, max_bytes=100)
        file.append(line(1))
        file.append(line(2))
    finally:
        os.umask(before)
    for name in ("requests.jsonl", "requests.jsonl.1", "requests.jsonl.lock"):
        assert stat.S_IMODE((path.parent / name).stat().st_mode) == 0o600


def test_descriptors_are_not_inherited_by_children(path: Path) -> None:
    file = opened(path)
    ours = [fd for fd in range(256) if _name_of(fd).startswith(str(path))]
    assert len(ours) == 2
    assert not any(os.get_inheritable(fd) for fd in ours)
    file.close()
    assert not any(_name_of(fd).startswith(str(path)) for fd in range(256))


def _name_of(fd: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""


def test_closing_twice_is_harmless(path: Path) -> None:
    file = opened(path)
    file.close()
    file.close()


# --- rotation ---------------------------------------------------------------------------------


def test_a_line_that_does_not_fit_moves_the_files_along_and_the_oldest_goes(path: Path) -> None:
    file = opened(path, max_bytes=130, backups=2)
    for number in range(7):
        assert file.append(line(number))
    assert [file.name for file in files_of_log(path)] == [
        "requests.jsonl.2",
        "requests.jsonl.1",
        "requests.jsonl",
    ]
    assert [numbers_in(file) for file in files_of_log(path)] == [[2, 3], [4, 5], [6]]


def test_rotations_leave_no_descriptor_open(path: Path) -> None:
    file = opened(path, max_bytes=60, backups=2)
    file.append(line(0))
    before = len(os.listdir("/proc/self/fd"))
    for number in range(1, 20):
        file.append(line(number))
    assert len(os.listdir("/proc/self/fd")) == before


def test_without_backups_the_file_is_emptied(path: Path) -> None:
    file = opened(path, max_bytes=130, backups=0)
    for number in range(5):
        assert file.append(line(number))
    assert files_of_log(path) == [path]
    assert numbers_in(path) == [4]


def test_a_line_larger_than_a_file_is_dropped_and_nothing_moves(path: Path) -> None:
    file = opened(path, max_bytes=130)
    file.append(line(1))
    assert file.append(line(2, length=131)) is False
    assert file.append(line(3, length=70))
    assert files_of_log(path) == [path]
    assert numbers_in(path) == [1, 3]


def test_a_file_left_larger_than_the_limit_is_moved_by_the_next_line(path: Path) -> None:
    path.write_bytes(line(1, length=500))
    file = opened(path, max_bytes=130)
    file.append(line(2))
    assert numbers_in(path) == [2]
    assert numbers_in(path.with_name("requests.jsonl.1")) == [1]


@settings(max_examples=60 * ROUNDS, deadline=None)
@given(
    lengths=st.lists(st.integers(60, 220), max_size=25),
    max_bytes=st.integers(60, 200),
    backups=st.integers(0, 3),
    restarts=st.sets(st.integers(0, 25)),
)
def test_real_files_hold_the_newest_lines_in_order_and_within_bounds(
    lengths: list[int], max_bytes: int, backups: int, restarts: set[int]
) -> None:
    with TemporaryDirectory() as directory:
        path = Path(directory) / "log"
        file = opened(path, max_bytes, backups)
        kept = []
        for number, length in enumerate(lengths):
            if number in restarts:
                file.close()
                file = opened(path, max_bytes, backups)
            if file.append(line(number, length)):
                kept.append(number)
            else:
                assert length > max_bytes
        found = numbers_of_log(path)
        assert found == kept[len(kept) - len(found) :]
        assert found or not kept
        assert len(files_of_log(path)) <= backups + 1
        assert all(file.stat().st_size <= max_bytes for file in files_of_log(path))
        file.close()


# --- torn tails and foreign files -------------------------------------------------------------


@pytest.mark.parametrize(
    "torn",
    [
        b'{"schema_ver',
        line(9)[:-1],
        b"\0" * 100,
        line(9, length=70_000)[:-1],
        line(9, length=200_000)[:-1],
    ],
)
def test_what_an_interrupted_write_left_is_cut_off(path: Path, torn: bytes) -> None:
    path.write_bytes(line(1) + line(2) + torn)
    file = opened(path)
    assert numbers_in(path) == [1, 2]
    file.append(line(3))
    assert numbers_in(path) == [1, 2, 3]


@pytest.mark.parametrize("torn", [b"{", b'{"schema_version":1,"se', b"\0\0\0"])
def test_a_first_line_that_was_interrupted_leaves_an_empty_file(path: Path, torn: bytes) -> None:
    path.write_bytes(torn)
    file = opened(path)
    assert path.read_bytes() == b""
    file.append(line(1))
    assert numbers_in(path) == [1]


@pytest.mark.parametrize(
    "content",
    [b'{"listen": "127.0.0.1:8088"}', b"root:x:0:0\n", b"\x7fELF", line(1) + b"x" * 1_100_000],
)
def test_a_file_that_is_no_request_log_is_refused_and_left_as_it_is(
    path: Path, content: bytes
) -> None:
    path.write_bytes(content)
    with pytest.raises(RecordLogRefused, match=r"requests\.jsonl (holds|ends in) something else"):
        opened(path)
    assert path.read_bytes() == content


# --- what is at the path ----------------------------------------------------------------------


def test_a_symbolic_link_is_refused_and_its_target_untouched(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    path.symlink_to(target)
    with pytest.raises(RecordLogRefused, match="is a symbolic link"):
        opened(path)
    assert not target.exists()
    target.write_bytes(b"precious")
    with pytest.raises(RecordLogRefused, match="is a symbolic link"):
        opened(path)
    assert target.read_bytes() == b"precious"


def test_a_symbolic_link_that_replaces_the_open_file_is_refused(path: Path, tmp_path: Path) -> None:
    file = opened(path)
    file.append(line(1))
    target = tmp_path / "target"
    path.rename(target)
    path.symlink_to(target)
    with pytest.raises(RecordLogRefused, match="is a symbolic link"):
        file.append(line(2))
    assert numbers_in(target) == [1]


def test_a_symbolic_link_in_place_of_the_lock_is_refused(path: Path, tmp_path: Path) -> None:
    path.with_name("requests.jsonl.lock").symlink_to(tmp_path / "target")
    with pytest.raises(RecordLogRefused, match=r"requests\.jsonl\.lock is a symbolic link"):
        opened(path)


def test_whatever_is_not_a_regular_file_is_refused_at_once(path: Path, tmp_path: Path) -> None:
    path.mkdir()
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        for name in ("requests.jsonl", "fifo", "socket"):
            with pytest.raises(RecordLogRefused, match="is not a regular file"):
                opened(tmp_path / name)


def test_a_device_is_refused(path: Path) -> None:
    """Its lock could be taken anywhere; what counts is that nothing is written to it."""
    if os.geteuid() != 0:
        pytest.skip("making a device node needs root")
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 7))
    with pytest.raises(RecordLogRefused, match="is not a regular file"):
        opened(path)


def test_a_second_writer_is_refused_until_the_first_is_gone(path: Path) -> None:
    first = opened(path, max_bytes=130)
    for number in range(5):
        first.append(line(number))
        with pytest.raises(RecordLogRefused, match="written by another process"):
            opened(path)
    first.close()
    second = opened(path)
    assert second.append(line(5))
    second.close()


CLAIM = """
import sys, time
from strata_router.runtime.record_file import RecordFile
RecordFile(sys.argv[1], 1000, 3).open()
print("open", flush=True)
time.sleep(60)
"""


def test_a_second_process_is_refused_until_the_first_is_killed(path: Path) -> None:
    first = subprocess.Popen([sys.executable, "-c", CLAIM, path], stdout=subprocess.PIPE, cwd=ROOT)
    try:
        assert first.stdout is not None
        assert first.stdout.readline() == b"open\n"
        with pytest.raises(RecordLogRefused, match="written by another process"):
            opened(path)
    finally:
        first.kill()
        first.communicate()
    opened(path).close()


def test_an_unusable_lock_file_closes_what_it_opened(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr("fcntl.flock", no_locks)
        with pytest.raises(OSError, match="No locks available"):
            opened(path)
    assert len(os.listdir("/proc/self/fd")) == before


# --- the path changes under an open file ------------------------------------------------------


def test_a_removed_file_is_made_anew_by_the_next_line(path: Path) -> None:
    file = opened(path)
    file.append(line(1))
    path.unlink()
    assert file.append(line(2))
    assert numbers_in(path) == [2]


def test_a_removed_directory_fails_each_line_until_it_is_back(path: Path, tmp_path: Path) -> None:
    path = tmp_path / "sub" / "requests.jsonl"
    path.parent.mkdir()
    file = opened(path)
    file.append(line(1))
    shutil.rmtree(path.parent)
    for number in (2, 3):
        with pytest.raises(FileNotFoundError):
            file.append(line(number))
    path.parent.mkdir()
    assert file.append(line(4))
    assert numbers_in(path) == [4]
    with pytest.raises(RecordLogRefused, match="written by another process"):
        opened(path)


def test_a_directory_that_another_writer_took_meanwhile_is_not_taken_back(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "requests.jsonl"
    path.parent.mkdir()
    file = opened(path)
    shutil.rmtree(path.parent)
    path.parent.mkdir()
    other = opened(path)
    with pytest.raises(RecordLogRefused, match="written by another process"):
        file.append(line(1))
    assert path.read_bytes() == b""
    other.close()


def test_a_file_emptied_by_somebody_else_goes_on_from_its_start(path: Path) -> None:
    file = opened(path)
    file.append(line(1))
    os.truncate(path, 0)
    file.append(line(2))
    assert numbers_in(path) == [2]


# --- a failing disk ---------------------------------------------------------------------------


def failing(error: int) -> OSError:
    return OSError(error, os.strerror(error))


class FullDisk:
    """Takes ``room`` bytes in all, the last of them as a short write, like a real one."""

    def __init__(self, room: int) -> None:
        self.room = room

    def write(self, fd: int, data: bytes) -> int:
        if self.room == 0:
            raise failing(errno.ENOSPC)
        written = os.write(fd, data[: self.room])
        self.room -= written
        return written


def test_a_short_write_before_a_full_disk_leaves_no_torn_line(path: Path) -> None:
    disk = FullDisk(room=150)
    file = opened(path, write=disk.write)
    file.append(line(1))
    file.append(line(2))
    for _ in range(2):
        with pytest.raises(OSError, match="No space left"):
            file.append(line(3))
        assert numbers_in(path) == [1, 2]
    disk.room = 1000
    assert file.append(line(4))
    assert numbers_in(path) == [1, 2, 4]


def test_a_short_write_alone_is_continued(path: Path) -> None:
    file = opened(path, write=lambda fd, data: os.write(fd, data[:7]))
    file.append(line(1))
    assert numbers_in(path) == [1]


def test_dev_full_s_own_refusal_is_survived(path: Path) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        file = opened(path, write=lambda fd, data: os.write(full, data))
        with pytest.raises(OSError, match="No space left"):
            file.append(line(1))
    finally:
        os.close(full)
    assert path.read_bytes() == b""


def test_a_disk_that_takes_nothing_and_says_nothing_is_an_error(path: Path) -> None:
    file = opened(path, write=lambda fd, data: 0)
    with pytest.raises(OSError, match="takes no more bytes"):
        file.append(line(1))


def test_a_line_that_could_not_be_synchronised_is_taken_back(path: Path) -> None:
    answers: list[OSError | None] = [None, failing(errno.EIO), None]

    def sync(fd: int) -> None:
        if (answer := answers.pop(0)) is not None:
            raise answer

    file = opened(path, sync=sync)
    file.append(line(1))
    with pytest.raises(OSError, match="Input/output error"):
        file.append(line(2))
    file.append(line(3))
    assert numbers_in(path) == [1, 3]


def test_a_torn_line_that_cannot_be_cut_at_once_is_cut_by_the_next_line(path: Path) -> None:
    disk = FullDisk(room=90)
    answers: list[OSError | None] = [failing(errno.EIO)]

    def cut(fd: int, size: int) -> None:
        if answers and (answer := answers.pop()) is not None:
            raise answer
        os.ftruncate(fd, size)

    file = opened(path, write=disk.write, cut=cut)
    file.append(line(1))
    with pytest.raises(OSError, match="No space left"):
        file.append(line(2))
    assert path.stat().st_size == 90
    disk.room = 1000
    file.append(line(3))
    assert numbers_in(path) == [1, 3]


def test_a_tail_that_cannot_be_cut_keeps_the_file_closed(path: Path) -> None:
    path.write_bytes(line(1) + b"torn")

    def cut(fd: int, size: int) -> None:
        raise failing(errno.EPERM)

    before = len(os.listdir("/proc/self/fd"))
    file = RecordFile(str(path), MIB, 3, DiskCalls(cut=cut))
    with pytest.raises(PermissionError):
        file.open()
    with pytest.raises(PermissionError):
        file.append(line(2))
    file.close()
    assert len(os.listdir("/proc/self/fd")) == before
    assert path.read_bytes() == line(1) + b"torn"


def test_a_rotation_that_fails_loses_the_line_and_not_the_bound(path: Path) -> None:
    answers = [failing(errno.EACCES), failing(errno.EIO)]

    def rename(source: str, target: str) -> None:
        if answers:
            raise answers.pop()
        os.rename(source, target)

    file = opened(path, max_bytes=130, backups=1, rename=rename)
    file.append(line(1))
    file.append(line(2))
    for number in (3, 4):
        with pytest.raises(OSError, match=r"Permission|Input/output"):
            file.append(line(number))
    assert numbers_in(path) == [1, 2]
    file.append(line(5))
    assert [numbers_in(file) for file in files_of_log(path)] == [[1, 2], [5]]


def test_an_active_file_gone_at_the_moment_of_rotation_is_an_error_of_one_line(path: Path) -> None:
    def rename(source: str, target: str) -> None:
        if source == str(path) and path.exists():
            path.unlink()
        os.rename(source, target)

    file = opened(path, max_bytes=130, backups=1, rename=rename)
    file.append(line(1))
    file.append(line(2))
    with pytest.raises(FileNotFoundError):
        file.append(line(3))
    file.append(line(4))
    assert numbers_in(path) == [4]


FAULTS = st.lists(st.sampled_from(["ok"] * 5 + ["short", "fail"]), max_size=80)


@settings(max_examples=80 * ROUNDS, deadline=None)
@given(
    writes=FAULTS,
    syncs=FAULTS,
    renames=FAULTS,
    lengths=st.lists(st.integers(60, 90), max_size=25),
    backups=st.integers(0, 2),
)
def test_whatever_fails_only_whole_acknowledged_lines_are_found(
    writes: list[str], syncs: list[str], renames: list[str], lengths: list[int], backups: int
) -> None:
    def next_fault(faults: list[str]) -> str:
        return faults.pop() if faults else "ok"

    def write(fd: int, data: bytes) -> int:
        fault = next_fault(writes)
        if fault == "fail":
            raise failing(errno.ENOSPC)
        return os.write(fd, data[: 1 + len(data) // 2] if fault == "short" else data)

    def sync(fd: int) -> None:
        if next_fault(syncs) == "fail":
            raise failing(errno.EIO)

    def rename(source: str, target: str) -> None:
        if next_fault(renames) == "fail":
            raise failing(errno.EACCES)
        os.rename(source, target)

    with TemporaryDirectory() as directory:
        path = Path(directory) / "log"
        file = opened(path, 150, backups, write=write, sync=sync, rename=rename)
        written = []
        for number, length in enumerate(lengths):
            try:
                file.append(line(number, length))
            except OSError:
                continue
            written.append(number)
            assert numbers_in(path)[-1] == number
        found = numbers_of_log(path)
        assert found == written[len(written) - len(found) :]
        assert all(file.stat().st_size <= 150 for file in files_of_log(path))
        file.close()


# --- real disks that are full, read-only, or end with the process -----------------------------

WRITE_UNTIL_FULL = """
import os, sys
from pathlib import Path
from strata_router.runtime.record_file import RecordFile
from tests.runtime.record_lines import line, numbers_in
path = Path(sys.argv[1])
file = RecordFile(str(path), 1 << 30, 0)
file.open()
failures = number = 0
while failures < 3:
    try:
        file.append(line(number, 777))
        number += 1
    except OSError as error:
        failures += 1
        assert error.errno == int(sys.argv[2]), error
assert numbers_in(path) == list(range(number))
assert path.stat().st_size % 4096 != 0
print(number)
"""


def run(script: str, *arguments: object, before: str = "") -> subprocess.CompletedProcess[str]:
    """Run a script in a shell that does ``before`` first."""
    shell = f'{before} exec "$0" "$@"'
    return subprocess.run(
        ["sh", "-c", shell, sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
    )


def test_a_file_size_limit_cuts_a_line_short_and_leaves_no_torn_line(path: Path) -> None:
    """The kernel first takes what fits (a short write) and then says EFBIG."""

    limit_bytes = 50_000
    done = subprocess.run(
        [sys.executable, "-c", WRITE_UNTIL_FULL, path, str(errno.EFBIG)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes)),
    )
    assert done.stderr == ""
    assert int(done.stdout) == limit_bytes // 777


@pytest.fixture
def mountable(tmp_path: Path) -> Path:
    """A directory on which a child in its own mount namespace can mount a small disk."""
    probe = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", str(tmp_path)]
    try:
        refused = subprocess.run(probe, capture_output=True, text=True, check=False).stderr
    except FileNotFoundError:
        refused = "no unshare"
    if refused:
        pytest.skip(f"a private tmpfs cannot be mounted here: {refused.strip()}")
    return tmp_path


def mounting(directory: Path, options: str) -> str:
    """Shell text: on to a private mount namespace with a disk on ``directory``."""
    inner = f'mount -t tmpfs -o {options} tmpfs {directory} && exec "$0" "$@"'
    return f'exec unshare --mount sh -c \'{inner}\' "$0" "$@"; '


def test_a_full_disk_leaves_whole_lines_only(mountable: Path) -> None:
    before = mounting(mountable, "size=64k")
    done = run(WRITE_UNTIL_FULL, mountable / "requests.jsonl", errno.ENOSPC, before=before)
    assert done.stderr == ""
    assert 60 < int(done.stdout) < 65_536 // 777 + 1


READ_ONLY_FOR_A_WHILE = """
import errno, subprocess, sys
from pathlib import Path
from strata_router.runtime.record_file import RecordFile
from tests.runtime.record_lines import line, numbers_in
directory = Path(sys.argv[1])
path = directory / "requests.jsonl"
file = RecordFile(str(path), 1000, 1)
file.open()
file.append(line(1))
file.close()
subprocess.run(["mount", "-o", "remount,ro", directory], check=True)
for number in (2, 3):
    try:
        file.append(line(number))
    except OSError as error:
        assert error.errno == errno.EROFS, error
    else:
        raise AssertionError("wrote to a read-only disk")
subprocess.run(["mount", "-o", "remount,rw", directory], check=True)
file.append(line(4))
assert numbers_in(path) == [1, 4]
print("ok")
"""


def test_a_read_only_disk_is_written_again_once_it_can_be(mountable: Path) -> None:
    done = run(READ_ONLY_FOR_A_WHILE, mountable, before=mounting(mountable, "size=64k"))
    assert (done.stderr, done.stdout) == ("", "ok\n")


def test_a_directory_that_may_not_be_written_is_an_os_error(path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere; the read-only disk is tested instead")
    path.parent.chmod(0o500)
    try:
        with pytest.raises(PermissionError):
            opened(path)
    finally:
        path.parent.chmod(0o700)


WRITE_FOR_EVER = """
import sys
from strata_router.runtime.record_file import RecordFile
from tests.runtime.record_lines import line
file = RecordFile(sys.argv[1], 5000, 3)
file.open()
number = int(sys.argv[2])
while True:
    file.append(line(number, 60 + number % 400))
    print(number, flush=True)
    number += 1
"""


def test_kill_9_in_a_write_loop_leaves_whole_lines_in_bounded_files(path: Path) -> None:
    """Lines that were acknowledged before the kill are there; at most one more is."""
    random = Random(20_261_129)
    next_number = 0
    for _ in range(4 * ROUNDS):
        child = subprocess.Popen(
            [sys.executable, "-c", WRITE_FOR_EVER, path, str(next_number)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
        )
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(random.uniform(0, 0.15))
        child.send_signal(signal.SIGKILL)
        output, errors = child.communicate(timeout=30)
        assert errors == b""
        acknowledged = int(output.split()[-1]) if output.split() else next_number

        file = opened(path, 5000, 3)
        found = numbers_of_log(path)
        assert found == list(range(found[0], found[-1] + 1))
        assert found[-1] in (acknowledged, acknowledged + 1)
        assert all(file.stat().st_size <= 5000 for file in files_of_log(path))
        assert len(files_of_log(path)) <= 4
        file.close()
        next_number = found[-1] + 1
