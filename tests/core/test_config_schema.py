"""The typed values of a configuration."""

import dataclasses

import pytest

from strata_router.core.config.schema import ListenAddress, Metadata, ModelEntry
from strata_router.core.vocabulary import ModelId

MODEL = ModelEntry(
    id=ModelId("a"),
    family="f",
    fine_tune=None,
    quantization=None,
    profile=None,
    upstream_model=None,
    installed=False,
    compatible=False,
    metadata=Metadata(),
    engine="strata",
    args=(),
)


def test_an_address_is_written_as_in_a_url() -> None:
    assert str(ListenAddress("127.0.0.1", 8088)) == "127.0.0.1:8088"
    assert str(ListenAddress("::1", 8088)) == "[::1]:8088"


def test_a_model_without_upstream_model_is_expected_under_its_id() -> None:
    assert MODEL.upstream_name == "a"


def test_a_model_is_expected_under_the_name_given() -> None:
    assert dataclasses.replace(MODEL, upstream_model="b").upstream_name == "b"


def test_entries_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        MODEL.family = "g"  # type: ignore[misc] # that it is refused is what is tested
