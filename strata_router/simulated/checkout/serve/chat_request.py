"""Reads the body of a chat request: what the simulated engine looks at.

Wrong shapes raise ``BadRequest``, which becomes Strata's 400. Unknown fields are ignored.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_EXAMPLES: Mapping[str, Any] = {
    "string": "simulated",
    "integer": 1,
    "number": 1.5,
    "boolean": True,
    "array": [],
    "object": {},
}


class BadRequest(Exception):
    """The client's mistake, in words that may be sent back."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the request offers."""

    name: str
    parameters: Mapping[str, Any]

    def example_arguments(self) -> dict[str, Any]:
        """A value for each required property; its first allowed one where the schema lists them."""
        properties = self.parameters.get("properties") or {}
        required = self.parameters.get("required") or []
        return {name: _example(properties.get(name) or {}) for name in required}


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """The parts of a chat body that matter here.

    prompt: the rendered conversation. max_tokens: None for the rest of the context. must_call: the
    tool that tool_choice asks for. wants_json: response_format asks for JSON, so nothing streams.
    wants_progress: prompt reading is reported in chunks of its own.
    """

    model: str | None
    stream: bool
    prompt: str
    last_user_text: str
    max_tokens: int | None
    seed: int
    must_call: Tool | None
    wants_usage: bool
    wants_logprobs: bool
    wants_json: bool
    wants_progress: bool


def parse_object(body: bytes) -> dict[str, Any]:
    """The body as a JSON object; an empty body counts as ``{}``. Raises BadRequest."""
    try:
        value = json.loads(body or b"{}")
    except (ValueError, RecursionError) as error:
        raise BadRequest("the body is not valid JSON") from error
    if not isinstance(value, dict):
        raise BadRequest("the body is not a JSON object")
    return value


def parse_chat(raw: Mapping[str, Any]) -> ChatRequest:
    """Raises BadRequest."""
    messages = raw.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequest("messages must be a list with at least one message")
    texts = [(_role(message), _text(message)) for message in messages]
    users = [text for role, text in texts if role == "user"]
    rendered = "".join(f"<|{role}|>\n{text}\n" for role, text in texts)
    options = raw.get("stream_options")
    response_format = raw.get("response_format")
    kind = response_format.get("type") if isinstance(response_format, dict) else None
    return ChatRequest(
        model=raw["model"] if isinstance(raw.get("model"), str) else None,
        stream=bool(raw.get("stream", False)),
        prompt=rendered + "<|assistant|>\n",
        last_user_text=users[-1] if users else "",
        max_tokens=_limit(raw),
        seed=raw["seed"] if isinstance(raw.get("seed"), int) else 0,
        must_call=_must_call(raw),
        wants_usage=isinstance(options, dict) and options.get("include_usage") is True,
        wants_logprobs=bool(raw.get("logprobs", False)),
        wants_json=kind in ("json_object", "json_schema"),
        wants_progress=raw.get("return_progress") is True,
    )


def _role(message: Any) -> str:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise BadRequest("every message must be an object with a role")
    return str(message["role"])


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise BadRequest("content must be a string or a list of parts")
    if any(part.get("type") in ("image_url", "image") for part in content):
        raise BadRequest("this engine was started without vision")
    return "".join(str(part.get("text", "")) for part in content)


def _limit(raw: Mapping[str, Any]) -> int | None:
    """``max_completion_tokens`` wins over ``max_tokens``; absent, 0 and -1 mean no limit."""
    value = raw.get("max_completion_tokens")
    if value is None:
        value = raw.get("max_tokens")
    if value is None:
        return None
    if not isinstance(value, int | float):
        raise BadRequest("max_tokens must be a number")
    return int(value) if value > 0 else None


def _must_call(raw: Mapping[str, Any]) -> Tool | None:
    offered = [
        Tool(tool["function"]["name"], tool["function"].get("parameters") or {})
        for tool in raw.get("tools") or []
        if isinstance(tool, dict)
        and isinstance(tool.get("function"), dict)
        and isinstance(tool["function"].get("name"), str)
    ]
    choice = raw.get("tool_choice")
    if not offered or choice in (None, "auto", "none"):
        return None
    if isinstance(choice, dict):
        wanted = (choice.get("function") or {}).get("name")
        return next((tool for tool in offered if tool.name == wanted), None)
    return offered[0]


def _example(schema: Mapping[str, Any]) -> Any:
    allowed = schema.get("enum")
    return allowed[0] if allowed else _EXAMPLES.get(str(schema.get("type")))
