"""The words of the field, each with one meaning, used by every other module.

A *ticket* is a waiting request, a *lease* an admitted one, an *exchange* one chat request end to
end, a *tier* its urgency, a *model group* the waiting tickets for one concrete model, a *refusal* a
request that ends without upstream work, a *record* its account, the *engine* the child process, a
*profile* the engine's own JSON config. Source: contract, "Words".
"""

from enum import StrEnum
from typing import NewType

ModelId = NewType("ModelId", str)
"""Public id of one concrete model: ASCII letters, digits, ``_ . -``."""

AliasName = NewType("AliasName", str)
"""Public name of an alias: a family name that some model declares."""

RequestId = NewType("RequestId", str)
"""Instance identifier plus arrival sequence; unique across daemon restarts."""

TicketId = NewType("TicketId", int)
"""The exchange's arrival sequence, 1.. per daemon instance."""

CHAT_PATH = "/v1/chat/completions"
"""The one path that makes an exchange today; only the module that routes it may compare with it."""


class Tier(StrEnum):
    """How urgent a request is; only orders waiting work, never preempts (design: Service tiers)."""

    PRIORITY = "priority"
    DEFAULT = "default"
    FLEX = "flex"

    @property
    def rank(self) -> int:
        """0 is served first."""
        return _TIER_RANK[self]


_TIER_RANK = {Tier.PRIORITY: 0, Tier.DEFAULT: 1, Tier.FLEX: 2}


class Reason(StrEnum):
    """How an exchange ended; the closed set of a record's ``reason``."""

    COMPLETED = "completed"
    CLIENT_DISCONNECT = "client_disconnect"
    UPSTREAM_ERROR = "upstream_error"
    TIMEOUT = "timeout"
    QUEUE_TIMEOUT = "queue_timeout"
    ROUTING_OFF = "routing_off"
    SHUTDOWN = "shutdown"
    MODEL_LOAD_ERROR = "model_load_error"
    MODEL_NOT_PREPARED = "model_not_prepared"
    INVALID_REQUEST = "invalid_request"
    QUEUE_FULL = "queue_full"


class FinishReason(StrEnum):
    """Why the engine stopped generating; any other string is recorded as ``other``."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    FUNCTION_CALL = "function_call"
    CONTENT_FILTER = "content_filter"
    OTHER = "other"


class DisconnectPhase(StrEnum):
    """Where a client was when it left: ``loading`` includes the wait for upstream headers."""

    QUEUED = "queued"
    LOADING = "loading"
    GENERATING = "generating"


class Preparation(StrEnum):
    """What is known of a model before any load; only a load proves that its weights fit."""

    NOT_INSTALLED = "not_installed"
    INCOMPATIBLE = "incompatible"
    MISSING_PROFILE = "missing_profile"
    PREPARED_UNVERIFIED = "prepared_unverified"
