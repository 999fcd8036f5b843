"""Lines that look like records to a log, of any length, and what is found of them on disk."""

import json
from pathlib import Path


def line(number: int, length: int = 60) -> bytes:
    """The n-th line, ``length`` bytes with its LF (at least 60)."""
    start = b'{"schema_version":1,"n":%d,"pad":"' % number
    return start + b"x" * (length - len(start) - 3) + b'"}\n'


def numbers_in(path: Path) -> list[int]:
    """The numbers of one file's lines, each of which must be whole."""
    content = path.read_bytes()
    assert content == b"" or content.endswith(b"\n")
    return [json.loads(text)["n"] for text in content.splitlines()]


def numbers_of_log(path: Path) -> list[int]:
    """The numbers of the whole log, oldest backup first."""
    return [n for file in files_of_log(path) for n in numbers_in(file)]


def files_of_log(path: Path) -> list[Path]:
    """The log's files, oldest first, without the lock."""
    backups = [file for file in path.parent.glob(f"{path.name}.*") if file.suffix[1:].isdigit()]
    backups.sort(key=lambda file: -int(file.suffix[1:]))
    return [*backups, *([path] if path.exists() else [])]
