"""Who may ask: Strata's API key, Host and Origin checks. Pure.

With a key set, the Host and Origin checks are off. Source: facts about Strata's server, 3, 7 and 8.
"""

from dataclasses import dataclass

from .http_wire import RequestHead
from .profile import Profile

_KEYED_GETS = frozenset(
    ("/v1/models", "/models", "/props", "/slots", "/status", "/v1/status", "/metrics")
)


@dataclass(frozen=True, slots=True)
class Denial:
    """Why a request is turned away: status, ``error.type`` (None: left out) and message."""

    status: int
    kind: str | None
    message: str


def denial(head: RequestHead, profile: Profile) -> Denial | None:
    """The first check that fails; None if the request may be answered."""
    if profile.keys:
        return _key_denial(head, profile)
    if not _host_is_known(head.header("host"), profile):
        return Denial(403, "forbidden", "this Host is not allowed; see allowed_hosts")
    if head.method == "POST" and head.path.startswith("/v1/"):
        return _origin_denial(head, profile)
    return None


def _key_denial(head: RequestHead, profile: Profile) -> Denial | None:
    if head.method != "POST" and head.path not in _KEYED_GETS:
        return None
    bearer = (head.header("authorization") or "").removeprefix("Bearer ")
    if bearer in profile.keys or head.header("x-api-key") in profile.keys:
        return None
    return Denial(401, "authentication_error", "a valid API key is needed")


def _host_is_known(host: str | None, profile: Profile) -> bool:
    if not host:
        return True
    name = _without_port(host)
    return (
        _is_address(name)
        or name == "localhost"
        or name.endswith(".localhost")
        or name == profile.host
        or name in profile.allowed_hosts
    )


def _origin_denial(head: RequestHead, profile: Profile) -> Denial | None:
    origin = head.header("origin")
    if origin is None:
        return None
    name = _without_port(origin.partition("://")[2])
    own = _without_port(head.header("host") or "")
    if (
        name not in ("localhost", "127.0.0.1", "[::1]", own)
        and origin not in profile.trusted_origins
    ):
        return Denial(403, "forbidden", "this Origin is not allowed")
    if not (head.header("content-type") or "").startswith("application/json"):
        return Denial(415, None, "the body must be application/json")
    return None


def _without_port(host: str) -> str:
    name, colon, port = host.lower().rpartition(":")
    return name if colon and port.isdigit() else host.lower()


def _is_address(name: str) -> bool:
    parts = name.split(".")
    is_v4 = len(parts) == 4 and all(part.isdigit() and int(part) < 256 for part in parts)
    return is_v4 or (name.startswith("[") and name.endswith("]"))
