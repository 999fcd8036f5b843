"""One request's stamps become one record, wherever the request ends."""

from typing import Any

import pytest

from strata_router.core.moment import Moment
from strata_router.core.record.builder import FinishedTwice, RecordBuilder
from strata_router.core.record.schema import Record
from strata_router.core.tap import Accounting
from strata_router.core.vocabulary import (
    CHAT_PATH,
    DisconnectPhase,
    FinishReason,
    ModelId,
    Reason,
    RequestId,
)


def at(seconds: float) -> Moment:
    """So many seconds after arrival."""
    return Moment(1000.0 + seconds, 1_796_000_000.0 + seconds)


def builder() -> RecordBuilder:
    return RecordBuilder(7, RequestId("19a-1-7"), CHAT_PATH, at(0), queue_depth=3, in_flight=2)


def answered(accounting: Accounting = Accounting(saw_done=True)) -> RecordBuilder:  # noqa: B008 # frozen
    """Everything a request goes through up to the end of its answer."""
    request = builder()
    request.parsed(True, "family-a")
    request.resolved(ModelId("family-a-q2"), "Family A")
    request.admitted(at(1.5), model_switch=True)
    request.loaded(700)
    request.upstream_headers(at(2.4), 200)
    request.client_status(200)
    request.forwarded(100)
    request.forwarded(23)
    request.accounting(accounting)
    return request


def finished(request: RecordBuilder, reason: Reason = Reason.COMPLETED, **more: Any) -> Record:
    return request.finish(at(9), reason, **more).sequenced(1)


def test_a_whole_life_fills_every_field() -> None:
    accounting = Accounting(
        prompt_tokens=10,
        completion_tokens=20,
        reasoning_tokens=5,
        prompt_n=8,
        cache_n=2,
        predicted_n=20,
        prompt_ms=83.125,
        predicted_ms=640.5,
        prompt_per_second=96.5,
        predicted_per_second=31.25,
        finish_reason=FinishReason.STOP,
        first_token=at(3.25),
        last_token=at(8.125),
        saw_done=True,
    )
    assert finished(answered(accounting)) == Record(
        seq=1,
        arrival_seq=7,
        request_id=RequestId("19a-1-7"),
        endpoint="/v1/chat/completions",
        stream=True,
        model_requested="family-a",
        model_resolved=ModelId("family-a-q2"),
        upstream_model="Family A",
        arrived_at="2026-11-30T00:53:20.000Z",
        completed_at="2026-11-30T00:53:29.000Z",
        lease_at="2026-11-30T00:53:21.500Z",
        first_token_at="2026-11-30T00:53:23.250Z",
        last_token_at="2026-11-30T00:53:28.125Z",
        queue_depth_at_arrival=3,
        in_flight_at_arrival=2,
        queue_wait_ms=1500,
        model_switch=True,
        model_load_ms=700,
        upstream_headers_ms=2400,
        ttft_ms=3250,
        ttft_after_lease_ms=1750,
        generation_ms=4875,
        total_ms=9000,
        prompt_tokens=10,
        completion_tokens=20,
        reasoning_tokens=5,
        prompt_n=8,
        cache_n=2,
        predicted_n=20,
        prompt_ms=83.125,
        predicted_ms=640.5,
        prompt_per_second=96.5,
        predicted_per_second=31.25,
        finish_reason=FinishReason.STOP,
        status=200,
        upstream_status=200,
        success=True,
        reason=Reason.COMPLETED,
        response_bytes=123,
        disconnect_phase=None,
    )


def test_a_request_that_got_nowhere_has_nulls_and_no_zeros_for_the_unknown() -> None:
    assert finished(builder(), Reason.INVALID_REQUEST) == Record(
        seq=1,
        arrival_seq=7,
        request_id=RequestId("19a-1-7"),
        endpoint="/v1/chat/completions",
        stream=False,
        model_requested=None,
        model_resolved=None,
        upstream_model=None,
        arrived_at="2026-11-30T00:53:20.000Z",
        completed_at="2026-11-30T00:53:29.000Z",
        lease_at=None,
        first_token_at=None,
        last_token_at=None,
        queue_depth_at_arrival=3,
        in_flight_at_arrival=2,
        queue_wait_ms=None,
        model_switch=False,
        model_load_ms=None,
        upstream_headers_ms=None,
        ttft_ms=None,
        ttft_after_lease_ms=None,
        generation_ms=None,
        total_ms=9000,
        prompt_tokens=None,
        completion_tokens=None,
        reasoning_tokens=None,
        prompt_n=None,
        cache_n=None,
        predicted_n=None,
        prompt_ms=None,
        predicted_ms=None,
        prompt_per_second=None,
        predicted_per_second=None,
        finish_reason=None,
        status=None,
        upstream_status=None,
        success=False,
        reason=Reason.INVALID_REQUEST,
        response_bytes=0,
        disconnect_phase=None,
    )


