"""Text on its way to a terminal or a pipe."""

import io
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_router.cli.console import Console, printable
from strata_router.cli.outcome import CommandFailedError, ExitStatus


@given(st.text())
def test_printable_text_has_nothing_that_a_terminal_obeys(text: str) -> None:
    assert printable(text).isprintable()


@given(st.recursive(st.none() | st.integers() | st.text(), lambda v: st.dictionaries(st.text(), v)))
def test_json_stays_the_same_json(value: object) -> None:
    text = json.dumps(value, ensure_ascii=False)
    assert json.loads(printable(text)) == value


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ünïcode ✓", "plain ünïcode ✓"),
        ("\x1b[31m", r"\u001b[31m"),
        ("a\nb\tc", r"a\nb\tc"),
        ("\u202eright to left", r"\u202eright to left"),
        ("\U000e0041tag", r"\udb40\udc41tag"),
    ],
)
def test_what_cannot_be_shown_is_escaped_as_in_json(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_results_and_remarks_go_to_different_streams() -> None:
    out, err = io.StringIO(), io.StringIO()
    console = Console(out, err)
    console.show("result")
    console.say("remark")
    assert (out.getvalue(), err.getvalue()) == ("result\n", "remark\n")
    assert not console.is_terminal


def test_a_result_that_nobody_reads_is_an_error_and_a_remark_is_not() -> None:
    def broken() -> io.TextIOWrapper:
        reader, writer = os.pipe()
        os.close(reader)
        return open(writer, "w")

    with broken() as out, broken() as err:
        console = Console(out, err)
        with pytest.raises(BrokenPipeError):
            console.show("result")
        console.say("remark")
        os.dup2(out.fileno(), err.fileno())  # let it close quietly: out goes nowhere by now


def test_a_result_that_cannot_be_written_is_a_failure_with_the_reason() -> None:
    with (
        open("/dev/full", "w") as full,
        pytest.raises(CommandFailedError, match="No space left on device") as failure,
    ):
        Console(full, full).show("result")
    assert failure.value.status is ExitStatus.FAILED


def test_a_locale_without_our_characters_gets_escapes(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding="ascii"))
    Console.of_process().show("ü")
    assert raw.getvalue() == b"\\xfc\n"


def test_streams_that_the_caller_closed_swallow_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdout", None)
    monkeypatch.setattr("sys.stderr", None)
    console = Console.of_process()
    console.show("result")
    console.say("remark")
    assert not console.is_terminal
