"""``GET /metrics`` of a real daemon: which form, which figures, and that both forms agree."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from tests.runtime.http.raw import Reply, get, post
from tests.system.harness import CHAT, DaemonUnderTest, chat_body, daemon, until
from tests.system.shared import running, visiting

JSON = "application/json"
TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPEN = "application/openmetrics-text; version=1.0.0; charset=utf-8"

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonUnderTest]:
    with running(tmp_path_factory.mktemp("metrics"), {"a": {}}) as it:
        yield it


async def ask(it: DaemonUnderTest, query: str = "", *headers: str, method: str = "GET") -> Reply:
    client = await it.connect()
    await client.send(get(f"/metrics{query}", *headers, method=method))
    return await client.reply(no_body=method == "HEAD")


async def series(it: DaemonUnderTest) -> Series:
    """Every sample of the Prometheus text."""
    text = (await ask(it, "?format=prometheus")).body.decode()
    return {
        (sample.name, frozenset(sample.labels.items())): float(sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def metrics_until(
    it: DaemonUnderTest, holds: Callable[[dict[str, Any]], Any]
) -> dict[str, Any]:
    """The JSON form once it is as it should be; a test's own bound ends the wait."""
    while not holds(metrics := await it.metrics()):
        await trio.sleep(0.01)
    return metrics


def one(found: Series, name: str, **labels: str) -> float | None:
    return found.get((f"strata_router_{name}", frozenset(labels.items())))


def named(found: Series, name: str) -> dict[tuple[str, ...], float]:
    """Values of one metric by its label values, which are sorted by their labels' names."""
    return {
        tuple(value for _, value in sorted(labels)): number
        for (sample, labels), number in found.items()
        if sample == f"strata_router_{name}"
    }


@pytest.mark.parametrize(
    ("query", "headers", "content_type"),
    [
        ("", (), JSON),
        ("", ("Accept: */*",), JSON),
        ("", ("Accept: text/html,application/xhtml+xml,*/*;q=0.8",), JSON),
        ("", ("Accept: application/json, text/plain, */*",), JSON),
        ("", ("Accept: image/png",), JSON),
        ("", ("Accept: text/plain",), TEXT),
        ("", ("Accept: image/png", "Accept: text/plain;q=0.1"), TEXT),
        ("", ("Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5",), OPEN),
        ("", ("Accept: application/openmetrics-text; version=abc; escaping=x",), OPEN),
        ("?format=prometheus", (), TEXT),
        ("?format=prometheus", ("Accept: application/json",), TEXT),
        ("?format=prometheus", ("Accept: application/openmetrics-text",), OPEN),
        ("?format=openmetrics", (), OPEN),
        ("?format=openmetrics", ("Accept: application/json",), OPEN),
        ("?format=json", ("Accept: text/plain",), JSON),
        ("/?x=1&format=prometheus", (), TEXT),
    ],
)
async def test_the_form_is_the_one_asked_for_and_json_by_default(
    shared: DaemonUnderTest, query: str, headers: tuple[str, ...], content_type: str
) -> None:
    async with visiting(shared) as it:
        reply = await ask(it, query, *headers)
        assert (reply.status, reply.headers["content-type"]) == (200, [content_type])
        assert reply.headers["vary"] == ["Accept"]
        is_json = reply.body.startswith(b'{"loaded_model":')
        assert is_json == (content_type == JSON)
        assert reply.body.endswith(b"# EOF\n") == (content_type == OPEN)
        head = await ask(it, query, *headers, method="HEAD")
        assert (head.status, head.headers["content-type"]) == (200, [content_type])


@pytest.mark.parametrize("wish", ["xml", "", "Prometheus", "json%00"])
async def test_an_unknown_format_is_refused_with_what_is_allowed(
    shared: DaemonUnderTest, wish: str
) -> None:
    async with visiting(shared) as it:
        reply = await ask(it, f"?format={wish}", "Accept: text/plain")
        assert reply.status == 400
        error = json.loads(reply.body)["error"]
        assert error["code"] == "invalid_value"
        assert "json, prometheus or openmetrics" in error["message"]


async def test_the_json_form_has_the_contract_s_keys_in_its_order(shared: DaemonUnderTest) -> None:
    async with visiting(shared) as it:
        metrics = await it.metrics()
        assert list(metrics) == [
            "loaded_model",
            "in_flight",
            "queue_depth",
            "queue_depth_by_tier",
            "max_request_body_bytes",
            "last_ttft_ms",
            "last_decode_tokens_per_s",
            "request_log",
        ]
        assert list(metrics["request_log"]) == [
            "write_errors",
            "write_drops",
            "evicted",
            "records_in_ring",
            "next_seq",
            "instance_id",
            "path",
            "max_bytes",
            "rotate_files",
            "capacity",
        ]
        assert list(metrics["queue_depth_by_tier"]) == ["priority", "default", "flex"]


async def test_promtool_takes_what_a_daemon_at_work_exposes(shared: DaemonUnderTest) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian package prometheus)")
    async with visiting(shared) as it:
        await it.chat("a", stream=True)
        text = (await ask(it, "?format=prometheus")).body
        checked = await trio.run_process(
            [promtool, "check", "metrics"],
            stdin=text,
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )
        assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


