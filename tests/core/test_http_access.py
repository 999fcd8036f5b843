"""core.http.access: Host and Origin, contract section 5."""

import pytest

from strata_router.core.http.access import check_access
from strata_router.core.http.request_head import parse_head
from strata_router.core.refusal import Case

HOSTS = ("gpu-box",)
ORIGINS = ("https://chat.example",)


def check(host: str | None, origin: str | None = None, method: str = "POST") -> Case | None:
    lines = [f"{method} / HTTP/1.{1 if host is not None else 0}"]
    if host is not None:
        lines.append(f"Host: {host}")
    if origin is not None:
        lines.append(f"Origin: {origin}")
    head = parse_head("\r\n".join((*lines, "", "")).encode("latin-1"))
    refusal = check_access(head, HOSTS, ORIGINS)
    return None if refusal is None else refusal.case


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.0.0.1:8088",
        "127.9.9.9:1",
        "[::1]",
        "[::1]:8088",
        "localhost",
        "LOCALHOST:80",
        "localhost.",
        "app.localhost",
        "gpu-box",
        "GPU-box:9999",
        "",
        None,
    ],
)
def test_loopback_and_configured_hosts_pass(host: str | None) -> None:
    assert check(host) is None


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8088",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "10.0.0.1",
        "192.168.1.5:8088",
        "[::2]",
        "[::1",
        "[::1]x",
        "127.0.0.1:80x",
        "localhost@evil.example",
        "0.0.0.0",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_foreign_hosts_are_forbidden_whatever_the_method(host: str, method: str) -> None:
    assert check(host, method=method) is Case.FORBIDDEN_HOST


@pytest.mark.parametrize(
    "origin",
    [
        "http://localhost:3000",
        "https://127.0.0.1",
        "http://[::1]:5173",
        "http://gpu-box:8080",
        "https://chat.example",
        "HTTPS://Chat.Example",
    ],
)
def test_own_and_allowed_origins_may_post(origin: str) -> None:
    assert check("localhost", origin) is None


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "http://evil.example",
        "http://chat.example",
        "chrome-extension://abc",
        "",
        "localhost",
    ],
)
def test_foreign_origins_may_not_post(origin: str) -> None:
    assert check("localhost", origin) is Case.FORBIDDEN_ORIGIN


def test_a_foreign_origin_may_read_what_has_no_cors_grant_anyway() -> None:
    assert check("localhost", "http://evil.example", method="GET") is None
