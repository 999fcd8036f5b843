"""The command line's words: every command, its arguments and its help.

Nothing is carried out here, and nothing heavy imported: ``--help`` answers at once.
"""

import argparse
import sys

from strata_router import __version__
from strata_router.cli.outcome import ExitStatus

LOG_LEVELS = ("debug", "info", "warning", "error")

DEFAULT_URL = "http://127.0.0.1:8088"
"""Where the records are read when neither the user nor the daemon says. Source: contract 3."""

RECORDS_LIMIT = 1000
"""The most records that the daemon gives at once. Source: design, "Reading recent records"."""

DEFAULT_RECORDS = 20

_OVERVIEW = """\
One daemon owns one model server (the engine) on this machine and lends it out.

commands:
  status     what is loaded, what is going on, why the last start failed
  off        give the engine's memory back; returns when it is free
  on         load a model; returns when it answers
  requests   what the latest requests did
  top        all of it, live in the terminal

  check      examine a configuration file; starts nothing
  daemon     run the daemon; normally the service does this
  demo       try all of this with a built-in engine: no GPU, no weights
"""

_MAIN_EXAMPLES = """\
examples:
  strata-router status                 how things stand
  strata-router off                    let running answers finish, then free the GPU
  strata-router off --now              free the GPU now, cut running answers
  strata-router on                     load the last used model again
  strata-router requests --follow      watch requests as they end
  strata-router COMMAND --help         more about one command
"""

_EXIT_STATUS = """\
exit status:
  0 done   1 failed   2 wrong usage or configuration
  3 no daemon was reached   130 interrupted (Ctrl-C)
"""

_SOCKET = """\
SOCKET is the daemon's control socket; an argument with a slash in it is taken
for that. Without one: $STRATA_ROUTER_SOCKET, else the control.sock in
$XDG_RUNTIME_DIR/strata-router, else (no XDG_RUNTIME_DIR) in /run/strata-router.
"""

_STATUS = """\
Show how the daemon stands, without waiting for anything it does: a table on a
terminal, one line of JSON in a pipe.
"""

_STATUS_EXAMPLES = """\
examples:
  strata-router status
  strata-router status /run/strata-router/control.sock
  strata-router status | python3 -m json.tool
"""

_OFF = """\
Free the engine's memory and return when that is done.

From the first moment new and waiting requests get 503. Answers that are being
generated may finish first, however long that takes; --now cuts them. Then the
engine is stopped. The daemon itself stays up; 'strata-router on' undoes it.

Ctrl-C stops the wait, but requests still get 503 afterwards: continue with
'strata-router off --now', or go back with 'strata-router on'.
"""

_OFF_EXAMPLES = """\
examples:
  strata-router off                    wait for running answers
  strata-router off --now              do not wait
  strata-router off && start-my-game   the memory really is free by then
"""

_ON = """\
Load a model, and return when it answers and requests are let in.

MODEL is the name of a model or an alias. Left out, it is the model that is
loaded, else the one that was loaded last, else the first enabled one. Never
another one instead: if it does not load, the command fails with the reason,
and requests are let in or refused as before.

Ctrl-C ends the load.
"""

_ON_EXAMPLES = """\
examples:
  strata-router on
  strata-router on qwen3.8-flash-next
  strata-router on /run/strata-router/control.sock qwen3.8-flash-next
"""

_REQUESTS = """\
Show the latest requests, oldest first: when each ended, the model that
answered, how long it waited in the queue and for the model to load, the time to
its first token, its prompt/completion tokens, the decode rate, how it ended. A
dash means that it is not known.

What went wrong is named with the HTTP status that the client got. Where that is
200 (routing_off 200, upstream_error 200), the answer had begun already, and the
client was told by an error within the stream or by its breaking off.
"""

_REQUESTS_EXAMPLES = """\
examples:
  strata-router requests --limit 50
  strata-router requests --follow
  strata-router requests --json | grep upstream_error
  strata-router requests --url http://127.0.0.1:18088   through an ssh tunnel
"""

_TOP = """\
Show the engine, the active answers, the queue with the reason why each request
waits, and the latest requests, once a second. The bars are the time in the
queue (grey), loading (yellow), reading the prompt (blue) and generating
(green). Leave with q. The page at / of the daemon shows the same in a browser.

Needs the Python package rich: python -m pip install 'rich>=13', with the python
that runs strata-router (without rich, the command says which).
"""

_TOP_EXAMPLES = """\
examples:
  strata-router top
  strata-router top --url http://127.0.0.1:18088        through an ssh tunnel
"""

_CHECK = """\
Read a configuration file and the profiles it names, report every problem, and
show what would be served. Starts nothing and changes nothing. Ends with a
verdict. Status 1: the daemon would refuse to start, 2: the file has problems.
"""

_DAEMON = """\
Run the daemon in the foreground until SIGTERM. Configuration and profiles are
read once, at the start; examine them before with 'strata-router check'.
"""

_DEMO = """\
Start the daemon on a built-in engine, with its own configuration and files in a
temporary directory, and say what to try. Ctrl-C ends it and leaves nothing.
"""


