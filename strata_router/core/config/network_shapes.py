"""Kinds of values that name places on the network: where we listen, and who may call us what.

Same protocol as ``shapes``; ``keys`` uses them for ``listen``, ``allowed_hosts`` and
``allowed_origins``. Names are never resolved here.
"""

import ipaddress
import re
from dataclasses import dataclass

from strata_router.core.config.problems import Findings
from strata_router.core.config.schema import ListenAddress
from strata_router.core.config.shapes import refuse

_LISTEN = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<four>[0-9.]+)):(?P<port>[1-9][0-9]{0,4})")
_HOST = r"[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?"
_HOST_CHARACTERS = 253
_ORIGIN = re.compile(rf"https?://(?:{_HOST}|\[[0-9A-Fa-f:.]+\])(?::[1-9][0-9]{{0,4}})?")
_HIGHEST_PORT = 65535


@dataclass(frozen=True, slots=True)
class LoopbackAddress:
    """Where the daemon listens: nothing that another machine could reach, and no name to resolve."""

    allowed: str = "a loopback address with a port, as '127.0.0.1:8088' or '[::1]:8088'"

    def read(self, value: object, path: str, findings: Findings) -> ListenAddress | None:
        if not isinstance(value, str):
            refuse(findings, path, value, self.allowed)
            return None
        parts = _LISTEN.fullmatch(value)
        if parts is None or int(parts["port"]) > _HIGHEST_PORT:
            findings.problem(path, f"is no address with a port; must be {self.allowed}")
            return None
        host = _loopback(parts["six"] or parts["four"])
        if host is None:
            findings.problem(
                path,
                f"is not a loopback address; must be {self.allowed}; "
                "to serve other machines, put an authenticating proxy in front",
            )
            return None
        return ListenAddress(host, int(parts["port"]))

    def json_schema(self) -> dict[str, object]:
        return {"type": "string", "pattern": r"^(127\.[0-9.]+|\[[0-9A-Fa-f:.]+\]):[1-9][0-9]{0,4}$"}


def _loopback(host: str) -> str | None:
    """The address in its usual spelling, or None; ``::ffff:127.0.0.1`` is one socket in two worlds."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    return (
        str(address) if address.is_loopback and not getattr(address, "ipv4_mapped", None) else None
    )


@dataclass(frozen=True, slots=True)
class HostName:
    """A name that a Host header may carry."""

    allowed: str = "a host name or IP address without scheme, port or wildcard"

    def read(self, value: object, path: str, findings: Findings) -> str | None:
        """The name in lower case, an IPv6 address without brackets, no dot at the end."""
        if not isinstance(value, str):
            refuse(findings, path, value, self.allowed)
            return None
        name = value.lower().removesuffix(".")
        bare = name.removeprefix("[").removesuffix("]")
        if _is_address(bare):
            return bare
        if re.fullmatch(_HOST, name) is None or len(name) > _HOST_CHARACTERS:
            findings.problem(path, f"is no host name; must be {self.allowed}")
            return None
        return name

    def json_schema(self) -> dict[str, object]:
        return {"type": "string", "minLength": 1, "maxLength": _HOST_CHARACTERS}


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Origin:
    """A web origin that may post; ``null`` is what every sandboxed page sends, so it cannot be one."""

    allowed: str = "a web origin as 'https://host' or 'http://host:port', without path or wildcard"

    def read(self, value: object, path: str, findings: Findings) -> str | None:
        """The origin as browsers write it: lower case, no slash at the end, no usual port."""
        if not isinstance(value, str):
            refuse(findings, path, value, self.allowed)
            return None
        origin = value.lower().removesuffix("/")
        if _ORIGIN.fullmatch(origin) is None or len(origin) > 2 * _HOST_CHARACTERS:
            findings.problem(path, f"is no web origin; must be {self.allowed}")
            return None
        usual_port = ":443" if origin.startswith("https:") else ":80"
        return origin.removesuffix(usual_port)

    def json_schema(self) -> dict[str, object]:
        return {"type": "string", "pattern": "^[Hh][Tt][Tt][Pp][Ss]?://[^/]+/?$"}
