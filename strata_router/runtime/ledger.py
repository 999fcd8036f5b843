"""Opens and closes the account of every chat request: sequence numbers, ring, log, tally.

Closing is synchronous: a cancelled exchange still reaches its record (style.md 4.4, item 5).
"""

import os
from dataclasses import dataclass

from strata_router.core.metrics import Tally
from strata_router.core.moment import Moment
from strata_router.core.record.builder import RecordBuilder
from strata_router.core.record.ring import RecordRing, new_instance_id, new_request_id
from strata_router.core.record.schema import Record, UnsequencedRecord
from strata_router.core.vocabulary import CHAT_PATH, RequestId, Tier
from strata_router.runtime.clock import moment, unix_s
from strata_router.runtime.record_log import RecordLog


@dataclass(frozen=True, slots=True)
class Account:
    """One request's account while it is open."""

    arrival_seq: int
    request_id: RequestId
    arrived: Moment
    record: RecordBuilder


class Ledger:
    """One per daemon instance. log: None while no request_log_path is configured."""

    def __init__(self, capacity: int, log: RecordLog | None, tally: Tally) -> None:
        self.instance_id = new_instance_id(os.getpid(), int(unix_s() * 1000))
        self.ring = RecordRing(capacity, self.instance_id)
        self.log = log
        self.tally = tally
        self._arrivals = 0

    def open(self, queue_depth: int, in_flight: int) -> Account:
        """Start an account now; its arrival_seq is the next one."""
        self._arrivals += 1
        seq, arrived = self._arrivals, moment()
        request_id = new_request_id(self.instance_id, seq)
        record = RecordBuilder(seq, request_id, CHAT_PATH, arrived, queue_depth, in_flight)
        return Account(seq, request_id, arrived, record)

    def close(self, finished: UnsequencedRecord, tier: Tier | None) -> Record:
        """Give the record its completion sequence and hand it to the ring, the log and the tally.

        tier: None when it never became known; records have no field for it.
        """
        record = self.ring.append(finished)
        if self.log is not None:
            self.log.put(record.to_json_line())
        self.tally.request_ended(record, tier)
        return record
