"""The server's side of its children: starts the native engine and helpers, talks to them, ends them.

``Native`` is one native engine through any number of lives: an unload or a death ends the process,
the next ``start`` makes another. Who asks for what, and when, is ``serve.service``'s business.
"""

import contextlib
import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Mapping
from typing import NoReturn

from .profile import Profile
from .stamps import Stamps

_FOLDER = os.path.dirname(os.path.abspath(__file__))

Lines = queue.SimpleQueue[list[str]]
"""Words of the engine's lines for one slot; ``["GONE", exit_code]`` when the process ended."""


class LoadFailed(Exception):
    """The native engine ended before READY.

    exit_code: its own, as Popen reports it. server_status: what the server then ends with, 1 unless
    a fault says otherwise; negative for a signal.
    """

    def __init__(self, exit_code: int, server_status: int = 1) -> None:
        super().__init__(f"the engine ended before it was ready (exit code {exit_code})")
        self.exit_code = exit_code
        self.server_status = server_status


class InputClosed(Exception):
    """The engine's input was closed for the stop; the words are those of a closed Python file."""

    def __init__(self) -> None:
        super().__init__("I/O operation on closed file.")


class EngineStuck(Exception):
    """The native engine outlived QUIT, SIGTERM and SIGKILL."""


class Native:
    """The native engine process and the line protocol with it."""

    def __init__(self, profile: Profile, stamps: Stamps) -> None:
        self._profile = profile
        self._stamps = stamps
        self._lock = threading.Lock()
        self._slots: dict[int, Lines] = {}
        self._stdin_fd = -1
        self._ready = threading.Event()
        self._gone = threading.Event()
        self._gone.set()
        self.pid = 0
        self.exit_code = 0

    @property
    def is_loaded(self) -> bool:
        return self._ready.is_set() and not self._gone.is_set()

    def start(self, load_s: float, *, fails: bool) -> None:
        """Spawn the process and block until READY. Raises LoadFailed."""
        knobs = self._profile.engine
        self._close_input()
        self._ready.clear()
        self._gone.clear()
        arguments = {
            "load_s": 10**9 if knobs.hang_load else load_s,
            "fail": int(fails),
            "exit_s": knobs.exit_s,
            "context": self._profile.context_tokens,
            "parallel": self._profile.parallel,
            "ignore_quit": int(knobs.engine_ignores_quit),
            "ignore_sigterm": int(knobs.engine_ignores_sigterm),
        }
        self.pid, self._stdin_fd, stdout_fd = _spawn("engine_child.py", arguments, self._stamps)
        threading.Thread(target=self._read_lines, args=(stdout_fd,), daemon=True).start()
        self._ready.wait()
        if self._gone.is_set():
            raise LoadFailed(self.exit_code)

    def open_slot(self, slot: int) -> Lines:
        """Where the lines of the request in ``slot`` will arrive."""
        lines: Lines = queue.SimpleQueue()
        with self._lock:
            self._slots[slot] = lines
            if self._gone.is_set():
                lines.put(["GONE", str(self.exit_code)])
        return lines

    def close_slot(self, slot: int) -> None:
        with self._lock:
            del self._slots[slot]

    def send(self, line: str) -> None:
        """Write one command. Raises InputClosed once the stop has begun.

        A command to a process that died is dropped: its GONE is on the way.
        """
        if self._stdin_fd < 0:
            raise InputClosed
        with contextlib.suppress(BrokenPipeError):
            os.write(self._stdin_fd, line.encode() + b"\n")

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            if not self._gone.is_set():
                os.kill(self.pid, signal.SIGKILL)

    def stop(self) -> None:
        """QUIT, then SIGTERM, then SIGKILL, each with its wait. Raises EngineStuck.

        KeyboardInterrupt (a second SIGTERM to the server) kills the process at once.
        """
        if self._gone.is_set():
            return
        ladder_s = self._profile.engine.ladder_s
        self.send("QUIT")
        self._close_input()
        try:
            for number in (None, signal.SIGTERM, signal.SIGKILL):
                if number is not None:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(self.pid, number)
                if self._gone.wait(ladder_s):
                    return
        except KeyboardInterrupt:
            self.kill()
            self._gone.wait(ladder_s)
            return
        raise EngineStuck(f"the engine (pid {self.pid}) does not end")

    def _close_input(self) -> None:
        stdin_fd, self._stdin_fd = self._stdin_fd, -1
        if stdin_fd >= 0:
            os.close(stdin_fd)

    def _read_lines(self, stdout_fd: int) -> None:
        """Hand out the child's lines until its end; runs in a thread of its own."""
        with os.fdopen(stdout_fd, encoding="ascii") as lines:
            for line in lines:
                words = line.split()
                if words[0] == "READY":
                    self._ready.set()
                elif words[0] != "INFO":
                    with self._lock:
                        slot = self._slots.get(int(words[1]))
                    if slot is not None:
                        slot.put(words)
        self.exit_code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self._stamps.stamp("native_gone", native_pid=self.pid, exit_code=self.exit_code)
        with self._lock:
            self._gone.set()
            for slot in self._slots.values():
                slot.put(["GONE", str(self.exit_code)])
        # A load that failed is reported by the same event that its success would have set.
        self._ready.set()


def start_workers(profile: Profile, stamps: Stamps) -> None:
    """Fork the helpers that the profile asks for; they end by themselves, or not."""
    knobs = profile.engine
    for _ in range(knobs.workers):
        arguments = {
            "linger_s": knobs.worker_linger_s,
            "stopped": int(knobs.worker_stopped),
            "ignore_sigterm": int(knobs.worker_ignores_sigterm),
        }
        # Both pipe ends stay open on purpose: the worker reads end of file when this process ends.
        _spawn("worker.py", arguments, stamps, own_session=knobs.worker_setsid)


def die(how: int) -> NoReturn:
    """End this process at once, without clean-up: an exit status, or minus a signal."""
    if how >= 0:
        os._exit(how)
    os.kill(os.getpid(), -how)
    while True:  # A signal may be delivered to another thread first.
        time.sleep(1)


def _spawn(
    script: str, arguments: Mapping[str, float | str], stamps: Stamps, own_session: bool = False
) -> tuple[int, int, int]:
    """Start a child script; return its pid, the end that writes to it and the end that reads it."""
    child_in, to_child = os.pipe()
    from_child, child_out = os.pipe()
    words = [f"{name}={value}" for name, value in arguments.items()]
    words += [f"event_fd={stamps.event_fd}", f"model={json.dumps(stamps.model)}"]
    command = [sys.executable, "-I", "-S", os.path.join(_FOLDER, script), *words]
    # posix_spawn, not subprocess: a third of the start-up time of this server would be its import.
    pid = os.posix_spawn(
        sys.executable,
        command,
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_DUP2, child_in, 0),
            (os.POSIX_SPAWN_DUP2, child_out, 1),
        ],
        setsid=own_session,
        setsigdef=[signal.SIGTERM, signal.SIGPIPE],
    )
    os.close(child_in)
    os.close(child_out)
    return pid, to_child, from_child
