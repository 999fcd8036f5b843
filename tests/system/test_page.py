"""The operator's page in a real browser, on a live daemon (issue 10).

With ``STRATA_ROUTER_SCREENSHOTS=docs/screenshots`` each state is also saved as a picture there.
"""

import os
import random
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trio

from tests.system.browser import MISSING, Browser, browser
from tests.system.crowd import QUICK, Crowd, frozen
from tests.system.harness import DaemonUnderTest, daemon
from tests.system.shared import running, visiting

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

PICTURES = os.environ.get("STRATA_ROUTER_SCREENSHOTS")
SEEN_S = 8.0
"""The page asks once a second; a busy machine needs some of the rest."""

T = TypeVar("T")

ROWS = "return [...document.querySelectorAll('.%s tbody tr')].map(r => [...r.cells].map(c => c.textContent))"
FACTS = (
    "return [...document.querySelectorAll('.facts div')]"
    ".map(d => [...d.children].map(c => c.textContent))"
)
FOCUSED = (
    "const it = document.activeElement; return it.getAttribute('aria-label') ?? it.textContent"
)
WIDTH = "return document.documentElement.scrollWidth"
ASKED = (
    "return performance.getEntriesByType('resource').filter(e => e.name.includes('/queue'))"
    ".map(e => e.startTime)"
)


class Page:
    """The page of one daemon, as a person sees it."""

    def __init__(self, it: Browser) -> None:
        self.browser = it

    async def do(self, act: Callable[[], T]) -> T:
        return await trio.to_thread.run_sync(act)

    async def open(self, it: DaemonUnderTest) -> None:
        def act() -> None:
            self.browser.prefer(prefers_color_scheme="light")
            self.browser.resize(1240, 900)
            self.browser.open(f"http://127.0.0.1:{it.port}/")
            self.browser.console()  # what the page before has said

        await self.do(act)
        await self.until(lambda page: page.text(".link") == "live")

    def text(self, selector: str) -> str:
        found: str = self.browser.script(
            "return document.querySelector(arguments[0])?.textContent ?? ''", selector
        )
        return found

    @property
    def title(self) -> str:
        return self.text("h1")

    @property
    def notes(self) -> str:
        return self.text(".notes")

    def rows(self, section: str) -> list[list[str]]:
        found: list[list[str]] = self.browser.script(ROWS % section)
        return found

    def reasons(self) -> list[tuple[str, str]]:
        """(model, why) of the waiting rows."""
        return [(row[1], row[2]) for row in self.rows("waiting")]

    def facts(self) -> dict[str, str]:
        """What is said about the request that is looked at."""
        return dict(self.browser.script(FACTS))

    async def until(self, holds: Callable[["Page"], Any], within_s: float = SEEN_S) -> None:
        """Wait until the page shows it, with a bound."""
        with trio.move_on_after(within_s):
            while not await self.do(lambda: holds(self)):
                await trio.sleep(0.05)
        assert await self.do(lambda: holds(self)), await self.do(lambda: self.text("main"))

    async def picture(self, name: str) -> None:
        if PICTURES is not None:
            folder = Path(PICTURES)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{name}.png").write_bytes(await self.do(self.browser.screenshot))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser(tmp_path_factory.mktemp("browser")) as it:
        yield Page(it)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonUnderTest]:
    with running(
        tmp_path_factory.mktemp("page"), {"a": QUICK, "b": QUICK}, {"max_pending": 1}
    ) as it:
        yield it


LARGE, SMALL, BROKEN = "qwen3.6-35b-a3b-q5_k", "qwen3.6-35b-a3b-q3_k", "qwen3.6-35b-a3b-q6_k"
FAMILY = {
    LARGE: {**QUICK, "load_s": 1.6, "chunk_every_ms": 20},
    SMALL: {**QUICK, "load_s": 0.5, "chunk_every_ms": 8},
    BROKEN: {"fail_load": 2},
}


@pytest.mark.bound_s(120)
async def test_the_page_follows_a_daemon_through_load_queue_error_and_restart(
    tmp_path: Path, page: Page
) -> None:
    config = {
        "max_pending": 1,
        "cooldown_ms": 60_000,
        "request_log_path": str(tmp_path / "requests.jsonl"),
    }
    async with daemon(tmp_path, FAMILY, config) as it:
        await page.open(it)
        await page.until(lambda page: page.title == "No model is loaded")
        assert await page.do(lambda: page.rows("waiting")) == []
        await page.picture("idle")
        if PICTURES is not None:
            await make_history(it)

        crowd = Crowd(it)
        await see_a_load(page, crowd)
        await see_the_queue_move(page, crowd)
        await see_an_error(page, it)
        assert await page.do(page.browser.console) == []
        await see_a_restart(page, it)


