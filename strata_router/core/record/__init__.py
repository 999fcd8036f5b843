"""The account of every request: how it is built, what it holds, how it is kept and read."""

from strata_router.core.record.builder import RecordBuilder
from strata_router.core.record.ring import Page, RecordRing, new_instance_id, new_request_id
from strata_router.core.record.schema import Record, UnsequencedRecord

__all__ = [
    "Page",
    "Record",
    "RecordBuilder",
    "RecordRing",
    "UnsequencedRecord",
    "new_instance_id",
    "new_request_id",
]
