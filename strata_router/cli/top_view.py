"""One answer of ``GET /queue`` as a screen for ``top``, drawn with rich.

Shares words and cells with ``status`` and ``requests``; colours are the page's. Rows beyond the
screen's height are left out, from the oldest request upwards.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from strata_router.cli.console import printable
from strata_router.cli.queue_table import (
    ACTIVE_COLUMNS,
    RIGHT_ALIGNED,
    WAITING_COLUMNS,
    active_cells,
    waiting_cells,
)
from strata_router.cli.requests_table import COLUMNS, cells, duration

BAR_CELLS = 24
"""Width of the longest request's bar."""

PARTS = {"queue": "bright_black", "load": "yellow", "prefill": "blue", "decode": "green"}

_SHOWN_OF_A_REQUEST = ("time", "model", "queue", "load", "ttft", "tok/s", "outcome")

_SHRINKS = {"model", "why", "phase", "outcome"}
_LEAST_CELLS = 6
_GAP = 2

_FRAME_LINES = 10  # two lines of engine, three headings after blank lines, one of columns, the last
_FEWEST_RECENT = 3


def screen(view: Mapping[str, Any], width: int, height: int, note: str) -> RenderableType:
    """width, height: of the terminal, in cells. note: the last line, how to leave and what is wrong."""
    active = view["active"]["answers"]
    tickets = view["waiting"]["tickets"]
    records = view["records"]["records"]
    room = max(0, height - _FRAME_LINES)
    active = active[: max(1, room // 3)]
    tickets = tickets[: max(1, room - len(active) - _FEWEST_RECENT)]
    recent = max(0, room - len(active) - len(tickets))
    return Group(
        _headline(view),
        _sub_line(view),
        _heading("active", view["active"]["total"], len(active)),
        _table(ACTIVE_COLUMNS, [[*map(Text, active_cells(row))] for row in active], width),
        _heading("waiting", view["waiting"]["total"], len(tickets)),
        _table(WAITING_COLUMNS, [[*map(Text, waiting_cells(row))] for row in tickets], width),
        _heading("last requests", len(records), None),
        _requests(records[::-1][:recent], width),
        Text(note, style="dim", no_wrap=True),
    )


def _headline(view: Mapping[str, Any]) -> Text:
    engine = view["engine"]
    line = Text(no_wrap=True)
    if engine["loading"]:
        line.append("loading ").append(printable(engine["loading"]), "bold yellow")
        line.append(f", {duration(engine['loading_ms'])} so far")
    elif engine["loaded"]:
        line.append(printable(engine["loaded"]), "bold green")
        line.append(f" is loaded, for {duration(engine['loaded_ms'])}")
    else:
        state = engine["state"]
        line.append("no model is loaded" if state == "stopped" else f"the engine is {state}")
    return line


def _sub_line(view: Mapping[str, Any]) -> Text:
    line = Text(f"up {duration(view['uptime_s'] * 1000)}", style="dim", no_wrap=True)
    if not view["routing"]:
        line.append("   routing is off", "bold red")
    if view["draining"]:
        line.append("   draining", "bold yellow")
    for each in view["engine"]["cooling"]:
        line.append(f"   {printable(each['model'])} cools down, {duration(each['left_ms'])}", "red")
    log = view["request_log"]
    if lost := log["write_drops"] + log["write_errors"]:
        line.append(f"   request log: {lost} lost or failed", "bold red")
    return line


def _heading(name: str, total: int, shown: int | None) -> RenderableType:
    text = Text(f"{name} ", style="bold").append(str(total), "not bold dim")
    if shown is not None and shown < total:
        text.append(f", the first {shown}", "not bold dim")
    return Padding(text, (1, 0, 0, 0))


def _table(columns: Sequence[str], rows: Sequence[Sequence[Text]], width: int) -> Table:
    """Cells are Text, not rich's markup: a bracket in a name means nothing."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, _GAP, 0, 0))
    for name, wide in zip(columns, _widths(columns, rows, width), strict=True):
        right = name in RIGHT_ALIGNED
        table.add_column(width=wide, justify="right" if right else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def _widths(columns: Sequence[str], rows: Sequence[Sequence[Text]], width: int) -> list[int]:
    """As wide as the contents; what the terminal lacks is taken from the widest text, never a number."""
    widths = [max((row[n].cell_len for row in rows), default=0) for n in range(len(columns))]
    texts = [n for n, name in enumerate(columns) if name in _SHRINKS]
    for _ in range(sum(widths) + _GAP * (len(columns) - 1) - width):
        widest = max(texts, key=widths.__getitem__)
        widths[widest] = max(_LEAST_CELLS, widths[widest] - 1)
    return widths


def _requests(records: Sequence[Mapping[str, Any]], width: int) -> Table:
    longest_ms = max((record["total_ms"] for record in records), default=0)
    rows = [[*(Text(name, style="dim") for name in _SHOWN_OF_A_REQUEST), Text()]]
    for record in records:
        by_name = dict(zip(COLUMNS, cells(record), strict=True))
        by_name["time"] = by_name["time"][
            -len("12:34:56") :
        ]  # of the last minutes the date is known
        texts = [Text(by_name[name]) for name in _SHOWN_OF_A_REQUEST]
        if record["success"] is not True:
            texts[-1].stylize("red")
        rows.append([*texts, bar(record, longest_ms)])
    return _table([*_SHOWN_OF_A_REQUEST, "bar"], rows, width)


def bar(record: Mapping[str, Any], longest_ms: int) -> Text:
    """The request's times as cells of colour, against the longest one's."""
    parts = _parts(record)
    line, drawn, so_far_ms = Text(), 0, 0
    for name, style in PARTS.items():
        so_far_ms += parts[name]
        # Ends are rounded, not lengths: the whole is as long as it should be.
        end = round(BAR_CELLS * min(1.0, so_far_ms / longest_ms)) if longest_ms else 0
        line.append("█" * max(0, end - drawn), style)
        drawn = max(drawn, end)
    return line


def _parts(record: Mapping[str, Any]) -> dict[str, int]:
    load = record["model_load_ms"] or 0
    if record["lease_at"] is None:
        return {"queue": record["total_ms"], "load": 0, "prefill": 0, "decode": 0}
    queue = record["queue_wait_ms"]
    if record["ttft_after_lease_ms"] is None:  # not a stream: the two cannot be told apart
        rest = max(0, record["total_ms"] - queue - load)
        return {"queue": queue, "load": load, "prefill": 0, "decode": rest}
    prefill = max(0, record["ttft_after_lease_ms"] - load)
    return {"queue": queue, "load": load, "prefill": prefill, "decode": record["generation_ms"]}
