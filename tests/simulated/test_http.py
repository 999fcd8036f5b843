"""The HTTP layer and the routes beside chat. Source: facts about Strata's server, 3, 7 and 8."""

import json

import pytest

from tests.simulated.harness import Engine, Yard, chat_body, parse_reply, request_bytes


def test_answers_are_http_1_0_with_a_length_and_a_close(plain: Engine) -> None:
    reply = plain.get("/health")
    assert reply.status_line == "HTTP/1.0 200 OK"
    assert reply.headers["connection"] == "close"
    assert reply.headers["content-length"] == str(len(reply.body))
    assert reply.headers["server"].startswith("BaseHTTP/0.6 Python/")


def test_only_one_request_is_answered_per_connection(plain: Engine) -> None:
    raw = plain.raw(request_bytes("GET", "/health") * 2)
    assert raw.count(b"HTTP/1.0") == 1


def test_health_names_the_model_and_says_loaded(yard: Yard) -> None:
    keys = {"args": ["--max-context", "4096"]}
    health = yard.start("my-model", keys).get("/health").json()
    assert health == {
        "status": "ok",
        "max_context": 4096,
        "model": "my-model",
        "images": False,
        "api_key": False,
        "loaded": True,
        "service": "strata",
    }


def test_query_and_trailing_slash_do_not_matter(plain: Engine) -> None:
    assert plain.get("/health/?x=1").status == 200
    assert plain.get("/api/health").status == 200


def test_models_lists_the_model_and_its_aliases(yard: Yard) -> None:
    listing = yard.start("m", {"aliases": ["other"]}).get("/v1/models").json()
    assert listing["object"] == "list"
    first, second = listing["data"]
    assert (first["id"], first["status"], first["aliases"]) == ("m", {"value": "loaded"}, ["other"])
    assert (second["id"], second["alias_of"]) == ("other", "m")


def test_every_documented_path_answers(yard: Yard) -> None:
    engine = yard.start()
    assert engine.get("/status").json() == {"busy": False, "queued": 0}
    idle_slot = {"id": 0, "n_ctx": 32768, "is_processing": False, "n_prompt_tokens": 0}
    assert engine.get("/slots").json() == [idle_slot]
    assert engine.get("/props").json()["total_slots"] == 1
    assert engine.get("/props?model=other").status == 404
    assert engine.get("/v1/status").json()["concurrency"] == {"serving": 1}
    assert engine.get("/metrics").json()["live"]["state"] == "idle"
    assert engine.get("/").headers["content-type"].startswith("text/html")


def test_metrics_are_prometheus_text_when_asked_for(yard: Yard) -> None:
    engine = yard.start()
    engine.chat()
    for reply in (
        engine.get("/metrics?format=prometheus"),
        engine.get("/metrics", Accept="text/plain"),
    ):
        assert reply.headers["content-type"].startswith("text/plain")
        assert b"vllm:num_requests_running 0\n" in reply.body


def test_unknown_paths_are_404_without_an_error_type(plain: Engine) -> None:
    for reply in (
        plain.get("/nope"),
        plain.post("/v1/embeddings"),
        plain.post("/v1/cache/lookup"),
    ):
        assert reply.status == 404
        assert set(reply.json()["error"]) == {"message"}


@pytest.mark.parametrize("method", ["PUT", "DELETE", "HEAD"])
def test_other_methods_are_501_with_an_html_page(plain: Engine, method: str) -> None:
    reply = plain.ask(method, "/health", None, {})
    assert reply.status == 501
    assert reply.headers["content-type"].startswith("text/html")
    assert bool(reply.body) is (method != "HEAD")


def test_a_request_that_is_not_http_gets_an_html_400(plain: Engine) -> None:
    reply = parse_reply(plain.raw(b"hello\r\n\r\n"))
    assert (reply.status, reply.headers["content-type"]) == (400, "text/html;charset=utf-8")


def test_options_is_answered_without_a_grant(plain: Engine) -> None:
    reply = plain.ask("OPTIONS", "/v1/chat/completions", None, {})
    assert reply.status == 204
    assert "access-control-allow-origin" not in reply.headers


@pytest.mark.parametrize("host", ["127.0.0.1:8088", "localhost", "a.localhost", "[::1]:1", ""])
def test_hosts_that_are_addresses_or_local_pass(plain: Engine, host: str) -> None:
    assert plain.get("/health", Host=host).status == 200


def test_a_foreign_host_is_403_on_every_path(plain: Engine) -> None:
    for reply in (
        plain.get("/health", Host="evil.example"),
        plain.post("/x", Host="evil.example"),
    ):
        assert reply.status == 403
        assert reply.json()["error"]["type"] == "forbidden"


def test_allowed_hosts_pass(yard: Yard) -> None:
    engine = yard.start("m", {"allowed_hosts": ["box.lan"]})
    assert engine.get("/health", Host="box.lan:80").status == 200


def test_a_foreign_origin_is_403_and_an_own_one_needs_json(plain: Engine) -> None:
    path, body = "/v1/chat/completions", chat_body()
    assert plain.post(path, body, Origin="http://evil.example").status == 403
    assert plain.post(path, body, Origin="http://localhost:3000").status == 200
    not_json = plain.post(path, body, Origin="http://localhost", Content_Type="text/plain")
    assert not_json.status == 415
    assert "type" not in not_json.json()["error"]