def parse_arguments(argv: list[str]) -> argparse.Namespace:
    """The command in ``command`` and its arguments.

    Help and ``--version`` end the process with 0, a usage error with 2, as argparse does.
    ``words`` are the free words of status, off, on, requests and top, wherever they stood.
    """
    parser = _parser()
    if not argv:
        parser.print_help(sys.stderr)
        sys.exit(ExitStatus.USAGE)
    # parse_known_args: argparse leaves a free word that follows an option after another word
    # unclaimed ("on MODEL --json SOCKET"); Python 3.12 still does.
    arguments, left_over = parser.parse_known_args(argv)
    options = [word for word in left_over if word.startswith("-")]
    if options or (left_over and not hasattr(arguments, "words")):
        parser.error(f"'{arguments.command}' does not take {' '.join(options or left_over)}")
    if left_over:
        arguments.words += left_over
    return arguments


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="strata-router",
        usage="strata-router COMMAND [ARGUMENTS]",
        description=_OVERVIEW,
        epilog=f"{_MAIN_EXAMPLES}\n{_EXIT_STATUS}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"strata-router {__version__}")
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, help=argparse.SUPPRESS
    )
    _add_status(commands)
    _add_off(commands)
    _add_on(commands)
    _add_requests(commands)
    _add_top(commands)
    _add_check(commands)
    _add_daemon(commands)
    _add_demo(commands)
    return parser


_Commands = argparse._SubParsersAction  # the type of add_subparsers' result has no public name


def _add(
    commands: "_Commands[argparse.ArgumentParser]", name: str, usage: str, text: str, epilog: str
) -> argparse.ArgumentParser:
    return commands.add_parser(
        name,
        prog=f"strata-router {name}",
        usage=f"strata-router {name} {usage}",
        description=text,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def _add_words(parser: argparse.ArgumentParser, name: str) -> None:
    parser.add_argument("words", nargs="*", metavar=name, help=argparse.SUPPRESS)


def _add_json(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--json", action="store_true", help=text)


def _add_status(commands: "_Commands[argparse.ArgumentParser]") -> None:
    epilog = f"{_STATUS_EXAMPLES}\n{_SOCKET}\n{_EXIT_STATUS}"
    parser = _add(commands, "status", "[--json] [SOCKET]", _STATUS, epilog)
    _add_words(parser, "SOCKET")
    _add_json(parser, "JSON also on a terminal")


def _add_off(commands: "_Commands[argparse.ArgumentParser]") -> None:
    epilog = f"{_OFF_EXAMPLES}\n{_SOCKET}\n{_EXIT_STATUS}"
    parser = _add(commands, "off", "[--now] [--json] [SOCKET]", _OFF, epilog)
    _add_words(parser, "SOCKET")
    parser.add_argument("--now", action="store_true", help="cut running answers, do not wait")
    _add_json(parser, "the final event as JSON on standard output, also on a terminal")


def _add_on(commands: "_Commands[argparse.ArgumentParser]") -> None:
    epilog = f"{_ON_EXAMPLES}\n{_SOCKET}\n{_EXIT_STATUS}"
    parser = _add(commands, "on", "[--json] [SOCKET] [MODEL]", _ON, epilog)
    _add_words(parser, "SOCKET or MODEL")
    _add_json(parser, "the final event as JSON on standard output, also on a terminal")


def _add_requests(commands: "_Commands[argparse.ArgumentParser]") -> None:
    epilog = f"{_REQUESTS_EXAMPLES}\n{_SOCKET}\n{_EXIT_STATUS}"
    usage = "[-f] [-n N] [--json] [SOCKET | --url URL]"
    parser = _add(commands, "requests", usage, _REQUESTS, epilog)
    _add_words(parser, "SOCKET")
    parser.add_argument(
        "-f", "--follow", action="store_true", help="go on with each request that ends"
    )
    parser.add_argument(
        "-n",
        "--limit",
        type=_record_count,
        default=DEFAULT_RECORDS,
        metavar="N",
        help=f"begin with the newest N, 1 to {RECORDS_LIMIT} (default {DEFAULT_RECORDS})",
    )
    _add_json(parser, "whole records, one JSON object per line")
    _add_url(parser)


def _add_top(commands: "_Commands[argparse.ArgumentParser]") -> None:
    epilog = f"{_TOP_EXAMPLES}\n{_SOCKET}\n{_EXIT_STATUS}"
    parser = _add(commands, "top", "[SOCKET | --url URL]", _TOP, epilog)
    _add_words(parser, "SOCKET")
    _add_url(parser)


def _add_url(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--url",
        help="where the daemon serves HTTP; without it the control socket is asked, and if that "
        f"cannot be reached it is {DEFAULT_URL}",
    )


def _add_check(commands: "_Commands[argparse.ArgumentParser]") -> None:
    parser = _add(commands, "check", "CONFIG", _CHECK, _EXIT_STATUS)
    parser.add_argument("config", metavar="CONFIG", help="the file, JSON or YAML")


def _add_daemon(commands: "_Commands[argparse.ArgumentParser]") -> None:
    parser = _add(commands, "daemon", "[--log-level LEVEL] CONFIG", _DAEMON, _EXIT_STATUS)
    parser.add_argument("config", metavar="CONFIG", help="the file, JSON or YAML")
    parser.add_argument(
        "--log-level",
        choices=LOG_LEVELS,
        default="info",
        metavar="LEVEL",
        help=f"{', '.join(LOG_LEVELS)} (default info); debug adds a line per decision",
    )


def _add_demo(commands: "_Commands[argparse.ArgumentParser]") -> None:
    parser = _add(commands, "demo", "[--real]", _DEMO, _EXIT_STATUS)
    parser.add_argument(
        "--real", action="store_true", help="run llama-server with a real, very small model"
    )


def _record_count(text: str) -> int:
    if text.isascii() and text.isdigit() and 1 <= int(text) <= RECORDS_LIMIT:
        return int(text)
    raise argparse.ArgumentTypeError(f"must be a whole number from 1 to {RECORDS_LIMIT}")
