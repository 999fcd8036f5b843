"""A file system that fails when told to: the request log's disk, for a real daemon.

A folder passed through FUSE, mounted in a namespace of its own, so that ``write`` and ``fdatasync`` of
the daemon really fail, or really hang in the kernel; the test reads the folder behind it and never waits.

    async with failing_disk(tmp_path) as disk:        # skips where FUSE is not to be had
        it.launch(*disk.through)                      # the daemon sees disk.seen, the test disk.folder
        await disk.becomes("hung")                    # "well", "slow 0.2", "full 700", "read-only", "gone"

This file is its own server, too: ``python -m tests.system.failing_disk SEEN FOLDER``. Only what the
record log does with files is there. Source: Linux, include/uapi/linux/fuse.h, version 7.31.
"""

import ctypes
import errno
import os
import select
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import trio

ROOT = Path(__file__).parents[2]

REQUEST = struct.Struct("<IIQQ16x")  # length, operation, unique, node
REPLY = struct.Struct("<IiQ")  # length, minus the errno, unique
ATTRIBUTES = struct.Struct("<6Q10I")
MAX_WRITE_BYTES = 128 * 1024
UNCACHED = 1  # FOPEN_DIRECT_IO: one write of the daemon is one request here
SETS_MODE, SETS_SIZE = 1, 8
WITHOUT_REPLY = frozenset({2, 36, 42})  # FORGET, INTERRUPT, BATCH_FORGET


class DiskUnavailable(Exception):
    """This machine allows no FUSE mount in a namespace of its own; the text says what is missing."""


class FailingDisk:
    """The test's end of it.

    folder: what is on the disk. seen: the path under which the daemon has it. through: see
    ``DaemonUnderTest.launch``.
    """

    def __init__(self, directory: Path) -> None:
        """Mount it. Raises DiskUnavailable."""
        for program in ("unshare", "nsenter"):
            if shutil.which(program) is None:
                raise DiskUnavailable(f"{program} is not installed (Debian package util-linux)")
        self.folder, self.seen = directory / "behind", directory / "disk"
        for path in (self.folder, self.seen):
            path.mkdir(mode=0o700)
        as_root = () if os.geteuid() == 0 else ("--map-root-user",)
        server = (sys.executable, "-m", "tests.system.failing_disk", self.seen, self.folder)
        self._server = subprocess.Popen(
            ["unshare", *as_root, "--mount", *server],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
            text=True,
            bufsize=1,
        )
        if self._hear() != "well":
            self.close()
            raise DiskUnavailable("this machine allows no FUSE mount in a namespace of its own")
        namespaces = ("--mount", *(("--user", "--preserve-credentials") if as_root else ()))
        # Entering a mount namespace also leaves the working directory.
        back = ("sh", "-c", 'cd "$0" && exec "$@"', str(ROOT))
        self.through = ("nsenter", f"--target={self._server.pid}", *namespaces, *back)

    def _hear(self) -> str:
        assert self._server.stdout is not None
        return self._server.stdout.readline().rstrip()

    async def becomes(self, mode: str) -> None:
        """Behave like this from now on; returns when it does."""
        assert self._server.stdin is not None
        self._server.stdin.write(f"{mode}\n")
        with trio.fail_after(10):
            while await trio.to_thread.run_sync(self._hear, abandon_on_cancel=True) != mode:
                pass

    async def holds_a_request(self) -> None:
        """Wait until the hung disk has something to hang with."""
        with trio.fail_after(10):
            while await trio.to_thread.run_sync(self._hear, abandon_on_cancel=True) != "holding":
                pass

    def close(self) -> None:
        """The disk is gone; whatever waits for it gets an error. Idempotent."""
        self._server.kill()
        for pipe in (self._server.stdin, self._server.stdout):
            assert pipe is not None
            pipe.close()
        self._server.wait()


@asynccontextmanager
async def failing_disk(directory: Path) -> AsyncIterator[FailingDisk]:
    """A disk until the end of the block. Raises DiskUnavailable."""
    disk = FailingDisk(directory)
    try:
        yield disk
    finally:
        disk.close()


# ---- the server --------------------------------------------------------------------------------


