"""Serves the operator's page: one document, its script and its style, from the package.

The document carries a static summary for browsers without scripts (``summary``); the script polls
``GET /queue``. Nothing is loaded from elsewhere and nothing inline runs: the policy says so.
"""

from collections.abc import Callable
from importlib import resources

from quart import Response
from quart_trio import QuartTrio

from strata_router.core.overview import Overview
from strata_router.runtime.web.summary import summary

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # A daemon that was upgraded must not be looked at with the old script.
    "Cache-Control": "no-cache",
}

SUMMARY_MARK = "<!-- summary -->"
"""Where index.html takes the summary."""

ASSETS = {
    "page.js": "text/javascript; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
}


def add_page(app: QuartTrio, overview: Callable[[], Overview]) -> None:
    """Add ``/`` and the two files that it refers to. overview: what the summary shows."""
    folder = resources.files("strata_router.runtime.web") / "page"
    before, mark, after = (folder / "index.html").read_text("utf-8").partition(SUMMARY_MARK)
    assert mark, "index.html has a place for the summary"
    assets = {name: (folder / name).read_bytes() for name in ASSETS}

    @app.get("/")
    async def page() -> Response:
        html = before + summary(overview()) + after
        return Response(html, content_type="text/html; charset=utf-8", headers=HEADERS)

    @app.get("/page/<any('page.js', 'page.css'):name>")
    async def asset(name: str) -> Response:
        return Response(assets[name], content_type=ASSETS[name], headers=HEADERS)
