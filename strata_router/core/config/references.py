"""Rules between keys: names that must be declared elsewhere, ports and files that must differ.

Takes what ``tables`` could read of the whole configuration and reports every contradiction; it goes
on past broken parts, about which it then says nothing. Called by ``parsing``, once.
"""

from collections.abc import Mapping

from strata_router.core.config.entries import (
    Draft,
    check_engine,
    check_model,
    check_model_against_engine,
    is_installed,
    model_family,
)
from strata_router.core.config.problems import Findings, item_path, key_path, shown
from strata_router.core.config.schema import BUILTIN_ENGINE, EngineKindName

Drafts = Mapping[str, Draft | None]
"""Entries by name; None for one that was not even an object."""


def check_references(values: Draft, findings: Findings) -> None:
    """Report everything that is wrong although each key by itself is right."""
    models: Drafts = values.get("models") or {}
    engines: Drafts = values.get("engines") or {}
    aliases: Drafts = values.get("aliases") or {}
    for name, engine in engines.items():
        if engine is not None:
            check_engine(name, engine, key_path("engines", name), findings)
    kinds = _engine_kinds(engines)
    for model_id, model in models.items():
        if model is not None:
            path = key_path("models", model_id)
            check_model(model_id, model, path, findings)
            _check_engine_name(model, kinds, path, findings)
    # Without the models no name could be found, and each would be reported for nothing.
    if "models" in values:
        _check_ids(values.get("enabled_models") or (), "enabled_models", models, aliases, findings)
        _Aliases(models, aliases).check(findings)
    _check_strata_is_there(values, models, kinds, findings)
    _check_distinct(values, findings)
    _warn_of_legacy_spelling(models, findings)


def _engine_kinds(engines: Drafts) -> dict[str, EngineKindName | None]:
    """Kind by engine name, the built-in one included; None where it could not be read."""
    kinds: dict[str, EngineKindName | None] = {BUILTIN_ENGINE: EngineKindName.STRATA}
    for name, engine in engines.items():
        kinds.setdefault(name, engine.get("kind") if engine is not None else None)
    return kinds


def _check_engine_name(
    model: Draft, kinds: Mapping[str, EngineKindName | None], path: str, findings: Findings
) -> None:
    name = model.get("engine")
    if name is None:
        return
    if name not in kinds:
        findings.problem(
            key_path(path, "engine"),
            f"{shown(name)} names no engine; must be '{BUILTIN_ENGINE}' or a key of 'engines'"
            + findings.did_you_mean(name, kinds),
        )
        return
    kind = kinds[name]
    if kind is not None:
        check_model_against_engine(model, kind, path, findings)


def _check_ids(
    ids: tuple[str | None, ...], path: str, models: Drafts, aliases: Drafts, findings: Findings
) -> None:
    """Report list items that are no concrete id."""
    for index, model_id in enumerate(ids):
        if model_id is None or model_id in models:
            continue
        if model_id in aliases:
            fault = f"{shown(model_id)} names an alias; list the ids of the models instead"
        else:
            fault = f"{shown(model_id)} names no model; must be a key of 'models'"
            fault += findings.did_you_mean(model_id, models)
        findings.problem(item_path(path, index), fault)


class _Aliases:
    """Aliases against the models they choose from; an alias stands for models of one family."""

    def __init__(self, models: Drafts, aliases: Drafts) -> None:
        self._models = models
        self._aliases = aliases
        self._family = {
            model_id: model_family(model_id, model)
            for model_id, model in models.items()
            # A family that could not be read is not the one that the id suggests.
            if model is not None and "family" in model
        }
        self._families = {family for family in self._family.values() if family is not None}

    def check(self, findings: Findings) -> None:
        for name, alias in self._aliases.items():
            path = key_path("aliases", name)
            self._check_name(name, path, findings)
            ids = (alias or {}).get("allowed_models") or ()
            ids_path = key_path(path, "allowed_models")
            _check_ids(ids, ids_path, self._models, self._aliases, findings)
            for index, model_id in enumerate(ids):
                if self._family.get(model_id) not in (None, name):
                    findings.problem(
                        item_path(ids_path, index),
                        f"{shown(model_id)} belongs to another family; an alias may only list models "
                        "of its own",
                    )

    def _check_name(self, name: str, path: str, findings: Findings) -> None:
        if name in self._models:
            findings.problem(path, "is also the id of a model; rename the model")
        # Models whose family is broken might declare it.
        if name not in self._families and len(self._family) == len(self._models):
            findings.problem(
                path,
                "is no model's family; an alias is named after the family it stands for"
                + findings.did_you_mean(name, self._families),
            )


def _check_strata_is_there(
    values: Draft, models: Drafts, kinds: Mapping[str, EngineKindName | None], findings: Findings
) -> None:
    installed = next(
        (
            model_id
            for model_id, model in models.items()
            if model is not None
            and is_installed(model)
            and kinds.get(model.get("engine", "")) is EngineKindName.STRATA
        ),
        None,
    )
    for key, what in (("python", "interpreter"), ("strata_dir", "checkout")):
        if installed is not None and key in values and values[key] is None:
            findings.problem(
                key,
                f"is missing; model {shown(installed)} is installed, so give the absolute path of "
                f"Strata's {what}",
            )


def _check_distinct(values: Draft, findings: Findings) -> None:
    listen, backend_port = values.get("listen"), values.get("backend_port")
    if listen is not None and listen.port == backend_port:
        findings.problem("backend_port", "is the port of 'listen' too; must be another one")
    user_of: dict[str, str] = {}
    for key in ("control_socket", "request_log_path", "engine_log_path"):
        path = values.get(key)
        if path is not None and user_of.setdefault(path, key) != key:
            findings.problem(key, f"is the path of '{user_of[path]}' too; must be another one")


def _warn_of_legacy_spelling(models: Drafts, findings: Findings) -> None:
    legacy = [
        model_id
        for model_id, model in models.items()
        if model is not None and model.get("enabled") is not None
    ]
    if legacy:
        findings.warning(
            "models",
            f"{len(legacy)} use 'enabled', the legacy spelling of 'installed', first "
            f"{shown(legacy[0])}; to choose what clients may ask for, use 'enabled_models'",
        )
