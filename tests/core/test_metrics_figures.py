"""The JSON form of ``/metrics`` is the contract's, key by key."""

from strata_router.core.metrics import Tally
from strata_router.core.vocabulary import ModelId, Tier
from tests.core.metric_records import figures, record, snapshot


def test_the_json_form_of_a_daemon_that_has_done_nothing() -> None:
    assert figures().to_mapping() == {
        "loaded_model": None,
        "in_flight": 0,
        "queue_depth": 0,
        "queue_depth_by_tier": {"priority": 0, "default": 0, "flex": 0},
        "max_request_body_bytes": 1000,
        "last_ttft_ms": None,
        "last_decode_tokens_per_s": None,
        "request_log": {
            "write_errors": 1,
            "write_drops": 2,
            "evicted": 3,
            "records_in_ring": 4,
            "next_seq": 8,
            "instance_id": "19a-7",
            "path": None,
            "max_bytes": 4096,
            "rotate_files": 5,
            "capacity": 6,
        },
    }


def test_the_json_form_shows_queue_leases_model_and_the_last_stream() -> None:
    tally = Tally([])
    stream = record(ttft_ms=120, generation_ms=2_000, completion_tokens=100)
    tally.request_ended(stream, Tier.DEFAULT)
    busy = snapshot(loaded=ModelId("a"), in_flight=2, waiting=(1, 0, 3))
    shown = figures(tally, snapshot=busy).to_mapping()
    assert shown["loaded_model"] == "a"
    assert (shown["in_flight"], shown["queue_depth"]) == (2, 4)
    assert shown["queue_depth_by_tier"] == {"priority": 1, "default": 0, "flex": 3}
    assert (shown["last_ttft_ms"], shown["last_decode_tokens_per_s"]) == (120, 50)
