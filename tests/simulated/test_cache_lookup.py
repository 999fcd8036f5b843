"""The cache lookup extension. Source: contract section 8."""

import json
import time
from typing import Any

import pytest

from tests.simulated.harness import Engine, Reply, Yard


def chat(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def look_up(engine: Engine, *bodies: Any) -> Reply:
    return engine.post("/v1/cache/lookup", json.dumps({"requests": bodies}).encode())


def test_it_does_not_exist_unless_it_is_switched_on(yard: Yard) -> None:
    assert look_up(yard.start()).status == 404


def test_it_knows_the_prompts_that_were_served(yard: Yard) -> None:
    engine = yard.start(cache_lookup=True, cache_slots=2)
    known, other = "a known question " * 10, "something else " * 10
    engine.chat(known)
    first, second, third = look_up(engine, chat(known), chat(other), {"messages": 3}).json()[
        "results"
    ]
    assert first["cached_tokens"] == first["input_tokens"] - 1
    assert second["cached_tokens"] < 5 < second["input_tokens"]
    assert third is None
    engine.chat(other)
    both = look_up(engine, chat(known), chat(other)).json()["results"]
    assert all(result["cached_tokens"] > 30 for result in both)


def test_a_marker_dictates_the_score(yard: Yard) -> None:
    engine = yard.start(cache_lookup=True)
    results = look_up(engine, chat("FX:cached=10/40"), chat("FX:cached=0/9")).json()["results"]
    assert results == [
        {"cached_tokens": 10, "input_tokens": 40},
        {"cached_tokens": 0, "input_tokens": 9},
    ]


def test_it_is_busy_while_a_request_runs_unless_told_otherwise(yard: Yard) -> None:
    for busy, status in ((True, 409), (False, 200)):
        engine = yard.start(cache_lookup=True, cache_lookup_busy=busy)
        peer = engine.open_chat("FX:hang_after_chunks=1", stream=True)
        peer.until(b"data:", 2)
        assert look_up(engine, chat("x")).status == status
        peer.close()


@pytest.mark.parametrize("status", [405, 429, 501, 503])
def test_it_can_refuse(yard: Yard, status: int) -> None:
    assert look_up(yard.start(cache_lookup=True, cache_lookup_status=status)).status == status


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("short", {"results": []}),
        ("negative", {"results": [{"cached_tokens": -1, "input_tokens": 10}]}),
        ("over", {"results": [{"cached_tokens": 11, "input_tokens": 10}]}),
        ("floats", {"results": [{"cached_tokens": 0.5, "input_tokens": 10}]}),
        ("null_results", {"results": None}),
        ("garbage", None),
    ],
)
def test_its_reply_can_be_invalid(yard: Yard, how: str, expected: object) -> None:
    reply = look_up(yard.start(cache_lookup=True, cache_lookup_reply=how), chat("x"))
    assert reply.status == 200
    if expected is None:
        with pytest.raises(ValueError, match="Expecting"):
            reply.json()
    else:
        assert reply.json() == expected


def test_its_reply_can_be_a_list(yard: Yard) -> None:
    engine = yard.start(cache_lookup=True, cache_lookup_reply="not_object")
    assert isinstance(look_up(engine, chat("x")).json(), list)


def test_it_can_be_slow_and_is_stamped(yard: Yard) -> None:
    engine = yard.start(cache_lookup=True, cache_lookup_delay_s=0.2)
    began = time.monotonic()
    look_up(engine, chat("x"))
    assert time.monotonic() - began >= 0.2
    paths = [stamp.facts["path"] for stamp in engine.stamps() if stamp.event == "control"]
    assert "/v1/cache/lookup" in paths


def test_a_body_of_the_wrong_shape_is_400(yard: Yard) -> None:
    engine = yard.start(cache_lookup=True)
    assert engine.post("/v1/cache/lookup", b'{"requests": 3}').status == 400
