"""Bytes of JSON and YAML: what they become, what is refused, and that hostile files stay small."""

import json
import math
import time

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from strata_router.core.config import Problem
from strata_router.runtime import config_syntax
from strata_router.runtime.config_syntax import SyntaxFault, read_json, read_yaml


def json_fault(content: bytes) -> str:
    with pytest.raises(SyntaxFault) as caught:
        read_json(content)
    return str(caught.value)


def yaml_value(text: str) -> object:
    document = read_yaml(text.encode())
    assert document.repetitions == ()
    return document.value


def yaml_fault(text: str) -> str:
    with pytest.raises(SyntaxFault) as caught:
        read_yaml(text.encode())
    return str(caught.value)


# --- JSON


def test_json_is_read() -> None:
    document = read_json(b'{"a": [1, 2.5, "x", true, null], "b": {}}')
    assert document.value == {"a": [1, 2.5, "x", True, None], "b": {}}
    assert document.repetitions == ()


def test_a_byte_order_mark_is_skipped() -> None:
    assert read_json(b"\xef\xbb\xbf{}").value == {}
    assert read_yaml(b"\xef\xbb\xbfa: 1").value == {"a": 1}


def test_broken_json_is_located() -> None:
    assert json_fault(b'{"a": 1,\n "b" 2}') == (
        "is not JSON at line 2, column 6: Expecting ':' delimiter"
    )


@pytest.mark.parametrize("content", [b"", b" \n", b"\xef\xbb\xbf"])
def test_an_empty_file_is_called_so(content: bytes) -> None:
    assert json_fault(content) == "is empty; must hold an object, the configuration"
    assert yaml_fault(content.decode()) == "is empty; must hold an object, the configuration"


def test_yaml_in_a_json_file_is_told_from_a_slip_in_json() -> None:
    assert json_fault(b"models:\n  a: {}\n") == (
        "is not JSON at line 1, column 1: Expecting value; "
        "YAML is read only from a file whose name ends in .yaml or .yml"
    )
    assert "YAML" not in json_fault(b' {"a": 1,}')


def test_text_in_another_encoding_is_refused() -> None:
    assert json_fault('{"a": 1}'.encode("utf-16")) == "is not UTF-8 text (byte 0)"
    assert json_fault(b'{"a": "\xe9"}') == "is not UTF-8 text (byte 7)"


def test_deep_json_is_refused() -> None:
    assert json_fault(b"[" * 200_000) == "is nested too deeply"


def test_an_endless_integer_is_refused() -> None:
    """Python gives up converting at 4300 digits with a plain ValueError."""
    assert json_fault(b"9" * 5000) == "holds a number with too many digits"


def test_not_a_number_is_let_through_for_its_path_to_be_reported() -> None:
    value = read_json(b'{"a": NaN}').value
    assert isinstance(value, dict)
    assert math.isnan(value["a"])


def test_repeated_keys_are_reported_with_their_path() -> None:
    document = read_json(b'{"m": {"x.y": [{"k": 1, "k": 2, "k": 3}]}, "a": 1, "a": {}}')
    assert document.repetitions == (
        Problem("a", "is given more than once; keep one of them"),
        Problem('m["x.y"][0].k', "is given more than once; keep one of them"),
    )


@given(st.binary(max_size=64))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    for read in (read_json, read_yaml):
        fault = ""
        try:
            read(content)
        except SyntaxFault as caught:
            fault = str(caught)
        assert fault.isprintable()


# --- YAML


def test_yaml_is_read() -> None:
    text = """
        # a comment
        models:
          a: {family: f, args: [-m, "x y"]}
        max_pending: 3
        wait_when_busy: true
        request_log_path: null
        engine_log_path: ~
        listen: 127.0.0.1:8088
        nothing:
    """
    assert yaml_value(text) == {
        "models": {"a": {"family": "f", "args": ["-m", "x y"]}},
        "max_pending": 3,
        "wait_when_busy": True,
        "request_log_path": None,
        "engine_log_path": None,
        "listen": "127.0.0.1:8088",
        "nothing": None,
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("-12", -12),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        ("'1'", "1"),
        ('"true"', "true"),
        ("!!str 1", "1"),
        ("! 1", "1"),
        ("no", "no"),
        ("on", "on"),
        ("12:30", "12:30"),
        ("007", "007"),
        ("0x10", "0x10"),
        ("1_000", "1_000"),
        ("2026-11-29", "2026-11-29"),
        ("=", "="),
        ("False", False),
        ("|\n a\n b\n", "a\nb\n"),
    ],
)
def test_scalars_are_what_json_would_have(text: str, value: object) -> None:
    read = yaml_value(text)
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize("text", [".inf", "-.inf", ".nan"])
def test_numbers_that_are_none_are_let_through_to_be_reported(text: str) -> None:
    value = yaml_value(text)
    assert isinstance(value, float)
    assert not math.isfinite(value)


