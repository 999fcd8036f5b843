"""core.chat_request against the rule of contract 6.1 and against the standard library as a model."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_router.core.chat_request import ChatRequest, read_chat_request
from strata_router.core.refusal import Case, Refusal
from strata_router.core.vocabulary import Tier


def read(body: bytes) -> ChatRequest:
    request = read_chat_request(body)
    assert isinstance(request, ChatRequest), request
    return request


def refused(body: bytes) -> Refusal:
    refusal = read_chat_request(body)
    assert isinstance(refusal, Refusal), refusal
    return refusal


def test_replaces_the_model_and_keeps_every_other_member_byte_for_byte() -> None:
    body = (
        b' {"messages" : [ {"role":"user","content":"\\ud83d \\u0000"} ],\n'
        b'"model": "a","seed":123456789012345678901234567890,"x":{"d":1,"d":2}, "y" :1.50e+3}\t'
    )
    assert read(body).forwarded_body("real") == (
        b'{"model":"real",'
        b'"messages" : [ {"role":"user","content":"\\ud83d \\u0000"} ],'
        b'"seed":123456789012345678901234567890,"x":{"d":1,"d":2},"y" :1.50e+3}'
    )


def test_removes_the_tier_fields_and_keeps_stream() -> None:
    request = read(b'{"service_tier":"flex","model":"m","speed":null,"stream":true}')
    assert request == ChatRequest("m", True, Tier.FLEX, (memoryview(b'"stream":true'),))


def test_a_body_with_nothing_but_the_model_is_forwarded_whole() -> None:
    assert read(b'{"model":"m"}').forwarded_body("r") == b'{"model":"r"}'


def test_the_engine_model_name_is_escaped() -> None:
    assert read(b'{"model":"m"}').forwarded_body('a"\u00e9') == b'{"model":"a\\"\\u00e9"}'


@pytest.mark.parametrize(
    ("fields", "tier"),
    [
        ({}, Tier.DEFAULT),
        ({"service_tier": None}, Tier.DEFAULT),
        ({"service_tier": "auto"}, Tier.DEFAULT),
        ({"service_tier": "default"}, Tier.DEFAULT),
        ({"service_tier": "priority"}, Tier.PRIORITY),
        ({"service_tier": "flex"}, Tier.FLEX),
        ({"speed": "fast"}, Tier.PRIORITY),
        ({"speed": "standard"}, Tier.DEFAULT),
        ({"speed": "standard", "service_tier": "flex"}, Tier.FLEX),
        ({"speed": "fast", "service_tier": "flex"}, Tier.PRIORITY),
    ],
)
def test_tier_comes_from_speed_before_service_tier(
    fields: dict[str, str | None], tier: Tier
) -> None:
    assert read(json.dumps({"model": "m", **fields}).encode()).tier is tier


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"model":1}', "model"),
        (b'{"model":{}}', "model"),
        (b'{"model":["m"]}', "model"),
        (b'{"model":true}', "model"),
        (b'{"model":"m","stream":1}', "stream"),
        (b'{"model":"m","stream":"true"}', "stream"),
        (b'{"model":"m","stream":[]}', "stream"),
        (b'{"model":"m","service_tier":"fast"}', "service_tier"),
        (b'{"model":"m","service_tier":3}', "service_tier"),
        (b'{"model":"m","speed":"quick"}', "speed"),
        (b'{"model":"m","speed":false}', "speed"),
    ],
)
def test_a_watched_field_of_the_wrong_kind_is_named(body: bytes, field: str) -> None:
    refusal = refused(body)
    assert refusal.case is Case.INVALID_VALUE
    assert f"'{field}'" in str(refusal.message)


@pytest.mark.parametrize("field", ["model", "stream", "service_tier", "speed"])
def test_a_watched_field_given_twice_is_refused_also_when_escaped(field: str) -> None:
    escaped = "".join(f"\\u{ord(character):04x}" for character in field)
    body = f'{{"model":"m","{field}":null,"{escaped}":null}}'.encode()
    assert refused(body).case is Case.INVALID_VALUE


@pytest.mark.parametrize("body", [b"{}", b'{ "model" : null }', b'{"x":[ ]}', b" { } "])
def test_no_model_is_its_own_error(body: bytes) -> None:
    assert refused(body).case is Case.MISSING_MODEL


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"[]",
        b'"model"',
        b"null",
        b"{",
        b'{"model"',
        b'{"model":',
        b'{"model":"m"',
        b'{"model":"m",}',
        b'{"model":"m"}x',
        b'{"model":"m"}{}',
        b'{} {"a":1}',
        b"{1:2}",
        b'{"model" "m"}',
        b'{"model":"m" "x":1}',
        b'{"model":"m","x":NaN}',
        b'{"model":"m","x":-Infinity}',
        b'{"model":"m","x":[Infinity]}',
        b'{"model":"m","x":[1,]}',
        b'{"model":"m","x":[1 2]}',
        b'{"model":"m","x":[1',
        b'{"model":"m","x":{"y":NaN}}',
        b'{"model":"m","x":01}',
        b'{"model":"m","x":1.}',
        b'{"model":"m","x":+1}',
        b'{"model":"m","x":"\x01"}',
        b'{"model":"m","x":"\\q"}',
        b'{"model":"m","x":"\\u12g4"}',
        b'{"model":"m","x":"\xff"}',
        b'{"model":"m","x":"\xed\xa0\x80"}',
        b"{'model':'m'}",
        b"\xef\xbb\xbf{}",
        b'{"model":"m",\xa0"x":1}',
        b'{"model":"m","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_what_is_not_a_strict_json_object_is_invalid_json(body: bytes) -> None:
    assert refused(body).case is Case.INVALID_JSON


@pytest.mark.parametrize(
    ("body", "mistake"),
    [
        (b"", "is empty; it must be a JSON object."),
        (b" \r\n", "is empty; it must be a JSON object."),
        (b'\xef\xbb\xbf{"model":"m"}', "begins with a byte-order mark; send it without."),
        (b'{"model":"\xff"}', "is not UTF-8: it goes wrong at byte 11 of 13."),
        (b'{"x":NaN}', "is not strict JSON: NaN and Infinity are not JSON values."),
        (b'{"x":[{"y":-Infinity}]}', "is not strict JSON: NaN and Infinity are not JSON values."),
        (b"{'model':'m'}", "is not strict JSON: it goes wrong at byte 2 of 13."),
        (b"model", "is not strict JSON: it goes wrong at byte 1 of 5."),
        (b'{"a":1 "b":2}', "is not strict JSON: it goes wrong at byte 8 of 13."),
        (b'{"a":[1,{"b":tru}]}', "is not strict JSON: it goes wrong at byte 14 of 19."),
        ('{"é":?}'.encode(), "is not strict JSON: it goes wrong at byte 7 of 8."),
        (b'{"model":"m"} x', "is not strict JSON: it goes wrong at byte 15 of 15."),
        (b'{"model":"m"', "is not strict JSON: it ends too early, at 12 bytes."),
        (b'{"model":', "is not strict JSON: it ends too early, at 9 bytes."),
        (b'["model"]', "is not a JSON object."),
    ],
)
def test_the_refusal_says_what_is_wrong_and_where(body: bytes, mistake: str) -> None:
    for sent in (body, bytearray(body)):
        refusal = read_chat_request(sent)
        assert isinstance(refusal, Refusal)
        assert refusal.message == f"The request body {mistake}"


def test_messages_never_repeat_what_was_sent() -> None:
    for body in (
        b'{"model":"SECRET","stream":"SECRET"}',
        b"SECRET",
        b'{"SECRET":1}',
        b'{"SECRET":"\\qSECRET"}',
        b'{"SECRET',
        b'{"SECRET":SECRET}',
        b'{"SECRET":NaN}',
        b'{"SECRET":"\xff"}',
    ):
        assert b"SECRET" not in refused(body).json_body()


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(
    st.dictionaries(st.text(max_size=8), JSON_VALUES, max_size=6),
    st.booleans(),
    st.sampled_from([None, 1, " "]),
)
def test_any_json_object_means_the_same_after_forwarding(
    fields: dict[str, object], ascii_only: bool, indent: int | str | None
) -> None:
    sent = {**fields, "model": "m", "stream": False}
    for field in ("service_tier", "speed"):
        sent.pop(field, None)
    body = json.dumps(sent, ensure_ascii=ascii_only, indent=indent).encode("utf-8", "surrogatepass")
    try:
        body.decode("utf-8")
    except UnicodeDecodeError:
        assert refused(body).case is Case.INVALID_JSON
        return
    assert json.loads(read(body).forwarded_body("real")) == {**sent, "model": "real"}


@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_read_or_refused_as_the_standard_library_sees_them(body: bytes) -> None:
    def reject(_: str) -> None:
        raise ValueError

    try:
        value = json.loads(body.decode("utf-8"), parse_constant=reject)
    except (ValueError, RecursionError):
        assert refused(body).case is Case.INVALID_JSON
    else:
        outcome = read_chat_request(body)
        if not isinstance(value, dict):
            assert isinstance(outcome, Refusal)
            assert outcome.case is Case.INVALID_JSON


def test_size_is_what_the_forwarded_members_take() -> None:
    request = read(b'{"model":"m", "a":1,"bb":[2]}')
    assert request.size_bytes == len(b'"a":1,"bb":[2],')
