"""What the simulated model says: deterministic text, reasoning and tool calls.

Pure: the same request, model and knobs give the same pieces. How fast they come, and in which
frames they travel, is decided elsewhere.
"""

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, count, islice
from typing import Any

from .chat_request import ChatRequest, Tool
from .knobs import RequestKnobs

NATURAL_SENTENCES = 4

_SENTENCES = (
    "A language model that fits on one graphics card is a patient companion.",
    "It reads what you wrote, thinks for a moment and answers one word after another.",
    "While it talks to you, others wait their turn, and nobody is forgotten.",
    "Loading another model takes a while, so questions for the same one are answered together.",
    "When the room falls silent, the memory is given back.",
    "If you leave in the middle of a sentence, the sentence ends there.",
    "Nothing here was learned from anything: these words come from a short list.",
    "Still, they arrive at a natural pace – like a naïve friend in a café, typing.",
    "Numbers are counted, not guessed, and what is unknown stays unknown.",
    "Ask again, and the same words come back; ask otherwise, and they begin elsewhere.",
)

_THOUGHTS = (
    "Let",
    "me",
    "think",
    "about",
    "that",
    "for",
    "a",
    "moment;",
    "a",
    "calm",
    "tone",
    "fits.",
)


@dataclass(frozen=True, slots=True)
class Piece:
    """One generated token as it shows in a delta: exactly one of the three is set."""

    content: str | None = None
    reasoning: str | None = None
    tool_call: dict[str, Any] | None = None

    @property
    def delta(self) -> dict[str, Any]:
        if self.tool_call is not None:
            return {"tool_calls": [self.tool_call]}
        if self.reasoning is not None:
            return {"reasoning_content": self.reasoning}
        return {"content": self.content}


@dataclass(frozen=True, slots=True)
class Answer:
    """A planned answer.

    pieces: one per token that shows. tokens: what the engine is asked to generate, the
    end-of-turn token included, which has no piece. finish: how it ends if nothing interferes.
    """

    pieces: Iterator[Piece]
    tokens: int
    reasoning_tokens: int
    finish: str


def plan(request: ChatRequest, knobs: RequestKnobs, model: str, limit_tokens: int) -> Answer:
    """The answer to ``request``; at most ``limit_tokens`` unless a knob forces its length."""
    seed = zlib.crc32(f"{request.seed}\n{request.last_user_text}".encode("utf-8", "replace"))
    thoughts = knobs.reasoning_tokens
    if request.must_call is not None:
        calls = _calls(request.must_call, knobs.tool_calls, seed)
        body, body_tokens, finish = iter(calls), len(calls), "tool_calls"
    else:
        body, body_tokens, finish = _text(model, seed, knobs), _natural_tokens(model, seed), "stop"
        if knobs.answer_tokens is not None:
            body_tokens = knobs.answer_tokens
        if knobs.force_tokens is not None:
            body_tokens = knobs.force_tokens
    shown = thoughts + body_tokens
    pieces = chain(_reasoning(thoughts), body)
    # One more for the end-of-turn token, which counts and shows nothing.
    if knobs.force_tokens is None and shown + 1 > limit_tokens:
        cut = min(shown, limit_tokens)
        return Answer(islice(pieces, cut), limit_tokens, min(thoughts, limit_tokens), "length")
    return Answer(islice(pieces, shown), shown + 1, thoughts, finish)


def json_text(pieces: Iterator[Piece]) -> str:
    """The answer when ``response_format`` asks for JSON: one object with the text in it."""
    text = "".join(piece.content or "" for piece in pieces)
    return json.dumps({"answer": text}, ensure_ascii=False)


def _reasoning(tokens: int) -> Iterator[Piece]:
    for index in range(tokens):
        yield Piece(reasoning=_THOUGHTS[index % len(_THOUGHTS)] + " ")


def _natural_tokens(model: str, seed: int) -> int:
    return sum(
        len(sentence.split()) for sentence in islice(_sentences(model, seed), NATURAL_SENTENCES)
    )


def _sentences(model: str, seed: int) -> Iterator[str]:
    """An introduction that names the model, then the list for ever, from a place the seed picks."""
    yield f"This is the simulated engine, answering as {model}."
    for index in count(seed):
        yield _SENTENCES[index % len(_SENTENCES)]


def _text(model: str, seed: int, knobs: RequestKnobs) -> Iterator[Piece]:
    """Text tokens without end; every word but the first brings the space in front of it."""
    words = (word for sentence in _sentences(model, seed) for word in sentence.split())
    for index, word in enumerate(words):
        text = f" {word}" if index else word
        if index == 0 and knobs.long_line_bytes:
            text = _filled(text, knobs.long_line_bytes)
        elif knobs.chunk_bytes:
            text = _filled(text, knobs.chunk_bytes)
        yield Piece(content=text)


def _filled(word: str, size: int) -> str:
    """Exactly ``size`` ASCII bytes that begin with the word."""
    plain = word.encode("ascii", "replace").decode()
    return (plain * (size // len(plain) + 1))[:size]


def _calls(tool: Tool, calls: int, seed: int) -> list[Piece]:
    """For each call the start piece (id, name, empty arguments), then its arguments in parts."""
    arguments = json.dumps(tool.example_arguments(), ensure_ascii=False)
    step = max(1, (len(arguments) + 2) // 3)
    pieces = []
    for index in range(calls):
        head = {
            "index": index,
            "id": f"call_{(seed * 1_000_003 + index) % 16**24:024x}",
            "type": "function",
            "function": {"name": tool.name, "arguments": ""},
        }
        pieces.append(Piece(tool_call=head))
        for start in range(0, len(arguments), step):
            part = {"arguments": arguments[start : start + step]}
            pieces.append(Piece(tool_call={"index": index, "function": part}))
    return pieces
