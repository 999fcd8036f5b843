"""The JSON of a chat answer: chunks, the final chunk, the non-stream body, usage and timings.

Pure: numbers in, mappings out, in the key order that Strata uses.
Source: facts about Strata's server, sections 4.1 to 4.3.
"""

from dataclasses import dataclass
from typing import Any

from .knobs import RequestKnobs

JsonObject = dict[str, Any]


@dataclass(slots=True)
class Work:
    """What one request cost, as far as it got.

    reused: prompt tokens that were cached. generated: tokens made, the end-of-turn token included.
    prompt_s, decode_s: engine seconds; None until the phase is over.
    """

    prompt_tokens: int
    reused: int = 0
    generated: int = 0
    reasoning_tokens: int = 0
    prompt_s: float | None = None
    decode_s: float | None = None

    def usage(self, knobs: RequestKnobs) -> JsonObject:
        if knobs.usage_values is not None:
            return dict(knobs.usage_values)
        usage: JsonObject = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.generated,
            "total_tokens": self.prompt_tokens + self.generated,
            "prompt_tokens_details": {"cached_tokens": self.reused},
        }
        if knobs.reasoning_usage:
            usage["completion_tokens_details"] = {"reasoning_tokens": self.reasoning_tokens}
        return usage

    def progress(self, read_tokens: int, reading_s: float) -> JsonObject:
        return {
            "total": self.prompt_tokens,
            "cache": self.reused,
            "processed": read_tokens,
            "time_ms": round(reading_s * 1000),
        }

    def timings(self, knobs: RequestKnobs) -> JsonObject:
        """Rates are 0 where no time was measured, as in Strata's answer to a trivial prompt."""
        if knobs.timings_values is not None:
            return dict(knobs.timings_values)
        read = self.prompt_tokens - self.reused
        prompt_ms = round((self.prompt_s or 0.0) * 1000, 3)
        decode_ms = round((self.decode_s or 0.0) * 1000, 3)
        return {
            "cache_n": self.reused,
            "prompt_n": read,
            "prompt_ms": prompt_ms,
            "prompt_per_token_ms": _ratio(prompt_ms, read),
            "prompt_per_second": _ratio(read * 1000, prompt_ms),
            "predicted_n": self.generated,
            "predicted_ms": decode_ms,
            "predicted_per_token_ms": _ratio(decode_ms, self.generated),
            "predicted_per_second": _ratio(self.generated * 1000, decode_ms),
        }


def _ratio(amount: float, by: float) -> float:
    return round(amount / by, 3) if by else 0


@dataclass(frozen=True, slots=True)
class Frames:
    """Builds the frames of one answer. created: unix seconds, the same in all of them."""

    id: str
    created: int
    model: str

    def chunk(self, delta: JsonObject, finish_reason: str | None = None) -> JsonObject:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        return {**self._head("chat.completion.chunk"), "choices": [choice]}

    def role(self) -> JsonObject:
        return self.chunk({"role": "assistant", "content": ""})

    def without_choices(self) -> JsonObject:
        return {**self._head("chat.completion.chunk"), "choices": []}

    def completion(self, message: JsonObject, finish_reason: str | None) -> JsonObject:
        choice = {"index": 0, "message": message, "finish_reason": finish_reason}
        return {**self._head("chat.completion"), "choices": [choice]}

    def _head(self, kind: str) -> JsonObject:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def logprobs(text: str, neginf: str) -> JsonObject:
    """Logprobs of minus infinity: as a strict number, or as Python would write the float."""
    worst = float("-inf") if neginf == "literal" else -9999.0
    token = {"token": text, "logprob": worst, "bytes": list(text.encode()), "top_logprobs": []}
    return {"content": [token]}
