"""Which model may answer to which name, how far each is prepared, and the listing that says so.

Everything is settled when the daemon starts: names, aliases after filtering, preparation. What is
loaded at the moment is an argument. Asked by the exchange (``resolve``), the coordinator
(``upstream_model``), the control commands (``default_model``) and the ``/v1/models`` routes.
Source: contract sections 3 and 5; design document, "Configure and run".
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from strata_router.core.config import Config, EngineKindName, Metadata, ModelEntry, ProfileCheck
from strata_router.core.refusal import Case, Refusal
from strata_router.core.vocabulary import AliasName, ModelId, Preparation

_OWNER = "strata-router"

NAMES_IN_REFUSAL = 10
"""How many of the names on offer a client is told that asked for another."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """What a requested name stands for.

    requested: the id or alias as asked for.
    accepts: models that may answer, in the alias's effective order; one for a concrete id.
    preferred: what to load when none of them is; None when the first of them is not prepared.
    """

    requested: str
    accepts: tuple[ModelId, ...]
    preferred: ModelId | None


class Catalog:
    """The models and aliases on offer; never changes."""

    def __init__(self, config: Config, profiles: Mapping[ModelId, ProfileCheck]) -> None:
        """profiles: as checked at start; a model without an entry has no usable one."""
        self._config = config
        self._profiles = profiles
        self._preparation = {
            model_id: self._prepare(entry) for model_id, entry in config.models.items()
        }
        enabled = frozenset(config.enabled_models)
        self._aliases: dict[AliasName, tuple[ModelId, ...]] = {}
        for alias, models in config.aliases.items():
            effective = tuple(model_id for model_id in models if model_id in enabled)
            if effective:
                self._aliases[alias] = effective
        self._answers = self._resolve_all()
        self._not_found = Refusal(Case.MODEL_NOT_FOUND, self._names_on_offer())

    def resolve(self, name: str) -> Resolution | Refusal:
        """What the name stands for, or why no request for it can be answered.

        An alias whose first effective entry is not prepared still resolves while another one is: a
        loaded member may answer, but none is loaded in the first one's place.
        """
        return self._answers.get(name) or self._not_found

    def is_known_name(self, name: str) -> bool:
        """Whether a record may hold the name: a configured id or alias, enabled or not."""
        return name in self._config.models or name in self._config.aliases

    def preparation(self, model_id: ModelId) -> Preparation:
        """KeyError for an id that is not configured."""
        return self._preparation[model_id]

    def prepared_models(self) -> list[ModelId]:
        """Enabled models that a load may be tried of."""
        return [model_id for model_id in self._config.enabled_models if self._is_prepared(model_id)]

    def upstream_model(self, model_id: ModelId) -> str:
        """What the engine must call itself; KeyError for an id that is not configured."""
        return self._config.models[model_id].upstream_name

    def default_model(self) -> ModelId | None:
        """What ``on`` loads when nothing else says: the first enabled model; None if none is."""
        return next(iter(self._config.enabled_models), None)

    def effective_aliases(self) -> Mapping[AliasName, tuple[ModelId, ...]]:
        """Aliases on offer with the models each chooses from, in order."""
        return self._aliases

    def listing(
        self, loaded: ModelId | None, loading: ModelId | None, created_unix_s: int
    ) -> list[dict[str, object]]:
        """``data`` of ``/v1/models``: enabled models in their order, then aliases in theirs."""
        models = [
            self._model_item(self._config.models[model_id], loaded, loading, created_unix_s)
            for model_id in self._config.enabled_models
        ]
        aliases = [
            self._alias_item(alias, loaded, loading, created_unix_s) for alias in self._aliases
        ]
        return models + aliases

    def entry(
        self, name: str, loaded: ModelId | None, loading: ModelId | None, created_unix_s: int
    ) -> dict[str, object] | None:
        """The listing's item of that name; None if the name is not on offer."""
        if name not in self._answers:
            return None
        model = self._config.models.get(ModelId(name))
        if model is not None:
            return self._model_item(model, loaded, loading, created_unix_s)
        return self._alias_item(AliasName(name), loaded, loading, created_unix_s)

    def _prepare(self, entry: ModelEntry) -> Preparation:
        if not entry.installed:
            return Preparation.NOT_INSTALLED
        if not entry.compatible:
            return Preparation.INCOMPATIBLE
        if self._config.engines[entry.engine].kind is EngineKindName.STRATA:
            check = self._profiles.get(entry.id)
            if check is None or check.profile is None:
                return Preparation.MISSING_PROFILE
        return Preparation.PREPARED_UNVERIFIED

    def _is_prepared(self, model_id: ModelId) -> bool:
        return self._preparation[model_id] is Preparation.PREPARED_UNVERIFIED

    def _resolve_all(self) -> dict[str, Resolution | Refusal]:
        concrete = ((model_id, (model_id,)) for model_id in self._config.enabled_models)
        choices: list[tuple[str, tuple[ModelId, ...]]] = [*concrete, *self._aliases.items()]
        return {name: self._resolve(name, accepts) for name, accepts in choices}

    def _names_on_offer(self) -> str:
        """For a client that asked for something else: what can be answered first, aliases before ids."""
        names = sorted(
            (*self._aliases, *self._config.enabled_models),
            key=lambda name: isinstance(self._answers[name], Refusal),
        )
        if not names:
            return "No model of that name is offered, nor any other."
        shown = ", ".join(names[:NAMES_IN_REFUSAL])
        more = len(names) - NAMES_IN_REFUSAL
        if more > 0:
            shown += f" and {more} more"
        return f"No model of that name is offered; /v1/models lists {shown}."

    def _resolve(self, name: str, accepts: tuple[ModelId, ...]) -> Resolution | Refusal:
        if not any(map(self._is_prepared, accepts)):
            return Refusal(Case.MODEL_NOT_PREPARED)
        first = accepts[0]
        return Resolution(name, accepts, first if self._is_prepared(first) else None)

    def _model_item(
        self,
        entry: ModelEntry,
        loaded: ModelId | None,
        loading: ModelId | None,
        created_unix_s: int,
    ) -> dict[str, object]:
        item = _item(entry.id, "concrete", entry.family, created_unix_s)
        item["status"] = self._status((entry.id,), loaded, loading)
        known = {"fine_tune": entry.fine_tune, "quantization": entry.quantization}
        check = self._profiles.get(entry.id)
        profile = None if check is None else check.profile
        metadata = _metadata(entry.metadata, profile.router_metadata if profile else Metadata())
        return item | {
            name: value for name, value in (known | metadata).items() if value is not None
        }

    def _alias_item(
        self,
        alias: AliasName,
        loaded: ModelId | None,
        loading: ModelId | None,
        created_unix_s: int,
    ) -> dict[str, object]:
        item = _item(alias, "alias", alias, created_unix_s)
        item["status"] = self._status(self._aliases[alias], loaded, loading)
        item["allowed_models"] = list(self._aliases[alias])
        return item

    def _status(
        self, accepts: tuple[ModelId, ...], loaded: ModelId | None, loading: ModelId | None
    ) -> str:
        """An alias is as ready as its readiest member, else as prepared as the one it would load."""
        if loaded in accepts:
            return "loaded"
        if loading in accepts:
            return "loading"
        return self._preparation[accepts[0]].value


def _item(name: str, kind: str, family: str, created_unix_s: int) -> dict[str, object]:
    """The members that every item has; clients crash without ``created`` or ``owned_by``."""
    return {
        "id": name,
        "object": "model",
        "created": created_unix_s,
        "owned_by": _OWNER,
        "kind": kind,
        "family": family,
    }


def _metadata(configured: Metadata, of_profile: Metadata) -> dict[str, object]:
    """Each member from the config, else from the profile, else None."""
    return {
        field.name: (
            getattr(of_profile, field.name)
            if getattr(configured, field.name) is None
            else getattr(configured, field.name)
        )
        for field in fields(Metadata)
    }
