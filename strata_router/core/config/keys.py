"""Every key of the configuration, a row each: parsing, JSON Schema and reference are made of these.

A new key is one row here and one field of the same name in ``schema.Config``. Rules that join
several keys are in ``entries`` (within a model or engine) and ``references`` (between keys).
Source: contract section 3.
"""

from strata_router.core.config.network_shapes import HostName, LoopbackAddress, Origin
from strata_router.core.config.schema import (
    BUILTIN_ENGINE,
    SHIPPED_FAMILIES,
    EngineKindName,
    Readiness,
)
from strata_router.core.config.shapes import (
    SOCKET_PATH_BYTES,
    AbsolutePath,
    AnyJson,
    Argument,
    Choice,
    Flag,
    Name,
    Text,
    Whole,
)
from strata_router.core.config.tables import Entries, Key, ListOf, Table
from strata_router.core.vocabulary import Tier

_MIB = 1024 * 1024
_GIB = 1024 * _MIB
_PORT = Whole(1, 65535)
_MOST_CONNECTIONS = 1_048_576
"""Linux's default ceiling for descriptors of one process (fs.nr_open)."""

METADATA_KEYS = (
    Key("meta", AnyJson(), "Sizes and the like; `meta.n_ctx` is what most clients look for."),
    Key("architecture", AnyJson(), "What goes in and out, as `input_modalities`."),
    Key("thinking", AnyJson(), "Whether and how the model reasons."),
)

MODEL_KEYS = (
    Key(
        "family",
        Text(),
        "The family the model belongs to; an alias stands for one family. May be left out where the "
        "id begins with " + " or ".join(f"`{family}`" for family in SHIPPED_FAMILIES) + ".",
        default_text="by the id",
    ),
    Key("fine_tune", Text(), "Which fine-tune of the family; shown in `/v1/models`."),
    Key("quantization", Text(), "Which quantization; shown in `/v1/models`."),
    Key(
        "profile",
        AbsolutePath(),
        "The profile that Strata's setup wrote for exactly these weights. Without it the model "
        "stays in state `missing_profile`.",
    ),
    Key(
        "upstream_model",
        Text(),
        "The name by which the engine must call itself: the profile's `model_name`, or the alias "
        "given to llama-server.",
        default_text="the id",
    ),
    Key(
        "installed",
        Flag(),
        "Set it only when the weights are on this machine.",
        default_text="`false`",
    ),
    Key(
        "compatible",
        Flag(),
        "Set it only when memory and backend are known to suffice; the daemon cannot tell.",
        default=False,
    ),
    Key(
        "enabled",
        Flag(),
        "Legacy spelling of `installed`; not to be confused with the list `enabled_models`.",
    ),
    Key(
        "metadata",
        Table(METADATA_KEYS, "what is known of the model"),
        "For `/v1/models`; each member beats the same member of the profile's `router_metadata`.",
    ),
    Key("engine", Name(), "A name in `engines`.", default=BUILTIN_ENGINE),
    Key(
        "args",
        ListOf(Argument(), repeats=True),
        "More command line for a llama-server, such as `-m` and the weights.",
        default=[],
    ),
)

ENGINE_KEYS = (
    Key(
        "kind",
        Choice(EngineKindName),
        "Which adapter runs it.",
        required=True,
    ),
    Key("command", AbsolutePath(), "The `llama-server` binary; required for that kind."),
    Key(
        "readiness",
        Choice(Readiness),
        "How a start is seen to be complete: by a readiness file, by polling `/health`, or by the "
        "file where the engine offers it.",
        default=Readiness.AUTO.value,
    ),
    Key(
        "env",
        Entries(Argument(), Argument(), "environment variables"),
        "Added to the environment of a llama-server, such as LD_LIBRARY_PATH.",
        default={},
    ),
)

ALIAS_KEYS = (
    Key(
        "allowed_models",
        ListOf(Name(), least=1),
        "Ids of that family. One that is loaded answers; otherwise the first that is enabled loads.",
        required=True,
    ),
)

TIER_KEYS = tuple(
    Key(tier.value, Whole(0), f"For requests of tier `{tier}`; 0 is never.", default=0)
    for tier in Tier
)

MODEL = Table(MODEL_KEYS, "one model")
ENGINE = Table(ENGINE_KEYS, "one engine")
ALIAS = Table(ALIAS_KEYS, "one alias")

