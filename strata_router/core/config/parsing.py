"""A configuration document becomes a Config, or a list of everything that is wrong with it.

Reads by the key table, then checks what joins keys, then builds; a Config exists only if nothing was
wrong. Files, syntax and permissions are ``runtime.config_file``'s, which calls this once.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from strata_router.core.config.entries import Draft, engine_entry, model_entry
from strata_router.core.config.keys import CONFIG
from strata_router.core.config.problems import ConfigError, Findings, Problem
from strata_router.core.config.references import check_references
from strata_router.core.config.schema import (
    BUILTIN_ENGINE,
    Config,
    EngineEntry,
    EngineKindName,
    ModelEntry,
    Readiness,
)
from strata_router.core.socket_path import default_socket_path
from strata_router.core.vocabulary import AliasName, ModelId, Tier


@dataclass(frozen=True, slots=True)
class Defaults:
    """What defaults take from the process's surroundings.

    runtime_dir: the value of XDG_RUNTIME_DIR, or None where it is not set.
    """

    runtime_dir: str | None


@dataclass(frozen=True, slots=True)
class Parsed:
    """A usable configuration, and what its author should nevertheless know."""

    config: Config
    warnings: tuple[Problem, ...]


def parse_config(document: object, defaults: Defaults) -> Parsed:
    """The configuration that the document describes.

    document: JSON values as a reader of JSON or YAML makes them; anything may be wrong with it.
    Raises ConfigError with every problem there is, in the order of the key table.
    """
    findings = Findings()
    values = CONFIG.read(document, "", findings)
    if values is not None:
        check_references(values, findings)
    if values is None or findings.problems:
        raise ConfigError(tuple(findings.problems))
    return Parsed(_config(values, defaults), tuple(findings.warnings))


def _config(values: Draft, defaults: Defaults) -> Config:
    """Values without problems, with what absent keys take from others put in."""
    models = _models(values["models"])
    enabled, drain_ms = values["enabled_models"], values["drain_ms"]
    made: dict[str, Any] = {
        "control_socket": values["control_socket"] or default_socket_path(defaults.runtime_dir),
        "models": models,
        "enabled_models": tuple(sorted(models)) if enabled is None else enabled,
        "enabled_models_given": enabled is not None,
        "aliases": {
            AliasName(name): alias["allowed_models"] for name, alias in values["aliases"].items()
        },
        "max_wait_ms": {
            Tier(tier): wait_ms for tier, wait_ms in values["max_wait_ms"].items() if wait_ms
        },
        "drain_ms": values["shutdown_ms"] if drain_ms is None else drain_ms,
        "engines": _engines(values["engines"]),
    }
    return Config(**{**values, **made})


def _models(drafts: Mapping[str, Draft]) -> dict[ModelId, ModelEntry]:
    return {
        ModelId(model_id): model_entry(ModelId(model_id), draft)
        for model_id, draft in drafts.items()
    }


def _engines(drafts: Mapping[str, Draft]) -> dict[str, EngineEntry]:
    builtin = EngineEntry(BUILTIN_ENGINE, EngineKindName.STRATA, None, Readiness.AUTO, {})
    return {BUILTIN_ENGINE: builtin} | {
        name: engine_entry(name, draft) for name, draft in drafts.items()
    }
