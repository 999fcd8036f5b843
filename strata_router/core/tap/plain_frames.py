"""Recognises frames that differ from an earlier one only in the text they bring, without parsing.

Under load one read holds hundreds of frames, nearly all of one shape: ids, keys and order stay, one
string changes. A shape is learned from a parsed frame by its bytes before and after that string. A
line that matches brings generated text and no figures, so it need not be parsed; everything else
is ``response_tap``'s to parse. Purely a saving: with every match denied the account is the same.
Source: spec/performance.md (what the tap may cost).
"""

import re
from dataclasses import dataclass

import orjson

from strata_router.core.tap.facts import (
    figures_of,
    finish_reason_of,
    has_generated_delta,
    is_error,
    parse_frame,
)

DATA_FIELD = b"data:"
"""How a line that carries a frame starts; one space may follow."""

_TEXT = re.compile(rb'"(?:content|reasoning_content|reasoning)"\s*:\s*"([^"\\]*(?:\\.[^"\\]*)*)"')


@dataclass(frozen=True, slots=True)
class PlainShape:
    """The constant bytes of one kind of frame.

    before: from ``data:`` up to and with the quote that opens the text.
    after: from the quote that closes the text to the end of the line, with its CR if it has one.
    """

    before: bytes
    after: bytes
    _event_end: bytes
    _joint: bytes
    _quotes: int

    @classmethod
    def of_line(cls, line: bytes) -> "PlainShape | None":
        """Learn from a ``data:`` line (no LF), or None if nothing but text could not be told apart.

        The trial frames prove it, however the text was found: with the text replaced by ``x`` the
        frame is a generated delta that says nothing else, and with no text it is not one. So the
        hole lies inside the string that makes the delta, and inside nothing else.
        """
        text = _TEXT.search(line, len(DATA_FIELD))
        if text is None:
            return None
        before, after = line[: text.start(1)], line[text.end(1) :]
        with_text = parse_frame(before[len(DATA_FIELD) :] + b"x" + after)
        without_text = parse_frame(before[len(DATA_FIELD) :] + after)
        if with_text is None or without_text is None:
            return None
        says_more = figures_of(with_text) or finish_reason_of(with_text) or is_error(with_text)
        if says_more or not has_generated_delta(with_text) or has_generated_delta(without_text):
            return None
        event_end = after + (b"\n\r\n" if after.endswith(b"\r") else b"\n\n")
        quotes = before.count(b'"') + after.count(b'"')
        return cls(before, after, event_end, event_end + before, quotes)

    def text_in(self, line: bytes) -> bytes | None:
        """Return the raw text of a line (no LF) of this shape, or None for any other line.

        Where the text holds a quote it must be one JSON string all the same: no further member can
        hide in it.
        """
        start = len(self.before)
        end = len(line) - len(self.after)
        if end < start or not (line.startswith(self.before) and line.endswith(self.after)):
            return None
        text = line[start:end]
        return text if b'"' not in text or is_text(text) else None

    def last_text_of_run(self, block: bytes) -> bytes | None:
        """Return the raw text of the last frame if ``block`` is nothing but such events, else None.

        Four counts over the block instead of any work per frame. ``frames - 1`` joints with two
        line ends each, plus those of the last event, leave no line end for another line; as many
        quotes as the constant bytes have leave none for another member.
        """
        if not (block.startswith(self.before) and block.endswith(self._event_end)):
            return None
        frames = block.count(self._joint) + 1
        if block.count(b'"') != frames * self._quotes or block.count(b"\n") != frames * 2:
            return None
        return block[block.rfind(self.before) + len(self.before) : -len(self._event_end)]


def is_text(raw: bytes) -> bool:
    """Whether raw bytes between two quotes are a JSON string that is not empty."""
    try:
        return bool(orjson.loads(b'"' + raw + b'"'))
    except orjson.JSONDecodeError:
        return False
