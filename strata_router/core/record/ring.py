"""The most recent records in memory, and the pages that readers with a cursor get of them.

Gives every record its ``seq``, so the order of ``append`` is the order of completion. Reading takes
nothing out. One per daemon instance; only its event loop's thread calls it.
Source: design, "Reading recent records".
"""

from dataclasses import dataclass

from strata_router.core.record.schema import Record, UnsequencedRecord
from strata_router.core.vocabulary import RequestId

DEFAULT_LIMIT = 100
MAX_LIMIT = 1000


def new_instance_id(pid: int, start_unix_ms: int) -> str:
    """Return the name of one daemon run, different after every restart; hexadecimal and a dash."""
    return f"{start_unix_ms:x}-{pid:x}"


def new_request_id(instance_id: str, arrival_seq: int) -> RequestId:
    """Return the id of the n-th request of an instance."""
    return RequestId(f"{instance_id}-{arrival_seq}")


@dataclass(frozen=True, slots=True)
class Page:
    """An answer to one reader.

    records: by increasing seq. next_seq: the reader's next cursor. dropped: records after the given
    cursor that are gone, whatever the limit; 0 without a cursor. oldest_seq: oldest retained record,
    None for an empty ring. instance_id: a reader that knew another one starts again at 0.
    """

    records: tuple[Record, ...]
    next_seq: int
    dropped: int
    oldest_seq: int | None
    instance_id: str


class RecordRing:
    """At most ``capacity`` records, the newest."""

    __slots__ = ("_capacity", "_instance_id", "_last_seq", "_slots")

    def __init__(self, capacity: int, instance_id: str) -> None:
        """capacity: at least 1 (the configuration allows 1..100000)."""
        self._capacity = capacity
        self._instance_id = instance_id
        self._last_seq = 0
        # The record with number n is in slot (n - 1) % capacity, so a page costs what it holds.
        self._slots: list[Record] = []

    @property
    def instance_id(self) -> str:
        return self._instance_id

    @property
    def capacity(self) -> int:
        return self._capacity

    @property
    def records_in_ring(self) -> int:
        return len(self._slots)

    @property
    def evicted(self) -> int:
        """Records that made room for newer ones."""
        return self._last_seq - len(self._slots)

    @property
    def next_seq_to_allocate(self) -> int:
        return self._last_seq + 1

    def append(self, unsequenced: UnsequencedRecord) -> Record:
        """Give the record the next ``seq``, keep it in place of the oldest one, and return it."""
        record = unsequenced.sequenced(self._last_seq + 1)
        if len(self._slots) < self._capacity:
            self._slots.append(record)
        else:
            self._slots[self._last_seq % self._capacity] = record
        self._last_seq = record.seq
        return record

    def page(self, after: int | None, limit: int = DEFAULT_LIMIT) -> Page:
        """Return retained records with seq > after, oldest first.

        after: exclusive cursor, at least 0; None selects the newest ``limit`` records. A cursor
        beyond the end is given back as it is. limit: clamped to 1..1000.
        """
        limit = min(max(limit, 1), MAX_LIMIT)
        oldest = self.evicted + 1
        if after is None:
            first = max(oldest, self._last_seq - limit + 1)
            dropped = 0
            next_seq = 0
        else:
            first = max(oldest, after + 1)
            dropped = max(0, oldest - (after + 1))
            next_seq = after
        last = min(first + limit - 1, self._last_seq)
        records = tuple(self._slots[(seq - 1) % self._capacity] for seq in range(first, last + 1))
        return Page(
            records=records,
            next_seq=records[-1].seq if records else next_seq,
            dropped=dropped,
            oldest_seq=oldest if self._slots else None,
            instance_id=self._instance_id,
        )
