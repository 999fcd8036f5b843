"""Shows how client libraries fare with a daemon on the simulated engine: a table for RESEARCH.md.

Run: ``python -m research.sdk_table``, in the checkout. Prints Markdown. curl and Node with npm are
used where they are installed; npm puts the openai package into a temporary directory. Every cell is what
the client saw; a cell that begins with "NO" is a failure, and the exit status is then 1.
"""

import asyncio
import json
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import openai
import trio

from strata_router import simulated
from tests.system.harness import DaemonUnderTest, daemon, until
from tests.system.sse_parsers import by_split, by_the_book
from tests.system.wire import next_piece

CONFIG = {"stream_commit_ms": 100, "keepalive_ms": 500, "model_grace_ms": 0}
MODELS = {
    "a": {**simulated.DEMO, "disconnect_poll_s": 0.05},
    "b": {**simulated.DEMO, "load_s": 0.8, "disconnect_poll_s": 0.05},
}
BUSY = "FX:chunk_every_ms=50 FX:force_tokens=20"
FREED_WITHIN_S = 1.0
COLUMNS = ("plain", "queued, with heartbeats", "error in band", "error before the commit", "cancel")
NPM = ("npm", "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", "openai")


@dataclass
class Seen:
    """What a client made of an answer. ended: how it ended, in a word; "whole" for an answer."""

    ended: str
    text: str = ""


Body = dict[str, Any]
Ask = Callable[[int, Body, bool], Seen]
"""(port, body, leave at the first text) -> what was seen."""


def text_in(chunk: Any) -> str:
    """The text of one chunk of the API."""
    return "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])


# ---- the clients --------------------------------------------------------------------------------


def ask_openai(port: int, body: Body, leaving: bool) -> Seen:
    text = ""
    fields = {key: value for key, value in body.items() if key != "stream"}
    with openai.OpenAI(api_key="none", base_url=url(port), max_retries=0) as sdk:
        try:
            if not body["stream"]:
                answer = sdk.chat.completions.create(**fields)
                return Seen("whole", answer.choices[0].message.content or "")
            with sdk.chat.completions.create(**fields, stream=True) as stream:
                for chunk in stream:
                    text += text_in(chunk.model_dump())
                    if leaving and text:
                        return Seen("left", text)
        except openai.APIError as error:
            return Seen(type(error).__name__, text)
    return Seen("whole", text)


def ask_openai_async(port: int, body: Body, leaving: bool) -> Seen:
    fields = {key: value for key, value in body.items() if key != "stream"}

    async def ask() -> Seen:
        text = ""
        async with openai.AsyncOpenAI(api_key="none", base_url=url(port), max_retries=0) as sdk:
            try:
                if not body["stream"]:
                    answer = await sdk.chat.completions.create(**fields)
                    return Seen("whole", answer.choices[0].message.content or "")
                async with await sdk.chat.completions.create(**fields, stream=True) as stream:
                    async for chunk in stream:
                        text += text_in(chunk.model_dump())
                        if leaving and text:
                            return Seen("left", text)
            except openai.APIError as error:
                return Seen(type(error).__name__, text)
        return Seen("whole", text)

    return asyncio.run(ask())


def through_httpx(read: Callable[[Iterable[bytes]], Iterator[Any]]) -> Ask:
    """httpx, with a reader of its byte stream that yields chunks."""

    def ask(port: int, body: Body, leaving: bool) -> Seen:
        text = ""
        with (
            httpx.Client(base_url=url(port), trust_env=False, timeout=30) as client,
            client.stream("POST", "chat/completions", json=body) as reply,
        ):
            if reply.status_code != 200:
                return Seen(f"status {reply.status_code}")
            if not body["stream"]:
                answer = json.loads(reply.read())
                return Seen("whole", answer["choices"][0]["message"]["content"])
            for chunk in read(reply.iter_bytes()):
                if "error" in chunk:
                    return Seen("error event", text)
                text += text_in(chunk)
                if leaving and text:
                    return Seen("left", text)
        return Seen("whole", text)

    return ask


def read_lines(pieces: Iterable[bytes]) -> Iterator[Any]:
    """As scripts on httpx do: each line that starts with ``data:``."""
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:") and b"[DONE]" not in line:
                yield json.loads(line[5:])


def read_events(pieces: Iterable[bytes]) -> Iterator[Any]:
    for _, data in by_the_book(pieces):
        if data != "[DONE]":
            yield json.loads(data)


def ask_curl(port: int, body: Body, leaving: bool) -> Seen:
    command = ["curl", "-sN", "--fail-with-body", "--json", "@-", f"{url(port)}/chat/completions"]
    text = ""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as curl:
        assert curl.stdin is not None
        assert curl.stdout is not None
        curl.stdin.write(json.dumps(body).encode())
        curl.stdin.close()
        if not body["stream"]:
            answer = json.loads(curl.stdout.read())
            return Seen("whole", answer["choices"][0]["message"]["content"])
        for line in curl.stdout:
            if not line.startswith(b"data:") or b"[DONE]" in line:
                continue
            chunk = json.loads(line[5:])
            if "error" in chunk:
                return Seen("error event", text)
            text += text_in(chunk)
            if leaving and text:
                curl.kill()
                return Seen("left", text)
    return Seen("whole" if curl.returncode == 0 else f"exit status {curl.returncode}", text)