class Fault:
    """How the disk is just now, as the lines on standard input say; each is echoed once it holds."""

    def __init__(self) -> None:
        self._mode = "well"
        self._room_bytes = 0

    def take_line(self) -> None:
        """Follow the next line; the end of the input is the end of the server."""
        line = sys.stdin.readline()
        if not line:
            sys.exit()
        self._mode, _, amount = line.strip().partition(" ")
        self._room_bytes = int(amount) if self._mode == "full" else 0
        self._pause_s = float(amount) if self._mode == "slow" else 0.0
        print(line.strip(), flush=True)

    def holds(self, operation: int) -> bool:
        """No answer to this one before the mode changes. A hung disk still closes files and finds names,
        as the kernel does without it; a mount that is gone does nothing."""
        if operation in WITHOUT_REPLY:
            return False
        return self._mode == "gone" or (self._mode == "hung" and operation in TOUCHING)

    def before(self, operation: int) -> None:
        """Wait, or raise OSError, if this operation meets the fault."""
        if operation not in TOUCHING:
            return
        match self._mode:
            case "slow":
                time.sleep(self._pause_s)
            case "full" if operation == CREATE or (operation == WRITE and not self._room_bytes):
                raise OSError(errno.ENOSPC, "full")
            case "read-only":
                raise OSError(errno.EROFS, "read-only")

    def part_of(self, data: bytes) -> bytes:
        """What of a write still finds room."""
        if self._mode != "full":
            return data
        part = data[: self._room_bytes]
        self._room_bytes -= len(part)
        return part


LOOKUP, GETATTR, SETATTR, UNLINK, RENAME, OPEN = 1, 3, 4, 10, 12, 14
READ, WRITE, RELEASE, FSYNC, FLUSH, INIT = 15, 16, 18, 20, 25, 26
CREATE, RENAME2 = 35, 45
TOUCHING = frozenset({CREATE, WRITE, FSYNC})  # what needs the disk itself


