"""What is documented against the code: generated files, schema, example and prose."""

import json
import re
from typing import Any

import jsonschema
import pytest

from strata_router.core.catalog import Catalog
from strata_router.core.config import Config, Defaults, parse_config
from strata_router.core.config.keys import CONFIG_KEYS
from strata_router.core.config.schema import SHIPPED_FAMILIES
from strata_router.core.vocabulary import AliasName, ModelId, Preparation
from tests.generate_docs import GENERATED, ROOT, Generated, key_table, with_part

NEXT, A3B = SHIPPED_FAMILIES
# Contract section 3, in its order.
EXAMPLE_IDS = [
    *(
        f"{NEXT}-{rest}"
        for rest in (
            "gsq-rco-q2_0",
            "gsq-rco-iq2_xs",
            "gsq-rco-iq3_xxs",
            "gsq-rco-iq3_s",
            "coder-iq1_m",
            "coder-q2_0",
            "swift-1.5-q2_0",
            "swift-1.5-iq2_xs",
            "swift-1.5-iq3_xxs",
            "unsloth-ud-iq4_xs",
            "unsloth-ud-q4_k_xl",
            "unsloth-ud-q6_k_xl",
            "orca-uncensored-iq3_xxs",
            "orca-q4_k_s",
        )
    ),
    *(
        f"{A3B}-{rest}"
        for rest in (
            "ud-iq4_xs",
            "ud-iq3_s",
            "ornith-1.5-iq4_xs",
            "ornith-1.5-iq3_xxs",
            "huihui-abliterated-q2_k",
            "huihui-abliterated-q3_k",
            "huihui-abliterated-q4_k",
            "huihui-abliterated-q5_k",
            "huihui-abliterated-q6_k",
        )
    ),
]


def example_document() -> dict[str, Any]:
    document = json.loads((ROOT / "config.example.json").read_text(encoding="utf-8"))
    assert isinstance(document, dict)
    return document


def example() -> Config:
    parsed = parse_config(example_document(), Defaults(None))
    assert parsed.warnings == ()
    return parsed.config


def schema_validator() -> jsonschema.Draft202012Validator:
    schema = json.loads((ROOT / "docs/config.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("document", GENERATED, ids=lambda document: document.path)
def test_generated_documents_are_in_step_with_the_code(document: Generated) -> None:
    """If this fails: python -m tests.generate_docs."""
    assert document.current() == document.wanted()


def test_a_part_is_replaced_between_its_markers_only() -> None:
    text = "before\n<!-- generated: x -->\nold\n<!-- end of generated: x -->\nafter\n"
    made = with_part(text, "x", "new")
    assert made == text.replace("old", "\nnew\n")
    assert with_part(made, "x", "new") == made


def test_a_document_without_markers_is_an_error() -> None:
    with pytest.raises(ValueError, match="markers"):
        with_part("nothing", "x", "new")


def test_the_example_has_the_contracts_models_in_order() -> None:
    assert len(EXAMPLE_IDS) == 23
    assert list(example().models) == EXAMPLE_IDS
    assert list(example().enabled_models) == EXAMPLE_IDS
    assert example().enabled_models_given


def test_the_example_has_nothing_installed() -> None:
    catalog = Catalog(example(), {})
    states = {catalog.preparation(model_id) for model_id in example().models}
    assert states == {Preparation.NOT_INSTALLED}
    assert not any(model.compatible for model in example().models.values())


def test_the_example_has_both_aliases_with_all_of_their_family() -> None:
    assert example().aliases == {
        AliasName(family): tuple(name for name in EXAMPLE_IDS if name.startswith(family))
        for family in (NEXT, A3B)
    }


def test_the_examples_ids_are_made_of_family_fine_tune_and_quantization() -> None:
    for model_id, model in example().models.items():
        parts = [model.family, model.fine_tune, model.quantization]
        assert all(parts)
        assert model_id == "-".join(str(part) for part in parts if part != "base")
        assert model.profile is not None
        assert model.upstream_model == model_id


def test_the_examples_models_are_all_different() -> None:
    distinct = {(m.family, m.fine_tune, m.quantization) for m in example().models.values()}
    assert len(distinct) == 23


def test_the_example_shows_every_key_with_its_default_or_example_value() -> None:
    """But for the socket, whose default depends on the account: any example would be somebody else's."""
    document = example_document()
    shown = [key for key in CONFIG_KEYS if key.name != "control_socket"]
    assert list(document) == [key.name for key in shown]
    by_hand = {"models", "enabled_models", "aliases"}
    for key in shown:
        if key.name not in by_hand:
            expected = key.default if key.example is None else key.example
            assert document[key.name] == expected, key.name


def test_the_example_has_the_values_that_the_contract_names() -> None:
    made = example()
    assert made.wait_when_busy
    assert made.model_grace_ms == 3000
    assert made.cache_max_active == 1
    assert made.response_ms == 0
    assert made.drain_ms == 0
    assert made.max_wait_ms == {}


def test_the_example_fits_the_schema() -> None:
    schema_validator().validate(example_document())


@pytest.mark.parametrize(
    "change",
    [
        {"max_pending": 0},
        {"max_pending": "1"},
        {"listen": "0.0.0.0:1"},
        {"python": "python3"},
        {"unknown": 1},
        {"models": {"a b": {}}},
        {"models": {"a": {"unknown": 1}}},
        {"aliases": {NEXT: {"allowed_models": []}}},
        {"enabled_models": ["a", "a"]},
        {"engines": {"x": {"kind": "vllm"}}},
        {"wait_when_busy": None},
    ],
)
def test_the_schema_refuses_what_parsing_refuses(change: dict[str, Any]) -> None:
    assert not schema_validator().is_valid(example_document() | change)


@pytest.mark.parametrize(
    "change",
    [
        {"listen": "[0:0:0:0:0:0:0:1]:80"},
        {"allowed_hosts": ["Router.LAN.", "[::1]"]},
        {"allowed_origins": ["HTTPS://A:443/"]},
        {"python": "/é"},
        {"max_wait_ms": {"flex": 0}},
        {"models": {"a": {"family": "é", "metadata": {"thinking": False}, "args": []}}},
        {"engines": {"x": {"kind": "llama-server", "command": "/x", "env": {"A": ""}}}},
    ],
)
def test_the_schema_accepts_what_parsing_accepts(change: dict[str, Any]) -> None:
    document = {"models": {}} | change
    parse_config(document, Defaults(None))
    schema_validator().validate(document)


@pytest.mark.parametrize("key", [key.name for key in CONFIG_KEYS if key.name != "models"])
def test_the_schema_requires_models_only(key: str) -> None:
    document = example_document() | {"control_socket": "/run/s"}
    del document[key]
    assert schema_validator().is_valid(document)


def test_the_snippets_in_the_documentation_are_usable() -> None:
    text = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    snippets = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    assert len(snippets) == 2
    for snippet in snippets:
        document = {"models": {name: {} for name in EXAMPLE_IDS}} | json.loads(f"{{{snippet}}}")
        config = parse_config(document, Defaults(None)).config
        assert config.aliases or config.engines.keys() == {"strata", "llama"}
        schema_validator().validate(document)


def test_the_schema_inline_snippet_names_the_builtin_engine() -> None:
    text = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    (snippet,) = re.findall(r'`("engines": \{"strata".*?)`', text)
    document = {"models": {}} | json.loads(f"{{{snippet}}}")
    assert parse_config(document, Defaults(None)).config.engines["strata"].readiness == "health"


def test_every_key_is_a_row_of_the_reference() -> None:
    rows = key_table(CONFIG_KEYS).splitlines()
    assert len(rows) == len(CONFIG_KEYS) + 2
    assert all(row.count(" | ") == 3 for row in rows)


def test_the_example_names_models_a_client_can_ask_for() -> None:
    assert Catalog(example(), {}).default_model() == ModelId(EXAMPLE_IDS[0])
