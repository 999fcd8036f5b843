"""The configuration as the rest of the program reads it: typed, complete and immutable.

Nothing is checked here. ``parsing`` is the only maker of a Config, and what each key means, its
bounds and its default are rows of ``keys``; a field of Config has the name of its row.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from strata_router.core.vocabulary import AliasName, ModelId, Tier

SHIPPED_FAMILIES = ("qwen3.8-flash-next", "qwen3.6-35b-a3b")
"""Families whose models may leave out ``family``: their ids begin with it (contract section 3)."""

BUILTIN_ENGINE = "strata"
"""The engine of a model entry that names none; always present in ``Config.engines``."""


class EngineKindName(StrEnum):
    """The adapters there are (contract section 4.5)."""

    STRATA = "strata"
    LLAMA_SERVER = "llama-server"


class Readiness(StrEnum):
    """How a started engine says that it serves (contract section 4.2)."""

    AUTO = "auto"
    FILE = "file"
    HEALTH = "health"


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """A loopback address; host is ``127.x.y.z`` or ``::1``, without brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        """As written in the config and in a URL: ``127.0.0.1:8088``, ``[::1]:8088``."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Metadata:
    """What ``/v1/models`` repeats of a model: JSON values as given, None where nothing was said."""

    meta: object = None
    architecture: object = None
    thinking: object = None


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One concrete model.

    profile: absolute path of the Strata profile; None when none is set, or for another engine.
    upstream_model: None when not given; ``upstream_name`` is what the engine must call itself.
    installed, compatible: the operator's word; the daemon cannot establish either.
    engine: key of ``Config.engines``. args: extra command line for engines without a profile.
    """

    id: ModelId
    family: str
    fine_tune: str | None
    quantization: str | None
    profile: str | None
    upstream_model: str | None
    installed: bool
    compatible: bool
    metadata: Metadata
    engine: str
    args: tuple[str, ...]

    @property
    def upstream_name(self) -> str:
        """The name that the engine's identity check expects: ``upstream_model``, else the id."""
        return self.id if self.upstream_model is None else self.upstream_model


@dataclass(frozen=True, slots=True)
class EngineEntry:
    """One way to run an engine process.

    command: absolute path of the binary; None for ``strata``, which runs ``Config.python``.
    env: added to the engine's environment; empty for ``strata``, whose profile has its own.
    """

    name: str
    kind: EngineKindName
    command: str | None
    readiness: Readiness
    env: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One whole configuration; every ``*_ms`` is milliseconds, every ``*_bytes`` bytes.

    control_socket: resolved, never None.
    enabled_models: effective; ID order when the key was left out (``enabled_models_given`` False).
    aliases: as configured, before ``enabled_models`` filters them.
    max_wait_ms: a tier that waits without bound is absent.
    drain_ms: resolved; 0 waits without a deadline.
    allowed_hosts, allowed_origins: lower case, without port and without a trailing slash or dot.
    """

    listen: ListenAddress
    control_socket: str
    require_socket_activation: bool
    python: str | None
    strata_dir: str | None
    backend_port: int
    models: Mapping[ModelId, ModelEntry]
    enabled_models: tuple[ModelId, ...]
    enabled_models_given: bool
    aliases: Mapping[AliasName, tuple[ModelId, ...]]
    wait_when_busy: bool
    max_pending: int
    model_grace_ms: int
    max_wait_ms: Mapping[Tier, int]
    cache_lookup_ms: int
    cache_max_active: int
    max_request_body_bytes: int
    queue_ms: int
    startup_ms: int
    response_ms: int
    idle_ms: int
    shutdown_ms: int
    cooldown_ms: int
    drain_ms: int
    stream_commit_ms: int
    keepalive_ms: int
    keepalive_details: bool
    write_stall_ms: int
    header_ms: int
    body_ms: int
    allowed_hosts: tuple[str, ...]
    allowed_origins: tuple[str, ...]
    max_buffered_body_bytes: int
    max_connections: int
    request_log_path: str | None
    request_log_max_bytes: int
    request_log_rotate_files: int
    request_log_capacity: int
    engine_log_path: str | None
    engines: Mapping[str, EngineEntry]
