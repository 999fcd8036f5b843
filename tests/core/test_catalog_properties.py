"""Resolution of every name against the rules told once more, over drawn configurations."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from strata_router.core.catalog import Catalog, Resolution
from strata_router.core.config import Metadata, Profile, ProfileCheck
from strata_router.core.refusal import Case, Refusal
from tests.core.config_documents import parse

IDS = ("a", "b", "c", "d")
ORDER = st.lists(st.sampled_from(IDS), unique=True)


@given(prepared=st.sets(st.sampled_from(IDS)), enabled=ORDER | st.none(), allowed=ORDER)
def test_a_name_resolves_by_the_rules(
    prepared: set[str], enabled: list[str] | None, allowed: list[str]
) -> None:
    document: dict[str, Any] = {
        "models": {
            name: {"family": "f", "installed": name in prepared, "compatible": True} for name in IDS
        },
        "python": "/p",
        "strata_dir": "/s",
    }
    if enabled is not None:
        document["enabled_models"] = enabled
    if allowed:
        document["aliases"] = {"f": {"allowed_models": allowed}}
    config = parse(document).config
    good = ProfileCheck(Profile("m", None, None, Metadata()), ())
    catalog = Catalog(config, dict.fromkeys(config.models, good))

    offered = set(IDS if enabled is None else enabled)
    for name in (*IDS, "f", "zzz"):
        candidates = allowed if name == "f" else [name]
        effective = [candidate for candidate in candidates if candidate in offered]
        ready = [candidate for candidate in effective if candidate in prepared]
        match catalog.resolve(name):
            case Refusal(case=Case.MODEL_NOT_FOUND):
                assert not effective
            case Refusal(case=case):
                assert case is Case.MODEL_NOT_PREPARED
                assert effective
                assert not ready
            case Resolution() as resolution:
                assert ready
                assert list(resolution.accepts) == effective
                assert resolution.preferred == (effective[0] if effective[0] in prepared else None)
        assert (catalog.entry(name, None, None, 0) is not None) == bool(effective)
    listed = [item["id"] for item in catalog.listing(None, None, 0)]
    alias = ["f"] if offered & set(allowed) else []
    assert listed == [*(sorted(IDS) if enabled is None else enabled), *alias]
