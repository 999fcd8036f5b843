"""The second engine kind on a real daemon: llama.cpp's server, by its stand-in (contract 4.5)."""

import json
import signal
import sys
from pathlib import Path
from typing import Any

from strata_router import simulated
from strata_router.simulated.events import engine_intervals, requests
from tests.system.harness import daemon, sse_events, until
from tests.system.wire import error_of


def _config(directory: Path, **knobs: dict[str, Any]) -> dict[str, Any]:
    """A configuration with one llama-server model per keyword; its value is the model's knobs."""
    command = simulated.write_llama_server(directory / "llama-server")
    events = {"event_file": str(directory / "events.jsonl")}
    models = {
        name: {
            "family": "test",
            "engine": "llama",
            "args": ["--model", f"{name}.gguf", "--simulated", json.dumps({**events, **own})],
            "upstream_model": f"upstream-{name}",
            "installed": True,
            "compatible": True,
        }
        for name, own in knobs.items()
    }
    kind = {"kind": "llama-server", "command": str(command), "env": {"GGML_TEST": "1"}}
    return {"engines": {"llama": kind}, "models": models}


async def test_a_llama_server_is_loaded_proven_and_asked(tmp_path: Path) -> None:
    """It listens at once and says 503 while it loads; no request comes before it is ready."""
    async with daemon(tmp_path, {}, _config(tmp_path, a={"load_s": 0.3})) as it:
        plain = await it.chat("a")
        assert plain.status == 200
        assert json.loads(plain.body)["model"] == "upstream-a"
        (start,), (ready,), (request,) = map(it.stamps, ("start", "ready", "request"))
        assert ready.at < request.at
        assert start.facts["argv"][-6:] == [
            *("--host", "127.0.0.1", "--port", str(it.backend_port)),
            *("--alias", "upstream-a"),
        ]
        assert "GGML_TEST" in start.facts["environment"]
        assert start.facts["descriptors"] == {"0": "/dev/null", "1": "/dev/null", "2": "/dev/null"}
        status = await it.status()
        assert (status["loaded"], status["child_pid"]) == ("a", start.pid)


async def test_a_stream_of_a_llama_server_passes_and_its_timings_are_accounted(
    tmp_path: Path,
) -> None:
    async with daemon(tmp_path, {}, _config(tmp_path, a={})) as it:
        reply = await it.chat("a", stream=True)
        assert reply.status == 200
        (*_, final, done) = sse_events(reply.body)
        assert done == "[DONE]"
        timings = json.loads(final)["timings"]
        record = await it.record_of(reply)
        assert record["reason"] == "completed"
        for name in ("prompt_n", "predicted_n", "prompt_ms", "predicted_per_second"):
            assert record[name] == timings[name]
        assert record["completion_tokens"] is None  # no usage was asked for, and none is made up
        asked = await it.chat("a", stream=True, stream_options={"include_usage": True})
        usage = json.loads(sse_events(asked.body)[-2])["usage"]
        record = await it.record_of(asked)
        assert record["completion_tokens"] == usage["completion_tokens"]


async def test_two_models_of_llama_servers_follow_each_other_each_on_fresh_connections(
    tmp_path: Path,
) -> None:
    """These engines keep connections alive, but no request meets one that was used before."""
    async with daemon(tmp_path, {}, _config(tmp_path, a={}, b={})) as it:
        for model in ("a", "b", "a"):
            for stream in (True, False):
                reply = await it.chat(model, stream=stream)
                assert reply.status == 200
                assert f'"upstream-{model}"'.encode() in reply.body
        assert it.overlaps() == []
        assert [engine.model for engine in engine_intervals(it.stamps())] == [
            *("upstream-a", "upstream-b", "upstream-a")
        ]
        served = requests(it.stamps())
        assert len({request.peer for request in served}) == len(served) == 6


async def test_a_llama_server_stops_in_order_once_its_stream_was_interrupted(
    tmp_path: Path,
) -> None:
    async with daemon(tmp_path, {}, _config(tmp_path, a={})) as it:
        client = await it.send_chat("a", "FX:slow", stream=True)
        await until(lambda: it.stamps("first_chunk"))
        done = await it.off(now=True)
        assert (done["ok"], it.left_pids()) == (True, [])
        assert b'"code":"routing_off"' in (await client.reply()).body
        assert [stamp.facts["status"] for stamp in it.stamps("exit")] == [0]


async def test_a_llama_server_that_lists_another_model_is_not_used(tmp_path: Path) -> None:
    config = _config(tmp_path, a={"wrong_model": "upstream-b"}, b={"fail_load": 1}, c={})
    async with daemon(tmp_path, {}, config) as it:
        reply = await it.chat("a")
        assert (reply.status, error_of(reply)["code"]) == (503, "model_load_failed")
        reason = "backend reports another model than the profile names: upstream-b"
        assert (await it.status())["last_startup_error"] == reason
        assert (await it.chat("b")).status == 503
        reason = "backend exited with status 1 before it was ready"
        assert (await it.status())["last_startup_error"] == reason
        assert it.stamps("request") == []
        assert (await it.chat("c")).status == 200
        assert it.overlaps() == []


async def test_b03_a_llama_server_does_not_outlive_its_daemon(tmp_path: Path) -> None:
    async with daemon(tmp_path, {}, _config(tmp_path, a={"ignore_sigterm": True})) as it:
        client = await it.send_chat("a", "FX:slow", stream=True)
        await until(lambda: it.stamps("first_chunk"))
        it.signal(signal.SIGKILL)
        await it.wait_ended()
        await until(lambda: not it.left_pids(), within_s=1)
        await client.stream.aclose()


async def test_a_strata_engine_and_a_llama_server_take_turns(tmp_path: Path) -> None:
    config = _config(tmp_path, small={})
    config["engines"]["strata"] = {"kind": "strata"}
    models = config.pop("models")
    async with daemon(tmp_path, {"large": {}}, config, start=False) as it:
        it.config["models"] |= models
        await it.start()
        for model in ("large", "small", "large"):
            assert (await it.chat(model)).status == 200
        assert it.overlaps() == []
        argv = [stamp.facts["argv"] for stamp in it.stamps("start")]
        assert [words[2] for words in argv] == [
            *("serve.server", "strata_router.simulated.llama.server", "serve.server")
        ]
        assert argv[0][0] == sys.executable
