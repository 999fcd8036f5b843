"""Records of ``/requests`` as table lines: one per request, ``-`` for what is not known."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypeGuard

from strata_router.cli.console import printable

COLUMNS = ("time", "model", "tier", "queue", "load", "ttft", "tokens", "tok/s", "outcome")

_LEFT_ALIGNED = {"time", "model", "tier", "outcome"}

_FIRST_WIDTHS = {"time": 14, "model": 12, "queue": 6, "load": 6, "ttft": 6, "tokens": 11}


class RequestsTable:
    """Lines up rows that come one page at a time; a column never gets narrower again."""

    def __init__(self) -> None:
        self._widths = [max(len(name), _FIRST_WIDTHS.get(name, 0)) for name in COLUMNS]

    def header(self) -> str:
        return self._line(COLUMNS)

    def row(self, record: Mapping[str, Any]) -> str:
        return self._line(cells(record))

    def make_room_for(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Widen the columns for rows that follow, so that they and the header are even."""
        for record in records:
            self._widen(cells(record))

    def _line(self, texts: Sequence[str]) -> str:
        self._widen(texts)
        padded = [
            text.ljust(width) if name in _LEFT_ALIGNED else text.rjust(width)
            for name, width, text in zip(COLUMNS, self._widths, texts, strict=True)
        ]
        return "  ".join(padded).rstrip()

    def _widen(self, texts: Sequence[str]) -> None:
        self._widths = [max(w, len(text)) for w, text in zip(self._widths, texts, strict=True)]


def cells(record: Mapping[str, Any]) -> tuple[str, ...]:
    """One text per column.

    tokens: prompt/completion. tok/s: the engine's own decode rate, else completion tokens over the
    time between first and last token.
    """
    return (
        _local_time(record.get("completed_at")),
        _text(record.get("model_resolved") or record.get("model_requested")),
        _text(record.get("tier")),
        duration(record.get("queue_wait_ms")),
        duration(record.get("model_load_ms")),
        duration(record.get("ttft_ms")),
        _tokens(record),
        _rate(record),
        _outcome(record),
    )


def duration(ms: object) -> str:
    """Three figures at most: ``850ms``, ``12.3s``, ``4m05s``, ``2h10m``."""
    if not _is_number(ms):
        return "-"
    if ms < 1000:
        return f"{ms:.0f}ms"
    seconds = ms / 1000
    if seconds < 100:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02d}s"
    return f"{minutes // 60}h{minutes % 60:02d}m"


def _local_time(rfc3339: object) -> str:
    if isinstance(rfc3339, str):
        try:
            return f"{datetime.fromisoformat(rfc3339).astimezone():%m-%d %H:%M:%S}"
        except (ValueError, OverflowError):
            pass  # not a time, or one beyond the calendar: not known
    return "-"


def _text(value: object) -> str:
    # Escaped before it is measured: an escape is longer than what it stands for.
    return printable(value) if isinstance(value, str) and value else "-"


def _tokens(record: Mapping[str, Any]) -> str:
    counts = (record.get("prompt_tokens"), record.get("completion_tokens"))
    if not any(_is_number(count) for count in counts):
        return "-"
    return "/".join(f"{count:.0f}" if _is_number(count) else "-" for count in counts)


def _rate(record: Mapping[str, Any]) -> str:
    measured = record.get("predicted_per_second")
    if _is_number(measured):
        return f"{measured:.1f}"
    tokens, generation_ms = record.get("completion_tokens"), record.get("generation_ms")
    if _is_number(tokens) and _is_number(generation_ms) and generation_ms > 0:
        return f"{tokens * 1000 / generation_ms:.1f}"
    return "-"


def _outcome(record: Mapping[str, Any]) -> str:
    """The record's reason; for a request that did not succeed also its HTTP status and phase."""
    words = [_text(record.get("reason"))]
    if record.get("success") is not True:
        status, phase = record.get("status"), record.get("disconnect_phase")
        words += [str(status)] if _is_number(status) else []
        words += [f"({_text(phase)})"] if phase else []
    return " ".join(words)


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
