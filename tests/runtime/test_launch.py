"""What an engine is given: its environment, and text that the kernel takes."""

import marshal

import pytest

from strata_router.runtime.launch import Launch, SpawnFailed, encode, engine_environment


def test_what_concerns_only_the_daemon_is_not_in_the_engines_environment() -> None:
    base = {
        "PATH": "/bin",
        "STRATA_API_KEY": "secret",
        "STRATA_DEBUG": "1",
        "LISTEN_PID": "1",
        "LISTEN_FDS": "1",
        "LISTEN_FDNAMES": "api",
        "LISTEN_PIDFDID": "1",
        "NOTIFY_SOCKET": "/run/notify",
        "WATCHDOG_PID": "1",
        "WATCHDOG_USEC": "1",
    }
    assert engine_environment(base, {}) == {"PATH": "/bin", "STRATA_DEBUG": "1"}


def test_what_is_added_wins_but_cannot_bring_back_what_was_removed() -> None:
    extra = {"PATH": "/opt", "LD_LIBRARY_PATH": "/lib", "STRATA_API_KEY": "secret"}
    result = engine_environment({"PATH": "/bin"}, extra)
    assert result == {"PATH": "/opt", "LD_LIBRARY_PATH": "/lib"}


def test_a_launch_is_one_message_with_its_length_before_it() -> None:
    launch = Launch(("/bin/x", "\udcff"), "/folder", {"A": "1"}, "/log")
    message = encode(launch, survivors_ms=2000)
    assert int.from_bytes(message[:8], "little") == len(message) - 8
    assert marshal.loads(message[8:]) == (
        [b"/bin/x", b"\xff"],
        b"/folder",
        {b"A": b"1"},
        b"/log",
        2000,
    )


def test_what_is_left_out_stays_out() -> None:
    message = encode(Launch(("/bin/x",), None, {}, None), survivors_ms=1)
    assert marshal.loads(message[8:]) == ([b"/bin/x"], None, {}, None, 1)


@pytest.mark.parametrize(
    "launch",
    [
        Launch(("/bin/x", "a\0b"), None, {}, None),
        Launch(("/bin/x", "\ud800"), None, {}, None),
        Launch(("/bin/x",), "/\0", {}, None),
        Launch(("/bin/x",), None, {"A": "\0"}, None),
        Launch(("/bin/x",), None, {"A\0": ""}, None),
        Launch(("/bin/x",), None, {"A=B": ""}, None),
        Launch(("/bin/x",), None, {"": ""}, None),
        Launch(("/bin/x",), None, {}, "/\0"),
    ],
)
def test_text_that_no_program_can_be_given_is_refused_without_repeating_it(launch: Launch) -> None:
    with pytest.raises(SpawnFailed) as failure:
        encode(launch, survivors_ms=2000)
    assert failure.value.reason == (
        "the engine's command line, environment or paths hold a character that no program can be given"
    )
