"""What the app's routes and ``/metrics`` show, gathered from those who own it."""

from typing import Any

from strata_router import __version__
from strata_router.core.catalog import Catalog
from strata_router.core.config.schema import Config
from strata_router.core.metrics import DaemonFigures, RequestLogFigures, readings
from strata_router.core.overview import totals
from strata_router.core.record.ring import DEFAULT_LIMIT, Page
from strata_router.runtime.coordinator import Coordinator
from strata_router.runtime.ledger import Ledger
from strata_router.runtime.overviews import Overviews
from strata_router.runtime.web.app import Views
from strata_router.runtime.web.exposition import Exposition

QUEUE_ROWS = 200
"""Tickets, and active answers, that ``GET /queue`` lists: a few screens, about 60 KB of JSON."""


def build_views(
    config: Config,
    catalog: Catalog,
    coordinator: Coordinator,
    ledger: Ledger,
    overviews: Overviews,
) -> Views:
    """Every model is ``created`` when the configuration was read."""
    started_unix_s = overviews.started_unix_s

    def models() -> list[dict[str, Any]]:
        snapshot = coordinator.snapshot()
        return catalog.listing(snapshot.loaded, snapshot.loading, started_unix_s)

    def model(name: str) -> dict[str, Any] | None:
        snapshot = coordinator.snapshot()
        return catalog.entry(name, snapshot.loaded, snapshot.loading, started_unix_s)

    def health() -> tuple[int, dict[str, Any]]:
        is_draining = overviews.draining()
        document = {
            "status": "draining" if is_draining else "ok",
            "routing": coordinator.routing,
            "draining": is_draining,
            "loaded_model": coordinator.snapshot().loaded,
        }
        return (503 if is_draining else 200), document

    def figures() -> DaemonFigures:
        return DaemonFigures(
            version=__version__,
            started_unix_s=started_unix_s,
            snapshot=coordinator.snapshot(),
            routing=coordinator.routing,
            draining=overviews.draining(),
            max_request_body_bytes=config.max_request_body_bytes,
            request_log=_request_log(config, ledger),
            tally=ledger.tally,
        )

    exposition = Exposition(lambda: readings(figures()))

    def requests(after: int | None, limit: int) -> dict[str, Any]:
        return _page(ledger.ring.page(after, limit))

    def queue(after: int | None, limit: int | None) -> dict[str, Any]:
        document = overviews.take(QUEUE_ROWS).to_mapping()
        if after is not None or limit is not None:
            log = _request_log(config, ledger)
            document["records"] = requests(after, DEFAULT_LIMIT if limit is None else limit)
            document["totals"] = totals(ledger.tally)
            document["request_log"] = {
                "configured": log.path is not None,
                "write_errors": log.write_errors,
                "write_drops": log.write_drops,
            }
        return document

    return Views(
        models=models,
        model=model,
        health=health,
        metrics=lambda: figures().to_mapping(),
        exposition=exposition.text,
        requests=requests,
        queue=queue,
        overview=lambda: overviews.take(QUEUE_ROWS),
    )


def _request_log(config: Config, ledger: Ledger) -> RequestLogFigures:
    log, ring = ledger.log, ledger.ring
    return RequestLogFigures(
        write_errors=log.write_errors if log is not None else 0,
        write_drops=log.write_drops if log is not None else 0,
        evicted=ring.evicted,
        records_in_ring=ring.records_in_ring,
        next_seq=ring.next_seq_to_allocate,
        instance_id=ledger.instance_id,
        path=config.request_log_path,
        max_bytes=config.request_log_max_bytes,
        rotate_files=config.request_log_rotate_files,
        capacity=config.request_log_capacity,
    )


def _page(page: Page) -> dict[str, Any]:
    return {
        "records": [record.to_mapping() for record in page.records],
        "next_seq": page.next_seq,
        "dropped": page.dropped,
        "oldest_seq": page.oldest_seq,
        "instance_id": page.instance_id,
    }
