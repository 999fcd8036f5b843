"""The Quart app behind AppBridge: discovery, health, figures and the page. Never wakes an engine.

Owns nothing and starts no task; what it shows comes from Views, read at the time of asking.
Source: contract 5.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson
from quart import Response, request
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException, MethodNotAllowed

from strata_router import __version__
from strata_router.core.http.accept import preferred
from strata_router.core.openapi import openapi_document
from strata_router.core.overview import Overview
from strata_router.core.record.ring import DEFAULT_LIMIT
from strata_router.core.refusal import Case, Refusal
from strata_router.runtime.web.exposition import TextForm
from strata_router.runtime.web.page_routes import add_page

JSON = "application/json"

_CURSOR = re.compile(r"[0-9]{1,18}\Z")


@dataclass(frozen=True, slots=True)
class Views:
    """Where the app's answers come from; all synchronous.

    exposition: the same figures as metrics, as Prometheus text.
    requests: (after, limit) -> a page, see core.record.ring.
    queue: (after, limit) -> what is going on, with that page of records unless both are None.
    overview: the same for the page's static form.
    """

    models: Callable[[], list[dict[str, Any]]]
    model: Callable[[str], dict[str, Any] | None]
    health: Callable[[], tuple[int, dict[str, Any]]]
    metrics: Callable[[], dict[str, Any]]
    exposition: Callable[[TextForm], bytes]
    requests: Callable[[int | None, int], dict[str, Any]]
    queue: Callable[[int | None, int | None], dict[str, Any]]
    overview: Callable[[], Overview]


def build_app(views: Views) -> QuartTrio:
    """The app, ready for AppBridge. Every answer but the page is JSON, errors too; nothing redirects."""
    app = QuartTrio("strata_router", static_folder=None)
    app.url_map.strict_slashes = False
    app.url_map.merge_slashes = False

    @app.get("/v1/models")
    async def models() -> Response:
        return _json({"object": "list", "data": views.models()})

    @app.get("/v1/models/<name>")
    async def model(name: str) -> Response:
        entry = views.model(name)
        return _refused(Refusal(Case.MODEL_NOT_FOUND)) if entry is None else _json(entry)

    @app.get("/openapi.json")
    async def openapi() -> Response:
        return _json(openapi_document(__version__))

    @app.get("/health")
    async def health() -> Response:
        status, document = views.health()
        return _json(document, status)

    @app.get("/metrics")
    async def metrics() -> Response:
        form = _metrics_form(request.args.get("format"), request.headers.getlist("Accept"))
        if isinstance(form, Refusal):
            return _refused(form)
        if form is None:
            response = _json(views.metrics())
        else:
            response = Response(views.exposition(form), content_type=form.content_type)
        response.headers["Vary"] = "Accept"
        return response

    @app.get("/requests")
    async def requests() -> Response:
        cursor = _cursor(request.args.get("after"), request.args.get("limit"))
        if isinstance(cursor, Refusal):
            return _refused(cursor)
        after, limit = cursor
        return _json(views.requests(after, DEFAULT_LIMIT if limit is None else limit))

    @app.get("/queue")
    async def queue() -> Response:
        cursor = _cursor(request.args.get("after"), request.args.get("limit"))
        return _refused(cursor) if isinstance(cursor, Refusal) else _json(views.queue(*cursor))

    add_page(app, views.overview)

    @app.errorhandler(HTTPException)
    async def http_error(error: HTTPException) -> Response:
        if isinstance(error, MethodNotAllowed):
            response = _refused(Refusal(Case.METHOD_NOT_ALLOWED))
            response.headers["Allow"] = ", ".join(sorted(error.valid_methods or ()))
            return response
        if error.code == 404:
            return _refused(_not_found(request.path))
        return _refused(Refusal(Case.BAD_REQUEST))

    return app


def _cursor(after: str | None, limit: str | None) -> tuple[int | None, int | None] | Refusal:
    """The query's two parameters as numbers, None where one was left out."""
    if after is not None and not _CURSOR.match(after):
        return Refusal(
            Case.INVALID_VALUE,
            "The parameter 'after' must be an unsigned integer of at most 18 digits.",
        )
    if limit is not None and not _CURSOR.match(limit.removeprefix("-")):
        return Refusal(
            Case.INVALID_VALUE,
            "The parameter 'limit' must be an integer of at most 18 digits.",
        )
    return None if after is None else int(after), None if limit is None else int(limit)


def _metrics_form(parameter: str | None, accept: list[str]) -> TextForm | Refusal | None:
    """Which text, or None for JSON. parameter: of the query, beats the header. Source: contract 5."""
    wishes = ",".join(accept)
    match parameter:
        case None:
            wanted = preferred(wishes, (JSON, *TextForm))
            return None if wanted in (None, JSON) else TextForm(wanted)
        case "json":
            return None
        case "prometheus":
            return TextForm(preferred(wishes, tuple(TextForm)) or TextForm.PROMETHEUS)
        case "openmetrics":
            return TextForm.OPENMETRICS
        case _:
            return Refusal(
                Case.INVALID_VALUE,
                "The parameter 'format' must be json, prometheus or openmetrics.",
            )


def _not_found(path: str) -> Refusal:
    """Clients join URLs naively; say which path they probably meant (cases/clients/case_19.py)."""
    squeezed = re.sub("/+", "/", path).rstrip("/")
    squeezed = squeezed.replace("/v1/v1/", "/v1/")
    known = ("/v1/chat/completions", "/v1/models")
    for candidate in known:
        # Equal, too: the app sees a path without the doubled slashes that kept it from matching.
        if squeezed in (candidate, candidate.removeprefix("/v1")):
            return Refusal(Case.NOT_FOUND, f"There is no such path; did you mean {candidate}?")
    return Refusal(
        Case.NOT_FOUND,
        "There is no such path; this server has POST /v1/chat/completions and GET /v1/models, "
        "/health, /metrics, /requests, /queue, /openapi.json and the page at /.",
    )


def _json(document: object, status: int = 200) -> Response:
    return Response(orjson.dumps(document), status, content_type=JSON)


def _refused(refusal: Refusal) -> Response:
    return Response(refusal.json_body(), refusal.row.status, content_type=JSON)
