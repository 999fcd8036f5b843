"""The page without scripts: the overview as plain HTML."""

from dataclasses import replace
from html.parser import HTMLParser

import pytest

from strata_router.core.overview import Overview
from strata_router.core.vocabulary import ModelId
from strata_router.runtime.web.summary import summary
from tests.core.overviews import BUSY, GRACE, IDLE, LOADING, STOPPING


class Text(HTMLParser):
    """What a terminal browser shows: the text of each block, and which tags there are."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.blocks: list[str] = []
        self.rows: list[list[str]] = []
        self.tags: set[str] = set()
        self.targets: list[str | None] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.targets += [value for _, value in attrs]
        if tag == "tr":
            self.rows.append([])

    def handle_data(self, data: str) -> None:
        if not data.strip():
            return
        if self.lasttag in ("td", "th"):
            self.rows[-1].append(data)
        else:
            self.blocks.append(data)


@pytest.mark.parametrize(
    ("overview", "sentence"),
    [
        (IDLE, "No model is loaded."),
        (LOADING, "b is loading, 2.3 s so far."),
        (BUSY, "a is loaded, for 61.0 s."),
        (replace(BUSY, engine=replace(BUSY.engine, loaded_ms=600_000)), "a is loaded, for 10 min."),
        (STOPPING, "The engine is stopping."),
    ],
)
def test_the_first_sentence_says_what_is_loaded(overview: Overview, sentence: str) -> None:
    assert Text(summary(overview)).blocks[:2] == ["strata-router", sentence]


def test_what_keeps_requests_out_is_said_in_sentences() -> None:
    assert Text(summary(BUSY)).blocks[2:5] == [
        "Routing is off: chat requests get 503.",
        "The daemon is draining: it ends once what it accepted is served.",
        "c failed to load and is not tried again for 7.2 s.",
    ]


def test_the_queue_and_the_answers_are_tables_with_the_reasons_in_words() -> None:
    text = Text(summary(BUSY))
    assert ("Waiting: 7" in text.blocks, "Active: 3" in text.blocks) == (True, True)
    assert text.rows == [
        ["model", "tier", "waited", "why"],
        ["1", "b", "flex", "3.2 s", "grace for a, 1.2 s left"],
        ["2", "-", "flex", "3.2 s", "behind priority work"],
        ["model", "tier", "phase", "for", "events"],
        ["a", "default", "generating", "5.0 s", "41"],
        ["a", "priority", "header_wait", "0.4 s", "-"],
    ]


def test_nothing_in_it_runs_or_refers_elsewhere() -> None:
    text = Text(summary(BUSY))
    assert text.tags == {"h1", "h2", "p", "a", "table", "tr", "td", "th"}
    assert all(target is not None and target.startswith("/") for target in text.targets)


def test_a_name_cannot_be_taken_for_markup() -> None:
    """Configured ids hold no such characters; the page does not rely on that."""
    odd = ModelId("<script>&")
    html = summary(replace(BUSY, waiting=(replace(GRACE, model=odd, behind_model=odd),)))
    assert "script" not in Text(html).tags
    assert "&lt;script&gt;&amp;" in html
