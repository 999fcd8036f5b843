"""``docs/strata-router.1``, written from the command line's own help; ``make docs`` places it.

Everything but the frame is argparse's: a command or an option that is added there is in the page, and
what is reworded there is reworded here. No date and no version, so that nothing is said twice.
"""

import argparse
from collections.abc import Iterator, Mapping

from strata_router.cli import arguments

NAME = "strata-router"
SUMMARY = "own one LLM engine on this machine and lend it out fairly"

FILES = {
    "/etc/strata-router/config.json": "The configuration, where the service reads it.",
    "/run/strata-router/control.sock": "The service's control socket; its account's alone.",
    "$XDG_RUNTIME_DIR/strata-router/control.sock": "The control socket of a user's own daemon.",
}
ENVIRONMENT = {"STRATA_ROUTER_SOCKET": "The control socket, where no argument names one."}


def man_page() -> str:
    """The page in man(7)'s macros."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    parser = arguments._parser()
    overview = (parser.description or "").partition("commands:\n")[0]
    yield '.\\" Written by tests/generate_docs.py from the help of the command line: make docs'
    yield f'.TH {NAME.upper()} 1 "" "{NAME}" "User Commands"'
    yield from (".SH NAME", f"{_text(NAME)} \\- {_text(SUMMARY)}")
    yield from (".SH SYNOPSIS", f".B {_text((parser.usage or '').strip())}")
    yield from (".SH DESCRIPTION", *_paragraphs(overview))
    yield from (".SH OPTIONS", *_options(parser))
    yield ".SH COMMANDS"
    for name, command in _commands(parser).items():
        yield from _command(name, command)
    epilog = parser.epilog or ""
    yield from (".SH EXAMPLES", *_verbatim(_section(epilog, "examples")))
    yield from (".SH EXIT STATUS", *_verbatim(_section(epilog, "exit status")))
    yield from (".SH ENVIRONMENT", *_terms(ENVIRONMENT))
    yield from (".SH FILES", *_terms(FILES))
    yield from (".SH SEE ALSO", ".BR systemctl (1),", ".BR systemd.socket (5)")


def _commands(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            choices: Mapping[str, argparse.ArgumentParser] = action.choices
            return choices
    raise AssertionError("the command line has no commands")


def _command(name: str, command: argparse.ArgumentParser) -> Iterator[str]:
    yield from (f".SS {_text(name)}", f".B {_text((command.usage or '').strip())}", ".PP")
    yield from _paragraphs(command.description or "")
    yield from _options(command)
    examples = _section(command.epilog or "", "examples")
    if examples:
        yield from (".PP", *_verbatim(examples))


def _options(command: argparse.ArgumentParser) -> Iterator[str]:
    formatter = command._get_formatter()
    for action in command._actions:
        if action.help is not argparse.SUPPRESS and action.dest != "help":
            words = formatter._format_action_invocation(action)
            yield from (".TP", f".B {_text(words)}", _text(formatter._expand_help(action)))


def _section(epilog: str, heading: str) -> str:
    """The lines below ``heading:`` as far as the next blank one; "" where there is none."""
    blocks = (block.partition(":\n") for block in epilog.split("\n\n"))
    return next((lines for name, _, lines in blocks if name.strip() == heading), "")


def _terms(terms: Mapping[str, str]) -> Iterator[str]:
    for term, meaning in terms.items():
        yield from (".TP", f".B {_text(term)}", _text(meaning))


def _paragraphs(text: str) -> Iterator[str]:
    """Where lines break inside a paragraph is the formatter's affair."""
    for number, paragraph in enumerate(text.strip().split("\n\n")):
        if number:
            yield ".PP"
        yield _text(" ".join(paragraph.split()))


def _verbatim(text: str) -> Iterator[str]:
    """Lines that are laid out already."""
    lines = text.strip("\n").split("\n")
    margin = min(len(line) - len(line.lstrip()) for line in lines)
    yield from (".nf", ".RS", *(_text(line[margin:]) for line in lines), ".RE", ".fi")


def _text(text: str) -> str:
    """Escape what roff would take for its own: backslashes, hyphens, a control character in front."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped
