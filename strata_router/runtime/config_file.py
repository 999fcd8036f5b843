"""Reads the configuration and the Strata profiles from disk and hands them to ``core.config``.

Blocks on the file system, so a running event loop calls ``read_profile`` from a thread. Only regular
files are read, whole, within a bound; whatever goes wrong is a problem in words, never an OSError.
Called by the daemon at start, by ``check``, and before each spawn of an engine.
"""

import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from strata_router.core.config import (
    Config,
    ConfigError,
    Defaults,
    EngineKindName,
    ModelEntry,
    Parsed,
    Problem,
    ProfileCheck,
    check_profile,
    key_path,
    parse_config,
)
from strata_router.core.vocabulary import ModelId
from strata_router.runtime.config_syntax import Document, SyntaxFault, read_json, read_yaml

_CONFIG_BYTES = 32 * 1024 * 1024
"""10,000 models take about 4 MiB."""

_PROFILE_BYTES = 1024 * 1024
_YAML_SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A usable configuration with what belongs to it on disk.

    profiles: one check per model that a Strata engine runs, good or bad.
    warnings: for the operator's terminal and the log; they name keys, never paths of profiles.
    """

    config: Config
    warnings: tuple[Problem, ...]
    profiles: dict[ModelId, ProfileCheck]


@dataclass(frozen=True, slots=True)
class _Content:
    data: bytes
    others_may_write: bool


class _Unreadable(Exception):
    """The file's content cannot be had; the message says why, in words, and not which file it is."""


def load_config(path: str | os.PathLike[str]) -> Loaded:
    """The configuration in the file, YAML by suffix (.yaml, .yml) and else JSON, and its profiles.

    Raises ConfigError with every problem there is.
    """
    file = Path(path)
    try:
        content = _read(file, _CONFIG_BYTES)
        is_yaml = file.suffix.lower() in _YAML_SUFFIXES
        document = read_yaml(content.data) if is_yaml else read_json(content.data)
    except (_Unreadable, SyntaxFault) as exc:
        raise ConfigError((Problem("", f"{_named(file)} {exc}"),)) from exc
    parsed = _parse(document)
    warnings = [_others_may_write("", _named(file))] if content.others_may_write else []
    warnings += parsed.warnings
    profiles: dict[ModelId, ProfileCheck] = {}
    for model in parsed.config.models.values():
        if parsed.config.engines[model.engine].kind is EngineKindName.STRATA:
            profiles[model.id], others_may_write = _check(model)
            if others_may_write:
                path_in_config = key_path(key_path("models", model.id), "profile")
                warnings.append(_others_may_write(path_in_config, "that file"))
    return Loaded(parsed.config, tuple(warnings), profiles)


def read_profile(model: ModelEntry) -> ProfileCheck:
    """What the profile of a Strata model is worth at this moment; blocks, so call it in a thread."""
    return _check(model)[0]


def _parse(document: Document) -> Parsed:
    defaults = Defaults(os.environ.get("XDG_RUNTIME_DIR"))
    if not document.repetitions:
        return parse_config(document.value, defaults)
    try:
        parse_config(document.value, defaults)
    except ConfigError as exc:
        raise ConfigError(document.repetitions + exc.problems) from exc
    raise ConfigError(document.repetitions)


def _check(model: ModelEntry) -> tuple[ProfileCheck, bool]:
    """The check, and whether others may write the file."""
    if model.profile is None:
        return _refused("no profile is set: name the file that Strata's setup wrote"), False
    try:
        content = _read(Path(model.profile), _PROFILE_BYTES)
    except _Unreadable as exc:
        return _refused(f"profile {exc}"), False
    try:
        # Strata too skips a byte order mark. Of a repeated key it too takes the last.
        document = json.loads(content.data.decode("utf-8-sig"), parse_constant=_not_json)
    except (ValueError, RecursionError):
        fault = "is not JSON in UTF-8" if content.data.strip() else "is empty"
        check = _refused(f"profile {fault}: run Strata's setup again")
    else:
        check = check_profile(document, model.upstream_name)
    return check, content.others_may_write


def _refused(problem: str) -> ProfileCheck:
    return ProfileCheck(None, (problem,))


def _others_may_write(path_in_config: str, file: str) -> Problem:
    return Problem(
        path_in_config,
        "is writable by group or others, who could have the daemon run anything: "
        f"chmod go-w {file}",
    )


def _named(file: Path) -> str:
    """The path on one line, whatever is in it."""
    name = str(file)
    return name if name.isprintable() else ascii(name)


def _not_json(_constant: str) -> NoReturn:
    """Python's reader takes NaN and Infinity; JSON does not have them."""
    raise ValueError


def _read(path: Path, limit_bytes: int) -> _Content:
    """Raises _Unreadable."""
    try:
        with open(path, "rb", opener=_open_without_waiting) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise _Unreadable("is not a regular file; give the path of one")
            data = file.read(limit_bytes + 1)
    except OSError as exc:
        raise _Unreadable(f"cannot be read: {exc.strerror}; check path and permissions") from exc
    except ValueError as exc:
        # A zero byte in the path never reaches the kernel.
        raise _Unreadable("cannot be read: its path holds a zero byte") from exc
    if len(data) > limit_bytes:
        raise _Unreadable(f"is larger than {limit_bytes} bytes; this cannot be the right file")
    return _Content(data, bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)))


def _open_without_waiting(path: str, flags: int) -> int:
    """Opening a FIFO that nobody writes would wait for ever."""
    return os.open(path, flags | os.O_NONBLOCK)
