"""Text on its way to a person or a pipe: nothing that it contains can act on the terminal."""

import contextlib
import io
import json
import os
import sys
from typing import Self, TextIO

from strata_router.cli.outcome import CommandFailedError, ExitStatus


def printable(text: str) -> str:
    r"""The text with everything that a terminal might obey, or hide, written as ``\u001b``.

    The escapes are JSON's, so JSON text stays the same JSON: such characters can only stand inside
    its strings.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


class Console:
    """The two streams of one command: results go to ``out``, everything else to ``err``."""

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out = out
        self._err = err

    @classmethod
    def of_process(cls) -> Self:
        """The process's own streams; one that was closed by the caller swallows what it gets."""
        return cls(_tolerant(sys.stdout), _tolerant(sys.stderr))

    @property
    def is_terminal(self) -> bool:
        """Whether a person reads the results."""
        return self._out.isatty()

    def show(self, line: str) -> None:
        """Write one line of the result.

        Raises BrokenPipeError when nobody reads on, CommandFailedError when it cannot be written.
        """
        try:
            print(printable(line), file=self._out, flush=True)
        except OSError as failure:
            self._discard_results()
            if isinstance(failure, BrokenPipeError):
                raise
            reason = f"cannot write the result: {failure.strerror}"
            raise CommandFailedError(ExitStatus.FAILED, reason) from failure

    def say(self, line: str) -> None:
        """Tell the operator one line. A stream that is gone must not end an operation."""
        with contextlib.suppress(OSError):
            print(printable(line), file=self._err, flush=True)

    def _discard_results(self) -> None:
        """Let what could not be written go nowhere, or the interpreter's last flush complains."""
        with contextlib.suppress(OSError), open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), self._out.fileno())


def _tolerant(stream: TextIO | None) -> TextIO:
    if stream is None:
        return io.StringIO()  # the caller closed it: Python then has no stream at all
    if isinstance(stream, io.TextIOWrapper):
        # A locale without our characters must not turn a message into a traceback.
        stream.reconfigure(errors="backslashreplace")
    return stream
