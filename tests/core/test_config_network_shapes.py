"""Addresses, host names and origins in a configuration."""

import pytest

from strata_router.core.config.network_shapes import HostName, LoopbackAddress, Origin
from strata_router.core.config.problems import Findings
from strata_router.core.config.schema import ListenAddress
from strata_router.core.config.shapes import Shape


def read(shape: Shape, value: object) -> object:
    findings = Findings()
    result = shape.read(value, "key", findings)
    assert (result is None) == bool(findings.problems)
    return result


def message(shape: Shape, value: object) -> str:
    findings = Findings()
    assert shape.read(value, "key", findings) is None
    (problem,) = findings.problems
    return problem.message


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8088", ListenAddress("127.0.0.1", 8088)),
        ("127.1.2.3:1", ListenAddress("127.1.2.3", 1)),
        ("[::1]:65535", ListenAddress("::1", 65535)),
        ("[0:0:0:0:0:0:0:1]:80", ListenAddress("::1", 80)),
    ],
)
def test_loopback_of_either_family_may_be_listened_on(text: str, address: ListenAddress) -> None:
    assert read(LoopbackAddress(), text) == address


@pytest.mark.parametrize(
    "text",
    ["0.0.0.0:8088", "192.168.1.2:8088", "[::]:8088", "[fe80::1]:80", "[::ffff:127.0.0.1]:80"],
)
def test_an_address_that_others_reach_is_refused_with_the_way_out(text: str) -> None:
    said = message(LoopbackAddress(), text)
    assert said.startswith("is not a loopback address; must be a loopback address with a port")
    assert said.endswith("put an authenticating proxy in front")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "8088",
        "localhost:8088",
        "127.0.0.1",
        "127.0.0.1:",
        "127.0.0.1:0",
        "127.0.0.1:65536",
        "127.0.0.1:08",
        "127.0.0.1:+1",
        "127.0.0.1: 80",
        "127.0.0.1:٨٠",
        "::1:8088",
        "[::1%lo]:80",
        "127.0.0.1:80\n",
    ],
)
def test_what_is_no_address_with_a_port_is_refused(text: str) -> None:
    assert message(LoopbackAddress(), text).startswith("is no address with a port; must be")


@pytest.mark.parametrize("text", ["127.0.0.256:80", "127.1:80", "127.0.0.01:80", "[1::2::3]:80"])
def test_a_broken_address_is_no_loopback_address(text: str) -> None:
    assert message(LoopbackAddress(), text).startswith("is not a loopback address")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Router.LAN.", "router.lan"),
        ("localhost", "localhost"),
        ("[::1]", "::1"),
        ("::1", "::1"),
        ("10.0.0.5", "10.0.0.5"),
        ("my_host", "my_host"),
        ("x" * 253, "x" * 253),
    ],
)
def test_a_host_is_compared_in_one_spelling(text: str, name: str) -> None:
    assert read(HostName(), text) == name


@pytest.mark.parametrize(
    "text",
    ["", "a:80", "http://a", "*", "*.lan", "a b", "-a", "a..", "[::1]:80", "a/b", "x" * 254, "é"],
)
def test_what_is_no_host_name_is_refused(text: str) -> None:
    assert message(HostName(), text).startswith("is no host name; must be a host name")


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("https://Chat.Example", "https://chat.example"),
        ("http://localhost:3000/", "http://localhost:3000"),
        ("HTTPS://a:443", "https://a"),
        ("http://a:80/", "http://a"),
        ("http://a:443", "http://a:443"),
        ("http://[::1]:3000", "http://[::1]:3000"),
    ],
)
def test_an_origin_is_compared_as_browsers_write_it(text: str, origin: str) -> None:
    assert read(Origin(), text) == origin


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "*",
        "a",
        "ftp://a",
        "http://",
        "http://a/b",
        "http://*",
        "http://a:0",
        "http://a//",
    ],
)
def test_what_is_no_origin_is_refused(text: str) -> None:
    assert message(Origin(), text).startswith("is no web origin; must be a web origin")


def test_an_endless_origin_is_refused() -> None:
    assert message(Origin(), "http://" + "a" * 500).startswith("is no web origin")


@pytest.mark.parametrize("shape", [LoopbackAddress(), HostName(), Origin()])
def test_what_is_no_string_is_refused(shape: Shape) -> None:
    assert message(shape, 1) == f"is a whole number; must be {shape.allowed}"


def test_schemas_are_patterns_or_bounds() -> None:
    assert LoopbackAddress().json_schema()["type"] == "string"
    assert HostName().json_schema() == {"type": "string", "minLength": 1, "maxLength": 253}
    assert Origin().json_schema()["type"] == "string"
