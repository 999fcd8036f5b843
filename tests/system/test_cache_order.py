"""Cache order on a real daemon: who finds most of its prompt in the engine's cache goes first.

The simulated engine answers the lookup extension with what a marker in each request says
(``FX:cached=K/N``). Source: design, "Current cache matches"; contract 8.
"""

import time
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio

from strata_router import simulated
from tests.system.crowd import QUICK, Crowd, between_s, engine_texts, frozen, metrics_until
from tests.system.harness import DaemonUnderTest, daemon
from tests.system.shared import running, visiting

LOOKUP_PATH = "/v1/cache/lookup"
CACHED = {**QUICK, "cache_lookup": True}
ONE_PLACE = {"cache_max_active": 1, "model_grace_ms": 0}
AT_ONCE_S = 0.6
"""What a freed place may take to be used on a machine that is busy with other things."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonUnderTest]:
    directory = tmp_path_factory.mktemp("cache")
    with running(directory, {"a": CACHED, "b": CACHED}, {**ONE_PLACE}) as it:
        yield it


def lookups(it: DaemonUnderTest) -> int:
    """How often engines were asked what they hold cached."""
    return sum(stamp.facts["path"] == LOOKUP_PATH for stamp in it.stamps("control"))


class Contest(Crowd):
    """Requests that wait for one place of model a; what happened before is left out."""

    def __init__(self, it: DaemonUnderTest) -> None:
        super().__init__(it)
        self._seen = len(it.stamps("request"))
        self._lookups = lookups(it)

    @property
    def order(self) -> list[str]:
        """First words of the requests, without the one that was busy."""
        texts = engine_texts(self.it)[self._seen :]
        assert texts[0] == "busy"
        return [text.split()[0] for text in texts[1:]]

    @property
    def lookups(self) -> int:
        return lookups(self.it) - self._lookups

    async def queue(self, waiting: Mapping[str, str], model: str = "a", **fields: Any) -> None:
        """Queue requests; name -> what the engine will say of it, such as 5/10."""
        for name, cached in waiting.items():
            await self.send(f"{name} FX:cached={cached}", model, **fields)


def pauses_s(records: Mapping[str, Mapping[str, Any]]) -> list[float]:
    """How long the one place was free between two requests, in the order of their leases."""
    ordered = sorted(records.values(), key=lambda record: str(record["lease_at"]))
    return [
        between_s(earlier["completed_at"], later["lease_at"])
        for earlier, later in pairwise(ordered)
    ]


async def contest(it: DaemonUnderTest) -> Contest:
    assert (await it.chat("a", "warm up")).status == 200
    await metrics_until(it, lambda metrics: metrics["in_flight"] == 0)
    return Contest(it)


# ---- the order ----------------------------------------------------------------------------------


async def test_the_higher_cached_fraction_runs_first(shared: DaemonUnderTest) -> None:
    async with visiting(shared) as it:
        crowd = await contest(it)
        with frozen(it):
            await crowd.send("busy", "a")
            await crowd.queue({"A1": "10/100", "A2": "90/1000", "A3": "8/10", "A4": "500/1000"})
        await crowd.served()
        assert crowd.order == ["A3", "A4", "A1", "A2"]
        assert crowd.lookups == 3  # the last one had nobody to compete with


async def test_equal_fractions_keep_the_order_of_arrival(shared: DaemonUnderTest) -> None:
    async with visiting(shared) as it:
        crowd = await contest(it)
        with frozen(it):
            await crowd.send("busy", "a")
            await crowd.queue({"A1": "0/10", "A2": "50/100", "A3": "1/2", "A4": "0/9"})
        await crowd.served()
        assert crowd.order == ["A2", "A3", "A1", "A4"]


async def test_the_engines_real_cache_decides_when_nobody_says_otherwise(
    shared: DaemonUnderTest,
) -> None:
    async with visiting(shared) as it:
        crowd = await contest(it)
        with frozen(it):
            await crowd.send("busy", "a")
            await crowd.send("something else " * 20, "a")
            await crowd.send("busy, and then more of the same", "a")
        await crowd.served()
        assert crowd.order == ["busy,", "something"]


async def test_cache_reuse_never_promotes_above_a_tier_or_the_loaded_models_group(
    shared: DaemonUnderTest,
) -> None:
    async with visiting(shared) as it:
        crowd = await contest(it)
        with frozen(it):
            await crowd.send("busy", "a")
            await crowd.queue({"F1": "10/10", "F2": "9/10"}, service_tier="flex")
            await crowd.queue({"B1": "10/10"}, model="b")
            await crowd.queue({"A1": "1/10", "A2": "2/10"})
            await crowd.queue({"P1": "0/10", "P2": "1/10"}, service_tier="priority")
        await crowd.served()
        assert crowd.order == ["P2", "P1", "A2", "A1", "B1", "F1", "F2"]


async def test_inputs_below_the_profiles_threshold_count_as_uncached(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": CACHED}, ONE_PLACE, start=False) as it:
        it.set_knobs("a", CACHED, conversation_cache_min_tokens=2048)
        await it.start()
        crowd = await contest(it)
        with frozen(it):
            await crowd.send("busy", "a")
            await crowd.queue({"A1": "0/10", "A2": "2047/2047", "A3": "1/2048", "A4": "9/10"})
        await crowd.served()
        assert crowd.order == ["A3", "A1", "A2", "A4"]


# ---- one budget per freed place -----------------------------------------------------------------


async def test_scores_are_thrown_away_when_a_request_enters_or_leaves_the_queue(
    tmp_path: Path,
) -> None:
    """The lookups are slow, so that there is time to join and to leave while one runs."""
    models = {"a": {**CACHED, "cache_lookup_delay_s": 0.3}}
    async with daemon(tmp_path, models, {**ONE_PLACE, "cache_lookup_ms": 10_000}) as it:
        crowd = await contest(it)
        with frozen(it):
            await crowd.send("busy", "a")
            await crowd.queue({"A1": "1/10", "A2": "5/10", "A3": "4/10"})
        await _lookups_seen(crowd, 1)
        await crowd.queue({"A4": "9/10"})
        await _lookups_seen(crowd, 2)
        await crowd.leave("A2 FX:cached=5/10")
        await crowd.served()
        assert crowd.order == ["A4", "A3", "A1"]
        assert crowd.lookups == 3 + 1


async def _lookups_seen(crowd: Contest, count: int) -> None:
    with trio.fail_after(5):
        while crowd.lookups < count:
            await trio.sleep(0.003)


async def test_scores_are_thrown_away_when_a_generation_ends(tmp_path: Path) -> None:
    """Also when another place than the free one becomes free, and by a client's leaving."""
    knobs = {**CACHED, "cache_lookup_delay_s": 0.3, "cache_lookup_busy": False}
    config = {"cache_max_active": 2, "cache_lookup_ms": 10_000}
    async with daemon(tmp_path, {"a": knobs}, config, start=False) as it:
        it.set_knobs("a", knobs, parallel=2)
        await it.start()
        crowd = await contest(it)
        with frozen(it):
            await crowd.send("busy", "a")
            await crowd.send("busy too", "a")
            await crowd.queue({"A1": "1/10", "A2": "2/10", "A3": "3/10"})
            await crowd.leave("busy too")
            await _lookups_seen(crowd, 1)
        await crowd.served()
        await _lookups_seen(crowd, 2)
        assert set(crowd.order[1:3]) == {"A3", "A2"}
        assert crowd.order[3] == "A1"


