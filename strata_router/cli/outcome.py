"""How a command ends: the exit statuses, and the failure that carries one with its text."""

from enum import IntEnum


class ExitStatus(IntEnum):
    """Source: contract 10."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    INTERRUPTED = 130


class CommandFailedError(Exception):
    """The command cannot go on. The text is one line for the operator: what is, and what to do."""

    def __init__(self, status: ExitStatus, message: str) -> None:
        super().__init__(message)
        self.status = status
