"""What an answer says about itself while it passes, and the bytes that may be added to it."""

from strata_router.core.tap.in_band import (
    KEEPALIVE,
    error_event,
    keepalive_with_place,
    upstream_error_event,
)
from strata_router.core.tap.response_tap import Accounting, BodyKind, ResponseTap, body_kind

__all__ = [
    "KEEPALIVE",
    "Accounting",
    "BodyKind",
    "ResponseTap",
    "body_kind",
    "error_event",
    "keepalive_with_place",
    "upstream_error_event",
]