async def test_everything_that_happens_is_counted_once_in_both_forms(tmp_path: Path) -> None:
    config = {
        "aliases": {"test": {"allowed_models": ["a", "b"]}},
        "request_log_capacity": 3,
        "cooldown_ms": 60_000,
    }
    async with daemon(
        tmp_path, {"a": {"reasoning_usage": True}, "b": {"fail_load": 2}}, config
    ) as it:
        before = await series(it)
        assert named(before, "loaded_model") == {("none",): 1}
        assert one(before, "model_loads_total", model="a") == 0
        assert one(before, "model_load_failures_total", model="b") == 0
        streamed = await it.chat("test", stream=True, service_tier="flex")
        plain = await it.chat("a", speed="fast")
        assert (streamed.status, plain.status) == (200, 200)
        for model in ("b", "b", "made-up-by-a-client"):
            assert (await it.chat(model)).status in (503, 404)
        records = await it.records()
        assert [record["seq"] for record in records] == [3, 4, 5]
        after, metrics = await series(it), await it.metrics()

        assert named(after, "requests_total") == {
            ("a", "completed", "flex"): 1,
            ("a", "completed", "priority"): 1,
            ("b", "model_load_error", "default"): 2,
            ("none", "invalid_request", "none"): 1,
        }
        assert named(after, "model_loads_total") == {("a",): 1, ("b",): 0}
        assert named(after, "model_load_failures_total") == {("a",): 0, ("b",): 1}
        assert named(after, "model_switches_total") == {("a",): 1, ("b",): 1}
        assert named(after, "queue_wait_seconds_count") == {
            ("flex",): 1,
            ("priority",): 1,
            ("default",): 1,
        }
        assert named(after, "request_seconds_count") == {("a",): 2, ("b",): 2, ("none",): 1}
        assert one(after, "ttft_seconds_count", model="a") == 1
        usage = [_usage(streamed), _usage(plain)]
        for kind in ("prompt_tokens", "completion_tokens"):
            said = sum(each[kind] for each in usage)
            assert one(after, "tokens_total", model="a", kind=kind) == said

        log = metrics["request_log"]
        assert (log["next_seq"], log["evicted"], log["records_in_ring"]) == (6, 2, 3)
        assert one(after, "records_evicted_total") == 2
        assert one(after, "records_in_ring") == 3
        assert metrics["loaded_model"] is None
        assert named(after, "loaded_model") == {("none",): 1}
        assert one(after, "ttft_seconds_sum", model="a") == metrics["last_ttft_ms"] / 1000
        assert "made-up" not in str(after)


def _usage(reply: Reply) -> dict[str, int]:
    """The usage object of an answer, streamed or not."""
    texts = [line.removeprefix("data: ") for line in reply.body.decode().splitlines()]
    frames = [json.loads(text) for text in texts if text.startswith("{")]
    (usage,) = [frame["usage"] for frame in frames if frame.get("usage")]
    assert isinstance(usage, dict)
    return usage


async def test_gauges_follow_queue_leases_routing_and_the_loaded_model(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {}, "b": {}}) as it:
        busy = await it.send_chat("a", "FX:slow", stream=True)
        await busy.head()
        for tier in ("flex", "flex", "priority"):
            await it.send_chat("b", service_tier=tier)

        metrics = await metrics_until(it, lambda m: m["queue_depth"] == 3 and m["loaded_model"])
        found = await series(it)
        assert named(found, "loaded_model") == {("a",): 1}
        assert one(found, "in_flight_requests") == metrics["in_flight"] == 1
        waiting = {"priority": 1, "default": 0, "flex": 2}
        assert metrics["queue_depth_by_tier"] == waiting
        assert named(found, "queued_requests") == {(tier,): n for tier, n in waiting.items()}
        assert one(found, "routing_enabled") == 1
        await it.control("off")
        await metrics_until(it, lambda m: m["queue_depth"] == 0)
        found = await series(it)
        assert one(found, "routing_enabled") == 0
        assert one(found, "requests_total", model="b", tier="flex", outcome="routing_off") == 2


async def test_an_operator_s_load_and_an_engine_s_death_are_counted(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {}}) as it:
        await it.on("a")
        assert one(await series(it), "model_loads_total", model="a") == 1
        reply = await it.chat("a", "FX:die_at=role", stream=True)
        assert (await it.record_of(reply))["reason"] == "upstream_error"
        await until(lambda: not it.engine_pids())
        await metrics_until(it, lambda m: m["loaded_model"] is None)
        found = await series(it)
        assert one(found, "engine_deaths_total", model="a") == 1
        assert named(found, "model_switches_total") == {}
        assert one(found, "model_load_seconds_count", model="a") == 1


async def test_only_posts_on_the_chat_path_count_as_requests(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {}}) as it:
        client = await it.connect()
        await client.send(get(CHAT), get("/health"), get("/nowhere"), get("/v1/models"))
        for _ in range(4):
            await client.reply()
        assert named(await series(it), "requests_total") == {}
        await client.send(post(CHAT + "/", body=chat_body("a")))
        assert (await client.reply()).status == 200
        assert sum(named(await series(it), "requests_total").values()) == 1
