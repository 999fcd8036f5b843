"""What the simulated engine holds of earlier conversations, and the lookup that asks for it.

A token is four characters of the rendered prompt, so token counts and reuse follow from the text
alone. The lookup's request and reply are an extension that public Strata lacks.
"""

import threading
from collections import deque
from typing import Any

from .chat_request import BadRequest, parse_chat
from .knobs import BadKnob, RequestKnobs, with_markers

CHARACTERS_PER_TOKEN = 4
MAX_REMEMBERED_CHARACTERS = 1_000_000


def prompt_tokens(prompt: str) -> int:
    return -(-len(prompt) // CHARACTERS_PER_TOKEN)


class Conversations:
    """The last few prompts with their answers, newest first."""

    def __init__(self, slots: int) -> None:
        self._lock = threading.Lock()
        self._texts: deque[str] = deque(maxlen=slots)

    def reusable_tokens(self, prompt: str) -> int:
        """Prompt tokens that need not be read again; the last one always is."""
        with self._lock:
            longest = max((_common_length(prompt, text) for text in self._texts), default=0)
        return min(longest // CHARACTERS_PER_TOKEN, prompt_tokens(prompt) - 1)

    def remember(self, prompt: str, answer: str) -> None:
        text = (prompt + answer)[:MAX_REMEMBERED_CHARACTERS]
        with self._lock:
            continued = [old for old in self._texts if not text.startswith(old)]
            self._texts.clear()
            self._texts.extend(continued)
            self._texts.appendleft(text)

    def forget(self) -> None:
        """What an unload or a death does."""
        with self._lock:
            self._texts.clear()


def _common_length(left: str, right: str) -> int:
    """Length of the common prefix, by halving: prompts can have a million characters."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def look_up(bodies: list[Any], held: Conversations, knobs: RequestKnobs) -> list[Any]:
    """``{"cached_tokens", "input_tokens"}`` per chat body, None for one that cannot be read."""
    return [_score(body, held, knobs) for body in bodies]


def _score(body: Any, held: Conversations, knobs: RequestKnobs) -> dict[str, int] | None:
    try:
        request = parse_chat(body)
        said = with_markers(knobs, request.last_user_text).cached
    except (BadRequest, BadKnob, AttributeError):
        return None
    if said is not None:
        cached, _, total = said.partition("/")
        return {"cached_tokens": int(cached), "input_tokens": int(total)}
    total_tokens = prompt_tokens(request.prompt)
    return {
        "cached_tokens": held.reusable_tokens(request.prompt),
        "input_tokens": total_tokens,
    }


def spoiled(results: list[Any], how: str) -> Any:
    """The reply for ``results`` with one of the faults of ``cache_lookup_reply``."""
    match how:
        case "short":
            return {"results": results[:-1]}
        case "negative":
            return {"results": [{"cached_tokens": -1, "input_tokens": 10} for _ in results]}
        case "over":
            return {"results": [{"cached_tokens": 11, "input_tokens": 10} for _ in results]}
        case "floats":
            return {"results": [{"cached_tokens": 0.5, "input_tokens": 10} for _ in results]}
        case "null_results":
            return {"results": None}
        case "not_object":
            return results
        case _:
            return {"results": results}