async def make_history(it: DaemonUnderTest) -> None:
    """A hundred requests of every kind, so that the pictures show what there is to see."""
    dice = random.Random(7)

    async def ask(models: Iterator[str]) -> None:
        for model in models:
            tokens, prefill_s = int(dice.lognormvariate(3.3, 0.6)), dice.random() * 0.4
            fault = " FX:error-before" if dice.random() < 0.04 else ""
            text = f"FX:force_tokens={tokens} FX:prefill={prefill_s:.2f}{fault}"
            with trio.move_on_after(0.6 if dice.random() < 0.06 else 60):
                await it.chat(model, text, stream=dice.random() < 0.8)

    models = iter([(LARGE, SMALL)[number // 14 % 2] for number in range(110)])
    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(ask, models)


async def see_a_load(page: Page, crowd: Crowd) -> None:
    """One loads its model; another of the same and one of another model wait for that."""
    await crowd.send("first FX:force_tokens=80", LARGE, stream=True)
    await crowd.send("second", LARGE, stream=True)
    await crowd.send("third", SMALL)
    await page.until(lambda page: page.title == f"Loading {LARGE}")
    await page.until(
        lambda page: (
            page.reasons()
            == [(LARGE, f"waits for {LARGE} to load"), (SMALL, f"behind the load of {LARGE}")]
        )
    )
    assert await page.do(lambda: [row[1:3] for row in page.rows("active")]) == [[LARGE, "loading"]]
    assert "so far" in await page.do(lambda: page.text(".sub"))
    await page.picture("loading")
    await page.until(lambda page: page.title == f"{LARGE} is loaded")
    for model in (LARGE, SMALL):  # the loads to come are not looked at
        crowd.it.set_knobs(model, FAMILY[model] | {"load_s": 0.1})


async def see_the_queue_move(page: Page, crowd: Crowd) -> None:
    """While generation stands still, the page shows what the daemon says; then the rows go away."""
    with frozen(crowd.it):
        await crowd.send("urgent", SMALL, service_tier="priority")
        for number in range(6 if PICTURES else 4):
            await crowd.send(f"later {number}", (LARGE, SMALL)[number % 2], service_tier="flex")
        queue = await crowd.it.get_json("/queue")
        said = [(row["model"], row["words"]) for row in queue["waiting"]["tickets"]]
        assert said[0][0] == SMALL
        await page.until(lambda page: page.reasons() == said)
        assert await page.do(lambda: page.rows("waiting")[0][3]) == "priority"
        assert f"{len(said)} waiting" in await page.do(
            lambda: page.browser.script("return document.title")
        )
        await page.picture("queue")
        if PICTURES is not None:
            await page.do(lambda: page.browser.resize(390, 800))
            await page.until(lambda page: page.browser.script(WIDTH) <= 390)
            await page.picture("queue-narrow")
            await page.do(lambda: page.browser.resize(1240, 900))
    with trio.fail_after(30):
        await crowd.replies()
    await page.until(lambda page: page.reasons() == [] and page.rows("active") == [])


async def see_an_error(page: Page, it: DaemonUnderTest) -> None:
    assert (await it.chat(BROKEN)).status == 503
    await page.until(lambda page: page.facts()["outcome"] == "model load error")
    assert f"{BROKEN} failed to load and cools down" in await page.do(lambda: page.notes)
    for text in ("FX:prefill=0.3", "FX:error-before", "FX:prefill=0.2 FX:tokens=90", "hello"):
        await it.chat(SMALL, text, stream=True, max_tokens=200)
    await page.until(lambda page: page.facts()["outcome"] == "completed")
    await page.picture("error")


async def see_a_restart(page: Page, it: DaemonUnderTest) -> None:
    """While the daemon is away the browser itself notes the refused connections; nothing else may be."""
    await it.stop()
    await page.until(lambda page: "no answer" in page.text(".link"))
    assert await page.do(lambda: page.browser.script("return document.body.className")) == "stale"
    await page.picture("lost")
    await it.start()
    await page.until(lambda page: page.text(".link").startswith("live, restarted at "))
    await page.until(lambda page: page.title == "No model is loaded")
    assert await page.do(lambda: page.text(".recent .count")) == ""
    noted = await page.do(page.browser.console)
    assert all("/queue" in line and "ERR_CONNECTION_REFUSED" in line for line in noted), noted
    await it.chat(SMALL, stream=True)
    await page.until(lambda page: page.facts().get("outcome") == "completed")


async def test_what_the_operator_does_is_shown(page: Page, shared: DaemonUnderTest) -> None:
    async with visiting(shared) as it:
        assert (await it.on("a"))["ok"]
        await page.open(it)
        await page.until(lambda page: page.title == "a is loaded")
        assert (await it.off())["ok"]
        await page.until(lambda page: page.title == "No model is loaded")
        assert "Routing is off" in await page.do(lambda: page.notes)
        await page.do(lambda: page.browser.prefer(prefers_color_scheme="dark"))
        await page.picture("off-dark")
        await it.control("on")
        await page.until(lambda page: page.notes == "")


async def test_it_asks_at_most_once_a_second_and_not_while_hidden(
    page: Page, shared: DaemonUnderTest
) -> None:
    async with visiting(shared) as it:
        await page.open(it)
        await page.until(lambda page: len(page.browser.script(ASKED)) >= 2)
        hidden_for_s = await page.do(lambda: hide_for_a_while(page.browser, 2.2))
        await page.until(lambda page: len(page.browser.script(ASKED)) >= 4)
        times: list[float] = await page.do(lambda: page.browser.script(ASKED))
        pauses = [later - earlier for earlier, later in pairwise(times)]
        assert min(pauses) > 995
        assert max(pauses) > hidden_for_s * 1000


def hide_for_a_while(it: Browser, seconds: float) -> float:
    """Put another tab in front; how long it certainly was there."""
    front = it.window()
    other = it.new_tab()
    it.show(other)
    began = time.monotonic()
    time.sleep(seconds)  # nothing is to happen in this time, so there is no condition to wait for
    hidden_for_s = time.monotonic() - began
    it.close()
    it.show(front)
    return hidden_for_s


async def test_it_is_shown_without_scripts(page: Page, shared: DaemonUnderTest) -> None:
    async with visiting(shared) as it:
        assert (await it.on("a"))["ok"]
        await page.do(lambda: page.browser.allow_scripts(False))
        try:
            await page.do(lambda: page.browser.open(f"http://127.0.0.1:{it.port}/"))
            html = await page.do(page.browser.visible_text)
        finally:
            await page.do(lambda: page.browser.allow_scripts(True))
        assert "a is loaded, for " in html
        assert "Waiting: 0" in html


async def test_what_clients_send_is_never_on_the_page(page: Page, shared: DaemonUnderTest) -> None:
    async with visiting(shared) as it:
        await it.chat("<img src=x onerror=alert(1)>s3cr3t", "s3cr3t")
        await it.chat("a", "s3cr3t <b>FX:json400</b>", user="s3cr3t")
        await page.open(it)
        await page.until(lambda page: page.text(".recent .count") != "")
        html = await page.do(
            lambda: page.browser.script("return document.documentElement.outerHTML")
        )
        assert "s3cr3t" not in html
        assert "onerror" not in html
        assert await page.do(page.browser.console) == []


async def test_it_works_by_keyboard_and_everything_has_a_name(
    page: Page, shared: DaemonUnderTest
) -> None:
    async with visiting(shared) as it:
        for model in ("a", "b"):
            await it.chat(model, stream=True)
        await page.open(it)
        await page.until(lambda page: page.facts().get("model") == "b")
        names = []
        for _ in range(8):
            await page.do(lambda: page.browser.press("\ue004"))  # Tab
            names.append(await page.do(lambda: page.browser.script(FOCUSED)))
            if names[-1] == "Look at one request":
                await page.do(lambda: page.browser.press("\ue012"))  # arrow left: the one before
                assert (await page.do(page.facts))["model"] == "a"
                await page.do(lambda: page.browser.press("\ue00c"))  # Escape: the newest again
                assert (await page.do(page.facts))["model"] == "b"
        assert {"Look at one request", "as a table", "/queue"} <= set(names)
        nameless = [
            node["role"]["value"]
            for node in await page.do(page.browser.accessibility_tree)
            if _takes_focus(node) and not node.get("name", {}).get("value")
        ]
        assert nameless == []


def _takes_focus(node: dict[str, Any]) -> bool:
    properties = {
        entry["name"]: entry["value"].get("value") for entry in node.get("properties", [])
    }
    is_page = node.get("role", {}).get("value") == "RootWebArea"
    return bool(properties.get("focusable")) and not is_page


@pytest.mark.parametrize("width", [320, 700, 1900])
async def test_nothing_is_wider_than_the_window(
    page: Page, shared: DaemonUnderTest, width: int
) -> None:
    async with visiting(shared) as it:
        await it.chat("a", stream=True)
        await page.open(it)
        await page.do(lambda: page.browser.resize(width, 800))
        await page.until(lambda page: page.browser.script(WIDTH) <= width)
        if width == 320:
            with frozen(it):
                await it.send_chat("a", stream=True)
                await it.send_chat("b", stream=True)
                await page.until(lambda page: len(page.rows("waiting")) == 1)
                assert await page.do(lambda: page.browser.script(WIDTH)) <= width


async def test_dark_and_light_follow_the_readers_wish(page: Page, shared: DaemonUnderTest) -> None:
    background = "return getComputedStyle(document.body).backgroundColor"
    async with visiting(shared) as it:
        await page.open(it)
        light = await page.do(lambda: page.browser.script(background))
        await page.do(lambda: page.browser.prefer(prefers_color_scheme="dark"))
        assert await page.do(lambda: page.browser.script(background)) != light
