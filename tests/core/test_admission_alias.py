"""What an alias resolves to, when, and until when it may change. Source: contract 4.2, 6.3, 7."""

from dataclasses import replace

import pytest

from strata_router.core.admission import Admit, Load, Refuse
from strata_router.core.refusal import Case, Refusal
from strata_router.core.vocabulary import TicketId
from tests.core.admission_story import WAIT_FIRST, A, B, C, Story

NO_GRACE = replace(WAIT_FIRST, model_grace_ms=0)
NOT_PREPARED = Refusal(Case.MODEL_NOT_PREPARED)


def one(number: int) -> TicketId:
    return TicketId(number)


def test_with_nothing_loaded_the_preferred_model_is_loaded() -> None:
    assert Story().ask(1, A, B, now=0) == [Admit(one(1), A, model_switch=True), Load(A)]


def test_a_loaded_allowed_model_wins_over_the_preferred() -> None:
    story = Story().serving(B, 1, 0)
    assert story.ask(2, A, B, now=1) == [Admit(one(2), B, model_switch=False)]


def test_a_loading_allowed_model_wins_over_the_preferred() -> None:
    story = Story()
    story.ask(1, B, now=0)
    assert story.ask(2, A, B, now=1) == []
    assert story.ready(B, 5) == [Admit(one(2), B, model_switch=False)]


def test_an_unpinned_alias_follows_whatever_is_loaded_at_its_admission() -> None:
    story = Story(replace(NO_GRACE, max_pending=1)).serving(C, 1, 0)
    story.ask(2, B, now=1)
    story.ask(3, A, B, now=2)
    assert story.leave(1, 3) == [Admit(one(2), B, model_switch=True), Load(B)]
    story.ready(B, 4)
    assert story.leave(2, 5) == [Admit(one(3), B, model_switch=False)]


def test_aliases_and_concrete_requests_for_the_loaded_model_keep_arrival_order() -> None:
    story = Story(replace(NO_GRACE, max_pending=1)).serving(B, 1, 0)
    story.ask(2, A, B, now=1)
    story.ask(3, B, now=1)
    story.ask(4, A, B, now=1)
    assert story.leave(1, 2) == [Admit(one(2), B, model_switch=False)]
    assert story.leave(2, 3) == [Admit(one(3), B, model_switch=False)]
    assert story.leave(3, 4) == [Admit(one(4), B, model_switch=False)]


def test_an_alias_whose_first_model_is_not_prepared_is_refused_when_nothing_loaded_serves_it() -> (
    None
):
    assert Story().ask(1, A, B, now=0, prepared=False) == [Refuse(one(1), NOT_PREPARED)]


def test_an_alias_whose_first_model_is_not_prepared_is_served_by_a_loaded_one() -> None:
    story = Story().serving(B, 1, 0)
    assert story.ask(2, A, B, now=1, prepared=False) == [Admit(one(2), B, model_switch=False)]


def test_an_alias_that_lost_its_loaded_model_is_refused_when_its_turn_comes() -> None:
    story = Story(replace(NO_GRACE, max_pending=1)).serving(B, 1, 0)
    story.ask(2, A, B, now=1, prepared=False)
    story.stopped(2)
    assert story.decided[-1] == Refuse(one(2), NOT_PREPARED)


def test_an_alias_with_a_cooling_preference_is_refused_unless_a_loaded_model_serves_it() -> None:
    story = Story(NO_GRACE)
    story.ask(1, A, now=0)
    story.fail(A, 0)
    refusal = Refusal(Case.MODEL_LOAD_FAILED, retry_after_s=9)
    assert story.ask(2, A, B, now=1) == [Refuse(one(2), refusal)]
    story.ask(3, B, now=1)
    story.ready(B, 2)
    assert story.ask(4, A, B, now=2) == [Admit(one(4), B, model_switch=False)]


# Pinning at the stream's commit


def test_the_commit_pins_to_the_loaded_model() -> None:
    story = Story(replace(NO_GRACE, max_pending=1)).serving(B, 1, 0)
    story.ask(2, A, B, now=1)
    assert story.pin(2, 1.25) == B


def test_the_commit_pins_to_the_preferred_model_when_no_allowed_one_is_loaded() -> None:
    story = Story().serving(C, 1, 0)
    story.ask(2, A, B, now=1)
    assert story.pin(2, 1.25) == A


def test_a_pinned_ticket_is_admitted_only_to_the_model_that_its_header_named() -> None:
    story = Story(replace(NO_GRACE, max_pending=1)).serving(C, 1, 0)
    story.ask(2, B, now=1)
    story.ask(3, A, B, now=1)
    assert story.pin(3, 1.25) == A
    story.leave(1, 2)
    story.ready(B, 3)
    assert story.leave(2, 4) == [Admit(one(3), A, model_switch=True), Load(A)]


def test_pinning_keeps_the_place_by_arrival() -> None:
    story = Story(replace(NO_GRACE, max_pending=1)).serving(B, 1, 0)
    story.ask(2, A, B, now=1)
    story.ask(3, B, now=1)
    story.pin(2, 2)
    assert story.leave(1, 3) == [Admit(one(2), B, model_switch=False)]


def test_pinning_twice_gives_the_same_model_and_one_admission() -> None:
    story = Story(replace(NO_GRACE, max_pending=1)).serving(B, 1, 0)
    story.ask(2, A, B, now=1)
    assert [story.pin(2, 1), story.pin(2, 2)] == [B, B]
    story.leave(1, 3)
    assert story.leave(2, 4) == []
    assert story.scheduler.depths() == (0, 0)


def test_pinning_a_lease_names_the_model_that_answers() -> None:
    story = Story().serving(B, 1, 0)
    story.ask(2, A, B, now=1)
    assert story.pin(2, 2) == B


def test_pinning_what_nothing_can_serve_ends_the_ticket_without_a_refuse_decision() -> None:
    story = Story(replace(NO_GRACE, max_pending=1)).serving(B, 1, 0)
    story.ask(2, A, B, now=1, prepared=False)
    story.scheduler.engine_stopped(2)
    assert story.pin(2, 2) == NOT_PREPARED
    assert story.take(2) == []
    assert story.scheduler.depths() == (0, 1)


def test_pinning_what_was_just_refused_returns_the_refusal_that_is_still_to_be_taken() -> None:
    """The coordinator hands in several facts before it takes decisions."""
    story = Story().serving(B, 1, 0)
    story.ask(2, A, now=1)
    story.ask(3, A, now=1)
    story.scheduler.set_routing(False, 2)
    assert story.pin(3, 2) == Refusal(Case.ROUTING_OFF)
    assert Refuse(one(3), Refusal(Case.ROUTING_OFF)) in story.take(2)


def test_pinning_a_stranger_is_a_bug() -> None:
    story = Story().serving(A, 1, 0)
    story.ask(2, B, now=1)
    story.scheduler.set_routing(False, 2)
    with pytest.raises(KeyError):
        story.pin(7, 2)
