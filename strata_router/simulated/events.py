"""Reads the event file of simulated engines: who lived when, what arrived, who left.

The proof of "never two engines at once" does not rest on exit stamps, which a killed process cannot
write. Every process of an engine (server, native engine, helpers) shares one lock for its life, and
a server that starts while the lock is held stamps ``overlap`` (``serve.stamps`` has the details).
So ``overlaps`` is empty only if each server found all processes of all earlier engines gone. What
stays uncovered is an engine killed within the 20 to 50 ms between a server's exec and its look at the
lock; one that stopped in order is caught even then, by comparing its exit stamp with the kernel's
time of the next server's creation.
"""

import fcntl
import json
import os
import struct
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import trio

POLL_S = 0.01

CREATION_RESOLUTION_S = 0.02
"""The kernel tells when a process was made in steps of 10 ms; the clocks' offset adds its own."""

_FLOCK = "hhqqi4x"
"""C's struct flock on Linux, as in serve.stamps."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """One line of the event file.

    at: CLOCK_MONOTONIC seconds, comparable between processes and with ``time.monotonic()``.
    facts: what the event carries beside the four common fields.
    """

    event: str
    at: float
    pid: int
    model: str
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Interval:
    """The life of one engine, as its server stamped it.

    spawned_at: when the kernel made the process. ready_at, ended_at: None if it never stamped
    that, which for the end means that it was killed or still runs. status: exit status, or None.
    alone: whether it found every process of earlier engines gone.
    """

    pid: int
    model: str
    spawned_at: float
    started_at: float
    ready_at: float | None
    ended_at: float | None
    status: int | None
    alone: bool


@dataclass(frozen=True, slots=True)
class Request:
    """One chat request as an engine saw it.

    seq: per engine process, from 1. headers: names as they came. finish: stop, length, tool_calls,
    cancel, disconnect, error, or None where nothing was generated or the engine died.
    response_sha256: of the body bytes, None unless the knob hash_responses is on.
    left_how: ``eof`` (seen by the watcher) or ``write``; None if the client stayed.
    """

    pid: int
    model: str
    seq: int
    at: float
    path: str
    headers: tuple[tuple[str, str], ...]
    body_bytes: int
    body_sha256: str
    body: str | None = None
    peer: str = ""
    first_chunk_at: float | None = None
    left_at: float | None = None
    left_how: str | None = None
    done_at: float | None = None
    status: int | None = None
    finish: str | None = None
    chunks: int | None = None
    response_bytes: int | None = None
    response_sha256: str | None = None

    def header(self, name: str) -> str | None:
        """The first value of ``name`` in any case; None if absent."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)


def read_stamps(event_file: Path) -> list[Stamp]:
    """All whole lines so far, in file order; a file that does not exist yet has none."""
    try:
        text = event_file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return [_stamp(json.loads(line)) for line in text.split("\n")[:-1]]


def _stamp(raw: dict[str, Any]) -> Stamp:
    common = {name: raw.pop(name) for name in ("event", "at", "pid", "model")}
    return Stamp(**common, facts=raw)


def engine_intervals(stamps: Iterable[Stamp]) -> list[Interval]:
    """One interval per ``start``, in order of start."""
    found: list[Interval] = []
    latest: dict[int, int] = {}  # Process ids come round again in a long run: the last one counts.
    for stamp in stamps:
        if stamp.event == "start":
            latest[stamp.pid] = len(found)
            found.append(_begun(stamp))
        elif stamp.pid in latest:
            at = latest[stamp.pid]
            if stamp.event == "ready":
                found[at] = replace(found[at], ready_at=stamp.at)
            elif stamp.event == "exit":
                found[at] = replace(found[at], ended_at=stamp.at, status=stamp.facts["status"])
    return sorted(found, key=lambda interval: interval.started_at)


def _begun(start: Stamp) -> Interval:
    return Interval(
        pid=start.pid,
        model=start.model,
        spawned_at=start.facts["spawned_at"],
        started_at=start.at,
        ready_at=None,
        ended_at=None,
        status=None,
        alone=start.facts["alone"],
    )