def test_a_single_delta_is_a_generation_of_zero_ms() -> None:
    record = finished(answered(Accounting(first_token=at(3), last_token=at(3))))
    assert record.generation_ms == 0


def test_b23_an_account_without_a_second_delta_or_usage_keeps_what_there_is() -> None:
    request = answered(Accounting(completion_tokens=6, first_token=at(3), last_token=at(4)))
    record = finished(request, Reason.CLIENT_DISCONNECT)
    assert record.completion_tokens == 6
    assert record.first_token_at is not None
    assert record.prompt_tokens is None
    assert not record.success


def test_durations_come_from_the_monotonic_half_and_texts_from_the_other() -> None:
    """The host's clock was set back by an hour in between."""
    record = builder().finish(Moment(1004.0, 1_796_000_000.0 - 3600), Reason.SHUTDOWN).sequenced(1)
    assert record.total_ms == 4000
    assert record.completed_at == "2026-11-29T23:53:20.000Z"


def test_an_alias_settled_again_at_admission_keeps_the_last_model() -> None:
    request = answered()
    request.resolved(ModelId("family-a-q4"), None)
    record = finished(request)
    assert (record.model_resolved, record.upstream_model) == ("family-a-q4", None)


@pytest.mark.parametrize("reason", [reason for reason in Reason if reason is not Reason.COMPLETED])
def test_nothing_but_completed_is_a_success(reason: Reason) -> None:
    assert finished(answered(), reason).success is False


@pytest.mark.parametrize(
    ("status", "success"), [(199, False), (200, True), (299, True), (300, False), (400, False)]
)
def test_success_needs_a_2xx_client_status(status: int, success: bool) -> None:
    request = answered()
    request.client_status(status)
    assert finished(request).success is success


def test_success_needs_a_client_status_at_all() -> None:
    assert finished(builder()).success is False


def test_b20_a_committed_stream_with_a_failed_upstream_status_is_no_success() -> None:
    request = answered()
    request.upstream_headers(at(2), 500)
    record = finished(request)
    assert (record.status, record.upstream_status, record.success) == (200, 500, False)


def test_b20_an_error_frame_is_no_success_in_spite_of_done() -> None:
    record = finished(answered(Accounting(saw_done=True, saw_error=True)))
    assert record.success is False


def test_an_answer_without_an_upstream_can_succeed() -> None:
    request = builder()
    request.client_status(204)
    assert finished(request).success is True


def test_the_phase_of_a_disconnect_follows_from_how_far_the_request_was() -> None:
    request = builder()
    assert finished(request, Reason.CLIENT_DISCONNECT).disconnect_phase == "queued"
    request = builder()
    request.admitted(at(1), model_switch=False)
    assert finished(request, Reason.CLIENT_DISCONNECT).disconnect_phase == "loading"
    assert finished(answered(), Reason.CLIENT_DISCONNECT).disconnect_phase == "generating"


def test_a_phase_that_is_given_is_kept() -> None:
    record = finished(
        answered(), Reason.CLIENT_DISCONNECT, disconnect_phase=DisconnectPhase.LOADING
    )
    assert record.disconnect_phase is DisconnectPhase.LOADING


def test_only_a_client_disconnect_has_a_phase() -> None:
    for reason in Reason:
        record = finished(answered(), reason, disconnect_phase=DisconnectPhase.QUEUED)
        assert (record.disconnect_phase is None) == (reason is not Reason.CLIENT_DISCONNECT)


def test_b23_a_second_finish_raises_and_stamps_after_the_first_change_nothing() -> None:
    request = answered()
    unsequenced = request.finish(at(9), Reason.CLIENT_DISCONNECT)
    before = unsequenced.sequenced(1)
    request.forwarded(1)
    request.client_status(500)
    with pytest.raises(FinishedTwice, match="19a-1-7"):
        request.finish(at(10), Reason.COMPLETED)
    assert unsequenced.sequenced(1) == before


def test_a_request_is_finished_once_its_record_exists() -> None:
    request = builder()
    was_finished = request.is_finished
    request.finish(at(1), Reason.SHUTDOWN)
    assert (was_finished, request.is_finished) == (False, True)