async def test_a_lookup_that_takes_too_long_leaves_the_order_of_arrival(tmp_path: Path) -> None:
    models = {"a": {**CACHED, "cache_lookup_delay_s": 5.0}}
    async with daemon(tmp_path, models, {**ONE_PLACE, "cache_lookup_ms": 300}) as it:
        crowd = await contest(it)
        with frozen(it):
            await crowd.send("busy", "a")
            await crowd.queue({"A1": "1/10", "A2": "9/10"})
        records = await crowd.served()
        assert crowd.order == ["A1", "A2"]
        free_s, alone_s = pauses_s(records)
        assert 0.28 < free_s < 0.3 + AT_ONCE_S
        assert alone_s < AT_ONCE_S


async def test_steady_arrivals_cannot_keep_an_idle_engine_waiting(tmp_path: Path) -> None:
    """Every arrival makes the scores stale; the place has one budget all the same."""
    models = {"a": {**CACHED, "cache_lookup_delay_s": 0.3}}
    async with daemon(tmp_path, models, {**ONE_PLACE, "cache_lookup_ms": 800}) as it:
        crowd = await contest(it)
        with frozen(it):
            await crowd.send("busy", "a")
            await crowd.queue({"A1": "1/10", "A2": "9/10"})
        thawed_s = time.monotonic()
        number = 2
        with trio.fail_after(5):
            while len(crowd.order) < 1:
                number += 1
                await crowd.queue({f"A{number}": "9/10"})
                await trio.sleep(0.1)
        waited_s = time.monotonic() - thawed_s
        assert 0.7 < waited_s < 0.8 + AT_ONCE_S
        assert crowd.order == ["A1"]
        assert crowd.lookups >= 4
        for client in crowd.clients.values():
            client.stream.socket.close()


