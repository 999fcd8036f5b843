"""Content negotiation: which of the forms on offer the ``Accept`` header asks for.

Lenient as RFC 9110 wants it: what makes no sense is passed over. Asked by ``runtime.web.app``.
Source: RFC 9110, section 12.5.1.
"""

import re
from collections.abc import Sequence

_QUALITY = re.compile(r"(0(\.[0-9]{0,3})?|1(\.0{0,3})?)\Z")


def preferred(accept: str, offers: Sequence[str]) -> str | None:
    """The media type on offer that is wanted most; None when the header names none of them.

    accept: the header's lines joined by commas; "" when there is none. offers: lower case, without
    parameters. Of equally wanted offers the one that is named most precisely wins, then the first:
    ``*/*`` alone gets the first offer, ``text/plain, */*`` gets text/plain.
    """
    ranges = [found for item in accept.split(",") if (found := _range(item))]
    best = max(offers, key=lambda offer: _weight(offer, ranges))
    return best if _weight(best, ranges)[0] > 0 else None


def _range(item: str) -> tuple[str, float] | None:
    """(media range, quality) of one item. Parameters other than q do not tell our offers apart."""
    media_range, *parameters = item.split(";")
    kind, slash, subtype = media_range.strip().lower().partition("/")
    if not (kind and slash and subtype):
        return None
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "q":
            return f"{kind}/{subtype}", _quality(value.strip())
    return f"{kind}/{subtype}", 1.0


def _quality(text: str) -> float:
    """0 to 1; what is not of that form wants nothing."""
    return float(text) if _QUALITY.match(text) else 0.0


def _weight(offer: str, ranges: list[tuple[str, float]]) -> tuple[float, int]:
    """(quality, precision) by the most precise ranges that match; (0, 0) without a match."""
    precisions = {offer: 3, offer.partition("/")[0] + "/*": 2, "*/*": 1}
    matches = [
        (precisions[media_range], quality)
        for media_range, quality in ranges
        if media_range in precisions
    ]
    precision, quality = max(matches, default=(0, 0.0))
    return quality, precision
