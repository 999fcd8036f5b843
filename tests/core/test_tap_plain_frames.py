"""Frames of a known shape: recognised exactly, or not at all."""

import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from strata_router.core.tap.plain_frames import PlainShape, is_text

ROUNDS = int(os.environ.get("ROUNDS", "1"))

STRATA = b'data: {"id":"c1","choices":[{"index":0,"delta":{"content":"%s"},"finish_reason":null}]}'
LLAMA = (
    b'data:{"choices":[{"finish_reason":null,"delta":{"reasoning_content" : "%s"}}],"id":"c1"}\r'
)


def learned(template: bytes) -> PlainShape:
    shape = PlainShape.of_line(template % b"Hi")
    assert shape is not None
    return shape


@pytest.mark.parametrize("template", [STRATA, LLAMA])
def test_a_shape_is_what_stays_when_the_text_is_taken_out(template: bytes) -> None:
    before, after = template.split(b"%s")
    shape = learned(template)
    assert (shape.before, shape.after) == (before, after)
    assert PlainShape.of_line(template % b'say \\"x\\" \\\\') == shape


@pytest.mark.parametrize(
    "line",
    [
        b'data: {"choices":[{"delta":{"role":"assistant"}}]}',
        b'data: {"choices":[{"delta":{"content":"x"}}]',
        b'data: {"choices":[{"delta":{"content":"x"}}],"usage":{"prompt_tokens":5}}',
        b'data: {"choices":[{"delta":{"content":"x"}}],"timings":{"prompt_ms":5}}',
        b'data: {"choices":[{"delta":{"content":"x"},"finish_reason":"stop"}]}',
        b'data: {"choices":[{"delta":{"content":"x"}}],"error":{"message":"m"}}',
        b'data: {"choices":[{"delta":{"content":"x","reasoning":"y"}}]}',
        b'data: {"choices":[{"delta":{"content":"x","content":"y"}}]}',
        b'data: {"choices":[{"message":{"content":"x"}}]}',
        b'data: {"note":{"content":"x"},"choices":[{"delta":{"content":"y"}}]}',
        b'data: {"choices":[{"delta":{"tool_calls":[{"function":{"content":"x"}}]}}]}',
        b'data: ["content":"x"]',
        b"data: [DONE]",
        b"",
    ],
)
def test_nothing_is_learned_where_more_than_the_text_could_matter(line: bytes) -> None:
    assert PlainShape.of_line(line) is None


@pytest.mark.parametrize("text", [b"", b"x", b"\\n", b'\\"', b"caf\xc3\xa9", b"\\\\", b"\\ud83d"])
def test_a_line_of_the_shape_gives_its_raw_text(text: bytes) -> None:
    assert learned(STRATA).text_in(STRATA % text) == text


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b": keep-alive",
        STRATA.replace(b"c1", b"c2") % b"x",
        STRATA.replace(b"null", b'"stop"') % b"x",
        STRATA % b'x"},"finish_reason":"stop"},{"index":1,"delta":{"content":"y',
        STRATA % b'x","reasoning":"y',
        STRATA % b'x"y',
        STRATA.replace(b'"%s"', b'"'),
    ],
)
def test_a_line_with_anything_else_in_it_is_not_of_the_shape(line: bytes) -> None:
    assert learned(STRATA).text_in(line) is None


@pytest.mark.parametrize(("template", "lf"), [(STRATA, b"\n\n"), (LLAMA, b"\n\r\n")])
def test_a_run_of_events_gives_the_text_of_its_last(template: bytes, lf: bytes) -> None:
    shape = learned(template)
    for texts in ([b"a"], [b"a", b"", b"\\n", b"last"]):
        block = b"".join(template % text + lf for text in texts)
        assert shape.last_text_of_run(block) == texts[-1]


@pytest.mark.parametrize(
    "odd",
    [
        b": keep-alive\n\n",
        b"\n",
        b"data: [DONE]\n\n",
        b"event: x\n" + STRATA % b"x" + b"\n\n",
        STRATA.replace(b"null", b'"stop"') % b"x" + b"\n\n",
        STRATA.replace(b"}]}", b'}],"usage":{"prompt_tokens":5}}') % b"x" + b"\n\n",
        STRATA % b'x"},"finish_reason":"stop"},{"index":1,"delta":{"content":"y' + b"\n\n",
        STRATA % b"x\ny" + b"\n\n",
        STRATA % b'\\"' + b"\n\n",
        STRATA % b"x" + b"\r\n\r\n",
        STRATA % b"x" + b"\n",
    ],
)
def test_one_odd_line_anywhere_makes_it_no_run(odd: bytes) -> None:
    shape = learned(STRATA)
    event = STRATA % b"x" + b"\n\n"
    for block in (odd, odd + event, event + odd, event + odd + event):
        assert shape.last_text_of_run(block) is None


def test_text_is_a_json_string_that_is_not_empty() -> None:
    assert is_text(b"x")
    assert is_text(b'\\"')
    for no_text in (b"", b"\\", b'"', b"\xff", b"\x01", b"\\q"):
        assert not is_text(no_text)


@settings(max_examples=300 * ROUNDS, deadline=None)
@given(
    texts=st.lists(
        st.one_of(
            st.text(max_size=8).map(lambda text: json.dumps(text)[1:-1].encode()),
            st.sampled_from(
                [b'"', b'","usage":{},"content":"', b"\\", b"\n", b'x"},{"delta":{"content":"']
            ),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_a_run_is_claimed_only_where_every_line_alone_holds_one_string(texts: list[bytes]) -> None:
    shape = learned(STRATA)
    claimed = shape.last_text_of_run(b"".join(STRATA % text + b"\n\n" for text in texts))
    if claimed is not None:
        assert claimed == texts[-1]
        for text in texts:
            assert b'"' not in text
            assert b"\n" not in text
