"""Headless Chromium, driven over ChromeDriver's HTTP interface with the standard library only.

    with browser(tmp_path) as it:
        it.open("http://127.0.0.1:8088/")
        it.script("return document.title")

Everything blocks; an async test calls it in a thread. Where the two Debian packages are missing,
``MISSING`` says so.
"""

import base64
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

CHROMIUM = Path("/usr/bin/chromium")
CHROMEDRIVER = Path("/usr/bin/chromedriver")
MISSING = (
    ""
    if CHROMIUM.exists() and CHROMEDRIVER.exists()
    else "needs Debian's packages chromium and chromium-driver"
)

# As root there is no sandbox; without the network flags Chromium calls home at every start.
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
]

ANSWER_S = 30.0


class BrowserError(Exception):
    """ChromeDriver refused; the text is its own."""


@dataclass
class Browser:
    """One session: one window."""

    port: int
    session: str = ""

    def open(self, url: str) -> None:
        self._do("POST", "/url", {"url": url})

    def script(self, body: str, *arguments: Any) -> Any:
        """Run the body of a function in the page; its value as JSON."""
        return self._do("POST", "/execute/sync", {"script": body, "args": list(arguments)})

    def console(self) -> list[str]:
        """What the page's console has been told since the last call, and failed loads."""
        entries = self._do("POST", "/se/log", {"type": "browser"})
        return [f"{entry['level']} {entry['message']}" for entry in entries]

    def screenshot(self) -> bytes:
        """The whole page as PNG, whatever the window shows of it."""
        shot = self.devtools("Page.captureScreenshot", captureBeyondViewport=True, format="png")
        return base64.b64decode(shot["data"])

    def resize(self, width: int, height: int) -> None:
        """The layout's size in CSS pixels; real windows have a least width."""
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def prefer(self, **features: str) -> None:
        """Set media features, underscores for hyphens: ``prefer(prefers_color_scheme="dark")``."""
        wanted = [
            {"name": name.replace("_", "-"), "value": value} for name, value in features.items()
        ]
        self.devtools("Emulation.setEmulatedMedia", features=wanted)

    def press(self, key: str) -> None:
        """Press and release a key wherever the focus is."""
        keys = [{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]
        self._do("POST", "/actions", {"actions": [{"type": "key", "id": "k", "actions": keys}]})

    def window(self) -> str:
        """The tab that is driven now."""
        handle: str = self._do("GET", "/window")
        return handle

    def new_tab(self) -> str:
        handle: str = self._do("POST", "/window/new", {"type": "tab"})["handle"]
        return handle

    def show(self, tab: str) -> None:
        """Put a tab in front of the others, and drive it."""
        self._do("POST", "/window", {"handle": tab})
        self.devtools("Page.bringToFront")

    def close(self) -> None:
        """Close the tab that is driven."""
        self._do("DELETE", "/window")

    def allow_scripts(self, yes: bool) -> None:
        """For pages that are opened from now on."""
        self.devtools("Emulation.setScriptExecutionDisabled", value=not yes)

    def visible_text(self) -> str:
        """The text that is rendered; works without scripts, too."""
        tree = self.accessibility_tree()
        texts = (node for node in tree if node.get("role", {}).get("value") == "StaticText")
        return "\n".join(node["name"]["value"] for node in texts)

    def accessibility_tree(self) -> list[dict[str, Any]]:
        """Every node as a screen reader gets it."""
        nodes: list[dict[str, Any]] = self.devtools("Accessibility.getFullAXTree")["nodes"]
        return nodes

    def devtools(self, command: str, **parameters: Any) -> Any:
        return self._do("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def begin(self, profile: Path) -> None:
        options = {
            "binary": str(CHROMIUM),
            "args": [*FLAGS, f"--user-data-dir={profile}", "--window-size=1280,900"],
        }
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        answer = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self.session = answer["sessionId"]

    def end(self) -> None:
        self._do("DELETE", "")

    def _do(self, method: str, path: str, body: Any = None) -> Any:
        return self._ask(method, f"/session/{self.session}{path}", body)

    def _ask(self, method: str, path: str, body: Any) -> Any:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_S)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": "application/json"})
            answer = json.loads(connection.getresponse().read())["value"]
        finally:
            connection.close()
        if isinstance(answer, dict) and "error" in answer:
            raise BrowserError(f"{answer['error']}: {answer.get('message', '')}")
        return answer


@contextmanager
def browser(directory: Path) -> Iterator[Browser]:
    """A browser with a new profile under ``directory``; gone with the block, its processes too."""
    driver = subprocess.Popen(
        [CHROMEDRIVER, "--port=0"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(directory)},
    )
    try:
        it = Browser(_port_of(driver))
        it.begin(directory / "profile")
        try:
            yield it
        finally:
            with suppress(OSError, BrowserError):
                it.end()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
        assert driver.stdout is not None
        driver.stdout.close()


def _port_of(driver: subprocess.Popen[str]) -> int:
    assert driver.stdout is not None
    told = []
    for line in driver.stdout:
        told.append(line)
        if found := re.search(r"started successfully on port (\d+)", line):
            return int(found[1])
    raise BrowserError("chromedriver did not start: " + "".join(told))
