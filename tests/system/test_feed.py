"""``GET /requests`` of a real daemon, rule by rule. Source: design, "Reading recent records"."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.http.raw import get, post
from tests.system.harness import CHAT, DaemonUnderTest, daemon
from tests.system.shared import running, visiting

CAPACITY = 1200
MADE = 1210
"""So the ring holds 11..1210, more than the largest page."""


async def leave_records(it: DaemonUnderTest, count: int) -> None:
    """Requests without a model leave records, and need no engine."""
    client = await it.connect()
    for _ in range(count):
        await client.send(post(CHAT, body=b"{}"))
        assert (await client.reply()).status == 400


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonUnderTest]:
    config = {"request_log_capacity": CAPACITY}
    with running(tmp_path_factory.mktemp("feed"), {"a": {}}, config) as it:
        yield it


async def page(it: DaemonUnderTest, query: str = "") -> dict[str, Any]:
    found: dict[str, Any] = await it.get_json(f"/requests{query}")
    assert list(found) == ["records", "next_seq", "dropped", "oldest_seq", "instance_id"]
    return found


def seqs(found: dict[str, Any]) -> list[int]:
    return [record["seq"] for record in found["records"]]


async def full(shared: DaemonUnderTest) -> None:
    """Fill the shared daemon's ring, once."""
    missing = MADE + 1 - (await shared.metrics())["request_log"]["next_seq"]
    await leave_records(shared, missing)


@pytest.mark.parametrize(
    ("query", "first", "last", "dropped"),
    [
        ("?after=0", 11, 110, 10),
        ("?after=0&limit=1000", 11, 1010, 10),
        ("?after=0&limit=5000", 11, 1010, 10),
        ("?after=0&limit=1", 11, 11, 10),
        ("?after=0&limit=0", 11, 11, 10),
        ("?after=0&limit=-7", 11, 11, 10),
        ("?after=4&limit=2", 11, 12, 6),
        ("?after=9&limit=2", 11, 12, 1),
        ("?after=10&limit=2", 11, 12, 0),
        ("?after=11&limit=2", 12, 13, 0),
        ("?after=1208", 1209, 1210, 0),
        ("?after=0011&limit=02", 12, 13, 0),
        ("?limit=3", 1208, 1210, 0),
        ("?limit=1000", 211, 1210, 0),
        ("?limit=999999", 211, 1210, 0),
        ("", 1111, 1210, 0),
        ("?other=1", 1111, 1210, 0),
        ("/?after=1209&limit=9", 1210, 1210, 0),
    ],
)
async def test_a_cursor_and_a_limit_select_records_and_count_what_is_gone(
    shared: DaemonUnderTest, query: str, first: int, last: int, dropped: int
) -> None:
    async with visiting(shared) as it:
        await full(it)
        found = await page(it, query)
        assert seqs(found) == list(range(first, last + 1))
        assert (found["next_seq"], found["dropped"], found["oldest_seq"]) == (last, dropped, 11)


@pytest.mark.parametrize("after", [MADE, MADE + 1, 10**17])
async def test_a_cursor_at_or_beyond_the_end_gets_nothing_and_itself_back(
    shared: DaemonUnderTest, after: int
) -> None:
    async with visiting(shared) as it:
        await full(it)
        found = await page(it, f"?after={after}")
        assert (seqs(found), found["next_seq"], found["dropped"]) == ([], after, 0)


async def test_reading_takes_nothing_out_and_readers_do_not_disturb_each_other(
    shared: DaemonUnderTest,
) -> None:
    async with visiting(shared) as it:
        await full(it)
        both: list[list[int]] = [[], []]
        cursors = [0, 0]
        for reader, limit in [(0, 700), (1, 300), (1, 1000), (0, 700)]:
            found = await page(it, f"?after={cursors[reader]}&limit={limit}")
            both[reader] += seqs(found)
            cursors[reader] = found["next_seq"]
        assert both == [list(range(11, 1211))] * 2


@pytest.mark.parametrize(
    "query",
    [
        "?after=",
        "?after=-1",
        "?after=x",
        "?after=1.5",
        "?after=1e3",
        "?after=%2B1",
        "?after=%201",
        "?after=1%00",
        "?after=%D9%A3",
        "?after=null",
        "?after=" + "9" * 19,
        "?after=" + "9" * 5000,
        "?limit=",
        "?limit=x",
        "?limit=--1",
        "?limit=1.0",
        "?limit=%E0%A5%A7",
        "?limit=" + "9" * 5000,
        "?after=0&limit=ten",
    ],
    ids=lambda query: query[:20],
)
async def test_a_parameter_that_is_no_integer_is_refused_and_not_repeated(
    shared: DaemonUnderTest, query: str
) -> None:
    async with visiting(shared) as it:
        client = await it.connect()
        await client.send(get(f"/requests{query}"))
        reply = await client.reply()
        assert (reply.status, reply.headers["content-type"]) == (400, ["application/json"])
        error = json.loads(reply.body)["error"]
        assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_value")
        name = "limit" if "limit" in query else "after"
        assert error["message"].startswith(f"The parameter '{name}' must be an")
        assert "999" not in error["message"]


async def test_an_empty_ring_and_a_restart(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {}}) as it:
        first = await page(it)
        empty = {"records": [], "next_seq": 0, "dropped": 0, "oldest_seq": None}
        assert first == empty | {"instance_id": first["instance_id"]}
        assert await page(it, "?after=0") == first
        await leave_records(it, 3)
        assert (await page(it, "?after=1"))["instance_id"] == first["instance_id"]
        await it.stop()
        await it.start()
        second = await page(it, "?after=3")
        assert second == empty | {"instance_id": second["instance_id"], "next_seq": 3}
        assert second["instance_id"] != first["instance_id"]
        await leave_records(it, 1)
        # The stale cursor hides the new instance's first record; the reset finds it.
        assert seqs(await page(it, "?after=3")) == []
        found = await page(it, "?after=0")
        assert seqs(found) == [1]
        assert found["records"][0]["request_id"] == f"{second['instance_id']}-1"


async def test_the_feed_works_while_routing_is_off(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {}}) as it:
        await it.control("off")
        assert (await it.chat("a")).status == 503
        assert [record["reason"] for record in await it.records()] == ["routing_off"]