def test_an_api_key_guards_all_but_health_and_switches_the_host_check_off(yard: Yard) -> None:
    engine = yard.spawn(yard.profile(), environment={"STRATA_API_KEY": " k1 , k2 "})
    engine.wait_ready()
    assert engine.get("/health", Host="evil.example").json()["api_key"] is True
    assert engine.get("/v1/models").status == 401
    assert engine.get("/v1/models", Authorization="Bearer k2").status == 200
    assert engine.post("/v1/chat/completions", chat_body(), x_api_key="k1").status == 200
    assert engine.chat().json()["error"]["type"] == "authentication_error"


def test_chunked_bodies_are_decoded_and_win_over_content_length(yard: Yard) -> None:
    engine = yard.start()
    body = chat_body("chunked", max_tokens=2)
    chunks = b"%x;x=1\r\n%s\r\n0\r\nTrailer: 1\r\n\r\n" % (len(body), body)
    head = {"Transfer-Encoding": "chunked", "Content-Length": "3", "Host": "127.0.0.1"}
    lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
    raw = engine.raw(f"POST /v1/chat/completions HTTP/1.1\r\n{lines}\r\n".encode() + chunks)
    assert parse_reply(raw).status == 200
    assert engine.requests()[0].body_bytes == len(body)


def test_malformed_and_short_bodies_are_400(plain: Engine) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert parse_reply(plain.raw(head + b"zz\r\n")).status == 400
    peer = plain.connect()
    peer.send(b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 9\r\n\r\n{}")
    peer.socket.shutdown(1)
    assert parse_reply(peer.rest()).status == 400
    peer.close()


def test_a_body_over_the_limit_is_413_before_it_is_read(yard: Yard) -> None:
    engine = yard.spawn(yard.profile(), environment={"STRATA_MAX_BODY_MIB": "0.001"})
    engine.wait_ready()
    peer = engine.connect()
    peer.send(b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 2000\r\n\r\n")
    reply = parse_reply(peer.rest())
    peer.close()
    assert (reply.status, reply.json()["error"]["type"]) == (413, "invalid_request_error")


@pytest.mark.parametrize(
    "body",
    [b"{", b"[]", b"", b"{}", b'{"messages": []}', b'{"messages": [1]}', b"[" * 100_000, b'"\xff"'],
)
def test_bodies_of_the_wrong_shape_are_400(plain: Engine, body: bytes) -> None:
    reply = plain.post("/v1/chat/completions", body)
    assert (reply.status, reply.json()["error"]["type"]) == (400, "invalid_request_error")


def test_a_prompt_that_does_not_fit_is_400_unless_it_may_be_cut(yard: Yard) -> None:
    keys = {"args": ["--max-context", "100"]}
    assert yard.start("m", keys).chat("x" * 40, max_tokens=90).status == 400
    engine = yard.start("m", {**keys, "fit_max_tokens": True})
    assert engine.chat("x" * 40, max_tokens=90).status == 200


def test_unload_and_load_keep_the_http_server(yard: Yard) -> None:
    engine = yard.start()
    assert engine.post("/unload").json() == {"status": "unloaded"}
    assert engine.get("/health").json()["loaded"] is False
    assert engine.get("/v1/models").json()["data"][0]["status"] == {"value": "unloaded"}
    assert (engine.get("/props").status, engine.get("/slots").json()) == (503, [])
    assert engine.post("/v1/unload").json()["status"] == "not loaded"
    assert engine.post("/v1/load", b'{"model": "other"}').status == 404
    assert engine.post("/v1/load").json()["loaded"] is True
    assert engine.post("/load").json() == {"status": "loaded"}
    assert engine.post("/load", Content_Type="text/plain").status == 415
    assert engine.post("/load", b" " * 70_000 + b"{}").status == 413
    assert engine.chat().status == 200


def test_unload_is_409_while_a_request_runs(yard: Yard) -> None:
    engine = yard.start(hang_after_chunks=1)
    peer = engine.open_chat(stream=True)
    engine.stamped("first_chunk")
    assert (engine.post("/unload").status, engine.post("/unload").json()) == (
        409,
        {"status": "busy"},
    )
    assert engine.post("/v1/unload").json()["error"]["type"] == "model_busy"
    assert engine.post("/v1/load").status == 409
    assert engine.post("/load").status == 200
    peer.close()


def test_status_slots_and_metrics_show_a_running_request(yard: Yard) -> None:
    engine = yard.start(hang_after_chunks=2)
    peer = engine.open_chat(stream=True)
    engine.stamped("first_chunk")
    status = engine.get("/status").json()
    assert (status["busy"], status["phase"], status["queued"]) == (True, "generating", 0)
    assert engine.get("/slots").json()[0]["is_processing"] is True
    assert engine.get("/metrics").json()["live"]["state"] == "generating"
    peer.close()


def test_history_keeps_what_a_cut_stream_could_not_say(yard: Yard) -> None:
    engine = yard.start(hang_after_chunks=2, disconnect_poll_s=0.1)
    engine_peer = engine.open_chat(stream=True)
    engine_peer.until(b"data:", 3)
    engine_peer.close()
    engine.stamped("done")
    entry = engine.get("/metrics?requests=all").json()["requests"][0]
    assert (entry["finish"], entry["output_tokens"]) == ("disconnect", 2)


def test_requests_are_stamped_with_their_headers_and_hash(yard: Yard) -> None:
    engine = yard.start(record_bodies=True)
    engine.post("/v1/chat/completions?x=1", chat_body("secret"), X_Mixed="a")
    request = engine.requests()[0]
    assert request.header("x-mixed") == "a"
    assert ("X-Mixed", "a") in request.headers
    assert json.loads(request.body or "")["messages"][0]["content"] == "secret"
    assert len(request.body_sha256) == 64
