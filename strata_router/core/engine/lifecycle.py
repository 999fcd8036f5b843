"""The engine's life: one table of states and events, from which docs/states.md is drawn.

    stopped --load--> starting --reported_ready--> checking --verified--> ready
       ^                 |                            |                     |
       |                 +---------- failed ----------+        stop, exited-+
       |                              v                                     v
       +----------gone------------ stopping <-------------------------------+
       |                              |
       +------gone------ stuck <--unkillable

Only ``runtime.engine_supervisor`` drives a Lifecycle; an event that the table lacks is a bug of ours,
raises and changes nothing. Cooldown is not a state of the engine: it belongs to one model, and to the
scheduler. Source: contract 4.2, 4.4.
"""

from enum import StrEnum

from strata_router.core.vocabulary import ModelId


class EngineState(StrEnum):
    """Where the one engine is."""

    STOPPED = "stopped"  # nothing of an engine exists; the port is free
    STARTING = "starting"  # a process is being started or loads; nothing is proven
    CHECKING = "checking"  # it says it is ready; its identity is being checked
    READY = "ready"  # proven: this process answers as this model
    STOPPING = "stopping"  # it is being ended, or what it left behind is
    STUCK = "stuck"  # SIGKILL has had no effect; nothing may start until it is gone


class EngineEvent(StrEnum):
    """What can happen to it."""

    LOAD = "load"
    REPORTED_READY = "reported_ready"
    VERIFIED = "verified"
    FAILED = "failed"
    STOP = "stop"
    EXITED = "exited"
    GONE = "gone"
    UNKILLABLE = "unkillable"


_S, _E = EngineState, EngineEvent

TRANSITIONS: dict[EngineState, dict[EngineEvent, EngineState]] = {
    _S.STOPPED: {_E.LOAD: _S.STARTING},
    _S.STARTING: {
        _E.REPORTED_READY: _S.CHECKING,
        _E.FAILED: _S.STOPPING,
        _E.STOP: _S.STOPPING,
    },
    _S.CHECKING: {
        _E.VERIFIED: _S.READY,
        _E.FAILED: _S.STOPPING,
        _E.STOP: _S.STOPPING,
    },
    _S.READY: {_E.STOP: _S.STOPPING, _E.EXITED: _S.STOPPING},
    _S.STOPPING: {_E.GONE: _S.STOPPED, _E.UNKILLABLE: _S.STUCK},
    _S.STUCK: {_E.GONE: _S.STOPPED},
}

MEANING: dict[EngineState, str] = {
    _S.STOPPED: "Nothing of an engine exists and its port is free.",
    _S.STARTING: "A process has been started, or is about to be; it loads, nothing is proven.",
    _S.CHECKING: "It reports ready; process id, port owner and model name are being checked.",
    _S.READY: "Proven: this process answers as this model. Requests are forwarded only here.",
    _S.STOPPING: "It is being ended; survivors of its process tree are waited for, then killed.",
    _S.STUCK: "SIGKILL has had no effect for 10 s; no engine starts until it is gone.",
}


class ImpossibleEvent(AssertionError):
    """The table has no such event in this state: a bug of ours."""


class Lifecycle:
    """State, and the model it is about.

    model: the concrete model that is loading, loaded or being stopped; None when stopped.
    """

    __slots__ = ("model", "state")

    def __init__(self) -> None:
        self.state = EngineState.STOPPED
        self.model: ModelId | None = None

    def load(self, model: ModelId) -> None:
        """``LOAD`` for one model."""
        self.on(EngineEvent.LOAD)
        self.model = model

    def on(self, event: EngineEvent) -> EngineState:
        """Apply an event and return the new state. Raises ImpossibleEvent, changing nothing."""
        after = TRANSITIONS[self.state].get(event)
        if after is None:
            raise ImpossibleEvent(f"{event} in state {self.state}")
        self.state = after
        if after is EngineState.STOPPED:
            self.model = None
        return after

    @property
    def ready_model(self) -> ModelId | None:
        """The model that may be forwarded to now."""
        return self.model if self.state is EngineState.READY else None

    @property
    def loading_model(self) -> ModelId | None:
        """The model whose load is in progress."""
        return self.model if self.state in (_S.STARTING, _S.CHECKING) else None


def states_document() -> str:
    """docs/states.md: the table above as text and as a diagram."""
    lines = [
        "# The engine's states",
        "",
        "Generated from `strata_router/core/engine/lifecycle.py` by `make docs`; do not edit.",
        "",
        "```mermaid",
        "stateDiagram-v2",
        f"    [*] --> {EngineState.STOPPED}",
    ]
    lines += [
        f"    {before} --> {after}: {event}"
        for before, row in TRANSITIONS.items()
        for event, after in row.items()
    ]
    lines += ["```", "", "| state | meaning | event | next state |", "| --- | --- | --- | --- |"]
    for before, row in TRANSITIONS.items():
        meaning = MEANING[before]
        for event, after in row.items():
            lines.append(f"| {before} | {meaning} | {event} | {after} |")
            meaning = ""
    return "\n".join(lines) + "\n"
