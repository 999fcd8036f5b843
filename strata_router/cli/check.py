"""``strata-router check CONFIG``: what is wrong with a configuration, or how far it is prepared.

Starts nothing and changes nothing. Reads the configuration as the daemon does, then looks at what it
would meet on this machine (``cli.check_machine``), and ends with a verdict. Called by ``cli.main``.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TextIO

from strata_router.cli.check_machine import Machine, engine_fault, look_around
from strata_router.core.catalog import Catalog
from strata_router.core.config import Config, ConfigError, ModelEntry
from strata_router.core.vocabulary import ModelId, Preparation
from strata_router.runtime.config_file import Loaded, load_config

_OK = 0
_FAILED = 1
_BAD_CONFIG = 2

_NAMED_MODELS = 3
"""Models that the verdict names; the table has them all."""

Row = Sequence[str]


def run(config_path: str | os.PathLike[str], out: TextIO, err: TextIO) -> int:
    """Print every problem to ``err``, one a line, or the report to ``out``; the exit status.

    0 for a configuration with which the daemon would start, be it without a model; 1 where it would
    refuse to on this machine, and when the reader of the output went away; 2 for problems.
    """
    try:
        try:
            loaded = load_config(config_path)
        except ConfigError as exc:
            _print_lines(map(str, exc.problems), err)
            return _BAD_CONFIG
        _print_lines((f"warning: {warning}" for warning in loaded.warnings), err)
        catalog = Catalog(loaded.config, loaded.profiles)
        machine = look_around(loaded.config)
        refusals = _refusals(machine)
        _print_lines(_report(loaded, catalog, machine), out)
        _print_lines(("", f"verdict: {_verdict(loaded.config, catalog, machine, refusals)}"), out)
    except BrokenPipeError:
        return _FAILED
    return _FAILED if refusals else _OK


def _print_lines(lines: Iterable[str], stream: TextIO) -> None:
    """What the stream's encoding cannot say (a family's name in a C locale) is escaped."""
    encoding = stream.encoding or "utf-8"
    for line in lines:
        stream.write(line.encode(encoding, "backslashreplace").decode(encoding) + "\n")


def _refusals(machine: Machine) -> list[str]:
    """Why the daemon would not start; what a daemon on the same control socket holds does not count,
    for that one is to be replaced."""
    return [
        look.refusal
        for look in machine.startup
        if look.refusal is not None and not (machine.socket.in_use and look.in_use)
    ]


def _verdict(config: Config, catalog: Catalog, machine: Machine, refusals: Sequence[str]) -> str:
    if refusals:
        return "the daemon would refuse to start: " + "; ".join(refusals)
    unusable = _unusable(config, catalog, machine)
    lacks = [look.lack for look in machine.startup if look.lack is not None]
    if machine.backend.lack is not None and not machine.socket.in_use:
        lacks.append(machine.backend.lack)
    if not config.enabled_models:
        lacks.append("no model is offered, as enabled_models is empty")
    elif unusable:
        lacks.append(_unusable_words(unusable, len(config.enabled_models)))
    would_start = "it would start"
    if machine.socket.in_use:
        would_start = f"{machine.socket.refusal}. After that it would start"
    if lacks:
        return f"{would_start}; " + "; ".join(lacks)
    return f"{would_start}, ready" if machine.socket.in_use else "ready"


def _unusable(config: Config, catalog: Catalog, machine: Machine) -> dict[ModelId, str]:
    """Why no load of it can succeed, by offered model."""
    found = {}
    for model_id in config.enabled_models:
        state = catalog.preparation(model_id)
        if state is not Preparation.PREPARED_UNVERIFIED:
            found[model_id] = f"is {state}"
            continue
        fault = engine_fault(config, machine, config.models[model_id].engine)
        if fault is not None:
            found[model_id] = f"has no engine ({fault})"
    return found


def _unusable_words(unusable: Mapping[ModelId, str], offered: int) -> str:
    named = [f"{model_id} {why}" for model_id, why in list(unusable.items())[:_NAMED_MODELS]]
    if len(unusable) > _NAMED_MODELS:
        named.append(f"and {len(unusable) - _NAMED_MODELS} more")
    share = f"{len(unusable)} of {offered} models cannot be used"
    if len(unusable) == offered:
        share = f"none of {offered} models can be used" if offered > 1 else "no model can be used"
    return f"{share}: {', '.join(named)}"


def _report(loaded: Loaded, catalog: Catalog, machine: Machine) -> Iterator[str]:
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
    yield from _columns(("place", "state"), _place_rows(machine))
    yield ""
    yield from _columns(("port", "state"), _port_rows(config, machine))


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
    said = [*check.problems, *check.notes]
    if check.other_name is not None:
        said.append(f"the profile says '{check.other_name}'")
    if check.problems and model.profile is not None:
        said.append(f"the file is {model.profile}")
    return "; ".join(said) or "ok"


def _alias_rows(config: Config, catalog: Catalog) -> Iterator[Row]:
    """One row per model, in order, the alias named in the first."""
    effective = catalog.effective_aliases()
    for alias in config.aliases:
        models = effective.get(alias, ())
        if not models:
            yield (alias, "nothing: no model of it is enabled")
        for place, model_id in enumerate(models, 1):
            yield ("" if place > 1 else alias, f"{place}. {model_id}")


def _place_rows(machine: Machine) -> Iterator[Row]:
    yield ("control socket", machine.socket.words)
    yield ("request log", machine.request_log.words)
    yield ("engine log", machine.engine_log.words)
    for label, look in machine.programs.items():
        yield (label, look.words)


def _port_rows(config: Config, machine: Machine) -> Iterator[Row]:
    yield (f"{config.listen} (clients)", machine.listen.words)
    yield (f"127.0.0.1:{config.backend_port} (engine)", machine.backend.words)
