"""Agents' tool calls on a real llama-server, through the daemon: ``make test-live``.

The model is far too small to choose a tool and its own chat template knows none: with that template the
server ignores ``tools``. So it gets a template of a kind for which the server has a grammar, the request
demands a call, and the grammar sees to its form. What is shown is that both turns, plain and streamed,
pass through the router unharmed.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar

import openai
import pytest
import trio

from strata_router import demo
from tests.system.harness import DaemonUnderTest, daemon

pytestmark = pytest.mark.live

Result = TypeVar("Result")

MODEL = "smollm2-a"

TEMPLATE = """\
{%- for message in messages %}
    {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' }}
    {%- if message.content %}
        {{- ('>>>all\\n' if message.role == 'assistant' else '') + message.content }}
    {%- endif %}
    {%- for call in message.tool_calls or [] %}
        {{- '>>>' + call.function.name + '\\n' + (call.function.arguments | tojson) }}
    {%- endfor %}
    {{- '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n>>>' }}
{%- endif %}
"""
"""A chat format in which ``>>>`` and a name begin a call; ``>>>all`` is how the server recognises it."""

TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "temperature",
            "description": "The temperature in a city, in degrees",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "enum": ["Oslo", "Rome"]}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
]
QUESTION: Any = {"role": "user", "content": "How warm is it in Oslo?"}


DEMAND: Any = {
    "model": MODEL,
    "messages": [QUESTION],
    "tools": TOOLS,
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "max_tokens": 200,
    "seed": 1,
}


@asynccontextmanager
async def tool_daemon(directory: Path) -> AsyncIterator[DaemonUnderTest]:
    """A daemon whose real engine answers requests that demand a tool call with one."""
    try:
        config = demo.real_config(directory)
    except demo.NoRealEngine as missing:
        pytest.skip(str(missing))
    template = directory / "tools.jinja"
    template.write_text(TEMPLATE)
    for model in config["models"].values():
        model["args"] += ["--jinja", "--chat-template-file", str(template)]
    kept = {key: config[key] for key in ("engines", "models", "aliases")}
    async with daemon(directory, {}, {**kept, "startup_ms": 60_000}) as it:
        yield it


async def with_sdk(it: DaemonUnderTest, use: Callable[[openai.OpenAI], Result]) -> Result:
    """Run ``use`` with a client of this daemon; the library blocks, so in a thread."""

    def run() -> Result:
        url = f"http://127.0.0.1:{it.port}/v1"
        with openai.OpenAI(api_key="none", base_url=url, max_retries=0) as client:
            return use(client)

    return await trio.to_thread.run_sync(run)


def second_turn(sdk: openai.OpenAI, call_id: str, arguments: str) -> str:
    """Give the tool's result back; the text that the model makes of it."""
    assert json.loads(arguments)["city"] in ("Oslo", "Rome")
    call = {"name": "temperature", "arguments": arguments}
    messages: Any = [
        QUESTION,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": call_id, "type": "function", "function": call}],
        },
        {"role": "tool", "tool_call_id": call_id, "content": "-3 degrees"},
    ]
    answer = sdk.chat.completions.create(model=MODEL, messages=messages, max_tokens=40, seed=1)
    return answer.choices[0].message.content or ""


async def test_a_tool_call_in_two_turns(tmp_path: Path) -> None:
    def use(sdk: openai.OpenAI) -> str:
        answer = sdk.chat.completions.create(**DEMAND)
        (choice,) = answer.choices
        assert choice.finish_reason == "tool_calls"
        (call,) = choice.message.tool_calls or []
        assert call.type == "function"
        assert call.function.name == "temperature"
        return second_turn(sdk, call.id, call.function.arguments)

    async with tool_daemon(tmp_path) as it:
        assert (await with_sdk(it, use)).strip()
        first, second = await it.records()
        assert (first["finish_reason"], first["success"]) == ("tool_calls", True)
        assert second["success"]


async def test_a_streamed_tool_call_in_two_turns(tmp_path: Path) -> None:
    def use(sdk: openai.OpenAI) -> str:
        call_id = name = arguments = ""
        reasons = []
        with sdk.chat.completions.create(**DEMAND, stream=True) as stream:
            for chunk in stream:
                for choice in chunk.choices:
                    reasons.append(choice.finish_reason)
                    for part in choice.delta.tool_calls or []:
                        assert part.function is not None
                        call_id += part.id or ""
                        name += part.function.name or ""
                        arguments += part.function.arguments or ""
        assert reasons[-1] == "tool_calls"
        assert name == "temperature"
        return second_turn(sdk, call_id, arguments)

    async with tool_daemon(tmp_path) as it:
        assert (await with_sdk(it, use)).strip()
        first, second = await it.records()
        assert (first["finish_reason"], first["success"]) == ("tool_calls", True)
        assert second["success"]


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
async def test_an_agents_own_loop_makes_both_turns(tmp_path: Path, stream: bool) -> None:
    """With openai-agents, which is told not to send its traces home.

    The tool is withdrawn once it was called: offered again, so small a model writes neither prose nor a
    call, and the server has an error for that.
    """
    agents = pytest.importorskip(
        "agents", reason="openai-agents comes with requirements/agents.lock"
    )
    asked: list[str] = []

    def temperature(city: Literal["Oslo", "Rome"]) -> str:
        """The temperature in a city, in degrees"""
        asked.append(city)
        return "-3 degrees"

    async def run(port: int) -> str:
        url = f"http://127.0.0.1:{port}/v1"
        async with openai.AsyncOpenAI(api_key="none", base_url=url, max_retries=0) as sdk:
            agent = agents.Agent(
                name="thermometer",
                model=agents.OpenAIChatCompletionsModel(MODEL, sdk),
                model_settings=agents.ModelSettings(
                    tool_choice="required",
                    parallel_tool_calls=False,
                    max_tokens=200,
                    extra_args={"seed": 1},
                ),
                tools=[agents.function_tool(temperature, is_enabled=lambda *_: not asked)],
            )
            start = agents.Runner.run_streamed if stream else agents.Runner.run
            options = agents.RunConfig(tracing_disabled=True)
            started = start(agent, QUESTION["content"], max_turns=2, run_config=options)
            if not stream:
                return str((await started).final_output)
            async for _ in started.stream_events():
                pass
            return str(started.final_output)

    async with tool_daemon(tmp_path) as it:
        answer = await trio.to_thread.run_sync(lambda: asyncio.run(run(it.port)))
        assert answer.strip()
        assert len(asked) == 1
        assert asked[0] in ("Oslo", "Rome")
        first, second = await it.records()
        assert (first["finish_reason"], first["success"]) == ("tool_calls", True)
        assert second["success"]
        assert first["stream"] is second["stream"] is stream
