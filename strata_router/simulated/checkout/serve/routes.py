"""Everything but the chat completion: which path answers what, as Strata does.

A handler gets the service, the request and its reply; it may raise ClientGone.
Source: facts about Strata's server, section 7.
"""

import os
import time
from collections.abc import Callable
from typing import Any

from .cache import look_up, spoiled
from .chat_request import BadRequest, parse_object
from .http_wire import Reply, RequestHead
from .native import EngineStuck
from .service import Service

MAX_CONTROL_BODY_BYTES = 65_536

Handler = Callable[[Service, RequestHead, bytes, Reply], None]


def health(service: Service, head: RequestHead, body: bytes, reply: Reply) -> None:
    profile = service.profile
    knobs = profile.engine
    time.sleep(knobs.health_delay_s)
    answer = {
        "status": "ok",
        "max_context": profile.context_tokens,
        "model": profile.reported_model,
        "images": False,
        "api_key": bool(profile.keys),
        "loaded": service.native.is_loaded,
        "service": "strata",
        **(knobs.health or {}),
    }
    if knobs.health_raw is not None:
        reply.whole(knobs.health_status, "application/json", knobs.health_raw.encode())
    else:
        reply.json(knobs.health_status, answer)


def models(service: Service, head: RequestHead, body: bytes, reply: Reply) -> None:
    """One entry per name; none at all when the native engine died by itself."""
    profile = service.profile
    is_loaded = service.native.is_loaded
    if not is_loaded and not service.unloaded_on_purpose and not profile.lazy_load:
        reply.json(200, {"object": "list", "data": []})
        return
    first = {
        "id": profile.reported_model,
        "object": "model",
        "status": {"value": "loaded" if is_loaded else "unloaded"},
        "meta": {"n_ctx": profile.context_tokens},
        "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]},
    }
    more = [{**first, "id": alias, "alias_of": first["id"]} for alias in profile.aliases]
    if profile.aliases:
        first["aliases"] = list(profile.aliases)
    reply.json(200, {"object": "list", "data": [first, *more]})


def status(service: Service, head: RequestHead, body: bytes, reply: Reply) -> None:
    reply.json(200, service.ledger.status())


def slots(service: Service, head: RequestHead, body: bytes, reply: Reply) -> None:
    reply.json(200, service.ledger.slots() if service.native.is_loaded else [])


def props(service: Service, head: RequestHead, body: bytes, reply: Reply) -> None:
    profile = service.profile
    asked = dict(part.split("=", 1) for part in head.query.split("&") if "=" in part).get("model")
    if asked is not None and asked not in (profile.reported_model, *profile.aliases):
        reply.error(404, "no such model here")
    elif not service.native.is_loaded:
        reply.error(503, "the engine is not there", "server_error")
    else:
        settings = {"n_ctx": profile.context_tokens, "params": {"n_predict": -1}}
        answer = {
            "default_generation_settings": settings,
            "total_slots": profile.parallel,
            "model_alias": profile.reported_model,
            "chat_template": "",
            "modalities": {"vision": False},
            "models_autoload": True,
            "is_sleeping": False,
            "model_path": "",
            "build_info": "Strata 0 (simulated)",
        }
        reply.json(200, answer)


def full_status(service: Service, head: RequestHead, body: bytes, reply: Reply) -> None:
    reply.json(200, _full_status(service))


def _full_status(service: Service) -> dict[str, Any]:
    return {
        "service": "strata",
        "model": service.profile.reported_model,
        "loaded": service.native.is_loaded,
        "auto_load": True,
        "engine": "strata",
        "started": service.started_unix,
        "uptime_s": round(time.monotonic() - service.started, 3),
        "context": service.profile.context_tokens,
        "concurrency": {"serving": service.profile.parallel},
        "activity": service.ledger.activity(),
        "last_timings": service.ledger.last_timings,
        "machine": {"cpus": os.cpu_count()},
    }


