"""``strata-router check CONFIG``: what is wrong with a configuration, or how far it is prepared.

Starts nothing and changes nothing. Reads the configuration as the daemon does, then looks at what it
would meet on this machine as the user that runs the command. Called by ``cli.main``.
"""

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TextIO

from strata_router.core.catalog import Catalog
from strata_router.core.config import Config, ConfigError, ModelEntry
from strata_router.runtime import procfs
from strata_router.runtime.config_file import Loaded, load_config
from strata_router.runtime.control_endpoint import directory_problem

_OK = 0
_FAILED = 1
_BAD_CONFIG = 2

_FOR_OTHERS = stat.S_IRWXG | stat.S_IRWXO

Row = Sequence[str]


def run(config_path: str | os.PathLike[str], out: TextIO, err: TextIO) -> int:
    """Print every problem to ``err``, one a line, or the report to ``out``; the exit status.

    0 for a usable configuration, whatever the report says of this machine; 2 for problems; 1 when
    the reader of the output went away.
    """
    try:
        try:
            loaded = load_config(config_path)
        except ConfigError as exc:
            _print_lines(map(str, exc.problems), err)
            return _BAD_CONFIG
        _print_lines((f"warning: {warning}" for warning in loaded.warnings), err)
        _print_lines(_report(loaded), out)
    except BrokenPipeError:
        return _FAILED
    return _OK


def _print_lines(lines: Iterable[str], stream: TextIO) -> None:
    """What the stream's encoding cannot say (a family's name in a C locale) is escaped."""
    encoding = stream.encoding or "utf-8"
    for line in lines:
        stream.write(line.encode(encoding, "backslashreplace").decode(encoding) + "\n")


def _report(loaded: Loaded) -> Iterator[str]:
    catalog = Catalog(loaded.config, loaded.profiles)
    config = loaded.config
    enabled = frozenset(config.enabled_models)
    yield from _columns(
        ("model", "family", "state", "offered", "profile"),
        [
            (
                model.id,
                model.family,
                catalog.preparation(model.id),
                "yes" if model.id in enabled else "no",
                _profile_state(model, loaded),
            )
            for model in config.models.values()
        ],
    )
    if config.aliases:
        yield ""
        yield from _columns(("alias", "stands for, in this order"), _alias_rows(config, catalog))
    yield ""
    yield from _columns(("place", "state"), _place_rows(config))
    yield ""
    yield from _columns(("port", "state"), _port_rows(config))


def _columns(heading: Row, rows: Iterable[Row]) -> Iterator[str]:
    lines = [heading, *rows]
    # The last column is as long as it likes.
    widths = [max(map(len, cells)) for cells in list(zip(*lines, strict=True))[:-1]]
    for line in lines:
        padded = [cell.ljust(width) for cell, width in zip(line, widths, strict=False)]
        yield "  ".join([*padded, line[-1]])


def _profile_state(model: ModelEntry, loaded: Loaded) -> str:
    """Of a model that is not installed nobody expects a profile yet."""
    check = loaded.profiles.get(model.id)
    if check is None:
        return f"none needed for engine {model.engine}"
    if not model.installed:
        return "-"
    return "; ".join(check.problems + check.notes) or "ok"


def _alias_rows(config: Config, catalog: Catalog) -> Iterator[Row]:
    """One row per model, in order, the alias named in the first."""
    effective = catalog.effective_aliases()
    for alias in config.aliases:
        models = effective.get(alias, ())
        if not models:
            yield (alias, "nothing: no model of it is enabled")
        for place, model_id in enumerate(models, 1):
            yield ("" if place > 1 else alias, f"{place}. {model_id}")


def _place_rows(config: Config) -> Iterator[Row]:
    yield ("control socket", _directory_state(Path(config.control_socket).parent))
    yield ("request log", _log_state(config.request_log_path))
    yield ("engine log", _log_state(config.engine_log_path))
    if config.python is not None:
        yield ("python", _program_state(config.python))
    if config.strata_dir is not None:
        found = os.path.isfile(os.path.join(config.strata_dir, "serve", "server.py"))
        lacks = f"{config.strata_dir} has no serve/server.py: not a Strata checkout"
        yield ("strata_dir", f"{config.strata_dir} has serve/server.py" if found else lacks)
    for engine in config.engines.values():
        if engine.command is not None:
            yield (f"engine {engine.name}", _program_state(engine.command))


def _program_state(path: str) -> str:
    if not os.path.isfile(path):
        return f"{path} is missing"
    if not os.access(path, os.X_OK):
        return f"{path} is not executable by uid {os.geteuid()}: chmod +x {path}"
    return f"{path} is executable"


def _directory_state(directory: Path) -> str:
    """Whether the daemon, run by this user, would put its control socket there."""
    problem = directory_problem(str(directory))
    return problem.removeprefix("control socket directory ") if problem else f"{directory} is ours"


def _log_state(path: str | None) -> str:
    if path is None:
        return "off"
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return _new_log_state(Path(path))
    except OSError as exc:
        return f"{path} cannot be seen: {exc.strerror}"
    if not stat.S_ISREG(status.st_mode):
        return f"{path} is not a regular file"
    if not os.access(path, os.W_OK):
        return f"{path} is not writable by uid {os.geteuid()}"
    if status.st_mode & _FOR_OTHERS:
        return f"{path} has mode {_mode(status)}: chmod 600 {path}"
    return f"{path} is writable, mode {_mode(status)}"


def _new_log_state(path: Path) -> str:
    try:
        status = path.parent.stat()
    except OSError as exc:
        return f"{path} cannot be made: its directory: {exc.strerror}"
    if not os.access(path.parent, os.W_OK | os.X_OK):
        return f"{path} cannot be made: its directory is not writable by uid {os.geteuid()}"
    return f"{path} will be made, mode 0600, in a directory of mode {_mode(status)}"


def _mode(status: os.stat_result) -> str:
    return f"{stat.S_IMODE(status.st_mode):04o}"


def _port_rows(config: Config) -> Iterator[Row]:
    yield (f"{config.listen} (clients)", _port_state(config.listen.port))
    yield (f"127.0.0.1:{config.backend_port} (engine)", _port_state(config.backend_port))


def _port_state(port: int) -> str:
    holder = procfs.port_holder(port)
    return "free" if holder is None else f"held by {holder}"