def test_keys_are_strings_as_written() -> None:
    assert yaml_value("1.50: a\ntrue: b\n~: c\n") == {"1.50": "a", "true": "b", "~": "c"}


def test_anchors_stand_for_whole_values() -> None:
    text = "a: &x {k: [1]}\nb: *x\nc: &y 5\nd: *y\n"
    assert yaml_value(text) == {"a": {"k": [1]}, "b": {"k": [1]}, "c": 5, "d": 5}


def test_a_file_of_comments_is_null() -> None:
    assert yaml_value("# nothing\n") is None


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a: !!python/name:os.system x", "has a tag, which is not read (line 1)"),
        ("a: !!binary eA==", "has a tag, which is not read (line 1)"),
        ("a: 1\nb: !!set {x}", "has a tag, which is not read (line 2)"),
        ("a: &x {k: 1}\nb:\n  <<: *x", "has a merge key ('<<'), which is not read; write"),
        ("? [a]\n: b", "has a list or object as a key (line 1)"),
        ("a: &x b\n? *x\n: c", "has an alias as a key (line 2)"),
        ("a: *x", "uses an anchor that is not complete there (line 1)"),
        ("a: &x [*x]", "uses an anchor that is not complete there (line 1)"),
        ("a: 1\n---\nb: 1", "holds a second document (line 2)"),
        ("a: " + "9" * 5000, "holds a number with too many digits (line 1)"),
        ("a: b: c", "is not YAML at line 1, column 5: mapping values are not allowed"),
        ("a: [1", "is not YAML at line"),
        ("a: \x07", "is not YAML: it holds characters that YAML does not allow"),
    ],
)
def test_what_is_no_plain_yaml_is_refused_with_its_line(text: str, fault: str) -> None:
    assert yaml_fault(text).startswith(fault)


def test_a_quoted_merge_key_is_a_key() -> None:
    assert yaml_value('"<<": 1') == {"<<": 1}


def test_repeated_keys_of_yaml_are_reported_once_per_object() -> None:
    document = read_yaml(b"a: &x {k: 1, k: 2}\nb: *x\nc: [{d: 1, d: 1}]\n")
    assert [problem.path for problem in document.repetitions] == ["b.k", "c[0].d"]


@pytest.mark.parametrize("text", ["[" * 100_000, "{a: " * 1000, "- " * 1000, "a:\n" + " - -" * 50])
def test_deep_yaml_is_refused(text: str) -> None:
    assert "nested too deeply" in yaml_fault(text) or "nesting depth" in yaml_fault(text)


def test_a_billion_laughs_are_refused_while_small() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    before = time.monotonic()
    assert "grows too large" in yaml_fault("\n".join(lines))
    assert time.monotonic() - before < 1


def test_a_value_repeated_often_is_one_object() -> None:
    """10,000 models that share an entry are a small file and stay one in memory."""
    text = "a: &x {k: 1}\n" + "".join(f"m{number}: *x\n" for number in range(10_000))
    value = yaml_value(text)
    assert isinstance(value, dict)
    assert value["m0"] is value["m9999"]


def test_yaml_is_read_without_libyaml_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    assert config_syntax.read_yaml(b"a: [1, {b: c}]").value == {"a": [1, {"b": "c"}]}
    with pytest.raises(SyntaxFault, match="nested too deeply"):
        config_syntax.read_yaml(b"[" * 5000)


KEYS = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | KEYS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_json_is_yaml_and_both_read_the_same(value: object) -> None:
    text = json.dumps(value).encode()
    assert read_json(text).value == value
    assert read_yaml(text).value == value
