"""Marked secrets through every path; then everything that the daemon wrote is searched for them.

Source: spec/reliability.md, "Privacy"; design, "Records never contain ..."; contract 9.
"""

import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.runtime.http.raw import RawClient, get, post
from tests.system.harness import CHAT, DaemonUnderTest, daemon, until

VERBOSE = ("sh", "-c", 'exec "$@" --log-level debug', "sh")
"""Runs the rest of its words at the level that says most."""

MARKS = {
    what: f"mark-{what}-zq7"
    for what in ("prompt", "key", "header", "model", "tool", "argument", "query", "field", "user")
}

OURS = {"config.json", "events.jsonl"}
"""Files of the test or of the simulated engine, which may hold anything."""


@dataclass
class Visitor:
    """Sends marked requests and keeps what came back."""

    it: DaemonUnderTest
    refusals: list[bytes] = field(default_factory=list)
    answers: list[bytes] = field(default_factory=list)
    ports: list[int] = field(default_factory=list)

    async def ask(self, body: bytes, *, path: str = f"{CHAT}?q={MARKS['query']}") -> RawClient:
        client = await self.it.connect()
        self.ports.append(client.stream.socket.getsockname()[1])
        headers = (
            f"Authorization: Bearer {MARKS['key']}",
            f"X-Api-Key: {MARKS['key']}",
            f"X-{MARKS['header']}: {MARKS['header']}",
            f"Cookie: a={MARKS['header']}",
            f"User-Agent: {MARKS['header']}",
            f"Referer: http://localhost/{MARKS['header']}",
        )
        await client.send(post(path, *headers, body=body))
        return client

    async def take(self, body: bytes, *, path: str = f"{CHAT}?q={MARKS['query']}") -> None:
        client = await self.ask(body, path=path)
        try:
            reply = await client.reply()
        except EOFError:
            return
        kept = self.answers if reply.status == 200 else self.refusals
        kept.append(str(reply.headers).encode() + reply.body)


def marked(model: str, text: str = "", **fields: Any) -> bytes:
    """A body with a mark wherever a client can put one."""
    messages = [
        {"role": "system", "content": MARKS["prompt"]},
        {"role": "user", "content": f"{MARKS['prompt']} {text}", "name": MARKS["user"]},
    ]
    tool = {
        "type": "function",
        "function": {
            "name": MARKS["tool"],
            "parameters": {"type": "object", "properties": {MARKS["argument"]: {}}},
        },
    }
    document = {
        "model": model,
        "messages": messages,
        "max_tokens": 8,
        "tools": [tool],
        "user": MARKS["user"],
        MARKS["field"]: MARKS["field"],
        **fields,
    }
    return json.dumps(document).encode()


async def go_every_way(visitor: Visitor) -> None:
    """Answers, refusals, faults of the engine, departures, garbage."""
    for stream in (True, False):
        await visitor.take(marked("a", stream=stream))
        await visitor.take(marked("a", stream=stream, tool_choice="required"))
        await visitor.take(marked("a", "FX:die", stream=stream))
        await visitor.take(marked("a", "FX:error_after_chunks=1", stream=stream))
        await visitor.take(marked("a", "FX:answer=json400", stream=stream))
        await visitor.take(marked("a", "FX:answer=html500", stream=stream))
        await visitor.take(marked("broken", stream=stream))
        await visitor.take(marked(MARKS["model"], stream=stream))
    for body in (
        marked("a", service_tier=MARKS["field"]),
        marked("a", speed=MARKS["field"]),
        marked("a", stream=MARKS["field"]),
        marked("a")[:-1],
        marked("a").replace(b'"max_tokens": 8', b'"max_tokens": NaN'),
        MARKS["prompt"].encode(),
        marked("a", x="x" * 20_000),
    ):
        await visitor.take(body)
    await visitor.take(marked("a"), path=f"/{MARKS['query']}")
    leaver = await visitor.ask(marked("a", "FX:slow", stream=True))
    await leaver.head()
    leaver.reset()
    for garbage in (
        f"{MARKS['prompt']}\r\n\r\n",
        f"GET /{MARKS['query']} HTTP/9\r\n\r\n",
        f"POST {CHAT} HTTP/1.1\r\nHost: {MARKS['header']}\r\nContent-Length: 2\r\n\r\n{{}}",
        f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nOrigin: http://{MARKS['header']}\r\n"
        "Content-Length: 2\r\n\r\n{}",
        f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {MARKS['header']}\r\n\r\n",
        f"GET /health HTTP/1.1\r\nHost: localhost\r\nbad {MARKS['header']}\r\n\r\n",
    ):
        client = await visitor.it.connect()
        await client.send(garbage.encode())
        visitor.refusals.append((await client.reply()).body)
    for path in (
        f"/v1/models/{MARKS['model']}",
        f"/requests?after={MARKS['query']}",
        f"/requests?limit={MARKS['query']}",
        f"/metrics?format={MARKS['query']}",
        f"/metrics?format=prometheus&x={MARKS['query']}",
    ):
        client = await visitor.it.connect()
        await client.send(get(path, f"Accept: text/plain;v={MARKS['header']}"))
        visitor.refusals.append((await client.reply()).body)


