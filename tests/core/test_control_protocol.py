"""The control protocol's lines and values; literal lines are the design document's own."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from strata_router.core.control import (
    LINE_LIMIT_BYTES,
    UNKNOWN_COMMAND,
    Command,
    Done,
    Finished,
    Off,
    On,
    Op,
    Progress,
    Rejected,
    SetRouting,
    Status,
    default_socket_path,
    read_command,
    read_event,
    routing_line,
    status_line,
)

TEXT = st.text(st.characters(codec="utf-8"))
COMMANDS: st.SearchStrategy[Command] = st.one_of(
    st.just(Status()),
    st.builds(SetRouting, st.booleans()),
    st.builds(Off, st.booleans()),
    st.builds(On, st.none() | st.text(st.characters(codec="utf-8"), min_size=1, max_size=200)),
)


@pytest.mark.parametrize(
    ("line", "command"),
    [
        (b"status", Status()),
        (b"on", SetRouting(on=True)),
        (b"off", SetRouting(on=False)),
        (b"  off \r", SetRouting(on=False)),
        (b'{"cmd":"status"}', Status()),
        (b'{"cmd":"off","now":false}', Off(now=False)),
        (b'{"cmd":"off","now":true}', Off(now=True)),
        (b'{"cmd":"off"}', Off(now=False)),
        (b'{"cmd":"on","model":null}', On(None)),
        (b'{"cmd":"on"}', On(None)),
        (b' { "model": "model-a", "cmd": "on" } ', On("model-a")),
    ],
)
def test_a_line_that_the_document_describes_is_understood(line: bytes, command: Command) -> None:
    assert read_command(line) == command


@pytest.mark.parametrize(
    "line",
    [
        b"frobnicate",
        b"STATUS",
        b"on model-a",
        b"[1]",
        b'"off"',
        b"null",
        b"\xff\xfe",
        b'{"cmd":"stop"}',
        b'{"cmd":null}',
        b'{"cmd":["off"]}',
    ],
)
def test_an_unknown_command_is_called_exactly_that(line: bytes) -> None:
    assert read_command(line) == Rejected("unknown control command")
    assert Rejected(UNKNOWN_COMMAND).to_line() == b'{"error":"unknown control command"}\n'


@pytest.mark.parametrize(
    ("line", "part_of_the_reason"),
    [
        (b"", "empty"),
        (b" \r\t", "empty"),
        (b"{", "not valid JSON"),
        (b'{"cmd":"off",}', "not valid JSON"),
        (b'{"cmd":"off"} x', "not valid JSON"),
        (b'{"cmd":"on","model":"\\ud800"}', "not valid JSON"),
        (b"{}", "'cmd'"),
        (b'{"command":"off"}', "'cmd'"),
        (b'{"cmd":"status","x":1}', "no other field"),
        (b'{"cmd":"off","model":null}', "no other field than 'now'"),
        (b'{"cmd":"on","now":true}', "no other field than 'model'"),
        (b'{"cmd":"off","now":1}', "true or false"),
        (b'{"cmd":"off","now":null}', "true or false"),
        (b'{"cmd":"on","model":7}', "'model' must be"),
        (b'{"cmd":"on","model":""}', "'model' must be"),
        (b"x" * (LINE_LIMIT_BYTES + 1), "longer than 65536 bytes"),
    ],
)
def test_a_line_that_is_not_wholly_understood_is_rejected_with_the_reason(
    line: bytes, part_of_the_reason: str
) -> None:
    rejected = read_command(line)
    assert isinstance(rejected, Rejected)
    assert part_of_the_reason in rejected.error


def test_the_longest_line_is_64_kib() -> None:
    longest = b'{"cmd":"off"}'.ljust(65536)
    assert read_command(longest) == Off(now=False)
    assert isinstance(read_command(longest + b" "), Rejected)


@given(st.binary() | TEXT.map(str.encode) | st.binary().map(lambda tail: b'{"cmd":"on"' + tail))
@example(b"[" * 2000)
@example(b"{" + b'"a":{' * 2000)
def test_any_bytes_are_a_command_or_rejected_in_one_line(line: bytes) -> None:
    match read_command(line):
        case Rejected() as rejected:
            assert list(json.loads(rejected.to_line())) == ["error"]
        case command:
            assert read_command(command.to_line().rstrip(b"\n")) == command


@given(COMMANDS)
def test_a_command_survives_the_wire(command: Command) -> None:
    line = command.to_line()
    assert line.count(b"\n") == 1
    assert read_command(line.removesuffix(b"\n")) == command


def test_a_command_is_written_as_the_document_shows() -> None:
    assert Status().to_line() == b"status\n"
    assert SetRouting(on=True).to_line() == b"on\n"
    assert SetRouting(on=False).to_line() == b"off\n"
    assert Off(now=False).to_line() == b'{"cmd":"off","now":false}\n'
    assert On(None).to_line() == b'{"cmd":"on","model":null}\n'
    assert (Off(now=True).op, On("model-a").op) == (Op.OFF, Op.ON)


def test_a_progress_line_has_the_documented_fields() -> None:
    progress = Progress(Op.OFF, "unload", "unloading model model-a", 6100)
    assert progress.to_line() == (
        b'{"event":"progress","op":"off","phase":"unload",'
        b'"message":"unloading model model-a","elapsed_ms":6100}\n'
    )


@given(st.sampled_from(Op), TEXT, TEXT, st.integers(0, 10**15))
def test_progress_survives_the_wire(op: Op, phase: str, message: str, elapsed_ms: int) -> None:
    progress = Progress(op, phase, message, elapsed_ms)
    assert progress.to_line().count(b"\n") == 1
    assert read_event(progress.to_line()) == progress


def test_the_final_line_has_the_outcome_and_every_field_of_status() -> None:
    status = {"pid": 1, "loaded": None, "message": "never shown", "event": "never shown"}
    finished = Finished(Op.ON, ok=True, message="already on", elapsed_ms=3, status=status)
    assert finished.to_line() == (
        b'{"event":"done","ok":true,"op":"on","message":"already on","elapsed_ms":3,'
        b'"pid":1,"loaded":null}\n'
    )
    assert read_event(finished.to_line()) == Done(ok=True, message="already on")


def test_single_answers_are_one_line_of_json() -> None:
    assert status_line({"pid": 1, "loaded": "a\nb"}) == b'{"pid":1,"loaded":"a\\nb"}\n'
    assert routing_line(on=True) == b'{"routing":true}\n'
    assert routing_line(on=False) == b'{"routing":false}\n'


def test_an_error_line_is_a_rejection_for_the_client() -> None:
    assert read_event(b'{"error":"unknown control command"}') == Rejected(UNKNOWN_COMMAND)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"HTTP/1.1 400 Bad Request",
        b"[]",
        b'{"event":"note","text":"from a newer daemon"}',
        b'{"event":"progress","op":"off"}',
        b'{"event":"progress","op":"sleep","phase":"x","message":"y","elapsed_ms":1}',
        b'{"event":"progress","op":"off","phase":"x","message":"y","elapsed_ms":-1}',
        b'{"event":"done","ok":"yes","message":"y"}',
        b'{"error":7}',
    ],
)
def test_a_line_that_this_version_does_not_know_is_nothing(line: bytes) -> None:
    assert read_event(line) is None


@given(st.binary())
def test_any_bytes_from_a_daemon_are_an_event_or_nothing(line: bytes) -> None:
    assert isinstance(read_event(line), Progress | Done | Rejected | None)


@pytest.mark.parametrize(
    ("xdg_runtime_dir", "path"),
    [
        ("/run/user/1000", "/run/user/1000/strata-router/control.sock"),
        ("/run/user/1000/", "/run/user/1000/strata-router/control.sock"),
        (None, "/run/strata-router/control.sock"),
        ("", "/run/strata-router/control.sock"),
        ("run/user/1000", "/run/strata-router/control.sock"),
    ],
)
def test_the_default_socket_is_in_the_runtime_directory(
    xdg_runtime_dir: str | None, path: str
) -> None:
    assert default_socket_path(xdg_runtime_dir) == path
