"""Names, preparation and the model listing."""

from typing import Any

import orjson
import pytest

from strata_router.core.catalog import Catalog, Resolution
from strata_router.core.config import Metadata, Profile, ProfileCheck
from strata_router.core.refusal import Case, Refusal
from strata_router.core.vocabulary import ModelId, Preparation
from tests.core.config_documents import parse

A, B, C = ModelId("a"), ModelId("b"), ModelId("c")
READY = {"family": "f", "profile": "/p", "installed": True, "compatible": True}
GOOD = ProfileCheck(Profile("m", None, None, Metadata()), ())
BAD = ProfileCheck(None, ("profile is not JSON",))
NOW_S = 1_700_000_000


def catalog(
    models: dict[str, dict[str, Any]],
    profiles: dict[ModelId, ProfileCheck] | None = None,
    **keys: Any,
) -> Catalog:
    """A catalog of these models; profiles are good unless said otherwise."""
    given = {"models": models, "python": "/p", "strata_dir": "/s"} | keys
    config = parse(given).config
    return Catalog(config, dict.fromkeys(config.models, GOOD) if profiles is None else profiles)


def aliased(*allowed: str, models: dict[str, dict[str, Any]], **keys: Any) -> Catalog:
    return catalog(models, aliases={"f": {"allowed_models": list(allowed)}}, **keys)


def refusal_case(answer: Resolution | Refusal) -> Case:
    assert isinstance(answer, Refusal)
    return answer.case


def test_a_prepared_model_stands_for_itself() -> None:
    assert catalog({"a": READY}).resolve("a") == Resolution("a", (A,), A)


@pytest.mark.parametrize("name", ["zzz", "", "A", "f", "a "])
def test_a_name_that_is_not_configured_is_not_found(name: str) -> None:
    assert refusal_case(catalog({"a": READY}).resolve(name)) is Case.MODEL_NOT_FOUND


def refusal_message(offered: Catalog, name: str) -> str | None:
    answer = offered.resolve(name)
    assert isinstance(answer, Refusal)
    return answer.message


def test_a_name_that_is_not_offered_is_answered_with_those_that_are() -> None:
    offered = aliased(
        "b", models={"a": {"family": "f"}, "b": READY, "c": READY}, enabled_models=["a", "b"]
    )
    assert refusal_message(offered, "s3cr3t") == (
        "No model of that name is offered; /v1/models lists f, b, a."
    )


def test_of_many_names_those_that_can_be_answered_are_told_first() -> None:
    unprepared: dict[str, dict[str, Any]] = {f"x{n:02}": {"family": "f"} for n in range(11)}
    assert refusal_message(catalog(unprepared | {"a": READY}), "zzz") == (
        "No model of that name is offered; "
        "/v1/models lists a, x00, x01, x02, x03, x04, x05, x06, x07, x08 and 2 more."
    )


def test_where_nothing_is_offered_the_refusal_says_so() -> None:
    offered = catalog({"a": READY}, enabled_models=[])
    assert refusal_message(offered, "a") == "No model of that name is offered, nor any other."


def test_a_disabled_model_is_not_found() -> None:
    offered = catalog({"a": READY, "b": READY}, enabled_models=["b"])
    assert refusal_case(offered.resolve("a")) is Case.MODEL_NOT_FOUND


def test_a_model_that_is_not_prepared_is_refused_as_such() -> None:
    assert refusal_case(catalog({"a": {"family": "f"}}).resolve("a")) is Case.MODEL_NOT_PREPARED


def test_an_alias_accepts_its_models_in_order_and_prefers_the_first() -> None:
    offered = aliased("b", "a", models={"a": READY, "b": READY})
    assert offered.resolve("f") == Resolution("f", (B, A), B)


def test_removing_the_first_enabled_entry_makes_the_next_preferred() -> None:
    models = {"a": READY, "b": READY, "c": READY}
    offered = aliased("b", "a", "c", models=models, enabled_models=["c", "a"])
    assert offered.resolve("f") == Resolution("f", (A, C), A)


def test_an_unprepared_first_entry_is_never_skipped() -> None:
    offered = aliased("a", "b", models={"a": {"family": "f"}, "b": READY})
    assert offered.resolve("f") == Resolution("f", (A, B), None)


