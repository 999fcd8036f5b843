"""The only reader of clocks: everything else is given a Moment or ``now``."""

import time

import trio

from strata_router.core.moment import Moment


def moment() -> Moment:
    """This instant on the event loop's clock (virtual in tests) and in UTC."""
    return Moment(trio.current_time(), time.time())  # noqa: TID251 - this is the clock


def unix_s() -> float:
    """Seconds since the epoch, for what has no duration (HTTP dates, instance ids)."""
    return time.time()  # noqa: TID251 - this is the clock
