"""Records and figures for the tests of metrics."""

from strata_router.core.admission.snapshot import Snapshot
from strata_router.core.metrics import DaemonFigures, RequestLogFigures, Tally
from strata_router.core.moment import Moment
from strata_router.core.record.builder import RecordBuilder
from strata_router.core.record.schema import Record
from strata_router.core.vocabulary import CHAT_PATH, ModelId, Reason, RequestId, Tier

START = Moment(0.0, 1_796_000_000.0)


def record(reason: Reason = Reason.COMPLETED, **fields: object) -> Record:
    """A finished request about which nothing is known but what ``fields`` say."""
    request = RecordBuilder(1, RequestId("i-1"), CHAT_PATH, START, 0, 0)
    finished = request.finish(START, reason).record
    for name, value in fields.items():
        object.__setattr__(finished, name, value)  # not shared with anybody yet
    return finished


def figures(tally: Tally | None = None, **fields: object) -> DaemonFigures:
    """A daemon that has done nothing, unless ``fields`` say so."""
    it = DaemonFigures(
        version="1.2.3",
        started_unix_s=1_796_000_000,
        snapshot=snapshot(),
        routing=True,
        draining=False,
        max_request_body_bytes=1000,
        request_log=RequestLogFigures(
            write_errors=1,
            write_drops=2,
            evicted=3,
            records_in_ring=4,
            next_seq=8,
            instance_id="19a-7",
            path=None,
            max_bytes=4096,
            rotate_files=5,
            capacity=6,
        ),
        tally=Tally([]) if tally is None else tally,
    )
    for name, value in fields.items():
        object.__setattr__(it, name, value)
    return it


def snapshot(
    *, loaded: ModelId | None = None, in_flight: int = 0, waiting: tuple[int, int, int] = (0, 0, 0)
) -> Snapshot:
    """waiting: tickets per tier, most urgent first."""
    return Snapshot(
        queue_depth=sum(waiting),
        queue_depth_by_tier=dict(zip(Tier, waiting, strict=True)),
        in_flight=in_flight,
        loaded=loaded,
        loading=None,
        stopping=False,
        cooling_s={},
    )