def test_an_alias_without_a_prepared_entry_is_refused_as_such() -> None:
    offered = aliased("a", "b", models={"a": {"family": "f"}, "b": {"family": "f"}})
    assert refusal_case(offered.resolve("f")) is Case.MODEL_NOT_PREPARED


def test_an_alias_of_which_nothing_is_enabled_is_not_found() -> None:
    offered = aliased("a", models={"a": READY, "b": READY}, enabled_models=["b"])
    assert refusal_case(offered.resolve("f")) is Case.MODEL_NOT_FOUND
    assert offered.effective_aliases() == {}


def test_refusals_say_nothing_of_the_name() -> None:
    answer = catalog({"a": READY}).resolve("marked")
    assert isinstance(answer, Refusal)
    assert b"marked" not in answer.json_body()


@pytest.mark.parametrize("name", ["a", "b", "f"])
def test_configured_names_are_known_whether_enabled_or_not(name: str) -> None:
    """A record may hold them (design document, ``model_requested``)."""
    offered = aliased("a", models={"a": READY, "b": READY}, enabled_models=[])
    assert offered.is_known_name(name)


def test_other_names_are_not_known() -> None:
    assert not catalog({"a": READY}).is_known_name("f")


@pytest.mark.parametrize(
    ("keys", "state"),
    [
        ({}, Preparation.NOT_INSTALLED),
        ({"compatible": True}, Preparation.NOT_INSTALLED),
        ({"installed": True}, Preparation.INCOMPATIBLE),
        ({"installed": True, "compatible": True}, Preparation.PREPARED_UNVERIFIED),
    ],
)
def test_preparation_is_the_first_thing_that_lacks(
    keys: dict[str, bool], state: Preparation
) -> None:
    assert catalog({"a": {"family": "f"} | keys}).preparation(A) is state


@pytest.mark.parametrize("profiles", [{}, {A: BAD}])
def test_a_missing_or_refused_profile_is_a_missing_profile(
    profiles: dict[ModelId, ProfileCheck],
) -> None:
    assert catalog({"a": READY}, profiles).preparation(A) is Preparation.MISSING_PROFILE


def test_a_llama_server_model_needs_no_profile() -> None:
    model = {"family": "f", "engine": "llama", "installed": True, "compatible": True}
    engines = {"llama": {"kind": "llama-server", "command": "/x"}}
    offered = catalog({"a": model}, {}, engines=engines)
    assert offered.preparation(A) is Preparation.PREPARED_UNVERIFIED


def test_the_upstream_model_is_the_one_given_or_the_id() -> None:
    offered = catalog({"a": READY | {"upstream_model": "x"}, "b": READY})
    assert offered.upstream_model(A) == "x"
    assert offered.upstream_model(B) == "b"


def test_the_default_model_is_the_first_enabled() -> None:
    assert catalog({"b": READY, "a": READY}, enabled_models=["b", "a"]).default_model() == B


def test_the_default_model_is_the_first_by_id_when_all_are_enabled() -> None:
    assert catalog({"b": READY, "a": READY}).default_model() == A


def test_without_enabled_models_there_is_no_default() -> None:
    assert catalog({"a": READY}, enabled_models=[]).default_model() is None


def test_prepared_models_are_the_enabled_ones_that_lack_nothing() -> None:
    models = {"a": READY, "b": READY, "c": {**READY, "installed": False}, "d": READY}
    assert catalog(models, enabled_models=["d", "c", "a"]).prepared_models() == ["d", "a"]


def test_a_model_is_listed_in_openai_shape_and_with_what_is_known() -> None:
    model = {
        "family": "f",
        "fine_tune": "base",
        "quantization": "q4",
        "metadata": {"meta": {"n_ctx": 1}, "thinking": False},
    }
    assert catalog({"a": model}).listing(None, None, NOW_S) == [
        {
            "id": "a",
            "object": "model",
            "created": NOW_S,
            "owned_by": "strata-router",
            "kind": "concrete",
            "family": "f",
            "status": "not_installed",
            "fine_tune": "base",
            "quantization": "q4",
            "meta": {"n_ctx": 1},
            "thinking": False,
        }
    ]


