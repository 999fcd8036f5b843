"""What an engine's words prove, word by word (contract 4.2)."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_router.core.engine.readiness import (
    READY_FILE_LIMIT_BYTES,
    Mismatch,
    NotYet,
    Verified,
    read_llama_health,
    read_model_list,
    read_ready_file,
    read_strata_activity,
    read_strata_health,
)

BAD_FILE = Mismatch("the readiness file is not the JSON that it should be")
ANOTHER_PROCESS = Mismatch("the readiness file names another process than the one started")
ANOTHER_MODEL = Mismatch("backend reports another model than the profile names")
NOT_LOADED = Mismatch("backend listens but reports that its model is not loaded")
NO_STRATA = Mismatch("backend's health check does not answer as Strata does")
NO_LLAMA = Mismatch("backend's health check does not answer as llama-server does")
NO_LIST = Mismatch("backend's model list does not answer as llama-server does")


def encoded(value: Any) -> bytes:
    return json.dumps(value).encode()


# ---- the readiness file ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "document",
    [
        {"pid": 7, "model": "m"},
        {"model": "m", "pid": 7, "port": 8089, "more": [1, {"pid": 8}]},
    ],
)
def test_a_file_with_pid_and_model_of_this_start_is_proof(document: Any) -> None:
    assert read_ready_file(encoded(document), 7, "m") == Verified()


@pytest.mark.parametrize("content", [b"", b"  \n", b"{", b'{"pid": 7, "mod'])
def test_a_file_that_is_still_being_written_is_waited_for(content: bytes) -> None:
    assert read_ready_file(content, 7, "m") == NotYet()


@given(st.integers(min_value=0, max_value=30))
def test_any_beginning_of_a_right_file_is_waited_for(size: int) -> None:
    content = encoded({"pid": 7, "model": "m"})
    assert read_ready_file(content[: min(size, len(content) - 1)], 7, "m") == NotYet()


def test_what_is_no_json_up_to_the_limit_never_becomes_some() -> None:
    content = b"x" * READY_FILE_LIMIT_BYTES
    assert read_ready_file(content, 7, "m") == BAD_FILE
    assert read_ready_file(content[:-1], 7, "m") == NotYet()


@pytest.mark.parametrize("document", [[], 7, None, "m", {}, {"pid": 7}, {"model": "m"}])
def test_json_without_pid_and_model_is_no_readiness_file(document: Any) -> None:
    assert read_ready_file(encoded(document), 7, "m") == BAD_FILE


@pytest.mark.parametrize("pid", [8, 70, "7", None, [7], 7.5])
def test_a_file_of_another_process_proves_nothing(pid: Any) -> None:
    assert read_ready_file(encoded({"pid": pid, "model": "m"}), 7, "m") == ANOTHER_PROCESS


def test_true_is_not_process_one() -> None:
    assert read_ready_file(b'{"pid": true, "model": "m"}', 1, "m") == ANOTHER_PROCESS


@pytest.mark.parametrize("model", ["n", "M", "", None, 7, ["m"]])
def test_a_file_of_another_model_is_a_mismatch_that_does_not_show_the_name(model: Any) -> None:
    assert read_ready_file(encoded({"pid": 7, "model": model}), 7, "m") == ANOTHER_MODEL


# ---- Strata's health ---------------------------------------------------------------------------


def test_a_loaded_strata_of_the_right_name_is_proof() -> None:
    body = encoded({"status": "ok", "loaded": True, "model": "m", "max_context": 32768})
    assert read_strata_health(200, body, "m", {"m", "n"}) == Verified()


def test_a_strata_that_says_503_is_still_loading_whatever_else_it_says() -> None:
    for body in (b"", b'{"status":"loading"}', encoded({"model": "n"})):
        assert read_strata_health(503, body, "m", {"m"}) == NotYet()


@pytest.mark.parametrize("loaded", [False, None, 1, "true"])
def test_a_strata_that_does_not_say_loaded_true_is_not_loaded(loaded: Any) -> None:
    body = encoded({"model": "m", "loaded": loaded})
    assert read_strata_health(200, body, "m", {"m"}) == NOT_LOADED


def test_a_strata_without_the_word_loaded_is_not_loaded() -> None:
    assert read_strata_health(200, b'{"model":"m"}', "m", {"m"}) == NOT_LOADED


@pytest.mark.parametrize("status", [200, 201, 404, 500])
@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"null", b'"m"'])
def test_what_does_not_answer_in_json_objects_is_no_strata(status: int, body: bytes) -> None:
    assert read_strata_health(status, body, "m", {"m"}) == NO_STRATA


@pytest.mark.parametrize("status", [201, 204, 301, 400, 404, 500, 502])
def test_a_right_answer_with_a_wrong_status_is_no_strata(status: int) -> None:
    body = encoded({"loaded": True, "model": "m"})
    assert read_strata_health(status, body, "m", {"m"}) == NO_STRATA


def test_another_configured_model_is_named() -> None:
    body = encoded({"loaded": True, "model": "n"})
    expected = Mismatch("backend reports another model than the profile names: n")
    assert read_strata_health(200, body, "m", {"m", "n"}) == expected


@pytest.mark.parametrize("model", ["secret", "", None, 7, ["n"], {"n": 1}])
def test_a_name_that_is_not_configured_is_never_shown(model: Any) -> None:
    body = encoded({"loaded": True, "model": model})
    assert read_strata_health(200, body, "m", {"m", "n"}) == ANOTHER_MODEL


# ---- Strata's activity -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "document",
    [
        {"busy": True, "queued": 0, "phase": "generating", "generated": 7},
        {"busy": False, "queued": 2},
        {"busy": True},
    ],
)
def test_a_strata_that_runs_or_queues_requests_is_busy(document: Any) -> None:
    assert read_strata_activity(200, encoded(document))


@pytest.mark.parametrize(
    "document", [{"busy": False, "queued": 0}, {}, {"busy": 1}, {"queued": "2"}, [], None, "busy"]
)
def test_a_strata_that_does_not_say_that_it_is_busy_is_not(document: Any) -> None:
    assert not read_strata_activity(200, encoded(document))


@pytest.mark.parametrize("status", [201, 404, 500, 503])
def test_an_answer_with_a_wrong_status_says_nothing_about_activity(status: int) -> None:
    assert not read_strata_activity(status, b'{"busy":true}')


def test_what_is_no_json_says_nothing_about_activity() -> None:
    assert not read_strata_activity(200, b'{"busy":tru')


# ---- llama-server ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "verdict"), [(200, Verified()), (503, NotYet()), (404, NO_LLAMA), (500, NO_LLAMA)]
)
def test_a_llama_server_says_by_its_status_whether_it_is_ready(
    status: int, verdict: object
) -> None:
    assert read_llama_health(status) == verdict


def models(*names: Any) -> bytes:
    return encoded({"object": "list", "data": [{"id": name} for name in names]})


@pytest.mark.parametrize("names", [("m",), ("n", "m"), ("m", None)])
def test_a_llama_server_that_lists_its_alias_is_proven(names: tuple[Any, ...]) -> None:
    assert read_model_list(200, models(*names), "m", {"m"}) == Verified()


def test_a_llama_server_that_lists_another_configured_model_is_named() -> None:
    expected = Mismatch("backend reports another model than the profile names: n")
    assert read_model_list(200, models("n", "o"), "m", {"m", "n", "o"}) == expected


@pytest.mark.parametrize("body", [models(), models("secret"), models(None), b'{"data":["m"]}'])
def test_a_llama_server_that_does_not_list_its_alias_is_another(body: bytes) -> None:
    assert read_model_list(200, body, "m", {"m"}) == ANOTHER_MODEL


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"data":{}}', b'{"data":null}'])
def test_what_is_no_model_list_is_no_llama_server(body: bytes) -> None:
    assert read_model_list(200, body, "m", {"m"}) == NO_LIST


def test_a_model_list_with_a_wrong_status_is_none() -> None:
    assert read_model_list(500, models("m"), "m", {"m"}) == NO_LIST


# ---- all of them -------------------------------------------------------------------------------


@given(st.binary(max_size=200), st.integers(min_value=100, max_value=599))
def test_no_bytes_and_no_status_are_taken_for_proof_or_raise(body: bytes, status: int) -> None:
    assert read_ready_file(body, 7, "m") != Verified()
    assert read_strata_health(status, body, "m", {"m"}) != Verified()
    assert read_model_list(status, body, "m", {"m"}) != Verified()
    read_strata_activity(status, body)


near_right = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.sampled_from(["m", 7, "other"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["pid", "model", "loaded", "data", "id", "queued", "busy"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(near_right, st.sampled_from([200, 500, 503]))
def test_json_of_any_shape_proves_what_it_says_and_raises_nothing(
    document: Any, status: int
) -> None:
    body = encoded(document)
    keys = document if isinstance(document, dict) else {}
    is_named = keys.get("model") == "m"
    is_ours = is_named and keys.get("pid") == 7
    assert (read_ready_file(body, 7, "m") == Verified()) == is_ours
    is_strata = is_named and keys.get("loaded") is True and status == 200
    assert (read_strata_health(status, body, "m", {"other"}) == Verified()) == is_strata
    data = keys.get("data")
    entries = data if isinstance(data, list) else []
    is_llama = status == 200 and any(isinstance(e, dict) and e.get("id") == "m" for e in entries)
    assert (read_model_list(status, body, "m", {"other"}) == Verified()) == is_llama
    is_busy = read_strata_activity(status, body)
    assert not is_busy or (status == 200 and {"busy", "queued"} & set(keys))
