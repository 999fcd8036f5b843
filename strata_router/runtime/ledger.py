"""Opens and closes the account of every chat request: sequence numbers, ring, log, last figures.

Closing is synchronous: a cancelled exchange still reaches its record (style.md 4.4, item 5).
"""

import os
from dataclasses import dataclass

from strata_router.core.moment import Moment
from strata_router.core.record.builder import RecordBuilder
from strata_router.core.record.ring import RecordRing, new_instance_id, new_request_id
from strata_router.core.record.schema import Record, UnsequencedRecord
from strata_router.core.vocabulary import CHAT_PATH, RequestId
from strata_router.runtime.clock import moment, unix_s
from strata_router.runtime.record_log import RecordLog


@dataclass(slots=True)
class LastStream:
    """The last streamed answer's figures, for /metrics; None until known.

    decode_tokens_per_s: completion tokens over generation time, the one computed figure
    (contract 5); None when the engine omitted the tokens.
    """

    ttft_ms: int | None = None
    decode_tokens_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Account:
    """One request's account while it is open."""

    arrival_seq: int
    request_id: RequestId
    arrived: Moment
    record: RecordBuilder


class Ledger:
    """One per daemon instance. log: None while no request_log_path is configured."""

    def __init__(self, capacity: int, log: RecordLog | None) -> None:
        self.instance_id = new_instance_id(os.getpid(), int(unix_s() * 1000))
        self.ring = RecordRing(capacity, self.instance_id)
        self.log = log
        self.last_stream = LastStream()
        self._arrivals = 0

    def open(self, queue_depth: int, in_flight: int) -> Account:
        """Start an account now; its arrival_seq is the next one."""
        self._arrivals += 1
        seq, arrived = self._arrivals, moment()
        request_id = new_request_id(self.instance_id, seq)
        record = RecordBuilder(seq, request_id, CHAT_PATH, arrived, queue_depth, in_flight)
        return Account(seq, request_id, arrived, record)

    def close(self, finished: UnsequencedRecord) -> Record:
        """Give the record its completion sequence and hand it to the ring and the log."""
        record = self.ring.append(finished)
        if self.log is not None:
            self.log.put(record.to_json_line())
        if record.ttft_ms is not None:
            self.last_stream = LastStream(record.ttft_ms, _decode_rate(record))
        return record


def _decode_rate(record: Record) -> float | None:
    if record.completion_tokens is None or not record.generation_ms:
        return None
    return round(record.completion_tokens * 1000 / record.generation_ms, 2)
