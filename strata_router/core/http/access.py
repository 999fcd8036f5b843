"""Who may talk to a loopback daemon: a web page must not reach it by DNS rebinding or a foreign form.

Source: contract section 5, ``allowed_hosts`` and ``allowed_origins``.
"""

import ipaddress
from collections.abc import Collection

from strata_router.core.http.request_head import RequestHead
from strata_router.core.refusal import Case, Refusal


def check_access(
    head: RequestHead, allowed_hosts: Collection[str], allowed_origins: Collection[str]
) -> Refusal | None:
    """The refusal for a foreign Host, or a foreign Origin on a POST; None when the request may pass.

    allowed_hosts, allowed_origins: lower case, as configured; loopback names are always allowed.
    """
    host = head.header(b"host")
    # A browser always sends Host, so a request without one (HTTP/1.0) is no rebinding.
    if host and not _is_our_name(_host_name(host.decode("latin-1")), allowed_hosts):
        return Refusal(Case.FORBIDDEN_HOST)
    origin = head.header(b"origin")
    if head.method == "POST" and origin is not None:
        text = origin.decode("latin-1").strip().lower().rstrip("/")
        if text not in allowed_origins and not _is_own_origin(text, allowed_hosts):
            return Refusal(Case.FORBIDDEN_ORIGIN)
    return None


def _is_own_origin(origin: str, allowed_hosts: Collection[str]) -> bool:
    scheme, separator, authority = origin.partition("://")
    return (
        bool(separator)
        and scheme in ("http", "https")
        and _is_our_name(_host_name(authority), allowed_hosts)
    )


def _host_name(authority: str) -> str:
    """Host without port, lower case, IPv6 without brackets; '' when it makes no sense."""
    authority = authority.strip().lower()
    if authority.startswith("["):
        name, bracket, rest = authority[1:].partition("]")
        return name if bracket and (not rest or _is_port(rest)) else ""
    name, colon, port = authority.partition(":")
    if colon and not _is_port(colon + port):
        return ""
    return name.removesuffix(".")


def _is_port(text: str) -> bool:
    return text[:1] == ":" and (text[1:] == "" or (text[1:].isascii() and text[1:].isdigit()))


def _is_our_name(name: str, allowed_hosts: Collection[str]) -> bool:
    if name == "localhost" or name.endswith(".localhost") or name in allowed_hosts:
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
