"""Counts what the server did and does: the numbers behind /status, /slots and /metrics.

One lock guards both the numbers and the lines printed to standard output, as in Strata: when
nobody reads that output, the print blocks and everything that asks for a number blocks with it.
"""

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

KEPT_REQUESTS = 500
SHOWN_REQUESTS = 12

JsonObject = dict[str, Any]


@dataclass(slots=True)
class Running:
    """One request between its preparation and its end. phase: queued, reading or generating."""

    prompt_tokens: int
    max_tokens: int
    slot: int = -1
    phase: str = "queued"
    generated: int = 0
    started: float = field(default_factory=time.monotonic)
    phase_began: float = field(default_factory=time.monotonic)

    def begins_reading(self, slot: int) -> None:
        self.slot = slot
        self.phase = "reading"
        self.phase_began = time.monotonic()

    def begins_generating(self) -> float:
        """Seconds that the prompt took."""
        self.phase = "generating"
        now = time.monotonic()
        prompt_s, self.phase_began = now - self.phase_began, now
        return prompt_s


class Ledger:
    """All requests of one server process, running and past."""

    def __init__(self, context_tokens: int, slots: int) -> None:
        self.lock = threading.Lock()
        self._context_tokens = context_tokens
        self._slots = slots
        self._running: list[Running] = []
        self._past: deque[JsonObject] = deque(maxlen=KEPT_REQUESTS)
        self.requests = 0
        self.last_request_at: float | None = None
        self.last_activity = time.monotonic()
        self.last_timings: JsonObject | None = None
        self._totals = {"requests": 0, "prompt_tokens": 0, "output_tokens": 0, "reused": 0}

    @property
    def is_busy(self) -> bool:
        """Whether a request runs or waits for its turn."""
        with self.lock:
            return bool(self._running)

    @property
    def idle_s(self) -> float:
        """Seconds since the last request ended; 0 while one is there."""
        with self.lock:
            return 0.0 if self._running else time.monotonic() - self.last_activity

    def touch(self) -> None:
        with self.lock:
            self.last_activity = time.monotonic()

    def arrived(self, running: Running) -> None:
        with self.lock:
            self.requests += 1
            self.last_request_at = time.time()
            self._running.append(running)

    def left(self, running: Running, entry: JsonObject) -> None:
        """Move a request to the past. entry: one object of /metrics ``requests``."""
        with self.lock:
            self._running.remove(running)
            self.last_activity = time.monotonic()
            self._past.appendleft(entry)
            self._totals["requests"] += 1
            for total, name in (
                ("prompt_tokens", "prompt_tokens"),
                ("output_tokens", "output_tokens"),
                ("reused", "reused"),
            ):
                self._totals[total] += entry[name]

    def say(self, line: str) -> None:
        """Print one line, flushed, under the lock. Raises OSError when nobody can read it."""
        with self.lock:
            print(line, flush=True)

    def status(self) -> JsonObject:
        with self.lock:
            serving = [running for running in self._running if running.phase != "queued"]
            answer: JsonObject = {
                "busy": bool(serving),
                "queued": len(self._running) - len(serving),
            }
            if serving:
                answer |= _progress(serving[0])
            return answer

    def slots(self) -> list[JsonObject]:
        with self.lock:
            by_slot = {running.slot: running for running in self._running}
            return [
                {
                    "id": slot,
                    "n_ctx": self._context_tokens,
                    "is_processing": slot in by_slot,
                    "n_prompt_tokens": by_slot[slot].prompt_tokens if slot in by_slot else 0,
                }
                for slot in range(self._slots)
            ]

    def activity(self) -> JsonObject:
        with self.lock:
            return {
                "requests": self.requests,
                "in_flight": len(self._running),
                "last_request_at": self.last_request_at,
            }

    def metrics(self, *, is_loaded: bool, every_request: bool) -> JsonObject:
        with self.lock:
            return {
                "live": self._live(is_loaded),
                "requests": list(self._past)[: None if every_request else SHOWN_REQUESTS],
                "totals": dict(self._totals),
                "time": time.time(),
            }

    def prometheus(self, *, is_loaded: bool) -> str:
        """The few series that Strata names like vLLM's, in exposition text."""
        with self.lock:
            live = self._live(is_loaded)
            running = len(self._running) - live["queued"]
            series = {
                "vllm:num_requests_running": running,
                "vllm:num_requests_waiting": live["queued"],
                "vllm:prompt_tokens_total": self._totals["prompt_tokens"],
                "vllm:generation_tokens_total": self._totals["output_tokens"],
                "vllm:prefix_cache_hits_total": self._totals["reused"],
                f'strata:live_state{{state="{live["state"]}"}}': 1,
            }
        return "".join(f"{name} {value}\n" for name, value in series.items())

    def _live(self, is_loaded: bool) -> JsonObject:
        serving = [running for running in self._running if running.phase != "queued"]
        state = serving[0].phase if serving else "idle" if is_loaded else "unloaded"
        return {
            "state": state,
            "queued": len(self._running) - len(serving),
            "prompt_total": serving[0].prompt_tokens if serving else 0,
            "generated": serving[0].generated if serving else 0,
        }


def _progress(running: Running) -> JsonObject:
    elapsed_s = time.monotonic() - running.started
    return {
        "phase": running.phase,
        "prompt_tokens": running.prompt_tokens,
        "generated": running.generated,
        "max_tokens": running.max_tokens,
        "elapsed_s": round(elapsed_s, 3),
        "tokens_per_s": round(running.generated / elapsed_s, 1) if elapsed_s else 0.0,
    }
