"""Asks the daemon's HTTP side for JSON, with plain blocking calls.

What an answer must look like is the caller's business. Source: contract 5 and 10.
"""

import http.client
from typing import Any
from urllib.parse import urlsplit

import orjson

from strata_router.cli.outcome import CommandFailedError, ExitStatus

ANSWER_S = 10.0

_BODY_LIMIT_BYTES = 64 * 1024 * 1024


class UnreachableError(CommandFailedError):
    """Nobody answers now; a follower waits and tries again."""

    def __init__(self, message: str) -> None:
        super().__init__(ExitStatus.UNREACHABLE, message)


class DaemonHttp:
    """One daemon. url: ``http://HOST[:PORT]``, nothing behind it."""

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

    def get_json(self, path: str, query: str = "") -> Any:
        """The parsed answer to GET. Raises UnreachableError, or CommandFailedError for any answer that
        is not 200 with JSON."""
        body = self._get(path, query)
        try:
            return orjson.loads(body)
        except orjson.JSONDecodeError as failure:
            raise self.wrong("the answer is not JSON") from failure

    def wrong(self, what: str) -> CommandFailedError:
        """The failure to raise for an answer that a daemon would not give."""
        return CommandFailedError(
            ExitStatus.FAILED, f"{self.url} does not behave like a strata-router daemon: {what}"
        )

    def _get(self, path: str, query: str) -> bytes:
        assert self._host is not None
        connection = http.client.HTTPConnection(self._host, self._port, timeout=ANSWER_S)
        try:
            target = f"{path}?{query}" if query else path
            connection.request("GET", target, headers={"Accept": "application/json"})
            answer = connection.getresponse()
            body = answer.read(_BODY_LIMIT_BYTES)
        except (OSError, http.client.HTTPException) as failure:
            raise UnreachableError(f"nobody answers at {self.url}: {_cause(failure)}") from failure
        finally:
            connection.close()
        if answer.status != http.client.OK:
            raise self.wrong(f"GET {path} was answered with HTTP status {answer.status}")
        return body


def _cause(failure: Exception) -> str:
    if isinstance(failure, TimeoutError):
        return f"no answer within {ANSWER_S:.0f} s"
    if isinstance(failure, OSError) and failure.strerror:
        return failure.strerror
    return "the connection broke"