async def everything_shown(it: DaemonUnderTest) -> dict[str, bytes]:
    """What the daemon answers about itself."""
    shown: dict[str, bytes] = {}
    for path in (
        "/requests?after=0&limit=1000",
        "/metrics",
        "/metrics?format=prometheus",
        "/health",
    ):
        client = await it.connect()
        await client.send(get(path))
        shown[path] = (await client.reply()).body
    shown["status"] = json.dumps(await it.status()).encode()
    return shown


def everything_written(it: DaemonUnderTest) -> dict[str, bytes]:
    """Every file below the daemon's directory, by its path; the profiles are the operator's."""
    found = {}
    for folder, _, names in os.walk(it.directory):
        for name in names:
            path = Path(folder) / name
            if name not in OURS and not name.startswith("strata-") and path.is_file():
                found[str(path)] = path.read_bytes()
    return found


def generated_by_engines(answers: list[bytes]) -> list[bytes]:
    """A piece out of each generated text, long enough to be found nowhere by accident."""
    found = []
    for answer in answers:
        text = ""
        for line in answer.splitlines():
            if b'"choices"' in line:
                (choice,) = json.loads(line[line.index(b'{"') :])["choices"]
                said = choice.get("message") or choice.get("delta") or {}
                text += said.get("content") or ""
        if len(text) > 40:
            found.append(text[10:40].encode())
    return found


async def test_nothing_that_a_client_or_an_engine_says_is_kept_or_shown(tmp_path: Path) -> None:
    config = {
        "request_log_path": str(tmp_path / "requests.jsonl"),
        "max_request_body_bytes": 10_000,
        "stream_commit_ms": 50,
        "allowed_hosts": ["localhost"],
    }
    engines: dict[str, dict[str, Any]] = {"a": {"force_tokens": 20}, "broken": {"fail_load": 2}}
    async with daemon(tmp_path, engines, config, start=False) as it:
        it.launch(*VERBOSE)
        await it.wait_serving()
        visitor = Visitor(it)
        await go_every_way(visitor)
        shown = await everything_shown(it)
        await it.off(now=True)
        await it.stop()
        await until(lambda: it.log.endswith("has ended\n"))
        written = everything_written(it)
        assert {Path(path).name for path in written} >= {"daemon.log", "requests.jsonl"}
        assert written[str(tmp_path / "requests.jsonl")].count(b"\n") > 20

        # The marks did go through: the engine has seen them, and what they caused was answered.
        assert len(it.stamps("request")) >= 10
        assert len(visitor.answers) >= 4
        assert len(visitor.refusals) >= 20

        places = {**shown, **written, "refusals": b"\n".join(visitor.refusals)}
        profiles = [str(it.profile(model)).encode() for model in engines]
        generated = generated_by_engines(visitor.answers)
        assert len(generated) >= 2
        for place, content in places.items():
            for secret in (*(mark.encode() for mark in MARKS.values()), *profiles, *generated):
                assert secret not in content, (place, secret)
        for port in visitor.ports:
            assert f":{port}" not in it.log


async def test_an_engine_s_words_on_its_end_are_not_shown(tmp_path: Path) -> None:
    """A start that fails gives a short reason of ours, also to the operator and the log."""
    async with daemon(tmp_path, {"a": {"wrong_model": "mark-engine-zq7"}}) as it:
        reply = await it.chat("a")
        assert reply.status == 503
        status = await it.status()
        assert status["last_startup_error"]
        shown = await everything_shown(it)
        places = {**shown, **everything_written(it), "reply": reply.body}
        assert [place for place, content in places.items() if b"mark-engine" in content] == []


BROKEN_DAEMON = """
import sys
import strata_router.runtime.chat_intake as chat_intake
from strata_router.cli.main import main

def broken(body):
    raise ValueError(body)

chat_intake.read_chat_request = broken
sys.exit(main(sys.argv[1:]))
"""


async def test_what_a_bug_would_say_of_a_request_is_not_shown(tmp_path: Path) -> None:
    """It is logged by kind and place: its text may hold what the client sent."""
    program = tmp_path / "broken.py"
    program.write_text(BROKEN_DAEMON)
    # In place of `python -m strata_router`, the first three words.
    instead = ("sh", "-c", f'shift 3; exec "{sys.executable}" "{program}" "$@"', "sh")
    async with daemon(tmp_path, {"a": {}}, start=False) as it:
        it.launch(*instead)
        await it.wait_serving()
        visitor = Visitor(it)
        await visitor.take(marked("a"))
        (refusal,) = visitor.refusals
        assert b"internal_error" in refusal
        (record,) = await it.records()
        assert (record["reason"], record["status"]) == ("upstream_error", 500)
        assert "internal error ValueError in broken:" in it.log
        shown = {**await everything_shown(it), **everything_written(it), "refusal": refusal}
        for mark in MARKS.values():
            assert [place for place, content in shown.items() if mark.encode() in content] == []
