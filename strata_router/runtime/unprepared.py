"""Says to the operator which models cannot be loaded, and why; their clients read less.

``strata-router check`` shows the whole state of a machine; this is what the daemon knows by itself: the
reasons that ``on`` gives, and the warnings at the start. Reads no configuration and starts nothing.
Called by ``runtime.operator`` and ``runtime.daemon``.
"""

import os
from collections.abc import Iterator, Mapping
from typing import assert_never

from strata_router.core.catalog import Catalog
from strata_router.core.config.profile import ProfileCheck
from strata_router.core.config.schema import Config, EngineEntry, EngineKindName, ModelEntry
from strata_router.core.vocabulary import ModelId, Preparation

WARNED_MODELS = 10
"""How many models have a line of their own at the start; a configuration may have ten thousand."""


def why_not_loaded(
    model: ModelEntry, preparation: Preparation, check: ProfileCheck | None
) -> str | None:
    """One line for the operator, None for a prepared model. check: of its profile, at the start."""
    state = f"{model.id} is {preparation}"
    match preparation:
        case Preparation.NOT_INSTALLED:
            return f"{state}: set its installed: true once its weights are here, then restart"
        case Preparation.INCOMPATIBLE:
            return f"{state}: set its compatible: true once it is known to run here, then restart"
        case Preparation.MISSING_PROFILE:
            # Not where the profile is: reliability.md, "Privacy".
            problems = "; ".join(check.problems) if check is not None else "it was not read"
            return f"{state}: {problems} (strata-router check names the file)"
        case Preparation.PREPARED_UNVERIFIED:
            return None
        case _:
            assert_never(preparation)


def start_warnings(
    config: Config, catalog: Catalog, profiles: Mapping[ModelId, ProfileCheck]
) -> Iterator[str]:
    """What keeps enabled models from being loaded, one line each; looks at the disk.

    A model that is not installed or not compatible is no mistake, so it has no line.
    """
    if config.enabled_models and not catalog.prepared_models():
        yield "no enabled model is prepared, so none can be loaded: strata-router check says why"
    yield from _refused_profiles(config, catalog, profiles)
    models = [config.models[model] for model in config.enabled_models]
    meant = [model for model in models if model.installed and model.compatible]
    for name in dict.fromkeys(model.engine for model in meant):
        yield from _engine_faults(config, config.engines[name])
    if meant and config.engine_log_path is not None:
        fault = _log_fault(config.engine_log_path)
        if fault is not None:
            yield f"engine_log_path: {config.engine_log_path} {fault}; engines start without a log"


def _refused_profiles(
    config: Config, catalog: Catalog, profiles: Mapping[ModelId, ProfileCheck]
) -> Iterator[str]:
    refused = [
        model
        for model in config.enabled_models
        if catalog.preparation(model) is Preparation.MISSING_PROFILE
    ]
    for model in refused[:WARNED_MODELS]:
        why = why_not_loaded(config.models[model], Preparation.MISSING_PROFILE, profiles.get(model))
        assert why is not None
        yield why
    if len(refused) > WARNED_MODELS:
        yield f"{len(refused) - WARNED_MODELS} more enabled models are missing_profile"


def _engine_faults(config: Config, engine: EngineEntry) -> Iterator[str]:
    if engine.kind is not EngineKindName.STRATA:
        if engine.command is not None:
            yield from _program_faults(f"engine {engine.name}: command", engine.command)
        return
    if config.python is not None:
        yield from _program_faults("python", config.python)
    if config.strata_dir is not None and not os.path.isdir(config.strata_dir):
        yield f"strata_dir: {config.strata_dir} is no directory that can be reached; no model loads"


def _program_faults(key: str, path: str) -> Iterator[str]:
    if not (os.path.isfile(path) and os.access(path, os.X_OK)):
        yield f"{key}: {path} is no program that can be executed; no model of it loads"


def _log_fault(path: str) -> str | None:
    if os.path.lexists(path):
        if os.path.islink(path) or not os.path.isfile(path):
            return "is not a regular file"
        return None if os.access(path, os.W_OK) else "cannot be written"
    directory = os.path.dirname(path)
    if not os.path.isdir(directory):
        return "is in a directory that is missing or cannot be reached"
    return None if os.access(directory, os.W_OK | os.X_OK) else "is in a directory that is closed"
