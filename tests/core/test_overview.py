"""The JSON of ``GET /queue``: every field, and nothing that is not in the overview."""

import orjson

from strata_router.core.metrics.tally import Tally
from strata_router.core.overview import MOST_TOTALS, totals
from strata_router.core.vocabulary import ModelId, Reason, Tier
from tests.core.metric_records import record
from tests.core.overviews import BUSY, IDLE, LOADING


def test_everything_that_goes_on_is_in_the_mapping() -> None:
    assert BUSY.to_mapping() == {
        "version": "1.2.3",
        "instance_id": "19a-7",
        "uptime_s": 12,
        "routing": False,
        "draining": True,
        "engine": {
            "state": "ready",
            "loaded": "a",
            "loaded_ms": 61_000,
            "loading": None,
            "loading_ms": None,
            "cooling": [{"model": "c", "left_ms": 7200}],
        },
        "waiting": {
            "total": 7,
            "by_tier": {"priority": 1, "default": 0, "flex": 6},
            "tickets": [
                {
                    "position": 1,
                    "request_id": "19a-7-9",
                    "tier": "flex",
                    "model": "b",
                    "waited_ms": 3250,
                    "overdue": False,
                    "reason": "grace",
                    "behind_model": "a",
                    "behind_tier": None,
                    "active_answers": 0,
                    "left_ms": 1250,
                    "words": "grace for a, 1.2 s left",
                },
                {
                    "position": 2,
                    "request_id": "19a-7-4",
                    "tier": "flex",
                    "model": None,
                    "waited_ms": 3250,
                    "overdue": True,
                    "reason": "higher_tier",
                    "behind_model": None,
                    "behind_tier": "priority",
                    "active_answers": 0,
                    "left_ms": None,
                    "words": "behind priority work",
                },
            ],
        },
        "active": {
            "total": 3,
            "answers": [
                {
                    "request_id": "19a-7-2",
                    "model": "a",
                    "tier": "default",
                    "phase": "generating",
                    "active_ms": 5000,
                    "phase_ms": 3000,
                    "sse_events": 41,
                },
                {
                    "request_id": "19a-7-3",
                    "model": "a",
                    "tier": "priority",
                    "phase": "header_wait",
                    "active_ms": 400,
                    "phase_ms": 20,
                    "sse_events": None,
                },
            ],
        },
    }


def test_a_load_is_told_with_its_time() -> None:
    engine = LOADING.to_mapping()["engine"]
    assert (engine["state"], engine["loading"], engine["loading_ms"]) == ("starting", "b", 2300)
    assert (engine["loaded"], engine["loaded_ms"]) == (None, None)


def test_every_overview_is_json() -> None:
    for overview in (IDLE, BUSY, LOADING):
        assert orjson.loads(orjson.dumps(overview.to_mapping())) == overview.to_mapping()


def test_totals_join_the_tiers_and_begin_with_the_most_frequent() -> None:
    tally = Tally([])
    for tier in (Tier.FLEX, Tier.DEFAULT):
        tally.request_ended(record(model_resolved=ModelId("a")), tier)
    tally.request_ended(record(Reason.CLIENT_DISCONNECT, model_resolved=ModelId("a")), Tier.FLEX)
    tally.request_ended(record(Reason.INVALID_REQUEST), None)
    assert totals(tally)[0] == {"model": "a", "outcome": "completed", "requests": 2}
    assert totals(tally)[1:] == [
        {"model": "a", "outcome": "client_disconnect", "requests": 1},
        {"model": "none", "outcome": "invalid_request", "requests": 1},
    ]


def test_totals_are_bounded_whatever_the_configuration_holds() -> None:
    tally = Tally([])
    for number in range(MOST_TOTALS + 5):
        tally.request_ended(record(model_resolved=ModelId(f"m{number}")), Tier.DEFAULT)
    assert len(totals(tally)) == MOST_TOTALS