class Server:
    """One mounted folder. A node is a descriptor of what is behind it: a renamed or removed file lives on."""

    def __init__(self, device: int, folder: str, fault: Fault) -> None:
        self._device = device
        self._fault = fault
        self._held: list[bytes] = []
        self._nodes = {1: os.open(folder, os.O_PATH)}
        self._numbers = {_identity(self._nodes[1]): 1}
        self._do: dict[int, Callable[[int, bytes], bytes]] = {
            LOOKUP: lambda node, name: self._entry(node, name.rstrip(b"\0")),
            GETATTR: lambda node, _: self._attributes(node),
            SETATTR: self._set_attributes,
            UNLINK: self._unlink,
            RENAME: lambda node, data: self._rename(node, data, 8),
            OPEN: self._open,
            READ: self._read,
            WRITE: self._write,
            RELEASE: self._release,
            FSYNC: self._fsync,
            FLUSH: lambda node, _: b"",
            INIT: _initial,
            CREATE: self._create,
            RENAME2: lambda node, data: self._rename(node, data, 16),
        }

    def run(self) -> None:
        """Serve until standard input or the mount ends."""
        while True:
            ready, _, _ = select.select([self._device, sys.stdin], [], [])
            if sys.stdin in ready:
                self._fault.take_line()
                held, self._held = self._held, []
                for request in held:
                    self._serve(request)
            if self._device in ready:
                self._serve(os.read(self._device, MAX_WRITE_BYTES + 4096))

    def _serve(self, request: bytes) -> None:
        _, operation, unique, node = REQUEST.unpack_from(request)
        if self._fault.holds(operation):
            self._held.append(request)
            print("holding", flush=True)
            return
        error, answer = 0, b""
        try:
            self._fault.before(operation)
            if operation in WITHOUT_REPLY:
                return
            if operation not in self._do:
                raise OSError(errno.ENOSYS, "not needed")
            answer = self._do[operation](node, request[REQUEST.size :])
        except OSError as failure:
            error = failure.errno or errno.EIO
        os.write(self._device, REPLY.pack(REPLY.size + len(answer), -error, unique) + answer)

    def _entry(self, parent: int, name: bytes) -> bytes:
        node = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=self._nodes[parent])
        identity = _identity(node)
        if identity in self._numbers:
            os.close(node)
        else:
            # Never forgotten: an inode's number would come again, and a test makes few files.
            self._numbers[identity] = len(self._nodes) + 1
            self._nodes[self._numbers[identity]] = node
        number = self._numbers[identity]
        # All times of validity are 0: what the test does behind the mount is seen at once.
        return struct.pack("<QQQQII", number, 0, 0, 0, 0, 0) + self._packed(number)

    def _packed(self, number: int) -> bytes:
        stat = os.fstat(self._nodes[number])
        return ATTRIBUTES.pack(
            *(stat.st_ino, stat.st_size, stat.st_blocks),
            *(int(stat.st_atime), int(stat.st_mtime), int(stat.st_ctime), 0, 0, 0),
            *(stat.st_mode, stat.st_nlink, os.getuid(), os.getgid(), 0, 4096, 0),
        )

    def _attributes(self, node: int) -> bytes:
        return struct.pack("<QII", 0, 0, 0) + self._packed(node)

    def _path(self, node: int) -> str:
        return f"/proc/self/fd/{self._nodes[node]}"

    def _set_attributes(self, node: int, data: bytes) -> bytes:
        valid, size, mode = struct.unpack_from("<I12xQ44xI", data)
        if valid & SETS_SIZE:
            os.truncate(self._path(node), size)
        if valid & SETS_MODE:
            os.chmod(self._path(node), mode & 0o7777)
        return self._attributes(node)

    def _unlink(self, node: int, name: bytes) -> bytes:
        os.unlink(name.rstrip(b"\0"), dir_fd=self._nodes[node])
        return b""

    def _rename(self, node: int, data: bytes, names_at: int) -> bytes:
        (target,) = struct.unpack_from("<Q", data)
        before, after, _ = data[names_at:].split(b"\0", 2)
        os.rename(before, after, src_dir_fd=self._nodes[node], dst_dir_fd=self._nodes[target])
        return b""

    def _opened(self, node: int, flags: int) -> bytes:
        # The kernel has worked out the place of an appended line.
        kept = flags & (os.O_ACCMODE | os.O_TRUNC)
        return struct.pack("<QII", os.open(self._path(node), kept), UNCACHED, 0)

    def _open(self, node: int, data: bytes) -> bytes:
        return self._opened(node, struct.unpack_from("<I", data)[0])

    def _create(self, node: int, data: bytes) -> bytes:
        flags, mode = struct.unpack_from("<II", data)
        name = data[16:].rstrip(b"\0")
        made = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW
        os.close(os.open(name, made, mode & 0o7777, dir_fd=self._nodes[node]))
        entry = self._entry(node, name)
        return entry + self._opened(struct.unpack_from("<Q", entry)[0], flags)

    def _read(self, node: int, data: bytes) -> bytes:
        opened, offset, size = struct.unpack_from("<QQI", data)
        return os.pread(opened, size, offset)

    def _write(self, node: int, data: bytes) -> bytes:
        opened, offset, size = struct.unpack_from("<QQI", data)
        part = self._fault.part_of(data[40 : 40 + size])
        return struct.pack("<II", os.pwrite(opened, part, offset), 0)

    def _release(self, node: int, data: bytes) -> bytes:
        os.close(struct.unpack_from("<Q", data)[0])
        return b""

    def _fsync(self, node: int, data: bytes) -> bytes:
        os.fdatasync(struct.unpack_from("<Q", data)[0])
        return b""


def _identity(node: int) -> tuple[int, int]:
    stat = os.fstat(node)
    return stat.st_dev, stat.st_ino


def _initial(node: int, data: bytes) -> bytes:
    big_writes = 1 << 5
    return struct.pack("<IIIIHHIIHHI28x", 7, 31, 0, big_writes, 1, 1, MAX_WRITE_BYTES, 1, 0, 0, 0)


def serve(seen: str, folder: str) -> None:
    """Mount ``folder`` at ``seen`` in the present namespace, and serve it."""
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"strata-test", seen.encode(), b"fuse", 0, options):
        raise OSError(ctypes.get_errno(), "mount")
    print("well", flush=True)
    Server(device, folder, Fault()).run()


if __name__ == "__main__":
    serve(*sys.argv[1:])