NODE = """
import OpenAI from "openai";
const [baseURL, leaving] = process.argv.slice(2);
let input = "";
for await (const piece of process.stdin) input += piece;
const body = JSON.parse(input);
const sdk = new OpenAI({ apiKey: "none", baseURL, maxRetries: 0 });
let text = "";
let ended = "whole";
try {
  const answer = await sdk.chat.completions.create(body);
  if (!body.stream) text = answer.choices[0].message.content;
  else for await (const chunk of answer) {
    text += chunk.choices[0]?.delta?.content ?? "";
    if (leaving === "true" && text) { ended = "left"; break; }
  }
} catch (error) { ended = error.constructor.name; }
console.log(JSON.stringify({ ended, text }));
"""


def through_node(directory: Path) -> Ask:
    """openai for Node, installed in this directory."""
    script = directory / "ask.mjs"
    script.write_text(NODE)

    def ask(port: int, body: Body, leaving: bool) -> Seen:
        done = subprocess.run(
            ["node", str(script), url(port), str(leaving).lower()],
            input=json.dumps(body),
            text=True,
            check=True,
            stdout=subprocess.PIPE,
        )
        return Seen(**json.loads(done.stdout))

    return ask


def url(port: int) -> str:
    return f"http://127.0.0.1:{port}/v1"


@contextmanager
def all_clients() -> Iterator[dict[str, Ask]]:
    """Each client by the name of its row; those that are not here are named on stderr."""
    clients = {
        f"openai-python {openai.__version__}": ask_openai,
        f"openai-python {openai.__version__}, asyncio": ask_openai_async,
        f"httpx {httpx.__version__}, lines": through_httpx(read_lines),
    }
    if shutil.which("curl"):
        clients[f"curl {version('curl', '--version')}"] = ask_curl
    clients["strict event parser"] = through_httpx(read_events)
    clients["`split` at blank lines"] = through_httpx(by_split)
    with tempfile.TemporaryDirectory(prefix="sdk-table-") as private:
        directory = Path(private)
        if name := install_node_client(directory):
            clients[name] = through_node(directory)
        yield clients


def install_node_client(directory: Path) -> str | None:
    """The row's name, or None where Node or the package cannot be had."""
    if not shutil.which("node") or not shutil.which("npm"):
        print("no node and npm: row left out", file=sys.stderr)
        return None
    (directory / "package.json").write_text('{"private": true}')
    if subprocess.run(NPM, cwd=directory, timeout=120, check=False).returncode:
        print("openai for Node could not be installed: row left out", file=sys.stderr)
        return None
    package = json.loads((directory / "node_modules/openai/package.json").read_text())
    return f"openai (npm) {package['version']}, Node {version('node', '--version')}"


def version(*command: str) -> str:
    """The first version number that a program prints."""
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"\d+(\.\d+)+", printed)
    return found.group() if found else "?"


# ---- the columns --------------------------------------------------------------------------------


async def cells(it: DaemonUnderTest, ask: Ask) -> list[str]:
    """One row: what this client saw in each case."""

    async def seen(model: str, text: str, *, stream: bool = True, leaving: bool = False) -> Seen:
        body = {
            "model": model,
            "stream": stream,
            "messages": [{"role": "user", "content": text}],
        }
        return await trio.to_thread.run_sync(ask, it.port, body, leaving)

    await it.chat("a")
    plain = await seen("a", "hello", stream=False)
    queued = await queued_cell(it, lambda: seen("b", "hello"))
    await it.chat("a")
    in_band = await seen("a", "FX:die")
    await it.chat("a")
    refused = await seen("no-such", "hello")
    left = len(it.stamps("disconnect"))
    cancelled = await seen("a", "FX:slow", leaving=True)
    return [
        whole(plain),
        queued,
        error(in_band, after_text=True),
        error(refused, after_text=False),
        await freed(it, left, cancelled),
    ]


def whole(seen: Seen) -> str:
    return "whole" if seen.ended == "whole" and seen.text else f"NO: {seen}"


def error(seen: Seen, *, after_text: bool) -> str:
    is_error = seen.ended not in ("whole", "left") and bool(seen.text) == after_text
    return seen.ended if is_error else f"NO: {seen}"


async def queued_cell(it: DaemonUnderTest, ask: Callable[[], Any]) -> str:
    """Ask for another model while one is busy; the record tells how long that took."""
    busy = await it.send_chat("a", BUSY, stream=True)
    await busy.head()
    await next_piece(busy)
    seen = await ask()
    waited_s = (await it.records())[-1]["ttft_ms"] / 1000
    return f"{whole(seen)}, after {waited_s:.1f} s"


async def freed(it: DaemonUnderTest, left: int, seen: Seen) -> str:
    """Whether the engine soon saw that nobody waits any more."""
    if seen.ended != "left":
        return f"NO: {seen}"
    try:
        await until(lambda: len(it.stamps("disconnect")) > left, FREED_WITHIN_S)
    except AssertionError:
        return "NO: engine not freed"
    return "engine freed"


async def table() -> list[str]:
    """The table's lines, in Markdown."""
    lines = [f"| client | {' | '.join(COLUMNS)} |", "| --- " * (len(COLUMNS) + 1) + "|"]
    with all_clients() as clients, tempfile.TemporaryDirectory(prefix="sdk-") as private:
        async with daemon(Path(private), MODELS, CONFIG) as it:
            for name, ask in clients.items():
                lines.append(f"| {name} | {' | '.join(await cells(it, ask))} |")
    return lines


def main() -> int:
    lines = trio.run(table)
    today = datetime.now(UTC).date()
    print(
        f"{today}, Python {platform.python_version()}, {platform.system()} {platform.release()}\n"
    )
    print("\n".join(lines))
    return int(any("| NO" in line for line in lines))


if __name__ == "__main__":
    sys.exit(main())
