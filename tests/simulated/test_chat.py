"""What a chat completion looks like. Source: facts about Strata's server, section 4."""

import hashlib
import json
import zlib
from typing import Any

import pytest

from tests.simulated.harness import Engine, Yard, chat_body, parse_reply, request_bytes

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"town": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["town", "days"],
        },
    },
}


def test_a_stream_has_no_length_and_ends_with_the_connection(plain: Engine) -> None:
    reply = plain.chat(stream=True)
    assert reply.status_line == "HTTP/1.0 200 OK"
    assert reply.headers["content-type"] == "text/event-stream"
    assert reply.headers["cache-control"] == "no-cache"
    assert reply.headers["x-accel-buffering"] == "no"
    assert "content-length" not in reply.headers
    assert "transfer-encoding" not in reply.headers


def test_a_stream_is_role_text_final_chunk_and_done(yard: Yard) -> None:
    reply = yard.start().chat(stream=True, max_tokens=3)
    chunks = reply.chunks()
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [set(delta) for delta in reply.deltas()[1:-1]] == [{"content"}] * 3
    assert all("usage" not in chunk and "timings" not in chunk for chunk in chunks[:-1])
    final = chunks[-1]
    assert final["choices"] == [{"index": 0, "delta": {}, "finish_reason": "length"}]
    assert reply.events()[-1] == b"data: [DONE]"
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert chunks[0]["id"].startswith("chatcmpl-")
    assert len(chunks[0]["id"]) == len("chatcmpl-") + 24


def test_a_keep_alive_comment_comes_just_before_the_first_token(plain: Engine) -> None:
    reply = plain.chat(stream=True, max_tokens=1)
    kinds = [event.split(b":")[0] for event in reply.events()]
    assert kinds == [b"data", b"", b"data", b"data", b"data"]


def test_usage_counts_the_end_of_turn_token(plain: Engine) -> None:
    final = plain.chat("FX:tokens=31", stream=True).chunks()[-1]
    usage, timings = final["usage"], final["timings"]
    assert usage["completion_tokens"] == 32
    assert usage["total_tokens"] == usage["prompt_tokens"] + 32
    assert timings["predicted_n"] == 32
    assert timings["prompt_n"] + timings["cache_n"] == usage["prompt_tokens"]
    assert final["choices"][0]["finish_reason"] == "stop"


def test_an_answer_is_deterministic_and_names_its_model(yard: Yard) -> None:
    engine = yard.start("model-a")
    first, second = engine.chat("same", stream=True), engine.chat("same", stream=True)
    assert first.text() == second.text()
    assert "model-a" in first.text()
    assert first.text() != engine.chat("other", stream=True).text()
    assert first.text() != engine.chat("same", stream=True, seed=7).text()


def test_a_plain_answer_is_one_json_body(plain: Engine) -> None:
    reply = plain.chat("same")
    answer = reply.json()
    assert reply.headers["content-type"] == "application/json"
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"] == {
        "role": "assistant",
        "content": plain.chat("same", stream=True).text(),
    }
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == answer["timings"]["predicted_n"]


def test_max_completion_tokens_wins_and_zero_means_no_limit(plain: Engine) -> None:

    def tokens(**limits: int) -> Any:
        return plain.chat("FX:tokens=40", **limits).json()["usage"]["completion_tokens"]

    assert tokens(max_tokens=5, max_completion_tokens=7) == 7
    assert tokens(max_tokens=0) == tokens(max_tokens=-1) == tokens() == 41


def test_an_answer_that_just_fits_needs_room_for_its_last_token_too(plain: Engine) -> None:
    for limit, finish in ((5, "length"), (6, "stop")):
        answer = plain.chat("FX:tokens=5", max_tokens=limit).json()
        assert answer["choices"][0]["finish_reason"] == finish
        assert answer["usage"]["completion_tokens"] == limit


