"""Whether a Strata profile may be run, and the few things in it that the router uses.

Looks at a document already read; ``runtime.config_file`` reads the file, at start and again before
each spawn. What else a profile says is the engine's own business. Reasons never repeat its content:
a profile may hold keys and paths.
Source: contract section 4.3.
"""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field

from strata_router.core.config.portable_json import json_fault
from strata_router.core.config.problems import is_plain, shown
from strata_router.core.config.schema import Metadata


@dataclass(frozen=True, slots=True)
class Profile:
    """The used part of an acceptable profile.

    parallel: batch slots; conversation_cache_min_tokens: shortest input that cache lookup scores;
    each None where the profile gives no usable number.
    """

    model_name: str
    parallel: int | None
    conversation_cache_min_tokens: int | None
    router_metadata: Metadata


@dataclass(frozen=True, slots=True)
class ProfileCheck:
    """profile: None exactly when ``problems`` has a reason why the model must not be started.

    notes: what the operator may want to know of an acceptable profile.
    other_name: the model_name found instead of the expected one, for the operator's terminal only;
    None where it is right, absent, or no short plain name.
    """

    profile: Profile | None
    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()
    other_name: str | None = field(default=None, repr=False)


def check_profile(document: object, upstream_model: str) -> ProfileCheck:
    """Judge the profile of a model whose engine must call itself ``upstream_model``."""
    if not isinstance(document, dict):
        return ProfileCheck(None, ("must be a JSON object; run Strata's setup again",))
    problems = tuple(_problems(document, upstream_model))
    if problems:
        name = document.get("model_name")
        is_other = isinstance(name, str) and name != upstream_model and is_plain(name)
        return ProfileCheck(None, problems, other_name=name if is_other else None)
    profile = Profile(
        model_name=upstream_model,
        parallel=_whole(document.get("parallel"), 1),
        conversation_cache_min_tokens=_whole(document.get("conversation_cache_min_tokens"), 0),
        router_metadata=_metadata(document.get("router_metadata")),
    )
    return ProfileCheck(profile, (), tuple(_notes(document)))


def _problems(document: Mapping[str, object], upstream_model: str) -> list[str]:
    problems = []
    if document.get("lazy_load") not in (None, False):
        problems.append("lazy_load must be false: the router decides when to load")
    if document.get("before_load") not in (None, "", [], False):
        problems.append("before_load must not be set: the router runs no commands; remove it")
    if document.get("api_key") is not None:
        problems.append("api_key must not be set: the engine serves this router only; remove it")
    if document.get("host") is not None and not _is_loopback(document["host"]):
        problems.append("host must be 127.0.0.1 or absent: only this router may reach the engine")
    if document.get("model_name") is None:
        problems.append("model_name is missing: run Strata's setup for these weights again")
    elif document["model_name"] != upstream_model:
        problems.append(
            f"model_name differs from upstream_model {shown(upstream_model)} in the config: make "
            "them the same"
        )
    return problems


def _is_loopback(host: object) -> bool:
    if not isinstance(host, str):
        return False
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _whole(value: object, low: int) -> int | None:
    """The number if it is one; the engine, not the router, judges its own settings."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= low:
        return value
    return None


def _metadata(given: object) -> Metadata:
    """The members that can be passed on."""
    members = given if isinstance(given, dict) else {}
    usable = {
        name: members[name]
        for name in ("meta", "architecture", "thinking")
        if name in members and json_fault(members[name]) is None
    }
    return Metadata(**usable)


def _notes(document: Mapping[str, object]) -> list[str]:
    notes = []
    if document.get("idle_unload_s") not in (None, 0):
        notes.append("idle_unload_s is overridden by 0: idle_ms in the config counts")
    return notes
