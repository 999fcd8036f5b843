"""Collects the stamps of one request in the order of its life and makes its record, exactly once.

Every stamp is optional but the first and the last: a request may end anywhere, and what has not
happened by then is null. Computes only the router's own durations. Owned by the one exchange whose
request it is; ``finish`` neither waits nor fails, so it can run while that exchange is cancelled.
Source: design, "Record schema, version 1"; contract section 9.
"""

from strata_router.core.moment import Moment, elapsed_ms
from strata_router.core.record.schema import UNSEQUENCED, Record, UnsequencedRecord
from strata_router.core.tap import Accounting
from strata_router.core.vocabulary import DisconnectPhase, ModelId, Reason, RequestId


class FinishedTwice(Exception):
    """A second ``finish``: two places believe that they own the end of one request, which is a bug."""


class RecordBuilder:
    """The account of one request while it lives."""

    __slots__ = (
        "_accounting",
        "_arrival_seq",
        "_arrived",
        "_client_status",
        "_endpoint",
        "_in_flight",
        "_is_finished",
        "_lease",
        "_model_load_ms",
        "_model_requested",
        "_model_resolved",
        "_model_switch",
        "_queue_depth",
        "_request_id",
        "_response_bytes",
        "_stream",
        "_upstream_headers",
        "_upstream_model",
        "_upstream_status",
    )

    def __init__(
        self,
        arrival_seq: int,
        request_id: RequestId,
        endpoint: str,
        arrived: Moment,
        queue_depth: int,
        in_flight: int,
    ) -> None:
        """Begin when the request's head is complete and before its body is read.

        queue_depth, in_flight: tickets and leases of other requests at this moment.
        """
        self._arrival_seq = arrival_seq
        self._request_id = request_id
        self._endpoint = endpoint
        self._arrived = arrived
        self._queue_depth = queue_depth
        self._in_flight = in_flight
        self._stream = False
        self._model_requested: str | None = None
        self._model_resolved: ModelId | None = None
        self._upstream_model: str | None = None
        self._lease: Moment | None = None
        self._model_switch = False
        self._model_load_ms: int | None = None
        self._upstream_headers: Moment | None = None
        self._upstream_status: int | None = None
        self._client_status: int | None = None
        self._response_bytes = 0
        self._accounting = Accounting()
        self._is_finished = False

    @property
    def is_finished(self) -> bool:
        return self._is_finished

    def parsed(self, stream: bool, model_requested: str | None) -> None:
        """The body was read. model_requested: a configured id or alias, None for any other text."""
        self._stream = stream
        self._model_requested = model_requested

    def resolved(self, model: ModelId, upstream_model: str | None) -> None:
        """The concrete model is known; again if admission settles an alias on another one."""
        self._model_resolved = model
        self._upstream_model = upstream_model

    def admitted(self, moment: Moment, model_switch: bool) -> None:
        """The ticket became a lease. model_switch: another model, or none, was loaded then."""
        self._lease = moment
        self._model_switch = model_switch

    def loaded(self, model_load_ms: int) -> None:
        """A load that this request waited for ended, well or not."""
        self._model_load_ms = model_load_ms

    def upstream_headers(self, moment: Moment, status: int) -> None:
        """The engine's response head came."""
        self._upstream_headers = moment
        self._upstream_status = status

    def client_status(self, status: int) -> None:
        """The status of the client's answer is settled."""
        self._client_status = status

    def forwarded(self, n_bytes: int) -> None:
        """So many more body bytes were handed to the client's connection, our own included."""
        self._response_bytes += n_bytes

    def accounting(self, accounting: Accounting) -> None:
        """What the answer said of itself; the tap's ``close``."""
        self._accounting = accounting

    def finish(
        self, moment: Moment, reason: Reason, *, disconnect_phase: DisconnectPhase | None = None
    ) -> UnsequencedRecord:
        """Return the record. Raises FinishedTwice on any further call.

        disconnect_phase: None derives it from the stamps; ignored unless the client disconnected.
        """
        if self._is_finished:
            raise FinishedTwice(self._request_id)
        self._is_finished = True
        said = self._accounting
        return UnsequencedRecord(
            Record(
                seq=UNSEQUENCED,
                arrival_seq=self._arrival_seq,
                request_id=self._request_id,
                endpoint=self._endpoint,
                stream=self._stream,
                model_requested=self._model_requested,
                model_resolved=self._model_resolved,
                upstream_model=self._upstream_model,
                arrived_at=self._arrived.rfc3339(),
                completed_at=moment.rfc3339(),
                lease_at=_text(self._lease),
                first_token_at=_text(said.first_token),
                last_token_at=_text(said.last_token),
                queue_depth_at_arrival=self._queue_depth,
                in_flight_at_arrival=self._in_flight,
                queue_wait_ms=_between(self._arrived, self._lease),
                model_switch=self._model_switch,
                model_load_ms=self._model_load_ms,
                upstream_headers_ms=_between(self._arrived, self._upstream_headers),
                ttft_ms=_between(self._arrived, said.first_token),
                ttft_after_lease_ms=_between(self._lease, said.first_token),
                generation_ms=_between(said.first_token, said.last_token),
                total_ms=elapsed_ms(self._arrived, moment),
                prompt_tokens=said.prompt_tokens,
                completion_tokens=said.completion_tokens,
                reasoning_tokens=said.reasoning_tokens,
                prompt_n=said.prompt_n,
                cache_n=said.cache_n,
                predicted_n=said.predicted_n,
                prompt_ms=said.prompt_ms,
                predicted_ms=said.predicted_ms,
                prompt_per_second=said.prompt_per_second,
                predicted_per_second=said.predicted_per_second,
                finish_reason=said.finish_reason,
                status=self._client_status,
                upstream_status=self._upstream_status,
                success=self._is_success(reason),
                reason=reason,
                response_bytes=self._response_bytes,
                disconnect_phase=self._phase(reason, disconnect_phase),
            )
        )

    def _is_success(self, reason: Reason) -> bool:
        """A committed stream has status 200 whatever follows, so the engine's side is asked, too."""
        return (
            reason is Reason.COMPLETED
            and _is_2xx(self._client_status)
            and (self._upstream_status is None or _is_2xx(self._upstream_status))
            and not self._accounting.saw_error
        )

    def _phase(self, reason: Reason, given: DisconnectPhase | None) -> DisconnectPhase | None:
        if reason is not Reason.CLIENT_DISCONNECT:
            return None
        if given is not None:
            return given
        if self._upstream_headers is not None:
            return DisconnectPhase.GENERATING
        return DisconnectPhase.LOADING if self._lease is not None else DisconnectPhase.QUEUED


def _text(moment: Moment | None) -> str | None:
    return None if moment is None else moment.rfc3339()


def _between(start: Moment | None, end: Moment | None) -> int | None:
    return None if start is None or end is None else elapsed_ms(start, end)


def _is_2xx(status: int | None) -> bool:
    return status is not None and 200 <= status <= 299