def test_an_alias_is_answered_under_its_own_name_and_any_other_is_served(yard: Yard) -> None:
    engine = yard.start("m", {"aliases": ["nick"]})
    path = "/v1/chat/completions"
    body = json.loads(chat_body())
    for asked, named in (("nick", "nick"), ("anything", "m")):
        reply = engine.post(path, json.dumps({**body, "model": asked}).encode())
        assert reply.json()["model"] == named


def test_reasoning_comes_first_and_counts(yard: Yard) -> None:
    engine = yard.start(reasoning_tokens=4, answer_tokens=2, reasoning_usage=True)
    reply = engine.chat(stream=True)
    kinds = [next(iter(delta)) for delta in reply.deltas()[1:-1]]
    assert kinds == ["reasoning_content"] * 4 + ["content"] * 2
    usage = reply.chunks()[-1]["usage"]
    assert usage["completion_tokens"] == 7
    assert usage["completion_tokens_details"] == {"reasoning_tokens": 4}
    assert engine.chat().json()["choices"][0]["message"]["reasoning_content"]


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "weather"}}]
)
def test_tools_that_must_be_called_are_called(yard: Yard, choice: Any) -> None:
    engine = yard.start(tool_calls=2)
    reply = engine.chat(stream=True, tools=[TOOL], tool_choice=choice)
    parts = [delta["tool_calls"][0] for delta in reply.deltas() if "tool_calls" in delta]
    for index in (0, 1):
        head, *rest = [part for part in parts if part["index"] == index]
        assert head["type"] == "function"
        assert len(head["id"]) == len("call_") + 24
        assert head["function"] == {"name": "weather", "arguments": ""}
        assert all(set(part) == {"index", "function"} for part in rest)
        arguments = json.loads("".join(part["function"]["arguments"] for part in rest))
        assert arguments == {"town": "simulated", "days": 1}
    assert len({part["id"] for part in parts if "id" in part}) == 2
    assert reply.chunks()[-1]["choices"][0]["finish_reason"] == "tool_calls"
    plain = engine.chat(tools=[TOOL], tool_choice=choice).json()["choices"][0]
    assert plain["finish_reason"] == "tool_calls"
    assert plain["message"]["content"] is None
    assert json.loads(plain["message"]["tool_calls"][1]["function"]["arguments"])["days"] == 1


def test_tools_that_may_be_called_are_not(plain: Engine) -> None:
    assert plain.chat(stream=True, tools=[TOOL], tool_choice="auto").text()


def test_response_format_buffers_the_answer_into_one_chunk(yard: Yard) -> None:
    engine = yard.start(answer_tokens=12)
    slow = "FX:chunk_every_ms=100"
    reply = engine.chat(slow, stream=True, response_format={"type": "json_object"})
    assert len([delta for delta in reply.deltas() if delta.get("content")]) == 1
    assert set(json.loads(reply.text())) == {"answer"}
    assert reply.events().count(b": keep-alive") == 2
    plain = engine.chat(response_format={"type": "json_object"}).json()
    assert json.loads(plain["choices"][0]["message"]["content"])