def overlaps(stamps: Iterable[Stamp]) -> list[str]:
    """A sentence for every pair of engines that lived at one time; empty is the proof of none."""
    stamps = list(stamps)
    intervals = engine_intervals(stamps)
    found = [
        f"engine {stamp.pid} ({stamp.model}) started while {stamp.facts['holder']} or a child lived"
        for stamp in stamps
        if stamp.event == "overlap"
    ]
    for earlier, later in pairwise(intervals):
        ended = earlier.ended_at
        if ended is not None and ended > later.spawned_at + CREATION_RESOLUTION_S:
            found.append(f"engine {later.pid} was spawned before {earlier.pid} had ended")
    return found


def requests(stamps: Iterable[Stamp]) -> list[Request]:
    """All chat requests of all engines, in order of arrival."""
    gathered: list[_RequestFacts] = []
    latest: dict[tuple[int, int], _RequestFacts] = {}
    for stamp in stamps:
        key = (stamp.pid, stamp.facts.get("seq", 0))
        if stamp.event == "request":
            latest[key] = _RequestFacts(stamp)
            gathered.append(latest[key])
        elif key in latest:
            latest[key].add(stamp)
    return [facts.request() for facts in gathered]


@dataclass(slots=True)
class _RequestFacts:
    """The stamps of one request, gathered."""

    first: Stamp
    later: dict[str, Any] = field(default_factory=dict)

    def add(self, stamp: Stamp) -> None:
        facts = stamp.facts
        match stamp.event:
            case "first_chunk":
                self.later["first_chunk_at"] = stamp.at
            case "disconnect":
                self.later |= {"left_at": stamp.at, "left_how": facts["how"]}
            case "finish":
                self.later |= {"finish": facts["finish"], "chunks": facts["chunks"]}
            case "done":
                names = ("status", "response_bytes", "response_sha256")
                self.later |= {"done_at": stamp.at, **{name: facts[name] for name in names}}

    def request(self) -> Request:
        facts = self.first.facts
        return Request(
            pid=self.first.pid,
            model=self.first.model,
            seq=facts["seq"],
            at=self.first.at,
            path=facts["path"],
            headers=tuple((name, value) for name, value in facts["headers"]),
            body_bytes=facts["body_bytes"],
            body_sha256=facts["body_sha256"],
            body=facts.get("body"),
            peer=facts["peer"],
            **self.later,
        )


def disconnects(stamps: Iterable[Stamp]) -> list[Request]:
    """The requests whose client left before the answer was complete."""
    return [request for request in requests(stamps) if request.left_at is not None]


def anyone_alive(event_file: Path) -> bool:
    """Whether any process of any engine with this event file lives: server, native or helper.

    Looks at the life lock without taking it, so it may be asked while engines start.
    """
    try:
        fd = os.open(f"{event_file}.lock", os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        told = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked)
    finally:
        os.close(fd)
    return bool(struct.unpack(_FLOCK, told)[0] != fcntl.F_UNLCK)


async def stamped(event_file: Path, event: str, within_s: float = 5.0, count: int = 1) -> Stamp:
    """Wait until ``event`` was stamped ``count`` times and return that one.

    Raises TimeoutError with the events that were seen instead.
    """
    deadline = time.monotonic() + within_s
    while (found := _nth(event_file, event, count, deadline)) is None:  # noqa: ASYNC110 - a file
        await trio.sleep(POLL_S)
    return found


def stamped_now(event_file: Path, event: str, within_s: float = 5.0, count: int = 1) -> Stamp:
    """``stamped`` for code that is not asynchronous."""
    deadline = time.monotonic() + within_s
    while (found := _nth(event_file, event, count, deadline)) is None:
        time.sleep(POLL_S)
    return found


def _nth(event_file: Path, event: str, count: int, deadline: float) -> Stamp | None:
    stamps = read_stamps(event_file)
    matching = [stamp for stamp in stamps if stamp.event == event]
    if len(matching) >= count:
        return matching[count - 1]
    if time.monotonic() > deadline:
        seen = " ".join(stamp.event for stamp in stamps)
        raise TimeoutError(f"{event} was stamped {len(matching)} of {count} times; seen: {seen}")
    return None