async def test_status_and_leaving_clients_do_not_wait_for_a_lookup(tmp_path: Path) -> None:
    models = {"a": {**CACHED, "cache_lookup_delay_s": 3.0}}
    async with daemon(tmp_path, models, {**ONE_PLACE, "cache_lookup_ms": 10_000}) as it:
        crowd = await contest(it)
        with frozen(it):
            await crowd.send("busy", "a")
            await crowd.queue({"A1": "1/10", "A2": "9/10", "A3": "5/10"})
        await _lookups_seen(crowd, 1)
        started_s = time.monotonic()
        assert (await it.status())["queue_depth"] == 3
        assert (await it.metrics())["in_flight"] == 0
        for name in ("A1 FX:cached=1/10", "A2 FX:cached=9/10"):
            await crowd.leave(name)
        # Alone, the last one needs no order.
        await metrics_until(it, lambda metrics: metrics["queue_depth"] == 0)
        assert time.monotonic() - started_s < 1.0
        await crowd.served()
        assert crowd.order == ["A3"]


async def test_an_urgent_request_does_not_wait_for_a_lookup(tmp_path: Path) -> None:
    models = {"a": {**CACHED, "cache_lookup_delay_s": 3.0}}
    async with daemon(tmp_path, models, {**ONE_PLACE, "cache_lookup_ms": 10_000}) as it:
        crowd = await contest(it)
        with frozen(it):
            await crowd.send("busy", "a")
            await crowd.queue({"A1": "1/10", "A2": "9/10"})
        await _lookups_seen(crowd, 1)
        sent_s = time.monotonic()
        assert (await it.chat("a", "urgent", service_tier="priority")).status == 200
        assert time.monotonic() - sent_s < AT_ONCE_S
        assert crowd.order == ["urgent"]
        for client in crowd.clients.values():
            client.stream.socket.close()


# ---- engines that do not answer as hoped --------------------------------------------------------

HELPLESS: list[dict[str, Any]] = [
    *({"cache_lookup_status": status} for status in (409, 503, 302)),
    *({"cache_lookup_reply": how} for how in ("short", "over", "garbage", "floats")),
]


async def test_a_busy_or_invalid_answer_falls_back_at_once_and_is_asked_again(
    tmp_path: Path,
) -> None:
    """The profile is read at each start, so that one daemon can meet all these engines."""
    async with daemon(tmp_path, {"a": CACHED, "b": QUICK}, ONE_PLACE) as it:
        for knobs in HELPLESS:
            it.set_knobs("a", {**CACHED, **knobs})
            await it.chat("b")
            crowd = await contest(it)
            with frozen(it):
                await crowd.send("busy", "a")
                await crowd.queue({"A1": "1/10", "A2": "9/10", "A3": "5/10"})
            thawed_s = time.monotonic()
            records = await crowd.served()
            assert time.monotonic() - thawed_s < 0.95, knobs  # one budget is a second
            assert crowd.order == ["A1", "A2", "A3"], knobs
            assert crowd.lookups == 2, knobs
            assert all(record["success"] for record in records.values())


