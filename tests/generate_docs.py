"""Writes what in docs/ comes from the code: ``python -m tests.generate_docs``.

Each row of ``GENERATED`` is a file and how its text follows from the code and from the text it has;
``test_config_docs`` fails when one is out of step. A new generated document is a new row here.
A file may be wholly generated, or hold generated parts between markers (``with_part``).
"""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from strata_router.core.config.keys import (
    ALIAS_KEYS,
    CONFIG,
    CONFIG_KEYS,
    ENGINE_KEYS,
    METADATA_KEYS,
    MODEL_KEYS,
    TIER_KEYS,
)
from strata_router.core.config.tables import Key
from strata_router.core.engine.lifecycle import states_document
from strata_router.core.metrics import Kind
from tests.man_page import man_page
from tests.metric_table import metric_table
from tests.record_table import field_table

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Generated:
    """path: relative to the checkout. render: the text it has ("" for none) to the text it should."""

    path: str
    render: Callable[[str], str]

    def current(self) -> str:
        file = ROOT / self.path
        return file.read_text(encoding="utf-8") if file.exists() else ""

    def wanted(self) -> str:
        return self.render(self.current())


def with_part(text: str, name: str, part: str) -> str:
    """The text with what stands between the markers of ``name`` replaced by ``part``.

    The markers are HTML comments, put into the document by hand where the part belongs.
    """
    begin, end = f"<!-- generated: {name} -->\n", f"<!-- end of generated: {name} -->"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise ValueError(f"needs one pair of markers: {begin.strip()} and {end}")
    before, _, rest = text.partition(begin)
    after = rest.partition(end)[2]
    return f"{before}{begin}\n{part.strip()}\n\n{end}{after}"


def config_schema(_: str) -> str:
    """JSON Schema of the configuration; what joins several keys cannot be said in it."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "strata-router configuration",
        **CONFIG.json_schema(),
    }
    return json.dumps(schema, indent=2) + "\n"


def config_reference(text: str) -> str:
    """The tables of keys within docs/configuration.md."""
    parts = {
        "keys": CONFIG_KEYS,
        "model keys": MODEL_KEYS,
        "metadata keys": METADATA_KEYS,
        "engine keys": ENGINE_KEYS,
        "alias keys": ALIAS_KEYS,
        "tier keys": TIER_KEYS,
    }
    for name, keys in parts.items():
        text = with_part(text, name, key_table(keys))
    return text


def key_table(keys: tuple[Key, ...]) -> str:
    """One Markdown row per key."""
    heading = ["| key | must be | default | meaning |", "| --- | --- | --- | --- |"]
    return "\n".join(heading + [_key_row(key) for key in keys])


def _key_row(key: Key) -> str:
    allowed = key.shape.allowed + (f" ({key.unit})" if key.unit else "")
    if key.nullable:
        allowed += ", or null"
    meaning = key.meaning
    if key.example is not None and key.example != key.default:
        meaning += f" The example sets {_json(key.example)}."
    cells = (f"`{key.name}`", allowed, _default(key), meaning)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _default(key: Key) -> str:
    if key.required:
        return "required"
    if key.default_text is not None:
        return key.default_text
    return "none" if key.default is None and not key.nullable else _json(key.default)


def _json(value: object) -> str:
    return f"`{json.dumps(value)}`"


def record_fields(text: str) -> str:
    """The table of fields within docs/record.md."""
    return with_part(text, "record fields", field_table())


def metric_reference(text: str) -> str:
    """The tables of metrics within docs/metrics.md."""
    for kind in Kind:
        text = with_part(text, f"{kind.value}s", metric_table(kind))
    return text


GENERATED = (
    Generated("docs/config.schema.json", config_schema),
    Generated("docs/configuration.md", config_reference),
    Generated("docs/record.md", record_fields),
    Generated("docs/states.md", lambda _: states_document()),
    Generated("docs/metrics.md", metric_reference),
    Generated("docs/strata-router.1", lambda _: man_page()),
)


def main() -> int:
    for document in GENERATED:
        wanted = document.wanted()
        if wanted != document.current():
            (ROOT / document.path).write_text(wanted, encoding="utf-8")
            print(f"wrote {document.path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
