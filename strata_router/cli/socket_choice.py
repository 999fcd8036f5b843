"""Which daemon a command means, and which of its words is the model.

A word with a slash is the socket; model and alias names have none. Source: contract 10.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from strata_router.cli.outcome import CommandFailedError, ExitStatus
from strata_router.core.control import default_socket_path

ENVIRONMENT_VARIABLE = "STRATA_ROUTER_SOCKET"


@dataclass(frozen=True, slots=True)
class Choice:
    """path: of the control socket. is_default: nobody named it. model: None where none was given."""

    path: str
    is_default: bool
    model: str | None


def choose(words: Sequence[str], environment: Mapping[str, str], takes_model: bool) -> Choice:
    """Sort the positional words of a command, in any order.

    Raises CommandFailedError(USAGE) for a word too many, and for a model where none is taken.
    """
    sockets = [word for word in words if "/" in word]
    models = [word for word in words if "/" not in word]
    if len(sockets) > 1:
        raise _usage(f"two sockets were given, {sockets[0]} and {sockets[1]}; name one")
    if models and not takes_model:
        raise _usage(
            f"'{models[0]}' is not a socket path; a path contains a slash, for example "
            f"./{models[0] or 'control.sock'}"
        )
    if len(models) > 1:
        raise _usage(f"two models were given, '{models[0]}' and '{models[1]}'; name one")
    if "" in models:
        raise _usage("the model name is empty; leave it out to let the daemon choose")
    model = models[0] if models else None
    named = sockets[0] if sockets else environment.get(ENVIRONMENT_VARIABLE)
    if named:
        return Choice(named, is_default=False, model=model)
    return Choice(default_socket_path(environment.get("XDG_RUNTIME_DIR")), True, model)


def _usage(message: str) -> CommandFailedError:
    return CommandFailedError(ExitStatus.USAGE, message)
