"""Shows how client libraries fare with a daemon on the simulated engine: a table for RESEARCH.md.

Run: ``python -m research.sdk_table``, in the checkout. Prints Markdown. curl and Node with npm are
used where they are installed; npm puts the openai package into a temporary directory. Every cell is what
the client saw; a cell with "NO" is a failure, and the exit status is then 1.
"""

import asyncio
import json
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import openai
import trio

from strata_router import simulated
from tests.runtime.http.raw import RawClient
from tests.system.harness import DaemonUnderTest, daemon, until
from tests.system.sse_parsers import by_split, by_the_book
from tests.system.wire import next_piece

CONFIG = {"stream_commit_ms": 100, "keepalive_ms": 500, "model_grace_ms": 0}
MODELS = {
    "a": {**simulated.DEMO, "disconnect_poll_s": 0.05},
    "b": {**simulated.DEMO, "load_s": 0.8, "disconnect_poll_s": 0.05},
}
BUSY = "FX:chunk_every_ms=50 FX:force_tokens=20"
BUSY_FOR_LONG = "FX:slow"
SILENT = "FX:prefill=30"
FREED_WITHIN_S = 1.0
PATIENT_S = 30.0
IMPATIENT_S = 1.0
"""More than the pause between two heartbeats, and less than the wait behind BUSY and a load."""

COLUMNS = (
    "plain",
    "queued, with heartbeats",
    "its own timeout, plain",
    "error in band",
    "error before the commit",
    "cancel",
)
NPM = ("npm", "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", "openai")


@dataclass
class Seen:
    """What a client made of an answer. ended: how it ended, in a word; "whole" for an answer."""

    ended: str
    text: str = ""


@dataclass(frozen=True)
class Question:
    """What a client shall do.

    leaving: at the first text. patience_s: the time without a byte after which its library gives up.
    """

    port: int
    body: dict[str, Any]
    leaving: bool = False
    patience_s: float = PATIENT_S

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def fields(self) -> dict[str, Any]:
        """The body for a library that wants ``stream`` as an argument of its own."""
        return {key: value for key, value in self.body.items() if key != "stream"}


Ask = Callable[[Question], Seen]


def text_in(chunk: Any) -> str:
    """The text of one chunk of the API."""
    return "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])


# ---- the clients --------------------------------------------------------------------------------


def ask_openai(question: Question) -> Seen:
    text = ""
    with openai.OpenAI(
        api_key="none", base_url=question.url, max_retries=0, timeout=question.patience_s
    ) as sdk:
        try:
            if not question.body["stream"]:
                answer = sdk.chat.completions.create(**question.fields)
                return Seen("whole", answer.choices[0].message.content or "")
            with sdk.chat.completions.create(**question.fields, stream=True) as stream:
                for chunk in stream:
                    text += text_in(chunk.model_dump())
                    if question.leaving and text:
                        return Seen("left", text)
        except openai.APIError as error:
            return Seen(type(error).__name__, text)
    return Seen("whole", text)


def ask_openai_async(question: Question) -> Seen:
    async def ask() -> Seen:
        text = ""
        async with openai.AsyncOpenAI(
            api_key="none", base_url=question.url, max_retries=0, timeout=question.patience_s
        ) as sdk:
            ask_for = sdk.chat.completions.create
            try:
                if not question.body["stream"]:
                    answer = await ask_for(**question.fields)
                    return Seen("whole", answer.choices[0].message.content or "")
                async with await ask_for(**question.fields, stream=True) as stream:
                    async for chunk in stream:
                        text += text_in(chunk.model_dump())
                        if question.leaving and text:
                            return Seen("left", text)
            except openai.APIError as error:
                return Seen(type(error).__name__, text)
        return Seen("whole", text)

    return asyncio.run(ask())


def through_httpx(read: Callable[[Iterable[bytes]], Iterator[Any]]) -> Ask:
    """httpx, with a reader of its byte stream that yields chunks."""

    def ask(question: Question) -> Seen:
        text = ""
        try:
            with (
                httpx.Client(trust_env=False, timeout=question.patience_s) as client,
                client.stream(
                    "POST", f"{question.url}/chat/completions", json=question.body
                ) as reply,
            ):
                if reply.status_code != 200:
                    return Seen(f"status {reply.status_code}")
                if not question.body["stream"]:
                    answer = json.loads(reply.read())
                    return Seen("whole", answer["choices"][0]["message"]["content"])
                for chunk in read(reply.iter_bytes()):
                    if "error" in chunk:
                        return Seen("error event", text)
                    text += text_in(chunk)
                    if question.leaving and text:
                        return Seen("left", text)
        except httpx.TimeoutException as error:
            return Seen(type(error).__name__, text)
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


def ask_curl(question: Question) -> Seen:
    # Its bound on silence: less than a byte per second for this long.
    silence = ["--speed-limit", "1", "--speed-time", f"{question.patience_s:.0f}"]
    address = f"{question.url}/chat/completions"
    command = ["curl", "-sN", "--fail-with-body", *silence, "--json", "@-", address]
    text = ""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as curl:
        assert curl.stdin is not None
        assert curl.stdout is not None
        curl.stdin.write(json.dumps(question.body).encode())
        curl.stdin.close()
        if not question.body["stream"] and (answer := curl.stdout.read()):
            text = json.loads(answer)["choices"][0]["message"]["content"]
        for line in curl.stdout:
            if not line.startswith(b"data:") or b"[DONE]" in line:
                continue
            chunk = json.loads(line[5:])
            if "error" in chunk:
                return Seen("error event", text)
            text += text_in(chunk)
            if question.leaving and text:
                curl.kill()
                return Seen("left", text)
    return Seen("whole" if curl.returncode == 0 else f"exit status {curl.returncode}", text)


NODE = """
import OpenAI from "openai";
const [baseURL, leaving, timeout] = process.argv.slice(2);
let input = "";
for await (const piece of process.stdin) input += piece;
const body = JSON.parse(input);
const sdk = new OpenAI({ apiKey: "none", baseURL, maxRetries: 0, timeout: Number(timeout) });
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

    def ask(question: Question) -> Seen:
        leaving = str(question.leaving).lower()
        timeout_ms = str(int(question.patience_s * 1000))
        done = subprocess.run(
            ["node", str(script), question.url, leaving, timeout_ms],
            input=json.dumps(question.body),
            text=True,
            check=True,
            stdout=subprocess.PIPE,
        )
        return Seen(**json.loads(done.stdout))

    return ask


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

    async def seen(model: str, text: str, *, stream: bool = True, **how: Any) -> Seen:
        messages = [{"role": "user", "content": text}]
        body = {"model": model, "stream": stream, "messages": messages}
        return await trio.to_thread.run_sync(ask, Question(it.port, body, **how))

    await it.chat("a")
    plain = await seen("a", "hello", stream=False)
    queued = await queued_cell(it, lambda: seen("b", "hello", patience_s=IMPATIENT_S))
    await it.chat("a")
    gave_up = await timeout_cell(
        it, lambda model, text: seen(model, text, stream=False, patience_s=IMPATIENT_S)
    )
    in_band = await seen("a", "FX:die")
    await it.chat("a")
    refused = await seen("no-such", "hello")
    left = len(it.stamps("disconnect"))
    cancelled = await seen("a", "FX:slow", leaving=True)
    return [
        whole(plain),
        queued,
        gave_up,
        error(in_band, after_text=True),
        error(refused, after_text=False),
        await freed(it, left) if cancelled.ended == "left" else f"NO: {cancelled}",
    ]


def whole(seen: Seen) -> str:
    return "whole" if seen.ended == "whole" and seen.text else f"NO: {seen}"


def error(seen: Seen, *, after_text: bool) -> str:
    is_error = seen.ended not in ("whole", "left") and bool(seen.text) == after_text
    return seen.ended if is_error else f"NO: {seen}"


async def queued_cell(it: DaemonUnderTest, ask: Callable[[], Awaitable[Seen]]) -> str:
    """Ask for model b while a is busy, with less patience than that takes; the record tells how long."""
    busy = await begin(it, BUSY)
    before = await next_seq(it)
    seen = await ask()
    busy.stream.socket.close()
    record = await record_of_b(it, before)
    if not record["success"]:
        return f"NO: {seen}"
    waited_s = record["ttft_ms"] / 1000
    if waited_s <= IMPATIENT_S:
        return f"NO: waited for {waited_s:.1f} s only"
    return f"{whole(seen)}, after {waited_s:.1f} s"


async def timeout_cell(it: DaemonUnderTest, ask: Callable[[str, str], Awaitable[Seen]]) -> str:
    """Let the client lose its patience in the queue, and once more with the engine at work for it."""
    busy = await begin(it, BUSY_FOR_LONG)
    before = await next_seq(it)
    asked = len(it.stamps("request"))
    queued = await ask("b", "hello")
    record = await record_of_b(it, before)
    depth = (await it.metrics())["queue_depth"]
    ended = (record["reason"], record["disconnect_phase"])
    if depth or ended != ("client_disconnect", "queued") or len(it.stamps("request")) > asked:
        return f"NO: ticket not freed: {ended}"
    left = len(it.stamps("disconnect"))
    busy.stream.socket.close()
    await freed(it, left)
    left = len(it.stamps("disconnect"))
    active = await ask("a", SILENT)
    engine = await freed(it, left)
    raised = error(queued, after_text=False)
    if error(active, after_text=False) != raised:
        return f"NO: {queued}, then {active}"
    return f"{raised}, ticket freed, {engine}"


async def begin(it: DaemonUnderTest, text: str) -> RawClient:
    """Have the engine answer somebody else on model a; that answer has begun."""
    busy = await it.send_chat("a", text, stream=True)
    await busy.head()
    await next_piece(busy)
    return busy


async def next_seq(it: DaemonUnderTest) -> int:
    return int((await it.metrics())["request_log"]["next_seq"])


async def record_of_b(it: DaemonUnderTest, since: int) -> dict[str, Any]:
    """The first record with at least this sequence number of a request for model b."""
    with trio.fail_after(FREED_WITHIN_S):
        while True:
            page = await it.get_json(f"/requests?after={since - 1}")
            for record in page["records"]:
                if record["model_requested"] == "b":
                    return dict(record)
            await trio.sleep(0.01)


async def freed(it: DaemonUnderTest, left: int) -> str:
    """Whether the engine soon saw that nobody waits any more. left: clients that it missed before."""
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
    return int(any("NO: " in line for line in lines))


if __name__ == "__main__":
    sys.exit(main())
