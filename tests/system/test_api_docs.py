"""What docs/api.md shows is what a daemon answers: its commands, its JSON, its events and its paths."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.runtime.http.raw import get
from tests.system.harness import DaemonUnderTest, sse_events
from tests.system.shared import running, visiting
from tests.system.wire import Event, events

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonUnderTest]:
    config = {
        "stream_commit_ms": 100,
        "aliases": {"m": {"allowed_models": ["m-q4", "m-q8"]}},
    }
    models: dict[str, dict[str, Any]] = {"m-q4": {}, "m-q8": {}}

    def name_family(it: DaemonUnderTest) -> None:
        for model in it.config["models"].values():
            model["family"] = "m"

    with running(tmp_path_factory.mktemp("api"), models, config, name_family) as it:
        yield it


def example(heading: str, language: str = "") -> str:
    """The first fenced block that is marked with this language under the heading."""
    _, _, rest = PAGE.partition(f"{heading}\n")
    blocks: list[tuple[str, str]] = re.findall(r"```(\w*)\n(.*?)```", rest, re.DOTALL)
    return next(text for marked, text in blocks if marked == language)


async def printed(it: DaemonUnderTest, heading: str, language: str = "sh") -> str:
    """What the example prints when it is carried out as it stands, but for the daemon's port."""
    shown = example(heading, language)
    assert shown.count("127.0.0.1:8088") == 1
    text = shown.replace("127.0.0.1:8088", f"127.0.0.1:{it.port}")
    if language == "sh" and not shutil.which("curl"):
        pytest.skip("curl is not installed")
    command = ["sh", "-euc", text] if language == "sh" else [sys.executable, "-c", text]
    environment = {**os.environ, "no_proxy": "127.0.0.1"}
    done = await trio.run_process(
        command, env=environment, capture_stdout=True, stderr=subprocess.STDOUT, check=False
    )
    output = done.stdout.decode()
    assert done.returncode == 0, output
    return output


def keys(value: Any) -> Any:
    """The value's shape: the order of keys and elements stays, each leaf becomes its type's name."""
    match value:
        case dict():
            return {key: keys(item) for key, item in value.items()}
        case list():
            return [keys(item) for item in value]
        case _:
            return type(value).__name__


async def test_the_command_for_a_chat_prints_an_answer(shared: DaemonUnderTest) -> None:
    async with visiting(shared) as it:
        answer = json.loads(await printed(it, "## A chat request"))
        assert answer["choices"][0]["message"]["content"]


async def test_the_command_for_a_stream_prints_it_whole(shared: DaemonUnderTest) -> None:
    async with visiting(shared) as it:
        assert sse_events((await printed(it, "### Waiting")).encode())[-1] == "[DONE]"


async def test_the_program_with_the_openai_library_prints_an_answer(
    shared: DaemonUnderTest,
) -> None:
    async with visiting(shared) as it:
        output = await printed(it, "## A chat request", "python")
        assert output.startswith("This is the simulated engine")


async def test_the_command_for_records_prints_those_of_the_chats(shared: DaemonUnderTest) -> None:
    async with visiting(shared) as it:
        assert (await it.chat("m")).status == 200
        page = json.loads(await printed(it, "## Records"))
        assert page["records"][0]["endpoint"] == "/v1/chat/completions"


async def test_the_error_is_as_shown(shared: DaemonUnderTest) -> None:
    shown = json.loads(example("### Errors", "json"))
    async with visiting(shared) as it:
        reply = await it.chat("no-such")
        answered = json.loads(reply.body)
        assert keys(answered) == keys(shown)
        assert reply.status == shown["error"]["status"]
        assert {**answered["error"], "message": "..."} == shown["error"]


async def test_the_error_in_a_stream_is_as_shown(shared: DaemonUnderTest) -> None:
    (shown,) = events(example("### Errors").encode())
    async with visiting(shared) as it:
        last: Event = events((await it.chat("m", "FX:die", stream=True)).body)[-1]
        assert last.name == shown.name
        assert keys(last.error) == keys(shown.error)
        assert last.error["status"] == shown.error["status"]


async def test_the_list_of_models_is_as_shown(shared: DaemonUnderTest) -> None:
    shown = json.loads(example("## Models", "json"))
    async with visiting(shared) as it:
        assert (await it.chat("m")).status == 200
        listing = await it.get_json("/v1/models")
        answered = {entry["id"]: entry for entry in listing["data"]}
        for entry in shown["data"]:
            own = answered[entry["id"]]
            assert keys({key: own[key] for key in entry}) == keys(entry)
            assert {key: own[key] for key in entry} | {"created": entry["created"]} == entry


async def test_the_page_of_records_has_the_members_shown(shared: DaemonUnderTest) -> None:
    shown = re.search(r'`\{("records".*?)\}`', PAGE)
    assert shown
    async with visiting(shared) as it:
        page = await it.get_json("/requests?after=0")
        assert set(re.findall(r'"(\w+)"', shown[1])) == page.keys()


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`GET (/[a-z0-9/]*)[?`]", PAGE))))
async def test_each_path_shown_is_served(shared: DaemonUnderTest, path: str) -> None:
    async with visiting(shared) as it:
        client = await it.connect()
        await client.send(get(path))
        assert (await client.reply()).status == 200
