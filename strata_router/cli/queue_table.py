"""Who is served and who waits, as text: cells for ``top``, lines for ``status``.

Rows are the daemon's own (core.overview); what one of another version lacks shows as ``-``.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from strata_router.cli.console import printable
from strata_router.cli.requests_table import duration

Row = Mapping[str, Any]

ACTIVE_COLUMNS = ("model", "tier", "for", "phase")
WAITING_COLUMNS = ("", "model", "tier", "waited", "why")
RIGHT_ALIGNED = {"", "for", "waited", "queue", "load", "ttft", "tok/s"}
"""Numbers, also those that ``top`` shows of a request."""

_PHASES = {
    "loading": "loading",
    "header_wait": "asked, no answer yet",
    "generating": "answering",
}


def active_cells(row: Row) -> tuple[str, ...]:
    """One text per ACTIVE_COLUMNS."""
    phase = _PHASES.get(row.get("phase", ""), _text(row.get("phase")))
    events = row.get("sse_events")
    if isinstance(events, int):
        phase += f", {events} event{'' if events == 1 else 's'} so far"
    return _text(row.get("model")), _text(row.get("tier")), duration(row.get("active_ms")), phase


def waiting_cells(row: Row) -> tuple[str, ...]:
    """One text per WAITING_COLUMNS; why is the daemon's own phrase."""
    tier = _text(row.get("tier"))
    return (
        _text(row.get("position")),
        _text(row.get("model")),
        f"{tier}, overdue" if row.get("overdue") is True else tier,
        duration(row.get("waited_ms")),
        _text(row.get("words")),
    )


def queue_lines(status: Mapping[str, Any]) -> list[str]:
    """Two small tables with a blank line before each; none for a list that is empty or missing."""
    lines: list[str] = []
    active, waiting = _rows(status.get("active")), _rows(status.get("queue"))
    if active:
        lines += ["", "active", *_aligned(ACTIVE_COLUMNS, [active_cells(row) for row in active])]
        lines += _more(status.get("in_flight"), len(active))
    if waiting:
        lines += [
            "",
            "waiting",
            *_aligned(WAITING_COLUMNS, [waiting_cells(row) for row in waiting]),
        ]
        lines += _more(status.get("queue_depth"), len(waiting))
    return lines


def _rows(value: object) -> list[Row]:
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def _aligned(columns: Sequence[str], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(len(row[n]) for row in (columns, *rows)) for n in range(len(columns))]
    for row in (columns, *rows):
        cells = (
            text.rjust(width) if name in RIGHT_ALIGNED else text.ljust(width)
            for name, width, text in zip(columns, widths, row, strict=True)
        )
        yield ("  " + "  ".join(cells)).rstrip()


def _more(total: object, shown: int) -> list[str]:
    more = total - shown if isinstance(total, int) else 0
    return [f"  and {more} more"] if more > 0 else []


def _text(value: object) -> str:
    # Escaped before it is measured: an escape is longer than what it stands for.
    return "-" if value is None or value == "" else printable(str(value))
