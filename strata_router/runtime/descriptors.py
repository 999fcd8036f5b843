"""How many connections the kernel's descriptor limit has room for.

Called once, by ``runtime.daemon``. A daemon that accepts until no descriptor is left could neither ask the
engine nor hear the operator, so accepting pauses before that, as it does at max_connections.
Source: reliability.md, "Bounds" and "no file descriptors left".
"""

import logging
import resource

log = logging.getLogger(__name__)

RESERVED = 64
"""For the daemon itself (11 when idle), its engine's start and proof, the log's files, and operators."""

PER_CONNECTION = 2
"""The client's, and the one to the engine that its request may need."""


def claim_descriptors(max_connections: int) -> int:
    """Raise the soft limit to the hard one, and return how many connections may be open at once.

    That is ``max_connections`` or, said in the log, fewer; at least 1.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard == resource.RLIM_INFINITY:
        return max_connections
    room = max(1, (hard - RESERVED) // PER_CONNECTION)
    if room >= max_connections:
        return max_connections
    log.warning(
        "accepting pauses at %d connections, before max_connections (%d): the hard limit is %d open files; "
        "raise it (LimitNOFILE= in the unit) or lower max_connections",
        room,
        max_connections,
        hard,
    )
    return room
