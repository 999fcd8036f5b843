"""``strata-router requests``: shows what requests did, once or as they end."""

import time
from typing import Protocol

import orjson

from strata_router.cli.console import Console
from strata_router.cli.daemon_http import UnreachableError
from strata_router.cli.requests_feed import Cursor, News, RequestsSource
from strata_router.cli.requests_table import RequestsTable

POLL_S = 1.0
"""How often a follower asks; a record is of interest to a person, not to a control loop."""


class View(Protocol):
    """How news reach the console."""

    def show(self, news: News) -> None: ...


def show_newest(source: RequestsSource, limit: int, view: View) -> None:
    """Show the newest records. Raises what ``RequestsSource.page`` raises."""
    view.show(Cursor(limit).read(source))


def follow(source: RequestsSource, limit: int, view: View, console: Console) -> None:
    """Show the newest records, then each further one, until interrupted.

    A daemon that is gone is waited for, and the wait is told. Raises CommandFailedError for an
    answer that is not the daemon's.
    """
    cursor = Cursor(limit)
    is_waiting = False
    while True:
        try:
            news = cursor.read(source)
        except UnreachableError as failure:
            if not is_waiting:
                console.say(f"{failure}; waiting for the daemon")
            is_waiting = True
            time.sleep(POLL_S)
            continue
        if is_waiting:
            console.say(f"the daemon answers again at {source.url}")
        is_waiting = False
        view.show(news)
        if not news.has_more:
            time.sleep(POLL_S)


class JsonView:
    """One record per line, as the daemon gave it; notices go beside, so that the lines stay JSON."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def show(self, news: News) -> None:
        for notice in news.notices:
            self._console.say(notice)
        for record in news.records:
            self._console.show(orjson.dumps(record).decode())


class TableView:
    """A header, then one row per record, with notices where they belong between the rows."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._table = RequestsTable()
        self._has_header = False

    def show(self, news: News) -> None:
        self._table.make_room_for(news.records)
        if not self._has_header:
            self._console.show(self._table.header())
            self._has_header = True
        for notice in news.notices:
            self._console.show(f"--- {notice} ---")
        for record in news.records:
            self._console.show(self._table.row(record))
