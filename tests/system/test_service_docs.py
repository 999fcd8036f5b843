"""The operator's pages and examples, as far as a machine can hold them to the truth."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import yaml

from tests.man_page import man_page
from tests.runtime.http.raw import RawClient, post
from tests.system.harness import CHAT, chat_body, daemon, free_ports
from tests.system.restart_load import fault_of
from tests.system.service_under_test import ROOT
from tests.system.wire import all_pieces

GUIDE = ROOT / "docs" / "deployment.md"
NGINX = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")


# ---- the manual page -----------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("man") is None, reason="man is not installed (Debian: man-db)")
def test_the_manual_page_is_laid_out_without_a_warning() -> None:
    shown = subprocess.run(
        ["man", "--warnings", "--local-file", ROOT / "docs" / "strata-router.1"],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "MANWIDTH": "100"},
        check=True,
    )
    assert shown.stderr == ""
    for words in (
        "strata-router off [--now] [--json] [SOCKET]",
        "--log-level LEVEL",
        "EXIT STATUS",
    ):
        assert words in shown.stdout


def test_the_manual_page_has_the_options_of_no_command() -> None:
    assert ".SH OPTIONS\n.TP\n.B \\-\\-version\n" in man_page()


def test_the_manual_page_has_every_command() -> None:
    page = man_page()
    for command in ("status", "off", "on", "requests", "check", "daemon", "demo"):
        assert f".SS {command}\n" in page


# ---- CLIProxyAPI ---------------------------------------------------------------------------------


def cliproxyapi() -> dict[str, Any]:
    text = (ROOT / "contrib" / "cliproxyapi" / "config.yaml").read_text()
    document: dict[str, Any] = yaml.safe_load(text)
    return document


def test_the_proxys_example_points_at_the_examples_listener_and_names_its_models() -> None:
    example = yaml.safe_load((ROOT / "config.example.json").read_text())
    (provider,) = cliproxyapi()["openai-compatibility"]
    assert provider["base-url"] == f"http://{example['listen']}/v1"
    names = {model["name"] for model in provider["models"]}
    assert names <= example["models"].keys() | example["aliases"].keys()
    assert names >= example["aliases"].keys()


def test_the_proxys_example_keeps_one_local_provider_alive() -> None:
    config = cliproxyapi()
    (provider,) = config["openai-compatibility"]
    for level in (config, provider):
        assert level["disable-cooling"] is True
        assert level["request-retry"] == 0
    assert config["transient-error-cooldown-seconds"] == -1
    assert config["proxy-url"] == ""
    assert "api-key-entries" not in provider
    assert config["host"] == "127.0.0.1"


def test_the_proxys_page_says_for_every_setting_which_version_it_holds_for() -> None:
    page = (ROOT / "docs" / "cliproxyapi.md").read_text()
    rows = re.findall(r"^\| (`.*?|one .*?) \|", page, re.MULTILINE)
    assert len(rows) == 6
    assert all("*7.2*" in row for row in rows)
    for words in ("v7.2.140", "v8.0.30", "send-keepalive-before-ft"):
        assert words in page


# ---- nginx ---------------------------------------------------------------------------------------


@contextmanager
def nginx(directory: Path, port: int, upstream: str) -> Iterator[None]:
    """nginx with the guide's server block, without what a test has not: certificate and passwords."""
    (block,) = re.findall(r"```nginx\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    block = re.sub(r"^\s*(ssl_|auth_).*\n", "", block, flags=re.MULTILINE)
    block = block.replace("listen 443 ssl", f"listen 127.0.0.1:{port}")
    block = block.replace("http://127.0.0.1:8088", f"http://{upstream}")
    folders = "\n".join(
        f"{name}_temp_path {directory}/{name};"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    configuration = directory / "nginx.conf"
    configuration.write_text(
        f"daemon off; master_process off; pid {directory}/pid; error_log {directory}/error.log;\n"
        f"events {{}}\nhttp {{ access_log off; {folders}\n{block} }}\n"
    )
    assert NGINX is not None
    process = subprocess.Popen([NGINX, "-c", configuration, "-e", directory / "error.log"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


@pytest.mark.skipif(NGINX is None, reason="nginx is not installed")
async def test_the_guides_nginx_passes_streams_token_by_token_and_errors_as_they_are(
    tmp_path: Path,
) -> None:
    knobs = {"chunk_every_ms": 100, "force_tokens": 8}
    async with daemon(tmp_path, {"a": knobs}) as it:
        (port,) = free_ports(1)
        with nginx(tmp_path, port, it.config["listen"]):
            client = await connect(port)
            foreign = "Origin: https://llm.example.org"
            await client.send(post(CHAT, foreign, body=chat_body("a", stream=True)))
            head = await client.head()
            assert head.status == 200
            pieces = await all_pieces(client)
            tokens = [piece for piece in pieces if b'"content"' in piece.data]
            assert len(tokens) >= 8
            assert tokens[-1].at_s - tokens[0].at_s > 0.5, "they come as they are made"
            await client.send(post(CHAT, body=chat_body("nobody")))
            assert (await client.reply()).status == 404
            await client.send(post(CHAT, body=chat_body("a")))
            assert fault_of(await client.reply(), stream=False) is None
            await client.send(post("/requests"))
            assert (await client.reply()).status == 404
            await client.stream.aclose()


async def connect(port: int) -> RawClient:
    """A connection, as soon as nginx listens."""
    with trio.fail_after(10):
        while True:
            try:
                return await RawClient.connect(port)
            except OSError:
                await trio.sleep(0.02)
