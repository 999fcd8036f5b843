"""A daemon's ``/requests`` as the design document describes it, under the test's control."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

Record = dict[str, Any]


def record(seq: int, **fields: object) -> Record:
    """A record as the daemon writes it, of a request that went well unless ``fields`` differ."""
    return {
        "schema_version": 1,
        "seq": seq,
        "model_requested": "family-a",
        "model_resolved": "model-a",
        "completed_at": "2026-11-29T12:00:00.123Z",
        "queue_wait_ms": 12,
        "model_load_ms": None,
        "ttft_ms": 850,
        "generation_ms": 2000,
        "prompt_tokens": 1200,
        "completion_tokens": 100,
        "predicted_per_second": None,
        "status": 200,
        "success": True,
        "reason": "completed",
        "disconnect_phase": None,
    } | fields


class Ring:
    """The records of one daemon process, and what a reader asked for.

    answer: bytes that are sent instead of a page, with ``status``.
    """

    def __init__(self, instance_id: str = "one") -> None:
        self.instance_id = instance_id
        self.records: list[Record] = []
        self.evicted = 0
        self.asked: list[tuple[int | None, int]] = []
        self.status = 200
        self.answer: bytes | None = None

    def restart(self, instance_id: str) -> None:
        self.instance_id, self.records, self.evicted = instance_id, [], 0

    def add(self, *records: Record) -> None:
        self.records += records

    def evict(self, count: int) -> None:
        del self.records[:count]
        self.evicted += count

    def page(self, after: int | None, limit: int) -> dict[str, Any]:
        """The document's "Reading recent records", written down independently."""
        self.asked.append((after, limit))
        if after is None:
            chosen = self.records[-limit:]
            dropped = 0
        else:
            chosen = [r for r in self.records if r["seq"] > after][:limit]
            oldest = self.records[0]["seq"] if self.records else self.evicted + 1
            dropped = max(0, oldest - 1 - after)
        return {
            "records": chosen,
            "next_seq": chosen[-1]["seq"] if chosen else after or 0,
            "dropped": dropped,
            "oldest_seq": self.records[0]["seq"] if self.records else None,
            "instance_id": self.instance_id,
        }


@contextmanager
def http_daemon(ring: Ring, port: int = 0) -> Iterator[str]:
    """Serve the ring; gives ``HOST:PORT``. port: 0 takes a free one."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            query = parse_qs(parts.query)
            assert parts.path == "/requests"
            after = int(query["after"][0]) if "after" in query else None
            page = ring.page(after, int(query["limit"][0]))
            body = json.dumps(page).encode() if ring.answer is None else ring.answer
            self.send_response(ring.status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its base's name
            """Nothing: standard error belongs to the test."""

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
