"""The page's static form: the same overview as plain HTML, for terminal browsers.

Everything that is not ours to choose is escaped, although names come from the configuration only.
"""

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Any

from strata_router.core.engine.lifecycle import EngineState
from strata_router.core.overview import EngineNow, Overview


def summary(overview: Overview) -> str:
    """Headings, sentences and tables; no script, no style, nothing that refers elsewhere."""
    return "\n".join(_parts(overview))


def _parts(overview: Overview) -> Iterator[str]:
    yield "<h1>strata-router</h1>"
    for sentence in _sentences(overview):
        yield f"<p>{escape(sentence)}</p>"
    yield f"<h2>Waiting: {overview.waiting_total}</h2>"
    if overview.waiting:
        yield from _table(
            ("", "model", "tier", "waited", "why"),
            (
                (row["position"], row["model"], row["tier"], _span(row["waited_ms"]), row["words"])
                for row in overview.tickets()
            ),
        )
    yield f"<h2>Active: {overview.active_total}</h2>"
    if overview.active:
        yield from _table(
            ("model", "tier", "phase", "for", "events"),
            (
                (
                    row["model"],
                    row["tier"],
                    row["phase"],
                    _span(row["active_ms"]),
                    row["sse_events"],
                )
                for row in overview.answers()
            ),
        )
    links = {"/": "look again", "/requests": "recent requests", "/metrics": "figures"}
    yield "<p>" + ", ".join(f'<a href="{path}">{name}</a>' for path, name in links.items()) + "</p>"


def _sentences(overview: Overview) -> Iterator[str]:
    yield _engine(overview.engine)
    if not overview.routing:
        yield "Routing is off: chat requests get 503."
    if overview.draining:
        yield "The daemon is draining: it ends once what it accepted is served."
    for model, left_ms in overview.engine.cooling_ms.items():
        yield f"{model} failed to load and is not tried again for {_span(left_ms)}."


def _engine(engine: EngineNow) -> str:
    if engine.loading is not None:
        return f"{engine.loading} is loading, {_span(engine.loading_ms or 0)} so far."
    if engine.loaded is not None:
        return f"{engine.loaded} is loaded, for {_span(engine.loaded_ms or 0)}."
    if engine.state is EngineState.STOPPED:
        return "No model is loaded."
    return "The engine is stopping."


def _span(ms: int) -> str:
    seconds = ms / 1000
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _table(headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    yield "<table>"
    yield "<tr>" + "".join(f"<th>{heading}</th>" for heading in headings) + "</tr>"
    for row in rows:
        cells = ("-" if cell is None else escape(str(cell)) for cell in row)
        yield "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
    yield "</table>"
