"""``strata-router``: runs one command and turns its end into an exit status.

Every command imports what it needs when it runs, so that ``--help`` and ``status`` do not wait for
the daemon's libraries. Source: contract 10.
"""

import argparse
import os
import signal
import sys

from strata_router.cli.arguments import DEFAULT_URL, parse_arguments
from strata_router.cli.console import Console
from strata_router.cli.outcome import CommandFailedError, ExitStatus

_INTERRUPTED = {
    "off": "off: interrupted, the wait is cancelled; routing stays as it is now, normally disabled: "
    "run 'strata-router off --now' or 'strata-router on' next",
    "on": "on: interrupted, the wait or load is cancelled",
}


def main(argv: list[str] | None = None) -> int:
    """The command's exit status. argv: without the program's name; None takes the process's."""
    arguments = parse_arguments(sys.argv[1:] if argv is None else argv)
    command: str = arguments.command
    console = Console.of_process()
    try:
        return _run(command, arguments, console)
    except CommandFailedError as failure:
        console.say(f"strata-router {command}: {failure}")
        return failure.status
    except BrokenPipeError:
        # `strata-router requests | head`: the reader has enough.
        return ExitStatus.FAILED
    except KeyboardInterrupt:
        # A second Ctrl-C must not turn the line that answers the first into a traceback.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        console.say(_INTERRUPTED.get(command, f"{command}: interrupted"))
        return ExitStatus.INTERRUPTED


def _run(command: str, arguments: argparse.Namespace, console: Console) -> int:
    match command:
        case "status":
            return _status(arguments, console)
        case "off" | "on":
            return _operate(arguments, console)
        case "requests":
            return _requests(arguments, console)
        case "top":
            return _top(arguments)
        case "check":
            from strata_router.cli import check

            return check.run(arguments.config, sys.stdout, sys.stderr)
        case "daemon":
            from strata_router.runtime.daemon import run_daemon

            return run_daemon(arguments.config, arguments.log_level)
        case "demo":
            from strata_router import demo

            return demo.run(arguments.real)
    raise AssertionError(f"argparse let the command {command} through")


def _status(arguments: argparse.Namespace, console: Console) -> int:
    import orjson

    from strata_router.cli.control_client import fetch_status
    from strata_router.cli.socket_choice import choose
    from strata_router.cli.status_table import status_table

    status = fetch_status(choose(arguments.words, os.environ, takes_model=False))
    if arguments.json or not console.is_terminal:
        console.show(orjson.dumps(status).decode())
    else:
        for line in status_table(status):
            console.show(line)
    return ExitStatus.DONE


def _operate(arguments: argparse.Namespace, console: Console) -> int:
    """Progress and the last word go to standard error; standard output gets the final event, unless
    that is a terminal, where the last word says it already (``--json`` insists)."""
    from strata_router.cli.control_client import operate
    from strata_router.cli.socket_choice import choose
    from strata_router.core.control import Off, On, Progress

    choice = choose(arguments.words, os.environ, takes_model=arguments.command == "on")
    command = On(choice.model) if arguments.command == "on" else Off(arguments.now)

    def tell(progress: Progress) -> None:
        console.say(f"[{progress.elapsed_ms / 1000:6.1f}s] {progress.message}")

    done, final_line = operate(choice, command, tell)
    console.say(f"{command.op}{'' if done.ok else ' failed'}: {done.message}")
    if arguments.json or not console.is_terminal:
        console.show(final_line.decode().rstrip("\n"))
    return ExitStatus.DONE if done.ok else ExitStatus.FAILED


def _requests(arguments: argparse.Namespace, console: Console) -> int:
    from strata_router.cli.requests_command import JsonView, TableView, follow, show_newest
    from strata_router.cli.requests_feed import RequestsSource

    if arguments.url and arguments.words:
        raise CommandFailedError(ExitStatus.USAGE, "give a socket or --url, not both")
    source = RequestsSource(arguments.url or _url_of_the_daemon(arguments.words))
    view = JsonView(console) if arguments.json else TableView(console)
    if arguments.follow:
        follow(source, arguments.limit, view, console)
    else:
        show_newest(source, arguments.limit, view)
    return ExitStatus.DONE


def _top(arguments: argparse.Namespace) -> int:
    from strata_router.cli import top
    from strata_router.cli.daemon_http import DaemonHttp

    if arguments.url and arguments.words:
        raise CommandFailedError(ExitStatus.USAGE, "give a socket or --url, not both")
    return top.run(DaemonHttp(arguments.url or _url_of_the_daemon(arguments.words)))


def _url_of_the_daemon(words: list[str]) -> str:
    """Where the daemon says that it listens. Without one on the default socket, or without the right
    to ask it, the default address: records are for every local user."""
    from strata_router.cli.control_client import fetch_status
    from strata_router.cli.socket_choice import choose

    choice = choose(words, os.environ, takes_model=False)
    try:
        listen = fetch_status(choice).get("listen")
    except CommandFailedError as failure:
        if failure.status is not ExitStatus.UNREACHABLE or not choice.is_default:
            raise
        listen = None
    return f"http://{listen}" if isinstance(listen, str) else DEFAULT_URL
