"""What is counted of requests, loads and engines, against records counted by hand."""

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from strata_router.core.metrics import FAMILIES, Distribution, Kind, Tally
from strata_router.core.metrics import families as known
from strata_router.core.metrics.tally import LastStream, decode_rate
from strata_router.core.vocabulary import ModelId, Reason, Tier
from tests.core.metric_records import record

A, B = ModelId("a"), ModelId("b")


def test_nothing_has_been_counted_before_the_first_event() -> None:
    tally = Tally([])
    assert tally.last_stream == LastStream(None, None)
    for family in FAMILIES:
        if family.kind is Kind.COUNTER:
            assert tally.counts(family) == {}
        elif family.kind is Kind.HISTOGRAM:
            assert tally.distributions(family) == {}


def test_loads_failures_and_deaths_of_prepared_models_begin_at_zero() -> None:
    """An alert on an increase would miss the first event of a series that begins with it."""
    tally = Tally([A, B])
    for family in (known.LOADS, known.LOAD_FAILURES, known.DEATHS):
        assert tally.counts(family) == {(A,): 0, (B,): 0}
    assert tally.counts(known.REQUESTS) == {}


def test_a_request_is_counted_by_its_model_tier_and_outcome() -> None:
    tally = Tally([])
    tally.request_ended(record(model_requested="fam", model_resolved=A), Tier.FLEX)
    tally.request_ended(record(model_requested="fam", model_resolved=A), Tier.FLEX)
    tally.request_ended(record(Reason.CLIENT_DISCONNECT, model_resolved=A), Tier.PRIORITY)
    assert tally.counts(known.REQUESTS) == {
        ("a", "flex", "completed"): 2,
        ("a", "priority", "client_disconnect"): 1,
    }


def test_without_an_answering_model_the_requested_one_counts() -> None:
    tally = Tally([])
    tally.request_ended(record(Reason.ROUTING_OFF, model_requested="fam"), Tier.DEFAULT)
    assert tally.counts(known.REQUESTS) == {("fam", "default", "routing_off"): 1}


def test_an_unknown_model_and_tier_are_none() -> None:
    tally = Tally([])
    tally.request_ended(record(Reason.INVALID_REQUEST), None)
    assert tally.counts(known.REQUESTS) == {("none", "none", "invalid_request"): 1}


def test_b22_unknown_tokens_are_no_tokens_and_zero_is_a_count() -> None:
    tally = Tally([])
    tally.request_ended(record(model_resolved=A, prompt_tokens=7, cache_n=0), Tier.DEFAULT)
    assert tally.counts(known.TOKENS) == {("a", "prompt_tokens"): 7, ("a", "cache_n"): 0}


def test_every_token_count_of_a_record_is_a_kind_of_its_own() -> None:
    tally = Tally([])
    fields: dict[str, Any] = {
        "prompt_tokens": 1,
        "completion_tokens": 2,
        "reasoning_tokens": 3,
        "prompt_n": 4,
        "cache_n": 5,
        "predicted_n": 6,
    }
    for _ in range(2):
        tally.request_ended(record(model_resolved=A, **fields), Tier.DEFAULT)
    assert tally.counts(known.TOKENS) == {("a", name): 2 * n for name, n in fields.items()}


def test_an_admission_that_meant_a_switch_is_counted_for_the_new_model() -> None:
    tally = Tally([])
    tally.request_ended(record(model_resolved=A, model_switch=True), Tier.DEFAULT)
    tally.request_ended(record(model_resolved=A), Tier.DEFAULT)
    assert tally.counts(known.SWITCHES) == {("a",): 1}