def test_an_alias_is_listed_with_its_enabled_models() -> None:
    offered = aliased("c", "b", "a", models=dict.fromkeys("abc", READY), enabled_models=["a", "c"])
    assert offered.listing(None, None, NOW_S)[2:] == [
        {
            "id": "f",
            "object": "model",
            "created": NOW_S,
            "owned_by": "strata-router",
            "kind": "alias",
            "family": "f",
            "status": "prepared_unverified",
            "allowed_models": ["c", "a"],
        }
    ]


def test_models_are_listed_in_enabled_order_and_before_aliases() -> None:
    offered = aliased("a", models=dict.fromkeys("abc", READY), enabled_models=["c", "a"])
    assert [item["id"] for item in offered.listing(None, None, NOW_S)] == ["c", "a", "f"]


def test_nothing_enabled_is_an_empty_list() -> None:
    offered = aliased("a", models={"a": READY}, enabled_models=[])
    assert offered.listing(None, None, NOW_S) == []


def test_the_profiles_metadata_fills_what_the_config_leaves_out() -> None:
    of_profile = Metadata(meta={"n_ctx": 2}, architecture="x", thinking=True)
    profiles = {A: ProfileCheck(Profile("m", None, None, of_profile), ())}
    offered = catalog({"a": READY | {"metadata": {"meta": 1, "thinking": False}}}, profiles)
    item = offered.entry("a", None, None, NOW_S)
    assert item is not None
    assert (item["meta"], item["architecture"], item["thinking"]) == (1, "x", False)


@pytest.mark.parametrize("profiles", [{}, {A: BAD}])
def test_without_a_usable_profile_only_the_config_speaks(
    profiles: dict[ModelId, ProfileCheck],
) -> None:
    item = catalog({"a": READY}, profiles).entry("a", None, None, NOW_S)
    assert item is not None
    assert item["status"] == "missing_profile"
    assert not {"meta", "architecture", "thinking"} & item.keys()


@pytest.mark.parametrize(
    ("loaded", "loading", "statuses"),
    [
        (A, None, ("loaded", "prepared_unverified", "loaded")),
        (B, None, ("prepared_unverified", "loaded", "loaded")),
        (None, B, ("prepared_unverified", "loading", "loading")),
        (A, B, ("loaded", "loading", "loaded")),
        (C, None, ("prepared_unverified", "prepared_unverified", "prepared_unverified")),
    ],
)
def test_what_runs_shows_in_status(
    loaded: ModelId | None, loading: ModelId | None, statuses: tuple[str, ...]
) -> None:
    models = {"a": READY, "b": READY, "c": READY | {"family": "g"}}
    offered = aliased("a", "b", models=models)
    items = {item["id"]: item["status"] for item in offered.listing(loaded, loading, NOW_S)}
    assert (items["a"], items["b"], items["f"]) == statuses


def test_an_alias_is_as_prepared_as_the_model_it_would_load() -> None:
    offered = aliased("a", "b", models={"a": {"family": "f"}, "b": READY})
    item = offered.entry("f", None, None, NOW_S)
    assert item is not None
    assert item["status"] == "not_installed"


def test_one_entry_is_the_same_as_in_the_listing() -> None:
    offered = aliased("a", models={"a": READY, "b": READY})
    for item in offered.listing(A, None, NOW_S):
        assert offered.entry(str(item["id"]), A, None, NOW_S) == item


@pytest.mark.parametrize("name", ["b", "g", "zzz"])
def test_what_is_not_on_offer_has_no_entry(name: str) -> None:
    models = {"a": READY, "b": READY | {"family": "g"}}
    aliases = {"g": {"allowed_models": ["b"]}}
    offered = catalog(models, aliases=aliases, enabled_models=["a"])
    assert offered.entry(name, None, None, NOW_S) is None


def test_the_listing_can_be_written_as_json() -> None:
    offered = aliased("a", models={"a": READY | {"metadata": {"meta": {"n_ctx": 1}}}})
    written = orjson.loads(orjson.dumps(offered.listing(None, A, NOW_S)))
    assert written == offered.listing(None, A, NOW_S)
