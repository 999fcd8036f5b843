"""Which Strata profiles may be run. Source: contract section 4.3."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_router.core.config.profile import Profile, ProfileCheck, check_profile
from strata_router.core.config.schema import Metadata


def check(**keys: Any) -> ProfileCheck:
    """The check of a profile of model ``m`` with these keys."""
    return check_profile({"model_name": "m"} | keys, "m")


def usable(**keys: Any) -> Profile:
    checked = check(**keys)
    assert checked.problems == ()
    assert checked.profile is not None
    return checked.profile


def refused(**keys: Any) -> str:
    checked = check(**keys)
    assert checked.profile is None
    (problem,) = checked.problems
    return problem


def test_a_name_is_all_that_a_profile_needs() -> None:
    assert usable() == Profile("m", None, None, Metadata())


def test_what_setup_writes_besides_is_the_engines_business() -> None:
    profile = usable(exe="./strata", args=["--max-context", "1"], port=8080, log="x", tokenizer="t")
    assert profile.model_name == "m"


@pytest.mark.parametrize("document", [None, [], "x", 1, True])
def test_what_is_no_object_is_refused(document: object) -> None:
    assert check_profile(document, "m") == ProfileCheck(
        None, ("must be a JSON object; run Strata's setup again",)
    )


@pytest.mark.parametrize("value", [True, 1, "yes", "false", [0]])
def test_lazy_loading_is_refused(value: object) -> None:
    assert refused(lazy_load=value).startswith("lazy_load must be false")


@pytest.mark.parametrize("value", ["true", ["true"], True, {"a": 1}])
def test_a_command_before_loading_is_refused(value: object) -> None:
    assert refused(before_load=value).startswith("before_load must not be set")


@pytest.mark.parametrize("value", ["key", ["key"], "", [], False])
def test_a_key_is_refused_even_an_empty_one(value: object) -> None:
    """Strata ends with status 2 for an empty key, after it has loaded the model."""
    assert refused(api_key=value).startswith("api_key must not be set")


@pytest.mark.parametrize("value", ["0.0.0.0", "::", "192.168.0.2", "example", "", 1, ["127.0.0.1"]])
def test_a_host_that_others_reach_is_refused(value: object) -> None:
    assert refused(host=value).startswith("host must be 127.0.0.1 or absent")


@pytest.mark.parametrize("value", ["127.0.0.1", "127.0.0.2", "::1", "localhost", None])
def test_a_loopback_host_is_accepted(value: object) -> None:
    assert usable(host=value).model_name == "m"


@pytest.mark.parametrize(
    "keys",
    [
        {"lazy_load": False, "before_load": None, "api_key": None},
        {"lazy_load": None, "before_load": ""},
        {"before_load": []},
    ],
)
def test_what_is_switched_off_is_accepted(keys: dict[str, object]) -> None:
    assert usable(**keys).model_name == "m"


def test_a_profile_without_a_name_is_refused() -> None:
    checked = check_profile({}, "m")
    assert checked.problems == (
        "model_name is missing: run Strata's setup for these weights again",
    )


@pytest.mark.parametrize("value", ["M", "m ", "", 1, ["m"]])
def test_another_name_is_refused(value: object) -> None:
    assert refused(model_name=value) == (
        "model_name differs from upstream_model 'm' in the config: make them the same"
    )


def test_the_other_name_is_there_for_the_terminal_if_it_is_a_plain_one() -> None:
    assert check(model_name="other", lazy_load=True).other_name == "other"
    assert check(model_name="m", lazy_load=True).other_name is None
    for value in ("two words", "x" * 200, "", 1, None):
        assert check(model_name=value).other_name is None


def test_all_reasons_are_given_together() -> None:
    checked = check(lazy_load=True, before_load="x", api_key="x", host="0.0.0.0", model_name="n")
    assert [problem.split()[0] for problem in checked.problems] == [
        "lazy_load",
        "before_load",
        "api_key",
        "host",
        "model_name",
    ]


def test_reasons_repeat_nothing_of_the_profile() -> None:
    checked = check(
        lazy_load="marked",
        before_load="marked",
        api_key="marked",
        host="marked",
        model_name="marked",
    )
    assert "marked" not in repr(checked)


def test_an_idle_timeout_of_strata_is_noted_not_refused() -> None:
    checked = check(idle_unload_s=300)
    assert checked.profile is not None
    assert checked.notes == ("idle_unload_s is overridden by 0: idle_ms in the config counts",)


@pytest.mark.parametrize("value", [0, None])
def test_no_idle_timeout_is_nothing_to_note(value: object) -> None:
    assert check(idle_unload_s=value).notes == ()


def test_batch_slots_and_the_cache_threshold_are_read() -> None:
    profile = usable(parallel=4, conversation_cache_min_tokens=0)
    assert profile.parallel == 4
    assert profile.conversation_cache_min_tokens == 0


@pytest.mark.parametrize("value", [True, -1, 1.5, "4", None, []])
def test_a_number_that_is_none_is_left_to_the_engine(value: object) -> None:
    profile = usable(parallel=value, conversation_cache_min_tokens=value)
    assert profile.parallel is None
    assert profile.conversation_cache_min_tokens is None


def test_no_batch_slot_is_no_number_of_slots() -> None:
    assert usable(parallel=0).parallel is None


def test_metadata_is_read_member_by_member() -> None:
    profile = usable(router_metadata={"meta": {"n_ctx": 1}, "thinking": True, "other": 1})
    assert profile.router_metadata == Metadata(meta={"n_ctx": 1}, thinking=True)


@pytest.mark.parametrize("value", [None, [], "x", 1])
def test_metadata_of_another_shape_is_none(value: object) -> None:
    assert usable(router_metadata=value).router_metadata == Metadata()


def test_a_member_that_cannot_be_listed_is_left_out() -> None:
    """orjson refuses it, which would take the whole of /v1/models down."""
    profile = usable(router_metadata={"meta": 2**64, "architecture": "\ud800", "thinking": 1})
    assert profile.router_metadata == Metadata(thinking=1)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from(
    [
        "lazy_load",
        "before_load",
        "api_key",
        "host",
        "model_name",
        "idle_unload_s",
        "parallel",
        "conversation_cache_min_tokens",
        "router_metadata",
    ]
)


@given(JSON | st.dictionaries(KEYS, JSON))
def test_every_document_is_judged(document: object) -> None:
    checked = check_profile(document, "m")
    assert (checked.profile is None) == bool(checked.problems)