def test_durations_are_sorted_into_buckets_by_what_they_depend_on() -> None:
    tally = Tally([])
    stamps: dict[str, Any] = {
        "queue_wait_ms": 4,
        "ttft_ms": 70,
        "ttft_after_lease_ms": 66,
        "total_ms": 900,
    }
    tally.request_ended(record(model_resolved=A, **stamps), Tier.FLEX)
    totals = {
        family: {labels: each.total for labels, each in tally.distributions(family).items()}
        for family in FAMILIES
        if family.kind is Kind.HISTOGRAM
    }
    assert totals == {
        known.QUEUE_WAIT: {("flex",): 4},
        known.LOAD: {},
        known.TTFT: {("a",): 70},
        known.TTFT_AFTER_LEASE: {("a",): 66},
        known.TOTAL: {("a",): 900},
        known.DECODE_RATE: {},
    }


def test_loads_count_whoever_asked_and_failed_ones_have_no_duration() -> None:
    tally = Tally([])
    tally.loaded(A, 12_345)
    tally.load_failed(B)
    tally.engine_died(A)
    assert tally.counts(known.LOADS) == {("a",): 1}
    assert tally.counts(known.LOAD_FAILURES) == {("b",): 1}
    assert tally.counts(known.DEATHS) == {("a",): 1}
    assert list(tally.distributions(known.LOAD)) == [("a",)]


def test_the_last_stream_is_the_last_one_with_a_generated_token() -> None:
    tally = Tally([])
    stream = record(ttft_ms=120, generation_ms=2_000, completion_tokens=101)
    tally.request_ended(stream, Tier.DEFAULT)
    assert tally.last_stream == LastStream(120, 50.5)
    tally.request_ended(record(total_ms=5), Tier.DEFAULT)
    assert tally.last_stream == LastStream(120, 50.5)
    tally.request_ended(record(ttft_ms=80, generation_ms=500), Tier.DEFAULT)
    assert tally.last_stream == LastStream(80, None)


def test_b22_a_rate_needs_both_tokens_and_time() -> None:
    assert decode_rate(record(completion_tokens=30, generation_ms=1_000)) == 30
    assert decode_rate(record(completion_tokens=1, generation_ms=3_000)) == 0.33
    assert decode_rate(record(completion_tokens=0, generation_ms=1_000)) == 0
    assert decode_rate(record(completion_tokens=5)) is None
    assert decode_rate(record(generation_ms=5)) is None
    assert decode_rate(record()) is None
    assert decode_rate(record(completion_tokens=1, generation_ms=0)) is None


def test_a_bound_belongs_to_its_bucket() -> None:
    distribution = Distribution((10, 20))
    for value in (0, 10, 10.5, 20, 21, 10_000):
        distribution.add(value)
    assert distribution.at_most() == (2, 4, 6)
    assert distribution.total == 10_061.5


MS = st.none() | st.integers(0, 20_000_000)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b", None]),
            st.sampled_from([*Tier, None]),
            st.sampled_from(list(Reason)),
            MS,
            st.none() | st.integers(0, 2**63 - 1),
        )
    )
)
def test_any_records_are_counted_as_a_list_of_them_would_be(
    ended: list[tuple[str | None, Tier | None, Reason, int | None, int | None]],
) -> None:
    tally = Tally([])
    for model, tier, reason, wait_ms, tokens in ended:
        finished = record(
            reason, model_resolved=model, queue_wait_ms=wait_ms, completion_tokens=tokens
        )
        tally.request_ended(finished, tier)
    assert tally.counts(known.REQUESTS) == Counter(
        (model or "none", str(tier or "none"), str(reason)) for model, tier, reason, _, _ in ended
    )
    for name in ("a", "b", None):
        counted = tally.counts(known.TOKENS).get((name or "none", "completion_tokens"))
        said = [tokens for model, _, _, _, tokens in ended if model == name and tokens is not None]
        assert counted == (sum(said) if said else None)
    for tier in (*Tier, None):
        waits = [ms for _, of, _, ms, _ in ended if of == tier and ms is not None]
        found = tally.distributions(known.QUEUE_WAIT).get((str(tier or "none"),))
        if not waits:
            assert found is None
            continue
        assert found is not None
        assert found.total == sum(waits)
        assert found.at_most() == (
            *(sum(ms <= bound for ms in waits) for bound in known.QUEUE_WAIT.bounds),
            len(waits),
        )
