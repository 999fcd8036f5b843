"""The page's files: nothing inline, nothing from elsewhere, nothing that makes markup of text."""

import re
from importlib import resources
from pathlib import Path

import pytest
from quart_trio import QuartTrio

from strata_router.core.admission import WaitReason
from strata_router.core.overview import AnswerPhase
from strata_router.runtime.web.page_routes import ASSETS, POLICY, SUMMARY_MARK, add_page
from tests.core.overviews import BUSY

FOLDER = resources.files("strata_router.runtime.web") / "page"
TEXTS = {name: (FOLDER / name).read_text("utf-8") for name in ("index.html", *ASSETS)}


def app() -> QuartTrio:
    it = QuartTrio("test", static_folder=None)
    add_page(it, lambda: BUSY)
    return it


@pytest.mark.parametrize("path", ["/", "/page/page.js", "/page/page.css"])
async def test_every_file_comes_with_the_policy(path: str) -> None:
    reply = await app().test_client().get(path)
    assert reply.status_code == 200
    assert reply.headers["content-security-policy"] == POLICY
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["cache-control"] == "no-cache"


async def test_no_other_file_of_the_package_is_served() -> None:
    client = app().test_client()
    for path in ("/page/index.html", "/page/../app.py", "/page/", "/page/page.js/x"):
        assert (await client.get(path)).status_code == 404


async def test_the_document_holds_the_summary_where_scripts_do_not_run() -> None:
    html = await (await app().test_client().get("/")).get_data(as_text=True)
    without_scripts = re.search(r"<noscript>(.*)</noscript>", html, re.DOTALL)
    assert without_scripts is not None
    assert "grace for a, 1.2 s left" in without_scripts[1]
    assert SUMMARY_MARK not in html


def test_the_policy_lets_nothing_in_but_our_own_files_and_data_images() -> None:
    directives = dict(part.strip().split(" ", 1) for part in POLICY.split(";"))
    assert directives == {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "connect-src": "'self'",
        "img-src": "'self' data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }


def test_nothing_is_inline_in_the_document() -> None:
    html = TEXTS["index.html"]
    assert not re.search(r"\s(style|on\w+)=", html)
    assert "<style" not in html
    assert re.findall(r"<script[^>]*>([^<]*)</script>", html) == [""]


@pytest.mark.parametrize("name", TEXTS)
def test_no_file_refers_to_another_host(name: str) -> None:
    found = re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s'\"]*", TEXTS[name])
    names_of_formats = {"http://www.w3.org/2000/svg"}
    assert set(found) <= names_of_formats


@pytest.mark.parametrize(
    "way", ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("]
)
def test_the_script_never_makes_markup_or_code_of_text(way: str) -> None:
    assert way not in TEXTS["page.js"]


def test_the_reference_has_every_reason_phase_and_field() -> None:
    text = (Path(__file__).parents[3] / "docs" / "page.md").read_text("utf-8")
    words: list[str] = [*WaitReason, *AnswerPhase, *BUSY.tickets()[0], *BUSY.answers()[0]]
    assert [word for word in words if not re.search(rf"[`\"]{word}[`\"]", text)] == []
