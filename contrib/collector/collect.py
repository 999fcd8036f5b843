#!/usr/bin/env python3
"""Keeps every record of a strata-router daemon in an SQLite database; an example, standard library only.

    collect.py DATABASE [--url http://127.0.0.1:8088] [--log /var/lib/strata-router/requests.jsonl]

Reads GET /requests with a cursor and stores the cursor in the same transaction as the records, so it can
be killed at any time and goes on where it was. A restarted daemon (another instance_id) is read from its
beginning. What a daemon no longer holds in memory is taken from its log files, where --log names them;
a record found twice is stored once, because request_id is unique across restarts.
"""

import argparse
import glob
import json
import os
import sqlite3
import sys
import time
import urllib.request
from collections.abc import Iterable
from typing import Any

PAGE = 1000  # the most records that one answer can hold

SCHEMA = """
CREATE TABLE IF NOT EXISTS records (
    request_id TEXT PRIMARY KEY, instance_id TEXT NOT NULL, seq INTEGER NOT NULL, record TEXT NOT NULL,
    UNIQUE (instance_id, seq));
CREATE TABLE IF NOT EXISTS cursor (
    one INTEGER PRIMARY KEY CHECK (one = 1), instance_id TEXT NOT NULL, after INTEGER NOT NULL);
"""


class Collector:
    """url: of the daemon. log: its request_log_path, or None. lost: records that nothing holds any more."""

    def __init__(self, database: str, url: str, log: str | None) -> None:
        self.url, self.log = url.rstrip("/"), log
        self.db = sqlite3.connect(database)
        self.db.executescript(SCHEMA)
        self.instance_id: str
        self.after: int
        found = self.db.execute("SELECT instance_id, after FROM cursor").fetchone()
        self.instance_id, self.after = found or ("", 0)
        self.lost = 0
        self.files_read: dict[tuple[str, int], int] = {}
        self.http = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def poll(self) -> bool:
        """Store one page; True if another follows at once. OSError: not now, try again later."""
        query = f"{self.url}/requests?after={self.after}&limit={PAGE}"
        with self.http.open(query, timeout=10) as answer:
            page = json.load(answer)
        if page["instance_id"] != self.instance_id:
            # This page was cut with the old cursor. The last records before the restart are in the files.
            self.fill_from_files()
            self.commit([], page["instance_id"], 0)
            self.lost = 0
            return True
        self.commit(page["records"], self.instance_id, page["next_seq"])
        if self.missing() > self.lost:
            self.fill_from_files()
        return len(page["records"]) == PAGE

    def commit(self, records: list[dict[str, Any]], instance_id: str, after: int) -> None:
        """Store records and cursor, both or neither; the next question follows what is on disk."""
        with self.db:
            self.store(records)
            self.db.execute("INSERT OR REPLACE INTO cursor VALUES (1, ?, ?)", (instance_id, after))
        self.instance_id, self.after = instance_id, after

    def store(self, records: Iterable[dict[str, Any]]) -> int:
        """Returns the highest seq of this instance among them."""
        highest = 0
        for record in records:
            request_id, seq = record["request_id"], record["seq"]
            instance_id = request_id.rpartition("-")[0]
            row = (request_id, instance_id, seq, json.dumps(record))
            self.db.execute("INSERT OR IGNORE INTO records VALUES (?, ?, ?, ?)", row)
            if instance_id == self.instance_id:
                highest = max(highest, seq)
        return highest

    def missing(self) -> int:
        """How many records of this instance up to the cursor are not stored."""
        query = "SELECT COUNT(*) FROM records WHERE instance_id = ? AND seq <= ?"
        stored = self.db.execute(query, (self.instance_id, self.after)).fetchone()[0]
        return self.after - int(stored)

    def fill_from_files(self) -> None:
        """Store what the log files hold, unless nothing was written since they were last read."""
        files = self.log_files()
        if files == self.files_read:
            return
        highest = 0
        for path, _ in files:
            with open(path, "rb") as lines, self.db:
                # The daemon may be writing: a line without its end is for the next time.
                whole = (json.loads(line) for line in lines if line.endswith(b"\n"))
                highest = max(highest, self.store(whole))
        if self.log_files().keys() != files.keys():
            raise OSError("the log files were rotated while they were read; reading them again")
        self.files_read = files
        if highest >= self.after:
            # Lines are in the order of seq: what should stand before this one will not come any more.
            self.lost = self.missing()
        print(f"read {len(files)} log files; {self.missing()} records missing", file=sys.stderr)

    def log_files(self) -> dict[tuple[str, int], int]:
        """(path, inode) of the active file and each of its backups -> size."""
        if self.log is None:
            return {}
        backups = (path for path in glob.iglob(glob.escape(self.log) + ".*") if path[-1].isdigit())
        paths = [path for path in [self.log, *backups] if os.path.exists(path)]
        stats = [(path, os.stat(path)) for path in paths]
        return {(path, stat.st_ino): stat.st_size for path, stat in stats}


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("database", help="SQLite file; made if it does not exist")
    parser.add_argument("--url", default="http://127.0.0.1:8088")
    parser.add_argument("--log", help="request_log_path of the daemon")
    parser.add_argument("--interval", type=float, default=10, help="seconds between two questions")
    asked = parser.parse_args()
    if asked.log is not None and (fault := log_fault(asked.log)):
        print(f"--log {asked.log}: {fault}", file=sys.stderr)
    try:
        collector = Collector(asked.database, asked.url, asked.log)
    except sqlite3.Error as failure:
        sys.exit(f"{asked.database}: {failure}; give the path of a database that can be written")
    while True:
        try:
            if collector.poll():
                continue
        except sqlite3.Error as failure:
            # A full disk, another collector; nothing of the page is kept.
            print(f"{asked.database}: {failure}", file=sys.stderr)
        except (OSError, ValueError, KeyError) as failure:  # not running, restarting, somebody else
            print(f"{asked.url}: {failure}", file=sys.stderr)
        time.sleep(asked.interval)


def log_fault(path: str) -> str | None:
    """Why nothing can be taken from the log files now; no reason to stop, the daemon may yet make them."""
    try:
        with open(path, "rb"):
            return None
    except OSError as failure:
        return f"{failure.strerror}; is it the daemon's request_log_path, and may this account read it?"


if __name__ == "__main__":
    main()