def test_prompt_reuse_shows_as_cached_tokens(yard: Yard) -> None:
    engine = yard.start()
    first = engine.chat("a long question " * 20).json()
    again = engine.chat("a long question " * 20 + "and more").json()
    assert first["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    cached = again["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached > 60
    assert again["timings"]["cache_n"] == cached
    engine.post("/unload")
    forgotten = engine.chat("a long question " * 20).json()["usage"]
    assert forgotten["prompt_tokens_details"] == {"cached_tokens": 0}
    engine.chat("FX:engine_dies_after_chunks=0")
    forgotten = engine.chat("a long question " * 20).json()["usage"]
    assert forgotten["prompt_tokens_details"] == {"cached_tokens": 0}


def test_images_are_refused_and_text_parts_are_read(plain: Engine) -> None:
    image = [{"type": "image_url", "image_url": {"url": "data:"}}]
    text = [{"type": "text", "text": "FX:tokens=1"}]
    for content, status in ((image, 400), (text, 200), (3, 400)):
        body = json.dumps({"messages": [{"role": "user", "content": content}]}).encode()
        assert plain.post("/v1/chat/completions", body).status == status


def test_lone_surrogates_do_no_harm(plain: Engine) -> None:
    body = chat_body("x").replace(b'"x"', rb'"\ud83d"')
    reply = plain.post("/v1/chat/completions", body)
    assert reply.status == 200


def test_hashes_of_sent_bodies_match_what_arrives(yard: Yard) -> None:
    engine = yard.start(hash_responses=True)
    replies = [engine.chat(stream=True), engine.chat(), engine.chat("FX:answer=html500")]
    engine.stamped("done", count=3)
    for reply, request in zip(replies, engine.requests(), strict=True):
        assert request.response_sha256 == hashlib.sha256(reply.body).hexdigest()
        assert request.response_bytes == len(reply.body)


def test_a_queued_request_gets_head_and_role_at_once_and_then_silence(yard: Yard) -> None:
    engine = yard.start(disconnect_poll_s=0.1)
    first = engine.open_chat("FX:hang_after_chunks=1", stream=True)
    engine.stamped("first_chunk")
    second = engine.open_chat(stream=True, max_tokens=1)
    second.until(b'"role":"assistant"')
    second.until(b"\n\n", 1)
    second.socket.settimeout(0.2)
    with pytest.raises(TimeoutError):
        second.until(b"data:", 2)
    assert engine.get("/status").json()["queued"] == 1
    first.close()
    second.socket.settimeout(5)
    assert b"[DONE]" in second.rest()
    second.close()


def test_batch_slots_answer_together_and_tell_waiters_they_live(yard: Yard) -> None:
    engine = yard.start("m", {"parallel": 2}, keepalive_s=0.1)
    assert engine.get("/props").json()["total_slots"] == 2
    running = [engine.open_chat("FX:hang_after_chunks=1", stream=True) for _ in range(2)]
    for peer in running:
        peer.until(b"data:", 2)
    waiting = engine.open_chat(stream=True)
    waiting.until(b": keep-alive", 2)
    assert [slot["is_processing"] for slot in engine.get("/slots").json()] == [True, True]
    for peer in (*running, waiting):
        peer.close()


def test_engine_silence_is_bridged_by_comments(yard: Yard) -> None:
    engine = yard.start(keepalive_s=0.1)
    peer = engine.open_chat("FX:prefill=5", stream=True)
    peer.until(b": keep-alive", 3)
    assert peer.received.count(b"data:") == 1
    peer.close()


def test_prompt_chunks_give_a_comment_each(plain: Engine) -> None:
    reply = plain.chat("FX:prefill=0.4 FX:prompt_chunk_s=0.1", stream=True)
    assert reply.events().count(b": keep-alive") == 4


def test_gzip_is_a_whole_encoded_body(yard: Yard) -> None:
    engine = yard.start(gzip=True)
    for stream in (True, False):
        reply = engine.chat("same", stream=stream)
        assert reply.headers["content-encoding"] == "gzip"
        assert b"same" not in reply.body
        assert b"assistant" in zlib.decompress(reply.body, wbits=31)


def test_a_big_body_is_read_whole(yard: Yard) -> None:
    engine = yard.start(keys={"args": ["--max-context", "100000000"]})
    body = chat_body("x" * 20_000_000, max_tokens=1)
    raw = engine.raw(request_bytes("POST", "/v1/chat/completions", body))
    assert parse_reply(raw).status == 200
    assert engine.requests()[0].body_sha256 == hashlib.sha256(body).hexdigest()


def test_prompt_progress_is_a_chunk_with_an_empty_delta_where_asked_for(plain: Engine) -> None:
    text = "FX:prefill=0.2 FX:prompt_chunk_s=0.1"
    chunks = plain.chat(text, stream=True, return_progress=True).chunks()
    progress = [chunk for chunk in chunks if "prompt_progress" in chunk]
    assert [chunk["choices"][0]["delta"] for chunk in progress] == [{}, {}]
    first, last = (chunk["prompt_progress"] for chunk in progress)
    assert first["processed"] < last["processed"] == last["total"]
