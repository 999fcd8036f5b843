"""Words of the command line: what they mean, which are wrong, and what the help says."""

import sys
from importlib import import_module
from types import ModuleType

import pytest

from strata_router import __version__
from strata_router.cli.arguments import parse_arguments
from strata_router.cli.main import main
from strata_router.cli.outcome import CommandFailedError, ExitStatus
from strata_router.cli.socket_choice import Choice, choose
from tests.cli.commands import run

COMMANDS = ("status", "off", "on", "requests", "top", "check", "daemon", "demo")

# --- which socket, which model ---


@pytest.mark.parametrize(
    ("words", "environment", "choice"),
    [
        ([], {}, Choice("/run/strata-router/control.sock", True, None)),
        (
            [],
            {"XDG_RUNTIME_DIR": "/run/user/7"},
            Choice("/run/user/7/strata-router/control.sock", True, None),
        ),
        (
            [],
            {"XDG_RUNTIME_DIR": "/run/user/7", "STRATA_ROUTER_SOCKET": "/s"},
            Choice("/s", False, None),
        ),
        ([], {"STRATA_ROUTER_SOCKET": "here"}, Choice("here", False, None)),
        (
            [],
            {"STRATA_ROUTER_SOCKET": ""},
            Choice("/run/strata-router/control.sock", True, None),
        ),
        (["./a"], {"STRATA_ROUTER_SOCKET": "/s"}, Choice("./a", False, None)),
        (["m"], {"STRATA_ROUTER_SOCKET": "/s"}, Choice("/s", False, "m")),
        (["/a", "m"], {}, Choice("/a", False, "m")),
        (["m", "/a"], {}, Choice("/a", False, "m")),
    ],
)
def test_the_socket_is_the_argument_or_the_environments_or_the_default(
    words: list[str], environment: dict[str, str], choice: Choice
) -> None:
    assert choose(words, environment, takes_model=True) == choice


@pytest.mark.parametrize(
    ("words", "takes_model", "reason"),
    [
        (["/a", "/b"], True, "two sockets were given, /a and /b"),
        (["m", "n"], True, "two models were given, 'm' and 'n'"),
        ([""], True, "the model name is empty"),
        (["m"], False, "'m' is not a socket path; a path contains a slash, for example ./m"),
        ([""], False, "'' is not a socket path"),
    ],
)
def test_a_word_too_many_is_a_usage_error(words: list[str], takes_model: bool, reason: str) -> None:
    with pytest.raises(CommandFailedError) as failure:
        choose(words, {}, takes_model)
    assert failure.value.status is ExitStatus.USAGE
    assert str(failure.value).startswith(reason)


# --- options ---


@pytest.mark.parametrize(
    ("argv", "values"),
    [
        (["status"], {"words": [], "json": False}),
        (["off"], {"words": [], "now": False}),
        (["off", "--now", "/s"], {"words": ["/s"], "now": True}),
        (["off", "/s", "--now"], {"words": ["/s"], "now": True}),
        (["on", "m", "--json", "/s"], {"words": ["m", "/s"], "json": True}),
        (["requests"], {"follow": False, "limit": 20, "json": False, "url": None}),
        (["requests", "-f", "-n", "1000"], {"follow": True, "limit": 1000}),
        (["requests", "--limit=1", "--url", "http://[::1]:1"], {"limit": 1}),
        (["top", "/s"], {"words": ["/s"], "url": None}),
        (["daemon", "c.json"], {"config": "c.json", "log_level": "info"}),
        (["daemon", "--log-level", "debug", "c"], {"config": "c", "log_level": "debug"}),
        (["check", "c.yaml"], {"config": "c.yaml"}),
        (["demo"], {"real": False}),
        (["demo", "--real"], {"real": True}),
    ],
)
def test_arguments_are_understood(argv: list[str], values: dict[str, object]) -> None:
    arguments = vars(parse_arguments(argv))
    assert arguments["command"] == argv[0]
    assert {name: arguments[name] for name in values} == values


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["launch"],
        ["status", "--now"],
        ["off", "--no"],
        ["on", "m", "--frob"],
        ["requests", "--limit", "0"],
        ["requests", "--limit", "1001"],
        ["requests", "--limit", "٣"],
        ["requests", "--limit", "many"],
        ["top", "--json"],
        ["daemon"],
        ["daemon", "--log-level", "loud", "c"],
        ["check"],
        ["check", "a", "b"],
        ["demo", "now"],
    ],
)
def test_wrong_usage_exits_with_2_and_names_the_command(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        parse_arguments(argv)
    assert left.value.code == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "strata-router" in shown.err


def test_wrong_usage_reaches_the_shell() -> None:
    assert run().returncode == 2
    assert run("on", "a", "b").returncode == 2
    assert run("requests", "--url", "http://127.0.0.1:1", "/s").returncode == 2
    assert run("top", "--url", "http://127.0.0.1:1", "/s").returncode == 2


# --- help ---


def test_the_overview_names_every_command() -> None:
    ran = run("--help")
    assert ran.returncode == 0
    for command in COMMANDS:
        assert f"\n  {command} " in ran.stdout
    assert run().stderr == ran.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_within_80_columns(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as left:
        parse_arguments([command, "--help"])
    assert left.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: strata-router {command}")
    assert "exit status:" in shown
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize("command", ["status", "off", "on", "requests", "top"])
def test_the_operators_commands_have_examples_and_name_the_default_socket(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse_arguments([command, "--help"])
    shown = capsys.readouterr().out
    assert f"examples:\n  strata-router {command}" in shown
    assert "$STRATA_ROUTER_SOCKET" in shown
    assert "/run/strata-router" in shown


def test_the_version_is_the_packages() -> None:
    ran = run("--version")
    assert (ran.returncode, ran.stdout) == (0, f"strata-router {__version__}\n")


# --- commands that live elsewhere ---


@pytest.mark.parametrize(
    ("argv", "module", "function", "called_with"),
    [
        (
            ["daemon", "--log-level", "debug", "/c.json"],
            "strata_router.runtime.daemon",
            "run_daemon",
            ("/c.json", "debug"),
        ),
        (["demo", "--real"], "strata_router.demo", "run", (True,)),
        (["check", "/c.json"], "strata_router.cli.check", "run", ("/c.json", "out", "err")),
    ],
)
def test_other_commands_are_started_with_their_arguments(
    argv: list[str],
    module: str,
    function: str,
    called_with: tuple[object, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[tuple[object, ...]] = []
    stand_in = ModuleType(module)

    def called(*arguments: object) -> int:
        names = {id(sys.stdout): "out", id(sys.stderr): "err"}
        calls.append(tuple(names.get(id(argument), argument) for argument in arguments))
        return 7

    setattr(stand_in, function, called)
    parent, _, name = module.rpartition(".")
    monkeypatch.setitem(sys.modules, module, stand_in)
    monkeypatch.setattr(import_module(parent), name, stand_in, raising=False)
    assert main(argv) == 7
    assert calls == [called_with]


def test_a_command_that_argparse_does_not_offer_is_a_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arguments = parse_arguments(["status"])
    arguments.command = "launch"
    monkeypatch.setattr("strata_router.cli.main.parse_arguments", lambda argv: arguments)
    with pytest.raises(AssertionError, match="launch"):
        main(["status"])
