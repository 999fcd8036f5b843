"""Reads a Strata profile and the command line's overrides into one value.

Does not start anything. A profile that cannot be read raises ``ProfileError``; the server then
ends with status 1, as Strata does.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from .knobs import BadKnob, EngineKnobs, RequestKnobs, from_profile

DEFAULT_CONTEXT_TOKENS = 32_768
DEFAULT_SILENCE_S = 300.0


class ProfileError(Exception):
    """The profile is missing, not JSON, or has a value of the wrong kind."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What one engine process runs with.

    keys: accepted API keys, empty for an open server. blank_key: a key was set but is empty, which
    ends the process after the load. silence_s: engine silence that gets the native engine killed.
    """

    path: str
    model_name: str
    aliases: tuple[str, ...]
    host: str
    context_tokens: int
    parallel: int
    keys: tuple[str, ...]
    blank_key: bool
    allowed_hosts: tuple[str, ...]
    trusted_origins: tuple[str, ...]
    lazy_load: bool
    idle_unload_s: float
    fit_max_tokens: bool
    silence_s: float
    max_body_bytes: int
    engine: EngineKnobs
    request: RequestKnobs

    @property
    def reported_model(self) -> str:
        """The name this engine claims to serve: a fault may make it a lie."""
        return self.engine.wrong_model or self.model_name


@dataclass(frozen=True, slots=True)
class Overrides:
    """Command-line values that beat the profile; None where the flag was not given."""

    host: str | None
    api_key: str | None
    idle_unload_s: float | None
    lazy: bool
    fit_max_tokens: bool


def read_profile(path: str, overrides: Overrides, environment: Mapping[str, str]) -> Profile:
    """The profile at ``path``, UTF-8 with an optional byte order mark. Raises ProfileError."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            raw = json.load(file)
    except (OSError, ValueError) as error:
        raise ProfileError(f"the profile {path} cannot be read: {error}") from error
    if not isinstance(raw, dict):
        raise ProfileError(f"the profile {path} is not a JSON object")
    try:
        engine, request = from_profile(raw.get("simulated", {}))
        return _profile(path, raw, overrides, environment, engine, request)
    except (BadKnob, TypeError, ValueError) as error:
        raise ProfileError(f"the profile {path} has a bad value: {error}") from error


def _profile(
    path: str,
    raw: Mapping[str, Any],
    overrides: Overrides,
    environment: Mapping[str, str],
    engine: EngineKnobs,
    request: RequestKnobs,
) -> Profile:
    keys, blank_key = _keys(overrides.api_key, environment, raw)
    idle = overrides.idle_unload_s
    body_mib = environment.get("STRATA_MAX_BODY_MIB", "256")
    hosts = [*raw.get("allowed_hosts", []), *_listed(environment.get("STRATA_ALLOWED_HOSTS", ""))]
    return Profile(
        path=path,
        model_name=str(raw.get("model_name", "strata")),
        aliases=tuple(raw.get("aliases", ())),
        host=overrides.host or raw.get("host") or "127.0.0.1",
        context_tokens=_max_context([str(word) for word in raw.get("args", [])]),
        parallel=max(1, int(raw.get("parallel", 1))),
        keys=keys,
        blank_key=blank_key,
        allowed_hosts=tuple(hosts),
        trusted_origins=tuple(raw.get("trusted_origins", ())),
        lazy_load=overrides.lazy or bool(raw.get("lazy_load", False)),
        idle_unload_s=float(raw.get("idle_unload_s", 0)) if idle is None else idle,
        fit_max_tokens=overrides.fit_max_tokens or bool(raw.get("fit_max_tokens", False)),
        silence_s=float(raw.get("engine_silence_s", DEFAULT_SILENCE_S)),
        max_body_bytes=int(float(body_mib) * 1024 * 1024),
        engine=engine,
        request=request,
    )


def _keys(
    flag: str | None, environment: Mapping[str, str], raw: Mapping[str, Any]
) -> tuple[tuple[str, ...], bool]:
    """Accepted keys, and whether one was set to nothing."""
    given = flag if flag is not None else environment.get("STRATA_API_KEY")
    if given is not None:
        keys = _listed(given)
        return tuple(keys), not keys
    written = raw.get("api_key") or []
    return tuple(_listed(written) if isinstance(written, str) else written), False


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _max_context(args: list[str]) -> int:
    for flag, value in pairwise(args):
        if flag == "--max-context":
            return int(value)
    return DEFAULT_CONTEXT_TOKENS


def failed_starts_so_far(profile: Profile) -> int:
    """How many starts of this profile have failed on purpose; counted beside the profile."""
    try:
        with open(_state_path(profile), encoding="ascii") as file:
            return int(file.read())
    except FileNotFoundError:
        return 0


def count_failed_start(profile: Profile) -> None:
    """Remember one more start that failed on purpose."""
    failed = failed_starts_so_far(profile) + 1
    temporary = f"{_state_path(profile)}.{os.getpid()}"
    with open(temporary, "w", encoding="ascii") as file:
        file.write(str(failed))
    os.replace(temporary, _state_path(profile))


def _state_path(profile: Profile) -> str:
    return profile.path + ".simulated-state"
