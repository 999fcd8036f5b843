"""Engine kinds: what differs between servers that this daemon can own. The seam for more of them.

A kind says how its process is started, how it is proven, where chat requests go and whether it
can be asked about its cache. It is pure: paths and bytes in, argv and verdicts out.
Source: contract 4.1, 4.2, 4.5, 8.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Protocol, assert_never

from strata_router.core.config.schema import Config, EngineEntry, EngineKindName, ModelEntry
from strata_router.core.engine.readiness import (
    Mismatch,
    Verdict,
    read_llama_health,
    read_model_list,
    read_strata_activity,
    read_strata_health,
)
from strata_router.core.vocabulary import CHAT_PATH

READY_FILE_OPTION = "--ready-file"


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """How to start one engine. cwd: absolute or None. environment: added to the daemon's own."""

    argv: tuple[str, ...]
    cwd: str | None
    environment: dict[str, str] = field(default_factory=dict)


class EngineKind(Protocol):
    """What the daemon needs to know of one kind of server.

    chat_path: where the engine takes chat requests. cache_lookup_path: contract section 8, or None.
    identity_paths: GET these, in order; every one must be Verified.
    activity_path: GET this to learn whether requests run or wait; None: no need to know.
    uses_profile: models of this kind have a Strata profile, which is checked before each start.
    """

    @property
    def chat_path(self) -> str: ...

    @property
    def cache_lookup_path(self) -> str | None: ...

    @property
    def identity_paths(self) -> tuple[str, ...]: ...

    @property
    def activity_path(self) -> str | None: ...

    @property
    def uses_profile(self) -> bool: ...

    def help_plan(self) -> LaunchPlan | None:
        """A command whose output tells whether READY_FILE_OPTION exists; None: it never does."""

    def launch_plan(self, model: ModelEntry, port: int, ready_file: str | None) -> LaunchPlan:
        """The command line of one start."""

    def judge(
        self, path: str, status: int, body: bytes, upstream_model: str, configured: Collection[str]
    ) -> Verdict:
        """What an answer on one of ``identity_paths`` proves."""

    def is_busy(self, status: int, body: bytes) -> bool:
        """Whether the answer on ``activity_path`` says that requests run or wait."""


@dataclass(frozen=True, slots=True)
class StrataKind:
    """``python -m serve.server --engine strata``, the default."""

    python: str
    strata_dir: str

    chat_path: str = CHAT_PATH
    cache_lookup_path: str | None = "/v1/cache/lookup"
    identity_paths: tuple[str, ...] = ("/health",)
    # Told to stop, Strata lets a running request go on for 20 s; told by the hang-up of its client, it
    # ends it within a second or two. So SIGTERM has to wait for the latter.
    activity_path: str | None = "/status"
    uses_profile: bool = True

    def help_plan(self) -> LaunchPlan | None:
        return LaunchPlan((self.python, "-m", "serve.server", "--help"), self.strata_dir)

    def launch_plan(self, model: ModelEntry, port: int, ready_file: str | None) -> LaunchPlan:
        assert model.profile is not None, "the configuration demands a profile for Strata models"
        argv: tuple[str, ...] = (
            *(self.python, "-m", "serve.server", "--engine", "strata"),
            *("--config", model.profile),
            *("--host", "127.0.0.1", "--port", str(port)),
            # The daemon decides when to unload; two idle clocks would disagree.
            *("--idle-unload", "0"),
        )
        if ready_file is not None:
            argv += (READY_FILE_OPTION, ready_file)
        return LaunchPlan(argv, self.strata_dir)

    def judge(
        self, path: str, status: int, body: bytes, upstream_model: str, configured: Collection[str]
    ) -> Verdict:
        return read_strata_health(status, body, upstream_model, configured)

    def is_busy(self, status: int, body: bytes) -> bool:
        return read_strata_activity(status, body)


@dataclass(frozen=True, slots=True)
class LlamaServerKind:
    """llama.cpp's ``llama-server``; the model's own arguments come from its ``args``."""

    command: str
    environment: dict[str, str]

    chat_path: str = CHAT_PATH
    cache_lookup_path: str | None = None
    identity_paths: tuple[str, ...] = ("/health", "/v1/models")
    activity_path: str | None = None
    uses_profile: bool = False

    def help_plan(self) -> LaunchPlan | None:
        return None

    def launch_plan(self, model: ModelEntry, port: int, ready_file: str | None) -> LaunchPlan:
        argv = (
            self.command,
            *model.args,
            *("--host", "127.0.0.1", "--port", str(port), "--alias", model.upstream_name),
        )
        return LaunchPlan(argv, None, dict(self.environment))

    def judge(
        self, path: str, status: int, body: bytes, upstream_model: str, configured: Collection[str]
    ) -> Verdict:
        if path == "/health":
            return read_llama_health(status)
        if path == "/v1/models":
            return read_model_list(status, body, upstream_model, configured)
        return Mismatch("no such check")

    def is_busy(self, status: int, body: bytes) -> bool:
        return False


def engine_kind(engine: EngineEntry, config: Config) -> EngineKind:
    """The kind behind one entry of ``engines``."""
    match engine.kind:
        case EngineKindName.STRATA:
            return StrataKind(config.python or "", config.strata_dir or "")
        case EngineKindName.LLAMA_SERVER:
            return LlamaServerKind(engine.command or "", dict(engine.env))
        case unreachable:
            assert_never(unreachable)