def metrics(service: Service, head: RequestHead, body: bytes, reply: Reply) -> None:
    is_loaded = service.native.is_loaded
    accept = head.header("accept") or ""
    asks = "format=prometheus" in head.query or "text/plain" in accept or "openmetrics" in accept
    if asks:
        text = service.ledger.prometheus(is_loaded=is_loaded)
        reply.whole(200, "text/plain; version=0.0.4", text.encode())
    else:
        every = "requests=all" in head.query
        reply.json(200, service.ledger.metrics(is_loaded=is_loaded, every_request=every))


def page(service: Service, head: RequestHead, body: bytes, reply: Reply) -> None:
    text = f"<!doctype html><title>Strata (simulated)</title><p>{service.profile.reported_model}\n"
    reply.whole(200, "text/html; charset=utf-8", text.encode())


def unload(service: Service, head: RequestHead, body: bytes, reply: Reply) -> None:
    if not _is_control_request(head, body, reply):
        return
    if service.ledger.is_busy:
        _refuse_busy(head, reply)
        return
    try:
        _report(service, head, reply, service.unload())
    except EngineStuck as error:
        reply.error(503, str(error), "server_error")


def load(service: Service, head: RequestHead, body: bytes, reply: Reply) -> None:
    """``/load`` answers 200 while busy if the engine is there; ``/v1/load`` does not.

    A load that fails raises LoadFailed: the connection then ends without a response.
    """
    if not _is_control_request(head, body, reply):
        return
    names = (service.profile.reported_model, *service.profile.aliases)
    if head.path == "/v1/load" and parse_object(body).get("model", names[0]) not in names:
        reply.error(404, "no such model here")
        return
    if head.path == "/v1/load" and service.ledger.is_busy:
        _refuse_busy(head, reply)
        return
    service.ensure_loaded()
    _report(service, head, reply, "loaded")


def _is_control_request(head: RequestHead, body: bytes, reply: Reply) -> bool:
    if not (head.header("content-type") or "").startswith("application/json"):
        reply.error(415, "the body must be application/json")
        return False
    if len(body) > MAX_CONTROL_BODY_BYTES:
        reply.error(413, "the body is too large", "invalid_request_error")
        return False
    return True


def _refuse_busy(head: RequestHead, reply: Reply) -> None:
    if head.path.startswith("/v1/"):
        reply.error(409, "a request runs or waits", "model_busy")
    else:
        reply.json(409, {"status": "busy"})


def _report(service: Service, head: RequestHead, reply: Reply, what: str) -> None:
    more = _full_status(service) if head.path.startswith("/v1/") else {}
    reply.json(200, {"status": what, **more})


def cache_lookup(service: Service, head: RequestHead, body: bytes, reply: Reply) -> None:
    """The extension that public Strata lacks: 404 unless the profile switches it on."""
    knobs = service.profile.engine
    if not knobs.cache_lookup:
        reply.error(404, "no such path")
        return
    time.sleep(knobs.cache_lookup_delay_s)
    if knobs.cache_lookup_status != 200:
        reply.error(knobs.cache_lookup_status, "the simulated engine was told to refuse")
    elif knobs.cache_lookup_busy and service.ledger.is_busy:
        reply.error(409, "a request runs or waits", "model_busy")
    elif knobs.cache_lookup_reply == "garbage":
        reply.whole(200, "application/json", b'{"results": [')
    else:
        bodies = parse_object(body).get("requests")
        if not isinstance(bodies, list):
            raise BadRequest("requests must be a list")
        results = look_up(bodies, service.held, service.profile.request)
        reply.json(200, spoiled(results, knobs.cache_lookup_reply))


GETS: dict[str, Handler] = {
    "/": page,
    "/health": health,
    "/api/health": health,
    "/v1/models": models,
    "/models": models,
    "/status": status,
    "/slots": slots,
    "/props": props,
    "/v1/status": full_status,
    "/metrics": metrics,
}

POSTS: dict[str, Handler] = {
    "/unload": unload,
    "/v1/unload": unload,
    "/load": load,
    "/v1/load": load,
    "/v1/cache/lookup": cache_lookup,
}
