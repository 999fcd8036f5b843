"""What the connections of one simulated llama-server share."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from strata_router.simulated.checkout.serve.knobs import EngineKnobs, RequestKnobs
from strata_router.simulated.checkout.serve.stamps import Stamps


@dataclass(slots=True)
class Server:
    """What the connections share. streams: chat requests that run now."""

    alias: str
    engine: EngineKnobs
    request: RequestKnobs
    stamps: Stamps
    sequence: Iterator[int] = field(default_factory=lambda: count(1))
    is_loaded: bool = False
    is_stopping: threading.Event = field(default_factory=threading.Event)
    streams: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
