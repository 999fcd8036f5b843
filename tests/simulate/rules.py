"""The scheduling rules that the study compares, each in front of the same engine.

``WaitFirstRule`` is the product's own scheduler, unchanged; the others are small models of rules that
other programs follow. A rule is told what happened and says what to start or load.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from strata_router.core.admission import (
    Admit,
    Decision,
    Load,
    Scheduler,
    SchedulerSettings,
    Ticket,
)
from strata_router.core.vocabulary import ModelId, TicketId, Tier


@dataclass(frozen=True, slots=True)
class Request:
    """One request as a rule sees it."""

    id: int
    model: ModelId
    tier: Tier
    arrived_s: float


@dataclass(frozen=True, slots=True)
class Start:
    """Let the engine, which is ready with the request's model and has a slot, answer it."""

    request: Request


@dataclass(frozen=True, slots=True)
class Switch:
    """Load another model; nothing is being answered."""

    model: ModelId


Step = Start | Switch


class Rule(Protocol):
    """Who goes next."""

    def arrive(self, request: Request, now: float) -> None: ...

    def answered(self, request: Request, now: float) -> None: ...

    def loaded(self, model: ModelId, now: float) -> None: ...

    def steps(self, now: float) -> list[Step]:
        """What to do now, in order."""

    def wake_s(self) -> float | None:
        """When to ask for steps again although nothing happened."""


class WaitFirstRule:
    """The product's scheduler, driven as its coordinator drives it."""

    def __init__(
        self, slots: int, *, grace_ms: int = 3000, max_wait_ms: dict[Tier, int] | None = None
    ) -> None:
        self._scheduler = Scheduler(
            SchedulerSettings(
                wait_when_busy=True,
                max_pending=slots,
                model_grace_ms=grace_ms,
                max_wait_ms=max_wait_ms or {},
                queue_ms=1,
                idle_ms=0,
                cooldown_ms=1,
                cache_lookup_ms=0,
                cache_max_active=0,
            )
        )
        self._requests: dict[TicketId, Request] = {}
        self._ready: ModelId | None = None
        self._leases_before_load: list[Request] = []

    def arrive(self, request: Request, now: float) -> None:
        ticket_id = TicketId(request.id)
        self._requests[ticket_id] = request
        accepts = (request.model,)
        self._scheduler.arrive(Ticket(ticket_id, request.tier, accepts, request.model, now), now)

    def answered(self, request: Request, now: float) -> None:
        self._scheduler.leave(TicketId(request.id), now)

    def loaded(self, model: ModelId, now: float) -> None:
        self._ready = model
        self._scheduler.engine_ready(model, now)

    def steps(self, now: float) -> list[Step]:
        decided: list[Step] = [
            Start(request) for request in self._leases_before_load if request.model == self._ready
        ]
        if decided:
            self._leases_before_load.clear()
        return decided + [
            step for each in self._scheduler.take_decisions(now) for step in self._step(each)
        ]

    def wake_s(self) -> float | None:
        return self._scheduler.next_deadline()

    def _step(self, decision: Decision) -> Iterator[Step]:
        match decision:
            case Admit():
                request = self._requests.pop(decision.ticket)
                if decision.model == self._ready:
                    yield Start(request)
                else:
                    self._leases_before_load.append(request)
            case Load():
                self._ready = None
                yield Switch(decision.model)
            case _:
                raise AssertionError(f"not part of the study: {decision}")


class _Queue:
    """What the simple rules share: requests in arrival order, one engine, its slots."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._queue: deque[Request] = deque()
        self._active = 0
        self._ready: ModelId | None = None
        self._loading = False

    def arrive(self, request: Request, now: float) -> None:
        self._queue.append(request)

    def answered(self, request: Request, now: float) -> None:
        self._active -= 1

    def loaded(self, model: ModelId, now: float) -> None:
        self._ready, self._loading = model, False

    def wake_s(self) -> float | None:
        return None

    def _start(self, request: Request) -> Start:
        self._queue.remove(request)
        self._active += 1
        return Start(request)

    def _switch(self, model: ModelId) -> Switch:
        self._ready, self._loading = None, True
        return Switch(model)


class FifoRule(_Queue):
    """Strictly in order of arrival: whoever is first decides the model, and nobody overtakes."""

    def steps(self, now: float) -> list[Step]:
        steps: list[Step] = []
        while self._queue and not self._loading:
            first = self._queue[0]
            if first.model == self._ready and self._active < self._slots:
                steps.append(self._start(first))
            elif first.model != self._ready and self._active == 0:
                steps.append(self._switch(first.model))
            else:
                break
        return steps


class LoadedFirstRule(_Queue):
    """llama-swap's rule: the loaded model is served without a look at the queue.

    Only when nothing of it is left does the earliest request of the queue choose the next model.
    Read in llama-swap 0bdb3720, internal/router/scheduler/fifo.go, steps 3 and 5 of OnRequest.
    """

    def steps(self, now: float) -> list[Step]:
        steps: list[Step] = []
        while self._queue and not self._loading:
            own = next((r for r in self._queue if r.model == self._ready), None)
            if own is not None and self._active < self._slots:
                steps.append(self._start(own))
            elif own is None and self._active == 0:
                steps.append(self._switch(self._queue[0].model))
            else:
                break
        return steps


class RoundRobinRule(_Queue):
    """Strictly in turn: each model with work gets the engine for one set of slots, then the next."""

    def __init__(self, slots: int) -> None:
        super().__init__(slots)
        self._turn_left = 0
        self._last: ModelId | None = None

    def steps(self, now: float) -> list[Step]:
        steps: list[Step] = []
        while self._queue and not self._loading:
            own = next((r for r in self._queue if r.model == self._ready), None)
            if own is not None and self._turn_left > 0 and self._active < self._slots:
                self._turn_left -= 1
                steps.append(self._start(own))
            elif self._active == 0:
                following = self._following()
                self._turn_left = self._slots
                if following != self._ready:
                    steps.append(self._switch(following))
            else:
                break
        return steps

    def loaded(self, model: ModelId, now: float) -> None:
        super().loaded(model, now)
        self._last = model

    def _following(self) -> ModelId:
        """The next model in the ring of letters that has work."""
        waiting = sorted({request.model for request in self._queue})
        return next((m for m in waiting if self._last is None or m > self._last), waiting[0])
