"""Runs the real command line in a process of its own, and daemons that misbehave on purpose."""

import os
import pty
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

BOUND_S = 30.0
"""No command of a test takes this long; one that does is stuck."""

CLEAN_ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if name not in {"STRATA_ROUTER_SOCKET", "XDG_RUNTIME_DIR"}
}

Ran = subprocess.CompletedProcess[str]


def command_line(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "strata_router", *map(str, words)]


def run(*words: str | Path, **environment: str | Path) -> Ran:
    """Run ``strata-router WORDS`` with pipes on all sides."""
    return subprocess.run(
        command_line(*words),
        env=CLEAN_ENVIRONMENT | {name: str(value) for name, value in environment.items()},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=False,
    )


@contextmanager
def running(*words: str | Path, **environment: str | Path) -> Iterator[subprocess.Popen[str]]:
    """The same, while it runs; killed if it still runs at the end."""
    process = subprocess.Popen(
        command_line(*words),
        env=CLEAN_ENVIRONMENT | {name: str(value) for name, value in environment.items()},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    watchdog = threading.Timer(BOUND_S, process.kill)
    watchdog.start()
    try:
        with process:
            yield process
            process.kill()
    finally:
        watchdog.cancel()


def run_on_terminal(*words: str | Path) -> tuple[int, str]:
    """Run it with a terminal on all sides; returns its status and everything that was shown."""
    controller, terminal = pty.openpty()
    with subprocess.Popen(
        command_line(*words),
        env=CLEAN_ENVIRONMENT,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
    ) as process:
        os.close(terminal)
        shown = bytearray()
        while chunk := _read_terminal(controller):
            shown += chunk
        os.close(controller)
        return process.wait(BOUND_S), shown.decode().replace("\r\n", "\n")


def _read_terminal(controller: int) -> bytes:
    try:
        return os.read(controller, 4096)
    except OSError:
        return b""  # EIO: the last process on the other side has ended


Behaviour = Callable[[socket.socket], None]


def answers(reply: bytes) -> Behaviour:
    """Read the command, send ``reply``, close."""

    def behave(client: socket.socket) -> None:
        client.recv(65536)
        client.sendall(reply)

    return behave


@contextmanager
def odd_daemon(path: Path, behave: Behaviour) -> Iterator[None]:
    """Something at the control socket that is not (or no longer) a daemon of this version."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(8)

        def serve() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return  # shut down by the end of the block
                with client:
                    behave(client)

        thread = threading.Thread(target=serve, name="odd daemon")
        thread.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