CONFIG_KEYS = (
    Key(
        "listen",
        LoopbackAddress(),
        "Where HTTP is served; no address that another machine can reach.",
        default="127.0.0.1:8088",
    ),
    Key(
        "control_socket",
        AbsolutePath(SOCKET_PATH_BYTES),
        "Unix socket of `status`, `on` and `off`. Its directory must belong to the daemon's user, "
        "with no permission for group or others.",
        default_text="`$XDG_RUNTIME_DIR/strata-router/control.sock`, without that variable "
        "`/run/strata-router/control.sock`",
    ),
    Key(
        "require_socket_activation",
        Flag(),
        "Refuse to start unless systemd hands over the listener.",
        default=False,
    ),
    Key(
        "python",
        AbsolutePath(),
        "The interpreter that runs Strata.",
        default_text="required if a Strata model is installed",
        example="/opt/strata/.venv/bin/python",
    ),
    Key(
        "strata_dir",
        AbsolutePath(),
        "The Strata checkout, in which `-m serve.server` is found.",
        default_text="required if a Strata model is installed",
        example="/opt/strata",
    ),
    Key(
        "backend_port",
        _PORT,
        "Port on 127.0.0.1 that is kept for the engine.",
        default=8089,
    ),
    Key("models", Entries(Name(), MODEL, "models by id"), "Every model there is.", required=True),
    Key(
        "enabled_models",
        ListOf(Name()),
        "The ids that clients may see and ask for; `[]` offers none. Says nothing about installation.",
        default_text="all, in the order of their ids",
    ),
    Key(
        "aliases",
        Entries(Text(), ALIAS, "aliases by family"),
        "Names that stand for several models; each is the name of a family.",
        default={},
    ),
    Key(
        "wait_when_busy",
        Flag(),
        "True: requests wait for their turn without a deadline. False: the older bounded queue, "
        "which answers 429 and 504.",
        default=False,
        example=True,
    ),
    Key(
        "max_pending",
        Whole(1, 4096),
        "When waiting: requests at the engine at once. Bounded queue: active and waiting together.",
        default=32,
    ),
    Key(
        "model_grace_ms",
        Whole(0),
        "How long a quiet model keeps its place before another one's turn.",
        default=0,
        example=3000,
    ),
    Key(
        "max_wait_ms",
        Table(TIER_KEYS, "a bound for each tier"),
        "After this long a waiting request is next, whatever its tier or model.",
        default={},
    ),
    Key(
        "cache_lookup_ms",
        Whole(0, 10_000),
        "Budget to ask the engine which waiting request it holds cached; 0 never asks.",
        default=1000,
    ),
    Key(
        "cache_max_active",
        Whole(0, 1024),
        "Requests at the engine at once while cache lookup is on; 0 is no bound but `max_pending`.",
        default=0,
        example=1,
    ),
    Key(
        "max_request_body_bytes",
        Whole(1, _GIB),
        "Largest request body; a larger one gets 413.",
        default=256 * _MIB,
    ),
    Key(
        "queue_ms",
        Whole(1),
        "Bounded queue only: longest wait for the engine.",
        default=120_000,
    ),
    Key("startup_ms", Whole(1), "Longest load of a model.", default=120_000),
    Key(
        "response_ms",
        Whole(0),
        "Longest whole response, counted from sending it to the engine; 0 is never.",
        default=600_000,
        # Long answers are what the engine is for, so no configuration that we ship cuts them.
        example=0,
    ),
    Key(
        "idle_ms",
        Whole(0),
        "A model that nobody used for this long is unloaded; 0 is never.",
        default=600_000,
    ),
    Key(
        "shutdown_ms",
        Whole(1),
        "How long the engine may take to end before it is killed; Strata may need a minute.",
        default=65_000,
    ),
    Key(
        "cooldown_ms",
        Whole(1),
        "After a failed load its model is not started again for this long.",
        default=10_000,
    ),
    Key(
        "drain_ms",
        Whole(0),
        "How long accepted requests may run on when the daemon is told to stop; 0 waits for all.",
        default_text="`shutdown_ms`",
        example=0,
    ),
    Key(
        "stream_commit_ms",
        Whole(0, 10_000),
        "A streaming request that waits longer gets its 200 now and any error inside the stream.",
        default=250,
    ),
    Key(
        "keepalive_ms",
        Whole(500, 60_000),
        "Longest silence towards a streaming client before a comment is sent.",
        default=5000,
    ),
    Key(
        "keepalive_details",
        Flag(),
        "Let that comment tell a waiting request its place: `: keepalive queued 3 of 7`.",
        default=False,
    ),
    Key(
        "write_stall_ms",
        Whole(0),
        "A client that takes no byte for this long counts as gone; 0 is never.",
        default=300_000,
    ),
    Key("header_ms", Whole(1), "A request's head must be complete within.", default=30_000),
    Key("body_ms", Whole(1), "Longest pause within a request's body.", default=60_000),
    Key(
        "allowed_hosts",
        ListOf(HostName()),
        "Names in a Host header that are ours besides the loopback ones, whatever the port.",
        default=["localhost", "127.0.0.1", "::1"],
    ),
    Key(
        "allowed_origins",
        ListOf(Origin()),
        "Web origins whose pages may post, besides those on an allowed host.",
        default=[],
    ),
    Key(
        "max_buffered_body_bytes",
        Whole(1),
        "Request bodies held in memory at once; beyond it the newest wait to be read.",
        default=2 * _GIB,
    ),
    Key(
        "max_connections",
        Whole(1, _MOST_CONNECTIONS),
        "Open connections; beyond it new ones wait to be accepted. Fewer, said in the log at the start, "
        "where the process may not open two files for each.",
        default=4096,
    ),
    Key(
        "request_log_path",
        AbsolutePath(),
        "File to which request records are appended, one JSON line each; null keeps none.",
        nullable=True,
    ),
    Key(
        "request_log_max_bytes",
        Whole(4096, _GIB),
        "Size at which that file is rotated.",
        default=16 * _MIB,
    ),
    Key(
        "request_log_rotate_files",
        Whole(0, 100),
        "Rotated files kept.",
        default=3,
    ),
    Key(
        "request_log_capacity",
        Whole(1, 100_000),
        "Records kept in memory for `/requests`.",
        default=2048,
    ),
    Key(
        "engine_log_path",
        AbsolutePath(),
        "File for the engine's own output, which may hold prompts; null discards it.",
        nullable=True,
    ),
    Key(
        "engines",
        Entries(Name(), ENGINE, "engines by name"),
        "More ways to run an engine. `strata` is always there; name it to set its `readiness`.",
        default={},
    ),
)

CONFIG = Table(CONFIG_KEYS, "the configuration")
