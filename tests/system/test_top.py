"""``strata-router top`` in a real terminal, on a live daemon (issue 10)."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio

from tests.cli.commands import CLEAN_ENVIRONMENT, command_line
from tests.system.crowd import QUICK, Crowd, frozen
from tests.system.harness import daemon

pytest.importorskip("rich", reason="needs the extra top: the package rich")

ALTERNATE_SCREEN, MAIN_SCREEN = "\x1b[?1049h", "\x1b[?1049l"
CONTROL = re.compile(r"\x1b(\[[0-9;?]*[A-Za-z]|[()][A-Z0-9])")


@dataclass
class Terminal:
    """A program in a terminal of 110 by 32. shown: everything it wrote."""

    process: subprocess.Popen[bytes]
    controller: int
    shown: str = ""

    async def until(self, text: str, within_s: float = 10.0) -> None:
        """Wait until the text is written; what was written before does not count."""
        start = len(self.shown)
        with trio.move_on_after(within_s):
            while text not in CONTROL.sub("", self.shown[start:]):
                await trio.lowlevel.wait_readable(self.controller)
                self.shown += os.read(self.controller, 65536).decode()
        assert text in CONTROL.sub("", self.shown[start:]), CONTROL.sub("", self.shown[start:])

    def press(self, keys: str) -> None:
        os.write(self.controller, keys.encode())

    async def ended(self) -> int:
        """The exit status, once it has one; takes what is still written."""
        with trio.fail_after(10):
            while self.process.poll() is None:
                with trio.move_on_after(0.05):
                    await trio.lowlevel.wait_readable(self.controller)
                    self.shown += os.read(self.controller, 65536).decode()
        return int(self.process.returncode)


@asynccontextmanager
async def top(*words: str) -> AsyncIterator[Terminal]:
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 32, 110, 0, 0))
    process = subprocess.Popen(
        command_line("top", *words),
        env={**CLEAN_ENVIRONMENT, "TERM": "xterm"},
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # Ctrl-C reaches it then
    )
    try:
        yield Terminal(process, controller)
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
        os.close(controller)


async def test_the_queue_its_reasons_and_the_requests_are_followed_until_q(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": QUICK, "b": QUICK}, {"max_pending": 1}) as it:
        crowd = Crowd(it)
        await it.chat("a", "warm up")
        with frozen(it):
            await crowd.send("busy", "a", stream=True)
            await crowd.send("waits", "b")
            async with top(str(it.control_socket)) as terminal:
                await terminal.until("a is loaded, for ")
                assert ALTERNATE_SCREEN in terminal.shown
                await terminal.until("waits for 1 active answer of a")
                await crowd.send("more", "a")
                await terminal.until("behind work for a, which is loaded")
                terminal.press("xq")
                assert await terminal.ended() == 0
                assert terminal.shown.rindex(MAIN_SCREEN) > terminal.shown.rindex(ALTERNATE_SCREEN)
        await crowd.served()


async def test_a_daemon_that_goes_away_is_waited_for_and_ctrl_c_leaves(tmp_path: Path) -> None:
    async with (
        daemon(tmp_path, {"a": QUICK}) as it,
        top("--url", f"http://127.0.0.1:{it.port}") as terminal,
    ):
        await terminal.until("no model is loaded")
        await it.stop()
        await terminal.until("no answer from")
        await it.start()
        await terminal.until("q to leave")
        terminal.press("\x03")
        assert await terminal.ended() == 130
        assert terminal.shown.endswith("top: interrupted\r\n")


async def test_without_a_daemon_it_ends_at_once(tmp_path: Path) -> None:
    async with top("--url", "http://127.0.0.1:1") as terminal:
        assert await terminal.ended() == 3
    assert "nobody answers at http://127.0.0.1:1" in terminal.shown
    assert ALTERNATE_SCREEN not in terminal.shown
