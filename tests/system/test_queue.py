"""``GET /queue`` and what else shows the same: ``status``, the keep-alive comment (issue 10)."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.cli.commands import run_on_terminal
from tests.runtime.http.raw import get
from tests.system.crowd import QUICK, Crowd, engine_texts, frozen
from tests.system.harness import DaemonUnderTest, daemon
from tests.system.shared import running, visiting
from tests.system.wire import error_of

ONE_PLACE = {"max_pending": 1}
SLOW_LOAD = {**QUICK, "load_s": 0.8}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonUnderTest]:
    with running(tmp_path_factory.mktemp("queue"), {"a": QUICK, "b": QUICK}, ONE_PLACE) as it:
        yield it


def shown(queue: dict[str, Any]) -> list[tuple[str, str, str]]:
    """(model, tier, words) of the waiting tickets, in order."""
    return [(row["model"], row["tier"], row["words"]) for row in queue["waiting"]["tickets"]]


async def queue_when(
    it: DaemonUnderTest, holds: Callable[[dict[str, Any]], Any], path: str = "/queue"
) -> dict[str, Any]:
    """The answer once it is as it should be, with a bound."""
    queue: dict[str, Any] = await it.get_json(path)
    with trio.move_on_after(5):
        while not holds(queue):
            await trio.sleep(0.01)
            queue = await it.get_json(path)
    assert holds(queue), queue
    return queue


async def test_an_idle_daemon_shows_nothing_but_itself(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {}}) as it:
        queue = await it.get_json("/queue")
        assert queue.pop("version")
        assert queue.pop("instance_id")
        assert queue.pop("uptime_s") in range(30)
        assert queue == {
            "routing": True,
            "draining": False,
            "engine": {
                "state": "stopped",
                "loaded": None,
                "loaded_ms": None,
                "loading": None,
                "loading_ms": None,
                "cooling": [],
            },
            "waiting": {
                "total": 0,
                "by_tier": {"priority": 0, "default": 0, "flex": 0},
                "tickets": [],
            },
            "active": {"total": 0, "answers": []},
        }


async def test_the_queue_is_shown_in_the_order_in_which_it_is_then_served(
    shared: DaemonUnderTest,
) -> None:
    async with visiting(shared) as it:
        crowd = Crowd(it)
        await it.chat("a", "warm up")
        with frozen(it):
            await crowd.send("busy", "a")
            await crowd.send("late", "a", service_tier="flex")
            await crowd.send("other", "b")
            await crowd.send("same", "a")
            await crowd.send("urgent", "b", service_tier="priority")
            queue = await it.get_json("/queue")
        assert shown(queue) == [
            ("b", "priority", "waits for 1 active answer of a"),
            ("b", "default", "behind priority work"),
            ("a", "default", "behind priority work"),
            ("a", "flex", "behind priority work"),
        ]
        assert [row["position"] for row in queue["waiting"]["tickets"]] == [1, 2, 3, 4]
        assert queue["waiting"]["by_tier"] == {"priority": 1, "default": 2, "flex": 1}
        served = await crowd.served()
        assert engine_texts(it)[-4:] == ["urgent", "other", "same", "late"]
        names = {record["request_id"]: name for name, record in served.items()}
        order = [names[row["request_id"]] for row in queue["waiting"]["tickets"]]
        assert order == ["urgent", "other", "same", "late"]


async def test_a_load_is_shown_with_its_time_and_with_who_waits_for_it(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": SLOW_LOAD, "b": QUICK}) as it:
        crowd = Crowd(it)
        await crowd.send("first", "a")
        await crowd.send("second", "a")
        await crowd.send("third", "b")
        queue = await queue_when(it, lambda queue: (queue["engine"]["loading_ms"] or 0) > 300)
        engine = queue["engine"]
        assert (engine["state"], engine["loaded"], engine["loading"]) == ("starting", None, "a")
        (answer,) = queue["active"]["answers"]
        assert (answer["model"], answer["phase"], answer["sse_events"]) == ("a", "loading", None)
        assert abs(answer["phase_ms"] - engine["loading_ms"]) < 200
        assert shown(queue) == [
            ("a", "default", "waits for a to load"),
            ("b", "default", "behind the load of a"),
        ]
        await crowd.served()
        queue = await it.get_json("/queue")
        assert (queue["engine"]["loaded"], queue["engine"]["loading_ms"]) == ("b", None)
        assert 0 <= queue["engine"]["loaded_ms"] < 5000


async def test_an_answer_is_shown_in_each_of_its_phases_with_its_events(
    shared: DaemonUnderTest,
) -> None:
    async with visiting(shared) as it:
        await it.chat("a", "warm up")
        client = await it.send_chat(
            "a", "FX:header_delay_s=0.5 FX:chunk_every_ms=20 FX:force_tokens=100", stream=True
        )

        def in_phase(phase: str) -> Callable[[dict[str, Any]], Any]:
            return lambda queue: [row["phase"] for row in queue["active"]["answers"]] == [phase]

        queue = await queue_when(it, in_phase("header_wait"))
        assert queue["active"]["answers"][0]["sse_events"] is None
        await queue_when(it, in_phase("generating"))
        queue = await queue_when(it, lambda queue: queue["active"]["answers"][0]["sse_events"] > 20)
        (answer,) = queue["active"]["answers"]
        assert answer["active_ms"] >= answer["phase_ms"] + 400
        reply = await client.reply()
        assert reply.headers["x-strata-request-id"] == [answer["request_id"]]
        assert answer["sse_events"] <= reply.body.count(b"data:")


async def test_an_answer_that_is_no_stream_has_no_events(shared: DaemonUnderTest) -> None:
    async with visiting(shared) as it:
        await it.chat("a", "warm up")
        await it.send_chat("a", "FX:chunk_every_ms=20 FX:force_tokens=100")
        queue = await queue_when(it, lambda queue: queue["active"]["total"] == 1)
        assert queue["active"]["answers"][0]["sse_events"] is None


async def test_a_failed_load_cools_down_and_no_name_of_a_client_is_shown(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {"fail_load": 3}}, {"cooldown_ms": 60_000}) as it:
        assert (await it.chat("a")).status == 503
        assert (await it.chat("<script>s3cr3t", "s3cr3t")).status == 404
        queue = await it.get_json("/queue?limit=10")
        ((model, left_ms),) = (row.values() for row in queue["engine"]["cooling"])
        assert (model, left_ms in range(50_000, 60_000)) == ("a", True)
        assert queue["totals"] == [
            {"model": "a", "outcome": "model_load_error", "requests": 1},
            {"model": "none", "outcome": "invalid_request", "requests": 1},
        ]
        assert "s3cr3t" not in json.dumps(queue)


async def test_records_come_along_for_a_reader_with_a_cursor(tmp_path: Path) -> None:
    log = {"request_log_path": str(tmp_path / "requests.jsonl")}
    async with daemon(tmp_path, {"a": {}}, log) as it:
        for _ in range(3):
            await it.chat("a")
        assert "records" not in await it.get_json("/queue")
        newest = await it.get_json("/queue?limit=2")
        assert newest["records"] == await it.get_json("/requests?limit=2")
        assert newest["totals"] == [{"model": "a", "outcome": "completed", "requests": 3}]
        assert newest["request_log"] == {"configured": True, "write_errors": 0, "write_drops": 0}
        await it.chat("a")
        later = await it.get_json(f"/queue?after={newest['records']['next_seq']}")
        assert [record["seq"] for record in later["records"]["records"]] == [4]


async def test_a_cursor_that_is_no_number_is_400(shared: DaemonUnderTest) -> None:
    async with visiting(shared) as it:
        client = await it.connect()
        for query in ("after=-1", "after=x", "limit=x", "limit=", "after=1e3"):
            await client.send(get(f"/queue?{query}"))
            reply = await client.reply()
            assert (reply.status, error_of(reply)["code"]) == (400, "invalid_value")


@pytest.mark.parametrize("path", ["/", "/page/page.js", "/page/page.css"])
async def test_the_pages_files_take_get_and_head_from_our_hosts_only(
    shared: DaemonUnderTest, path: str
) -> None:
    async with visiting(shared) as it:
        client = await it.connect()
        await client.send(get(path), get(path, method="HEAD"), get(path, method="PUT"))
        reply = await client.reply()
        head = await client.reply(no_body=True)
        assert (reply.status, head.status) == (200, 200)
        assert head.headers.keys() == reply.headers.keys()
        assert "default-src 'none'" in reply.headers["content-security-policy"][0]
        refused = await client.reply()
        assert (refused.status, error_of(refused)["code"]) == (405, "method_not_allowed")
        await client.send(get(path).replace(b"Host: localhost", b"Host: evil.example"))
        assert (await client.reply()).status == 403


async def test_status_shows_the_same_queue_in_both_of_its_forms(shared: DaemonUnderTest) -> None:
    async with visiting(shared) as it:
        crowd = Crowd(it)
        await it.chat("a", "warm up")
        with frozen(it):
            await crowd.send("busy", "a")
            await crowd.send("one", "b")
            await crowd.send("two", "a")
            status, queue = await it.status(), await it.get_json("/queue")
            _, table = await trio.to_thread.run_sync(
                run_on_terminal, "status", str(it.control_socket)
            )
        assert [row["words"] for row in status["queue"]] == [words for _, _, words in shown(queue)]
        assert [row["request_id"] for row in status["active"]] == [
            row["request_id"] for row in queue["active"]["answers"]
        ]
        for words in ("waits for the active answer of a", "behind work for a, which is loaded"):
            assert words in [row["words"] for row in status["queue"]]
            assert words in table
        await crowd.served()


async def test_a_waiting_stream_can_be_told_its_place(tmp_path: Path) -> None:
    config = {
        **ONE_PLACE,
        "keepalive_details": True,
        "stream_commit_ms": 0,
        "keepalive_ms": 500,
    }
    async with daemon(tmp_path, {"a": QUICK, "b": QUICK}, config) as it:
        crowd = Crowd(it)
        await it.chat("a", "warm up")
        with frozen(it):
            await crowd.send("busy", "a")
            last = await crowd.send("last", "b", stream=True)
            assert await told(last) == "queued 1 of 1"
            await crowd.send("before", "a", stream=True)
            assert await told(last) == "queued 2 of 2"
        with trio.fail_after(5):
            served = await last.until(b"data: [DONE]\n\n")
        ours = {line for line in served.split(b"\n") if line.startswith(b": keepalive")}
        assert ours <= {b": keepalive", b": keepalive queued 1 of 1"}
        del crowd.clients["last"]
        await crowd.replies()


async def told(client: Any) -> str:
    """The next keep-alive comment's details."""
    with trio.fail_after(5):
        await client.until(b": keepalive ")
        text: bytes = await client.until(b"\n\n")
    return text.decode()


async def test_by_default_the_comment_tells_nothing(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": QUICK}, {**ONE_PLACE, "stream_commit_ms": 0}) as it:
        crowd = Crowd(it)
        await it.chat("a", "warm up")
        with frozen(it):
            await crowd.send("busy", "a")
            client = await crowd.send("waits", "a", stream=True)
            with trio.fail_after(5):
                await client.until(b": keepalive")
                assert await client.exactly(2) == b"\n\n"


async def test_only_the_front_of_a_long_queue_is_listed(shared: DaemonUnderTest) -> None:
    async with visiting(shared) as it:
        await it.chat("a", "warm up")
        with frozen(it):
            await Crowd(it).send("busy", "a")
            for _ in range(210):
                await it.send_chat("a")
            queue = await queue_when(it, lambda queue: queue["waiting"]["total"] == 210)
            assert [row["position"] for row in queue["waiting"]["tickets"]] == [*range(1, 201)]
            assert len((await it.status())["queue"]) == 20
            for client in it.clients:
                client.stream.socket.close()
