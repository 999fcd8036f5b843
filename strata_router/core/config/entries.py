"""Rules within one model or one engine, once its keys have been read one by one.

Works on what ``tables`` could read of an entry, so that one broken key does not hide another problem.
Rules between entries are ``references``.
"""

from collections.abc import Mapping
from typing import Any, assert_never

from strata_router.core.config.problems import Findings, key_path
from strata_router.core.config.schema import (
    BUILTIN_ENGINE,
    SHIPPED_FAMILIES,
    EngineEntry,
    EngineKindName,
    Metadata,
    ModelEntry,
    Readiness,
)
from strata_router.core.vocabulary import ModelId

Draft = Mapping[str, Any]
"""The keys of one entry as read: None where absent and without default; broken keys are not there."""

_OURS_IN_ARGS = frozenset({"--host", "--port", "--alias", "-a", "--api-key", "--api-key-file"})
"""llama-server lets the last one win: an engine elsewhere, under another name, or behind a key."""

_OURS_IN_ENV = ("STRATA_API_KEY", "LLAMA_API_KEY", "NOTIFY_SOCKET")
_OURS_IN_ENV_BEGINNING = ("LISTEN_", "WATCHDOG_")
"""Removed from the engine's environment on purpose (contract section 4.1)."""


def check_model(model_id: str, draft: Draft, path: str, findings: Findings) -> None:
    """Report what in the entry contradicts itself or is missing."""
    if "family" in draft and model_family(model_id, draft) is None:
        families = " or ".join(f"'{family}'" for family in SHIPPED_FAMILIES)
        findings.problem(
            key_path(path, "family"),
            f"is missing; must name the model's family, unless its id begins with {families}",
        )
    installed, enabled = draft.get("installed"), draft.get("enabled")
    if installed is not None and enabled is not None and installed != enabled:
        findings.problem(
            key_path(path, "enabled"),
            "disagrees with 'installed', of which it is the legacy spelling; remove 'enabled'",
        )


def check_model_against_engine(
    draft: Draft, kind: EngineKindName, path: str, findings: Findings
) -> None:
    """Report keys that the model's kind of engine does not read; silence would look like effect."""
    args = draft.get("args") or ()
    match kind:
        case EngineKindName.STRATA:
            if args:
                findings.problem(
                    key_path(path, "args"),
                    "are not read by Strata; put its settings into the profile and remove them",
                )
        case EngineKindName.LLAMA_SERVER:
            if draft.get("profile") is not None:
                findings.problem(
                    key_path(path, "profile"),
                    "is not read by a llama-server; use 'args' instead and remove it",
                )
            for index, argument in enumerate(args):
                if argument in _OURS_IN_ARGS:
                    findings.problem(
                        f"{key_path(path, 'args')}[{index}]",
                        f"is {argument}, which the router decides; remove it and its value",
                    )
        case _:
            assert_never(kind)


def model_family(model_id: str, draft: Draft) -> str | None:
    """The family given, else the shipped one that the id begins with, else None."""
    given: str | None = draft.get("family")
    if given is not None:
        return given
    return next((family for family in SHIPPED_FAMILIES if model_id.startswith(family)), None)


def is_installed(draft: Draft) -> bool:
    """By either spelling."""
    return bool(draft.get("installed") or draft.get("enabled"))


def model_entry(model_id: ModelId, draft: Draft) -> ModelEntry:
    """The entry of a draft without problems."""
    family = model_family(model_id, draft)
    assert family is not None, "check_model reports a model without a family"
    return ModelEntry(
        id=model_id,
        family=family,
        fine_tune=draft["fine_tune"],
        quantization=draft["quantization"],
        profile=draft["profile"],
        upstream_model=draft["upstream_model"],
        installed=is_installed(draft),
        compatible=draft["compatible"],
        metadata=Metadata(**(draft["metadata"] or {})),
        engine=draft["engine"],
        args=draft["args"],
    )


def check_engine(name: str, draft: Draft, path: str, findings: Findings) -> None:
    """Report what the engine's kind needs and lacks, or has and does not read."""
    kind, command = draft.get("kind"), draft.get("command")
    if name == BUILTIN_ENGINE and kind is EngineKindName.LLAMA_SERVER:
        findings.problem(
            key_path(path, "kind"),
            f"must be '{EngineKindName.STRATA}' here; give another kind another name",
        )
    if kind is EngineKindName.STRATA:
        if command is not None:
            findings.problem(
                key_path(path, "command"),
                "is not read for Strata, which runs 'python' in 'strata_dir'; remove it",
            )
        if draft.get("env"):
            findings.problem(
                key_path(path, "env"),
                "is not read for Strata, whose profile has an 'env' of its own; remove it",
            )
    if kind is EngineKindName.LLAMA_SERVER:
        if "command" in draft and command is None:
            findings.problem(
                key_path(path, "command"),
                "is missing; must be the absolute path of the llama-server binary",
            )
        if draft.get("readiness") is Readiness.FILE:
            findings.problem(
                key_path(path, "readiness"),
                "cannot be 'file': llama-server writes none; use 'auto' or 'health'",
            )
    _check_environment(draft.get("env") or {}, key_path(path, "env"), findings)


def _check_environment(env: Mapping[str, Any], path: str, findings: Findings) -> None:
    for name in env:
        if not name or "=" in name:
            findings.problem(
                key_path(path, name), "is no name of a variable; must not be empty or hold '='"
            )
        elif name in _OURS_IN_ENV or name.startswith(_OURS_IN_ENV_BEGINNING):
            findings.problem(key_path(path, name), "is kept from the engine on purpose; remove it")


def engine_entry(name: str, draft: Draft) -> EngineEntry:
    """The entry of a draft without problems."""
    return EngineEntry(
        name=name,
        kind=draft["kind"],
        command=draft["command"],
        readiness=draft["readiness"],
        env=draft["env"],
    )
