"""Two readers of event streams, as they are found in clients: one by the book, one by ``split``.

``research/sdk_table.py`` reads a daemon with both; ``test_sse_parsers.py`` shows what they accept.
"""

import codecs
import json
from collections.abc import Iterable, Iterator
from typing import Any


def by_the_book(pieces: Iterable[bytes]) -> Iterator[tuple[str, str]]:
    """(event name, data) as an EventSource dispatches them: any line ends, comments and ``id`` skipped.

    An event that no blank line ends is not dispatched.
    """
    name, data = "", list[str]()
    for line in _lines(pieces):
        if not line:
            if data:
                yield name or "message", "\n".join(data)
            name, data = "", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            name = value
        elif field == "data":
            data.append(value)


def _lines(pieces: Iterable[bytes]) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    rest = ""
    for piece in pieces:
        rest += decoder.decode(piece)
        # A carriage return at the very end may be half of a line end.
        held = "\r" if rest.endswith("\r") else ""
        *lines, rest = rest.removesuffix(held).replace("\r\n", "\n").replace("\r", "\n").split("\n")
        rest += held
        yield from lines


def by_split(pieces: Iterable[bytes]) -> Iterator[Any]:
    """The JSON of each block between blank lines, read as hurried clients do.

    A block must be a comment or hold one ``data: `` line; raises IndexError or ValueError otherwise. Blocks
    are cut from bytes, so pieces may end anywhere. Ends at ``[DONE]``.
    """
    rest = b""
    for piece in pieces:
        *blocks, rest = (rest + piece).split(b"\n\n")
        for block in blocks:
            if block.startswith(b":"):
                continue
            data = block.split(b"data: ")[1]
            if data == b"[DONE]":
                return
            yield json.loads(data)
