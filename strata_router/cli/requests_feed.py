"""Reads ``GET /requests`` with a cursor: pages over HTTP, and what a reader must notice between them.

``RequestsSource`` fetches, ``Cursor`` remembers; what the records look like on a screen is
``cli.requests_table``'s business. Source: design document, "Reading recent records".
"""

import http.client
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import orjson

from strata_router.cli.arguments import RECORDS_LIMIT
from strata_router.cli.outcome import CommandFailedError, ExitStatus

ANSWER_S = 10.0

_BODY_LIMIT_BYTES = 64 * 1024 * 1024

Record = dict[str, Any]


class UnreachableError(CommandFailedError):
    """Nobody answers now; a follower waits and tries again."""

    def __init__(self, message: str) -> None:
        super().__init__(ExitStatus.UNREACHABLE, message)


@dataclass(frozen=True, slots=True)
class Page:
    """One answer. dropped: records after the cursor that the daemon no longer had."""

    records: list[Record]
    next_seq: int
    dropped: int
    instance_id: str


class RequestsSource:
    """The daemon's HTTP side. url: ``http://HOST[:PORT]``, nothing behind it."""

    def __init__(self, url: str) -> None:
        """Raises CommandFailedError(USAGE) for any other kind of URL."""
        self.url = url
        try:
            parts = urlsplit(url)
            self._host, self._port = parts.hostname, parts.port or 80
        except ValueError:  # a port that is no number, brackets that do not match
            self._host = None
        if self._host is None or parts.scheme != "http" or parts.path.strip("/") or parts.query:
            raise CommandFailedError(
                ExitStatus.USAGE, f"'{url}' is not of the form http://127.0.0.1:8088"
            )

    def page(self, after: int | None, limit: int) -> Page:
        """after: exclusive cursor, None for the newest. limit: 1..RECORDS_LIMIT.

        Raises UnreachableError, or CommandFailedError for an answer that is not a page.
        """
        cursor = "" if after is None else f"after={after}&"
        return self._parse(self._get(f"/requests?{cursor}limit={limit}"))

    def _get(self, target: str) -> bytes:
        assert self._host is not None
        connection = http.client.HTTPConnection(self._host, self._port, timeout=ANSWER_S)
        try:
            connection.request("GET", target, headers={"Accept": "application/json"})
            answer = connection.getresponse()
            body = answer.read(_BODY_LIMIT_BYTES)
        except (OSError, http.client.HTTPException) as failure:
            raise UnreachableError(f"nobody answers at {self.url}: {_cause(failure)}") from failure
        finally:
            connection.close()
        if answer.status != http.client.OK:
            raise self._wrong(f"GET /requests was answered with HTTP status {answer.status}")
        return body

    def _parse(self, body: bytes) -> Page:
        try:
            fields = orjson.loads(body)
        except orjson.JSONDecodeError as failure:
            raise self._wrong("the answer is not JSON") from failure
        match fields:
            case {
                "records": list(records),
                "next_seq": int(next_seq),
                "dropped": int(dropped),
                "instance_id": str(instance_id),
            } if all(isinstance(record, dict) for record in records):
                return Page(records, next_seq, dropped, instance_id)
        raise self._wrong("the answer is not a page of records")

    def _wrong(self, what: str) -> CommandFailedError:
        return CommandFailedError(
            ExitStatus.FAILED, f"{self.url} does not behave like a strata-router daemon: {what}"
        )


def _cause(failure: Exception) -> str:
    if isinstance(failure, TimeoutError):
        return f"no answer within {ANSWER_S:.0f} s"
    if isinstance(failure, OSError) and failure.strerror:
        return failure.strerror
    return "the connection broke"


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