async def test_an_engine_without_the_endpoint_is_asked_once_until_the_engine_changes(
    tmp_path: Path,
) -> None:
    """The first one is as public Strata, which answers 404."""
    kinds = [QUICK, *({**CACHED, "cache_lookup_status": status} for status in (405, 501))]
    async with daemon(tmp_path, {"a": QUICK, "b": QUICK}, ONE_PLACE) as it:
        for knobs in kinds:
            it.set_knobs("a", knobs)
            await it.chat("b")
            crowd = await contest(it)
            with frozen(it):
                await crowd.send("busy", "a")
                await crowd.queue({f"A{number}": "9/10" for number in range(4)})
            await crowd.served()
            assert crowd.order == ["A0", "A1", "A2", "A3"]
            assert crowd.lookups == 1


async def test_a_llama_server_is_never_asked_and_keeps_the_order_of_arrival(tmp_path: Path) -> None:
    llama = tmp_path / "llama-server"
    simulated.write_llama_server(llama)
    events = f'{{"event_file": "{tmp_path / "events.jsonl"}", "load_s": 0.6}}'
    config = {
        **ONE_PLACE,
        "engines": {"llama": {"kind": "llama-server", "command": str(llama)}},
        "models": {
            "a": {
                "engine": "llama",
                "family": "test",
                "args": ["--simulated", events],
                "upstream_model": "upstream-a",
                "installed": True,
                "compatible": True,
            }
        },
    }
    async with daemon(tmp_path, {}, config) as it:
        crowd = Crowd(it)
        for number in range(4):  # all of them while the model loads
            await crowd.send(f"A{number}", "a")
        assert (await it.metrics())["loaded_model"] is None
        records = await crowd.served()
        leases = [records[f"A{number}"]["lease_at"] for number in range(4)]
        assert leases == sorted(leases)
        assert all(free_s < AT_ONCE_S for free_s in pauses_s(records))


# ---- bounds -------------------------------------------------------------------------------------


async def test_many_waiting_requests_are_asked_about_in_batches(tmp_path: Path) -> None:
    config = {**ONE_PLACE, "cache_lookup_ms": 5000}
    async with daemon(tmp_path, {"a": CACHED}, config) as it:
        crowd = await contest(it)
        with frozen(it):
            await crowd.send("busy", "a")
            async with trio.open_nursery() as nursery:
                for number in range(1, 36):
                    name = f"A{number} FX:cached={number}/100"
                    nursery.start_soon(crowd.start, name, "a")
            await metrics_until(it, lambda metrics: metrics["queue_depth"] == 35)
        with trio.fail_after(10):
            while len(crowd.order) < 1:
                await trio.sleep(0.005)
        assert crowd.order[0] == "A35"
        assert crowd.lookups >= 3  # 16, 16 and 3
        await crowd.served()
        assert crowd.order == [f"A{number}" for number in range(35, 0, -1)]


async def test_big_bodies_are_asked_about_in_parts_and_the_biggest_not_at_all(
    tmp_path: Path,
) -> None:
    config = {**ONE_PLACE, "cache_lookup_ms": 10_000}
    async with daemon(tmp_path, {"a": CACHED}, config) as it:
        crowd = await contest(it)
        mib = "x" * 1024 * 1024
        with frozen(it):
            await crowd.send("busy", "a")
            await crowd.queue({"A1": "1/10"}, padding=mib * 3)
            await crowd.queue({"A2": "2/10"}, padding=mib * 3)
            await crowd.queue({"A3": "3/10"}, padding=mib * 3)
            await crowd.queue({"A4": "9/10"}, padding=mib * 9)
        records = await crowd.served()
        order = sorted(records, key=lambda name: str(records[name]["lease_at"]))
        assert [name.split()[0] for name in order] == ["busy", "A3", "A2", "A1", "A4"]
        # Three of 3 MiB take two batches, two take one, and so does one beside the biggest.
        assert crowd.lookups == 2 + 1 + 1
