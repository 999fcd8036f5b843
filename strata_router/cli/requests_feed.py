"""Reads ``GET /requests`` with a cursor: pages over HTTP, and what a reader must notice between them.

``RequestsSource`` fetches, ``Cursor`` remembers; what the records look like on a screen is
``cli.requests_table``'s business. Source: design document, "Reading recent records".
"""

from dataclasses import dataclass
from typing import Any

from strata_router.cli.arguments import RECORDS_LIMIT
from strata_router.cli.daemon_http import DaemonHttp

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Page:
    """One answer. dropped: records after the cursor that the daemon no longer had."""

    records: list[Record]
    next_seq: int
    dropped: int
    instance_id: str


class RequestsSource:
    """The daemon's records. url: ``http://HOST[:PORT]``, nothing behind it."""

    def __init__(self, url: str) -> None:
        """Raises CommandFailedError(USAGE) for any other kind of URL."""
        self.url = url
        self._daemon = DaemonHttp(url)

    def page(self, after: int | None, limit: int) -> Page:
        """after: exclusive cursor, None for the newest. limit: 1..RECORDS_LIMIT.

        Raises UnreachableError, or CommandFailedError for an answer that is not a page.
        """
        cursor = "" if after is None else f"after={after}&"
        match self._daemon.get_json("/requests", f"{cursor}limit={limit}"):
            case {
                "records": list(records),
                "next_seq": int(next_seq),
                "dropped": int(dropped),
                "instance_id": str(instance_id),
            } if all(isinstance(record, dict) for record in records):
                return Page(records, next_seq, dropped, instance_id)
        raise self._daemon.wrong("the answer is not a page of records")


@dataclass(frozen=True, slots=True)
class News:
    """What one reading brought. notices: what the reader must know before the records.

    has_more: read again at once, there is more already.
    """

    notices: list[str]
    records: list[Record]
    has_more: bool


class Cursor:
    """Where a reader is in one daemon's records; notices restarts and gaps."""

    def __init__(self, newest: int) -> None:
        """newest: how many of the retained records the first reading brings."""
        self._newest = newest
        self._after: int | None = None
        self._instance_id: str | None = None

    def read(self, source: RequestsSource) -> News:
        """The next records, oldest first. Raises what ``RequestsSource.page`` raises, then the
        cursor has not moved."""
        is_first = self._after is None
        page = source.page(self._after, self._newest if is_first else RECORDS_LIMIT)
        if self._instance_id not in (None, page.instance_id):
            # Another process numbers from 1 again: this page was cut with the wrong cursor.
            self._instance_id, self._after = page.instance_id, 0
            return News(["the daemon was restarted, its records start anew"], [], has_more=True)
        self._instance_id, self._after = page.instance_id, page.next_seq
        notices = [f"{page.dropped} records are missing, the daemon no longer has them"]
        return News(
            notices if page.dropped > 0 else [],
            page.records,
            has_more=not is_first and len(page.records) >= RECORDS_LIMIT,
        )
