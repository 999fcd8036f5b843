"""Prints the knob tables of docs/simulated-engine.md, from the knobs themselves.

``python -m strata_router.simulated.knob_docs``; a test holds the document against it.
"""

from dataclasses import fields
from typing import Any

from strata_router.simulated.checkout.serve.knobs import (
    MARKER_SHORTHANDS,
    MARKER_SYNONYMS,
    EngineKnobs,
    RequestKnobs,
)


def knob_table(table: type[EngineKnobs] | type[RequestKnobs]) -> str:
    """One Markdown row per knob: name, default, meaning, and the words it can take."""
    rows = ["| knob | default | meaning |", "| --- | --- | --- |"]
    for entry in fields(table):
        words = ", ".join(f"`{choice}`" for choice in entry.metadata["choices"] if choice)
        meaning = entry.metadata["doc"] + (f": {words}" if words else "")
        rows.append(f"| `{entry.name}` | {_shown(entry.default)} | {meaning} |")
    return "\n".join(rows)


def marker_table() -> str:
    """One row per shorthand and synonym."""
    rows = ["| marker | stands for |", "| --- | --- |"]
    for name, knobs in MARKER_SHORTHANDS.items():
        meaning = ", ".join(f"`{knob}={_bare(value)}`" for knob, value in knobs.items())
        rows.append(f"| `FX:{name}` | {meaning} |")
    rows += [f"| `FX:{name}=N` | `{knob}=N` |" for name, knob in MARKER_SYNONYMS.items()]
    return "\n".join(rows)


def _shown(default: Any) -> str:
    return "" if default in (None, "") else f"`{_bare(default)}`"


def _bare(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    for text in (knob_table(EngineKnobs), knob_table(RequestKnobs), marker_table()):
        print(text, end="\n\n")
