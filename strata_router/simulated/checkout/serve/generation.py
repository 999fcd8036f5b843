"""Drives the native engine through one request and hands what it makes to the client.

The caller holds the turn. A request that nobody wants any more is stopped and drained, so that the
next one finds the engine free; only the engine's own end spares that.
"""

import contextlib
import queue
import threading
import time

from .answers import Answer
from .chat_request import ChatRequest
from .client import Client
from .faults import ConnectionCut
from .frames import Work
from .knobs import RequestKnobs
from .ledger import Running
from .native import InputClosed, Lines
from .quiet import Quiet
from .service import Service
from .sinks import EngineFailed


class Generation:
    """One request in one engine slot. ``run`` is called once."""

    def __init__(
        self,
        service: Service,
        request: ChatRequest,
        knobs: RequestKnobs,
        client: Client,
        work: Work,
        running: Running,
    ) -> None:
        self._service = service
        self._request = request
        self._knobs = knobs
        self._client = client
        self._work = work
        self._running = running
        self._slot = service.free_slots.pop()
        self._stopping = threading.Lock()
        self._is_running = True

    def run(self, answer: Answer) -> str:
        """How the engine says it finished. Raises EngineFailed, ConnectionCut, OSError."""
        native = self._service.native
        lines = native.open_slot(self._slot)
        self._running.begins_reading(self._slot)
        self._client.on_gone = self._stop
        try:
            native.send(f"GEN {self._slot} {self._options(answer)}")
            if self._client.gone.is_set():
                self._stop()
            return self._relay(lines, answer)
        except (ConnectionCut, OSError):
            self._stop()
            _drain(lines)
            raise
        except InputClosed as error:
            raise EngineFailed(str(error)) from error
        finally:
            with self._stopping:
                self._is_running = False
            native.close_slot(self._slot)
            self._service.free_slots.append(self._slot)

    def _relay(self, lines: Lines, answer: Answer) -> str:
        """Engine lines to the client until the request is over."""
        profile = self._service.profile
        quiet = Quiet(profile.engine.keepalive_s, profile.silence_s, time.monotonic())
        upcoming = next(answer.pieces, None)
        while True:
            with contextlib.suppress(queue.Empty):
                words = lines.get(timeout=quiet.patience_s(time.monotonic()))
                quiet.heard(time.monotonic())
                match words[0]:
                    case "RESUME":
                        self._work.reused = int(words[2])
                    case "PP":
                        self._report_progress(int(words[2]))
                    case "T":
                        self._count_token()
                        if upcoming is not None:
                            piece, upcoming = upcoming, next(answer.pieces, None)
                            self._client.show(piece, self._work, is_last=upcoming is None)
                        elif answer.finish != "length":
                            # The end-of-turn token. Strata says STOP although nothing is left.
                            self._service.native.send(f"STOP {self._slot}")
                    case "DONE":
                        if self._work.generated:
                            self._work.decode_s = time.monotonic() - self._running.phase_began
                        return words[3]
                    case "ERR":
                        raise EngineFailed(" ".join(words[2:]), 400, "invalid_request_error")
                    case "GONE":
                        raise EngineFailed(
                            f"the engine stopped unexpectedly (exit code {words[1]});"
                            " the next request restarts it"
                        )
            self._mind_silence(quiet, time.monotonic())

    def _mind_silence(self, quiet: Quiet, now: float) -> None:
        client = self._client
        if quiet.take_tick(now):
            self._service.ledger.say(f"[strata] {self._running.phase} {self._running.generated}")
            client.send(client.sink.tick)
        if quiet.take_comment(now):
            client.send(client.sink.silence)
        if quiet.is_hopeless(now):
            self._service.native.kill()
            raise EngineFailed(
                f"the engine said nothing for {quiet.silence_s:g} s during the request;"
                " the next request restarts it"
            )

    def _report_progress(self, read_tokens: int) -> None:
        client = self._client
        reading_s = time.monotonic() - self._running.phase_began
        client.send(lambda: client.sink.progress(read_tokens, self._work, reading_s))

    def _count_token(self) -> None:
        if not self._work.generated:
            self._work.prompt_s = self._running.begins_generating()
        self._work.generated += 1
        self._running.generated = self._work.generated

    def _stop(self) -> None:
        """Tell the engine, unless it is done: a late STOP would hit the next request in this slot."""
        with self._stopping, contextlib.suppress(InputClosed):
            if self._is_running:
                self._service.native.send(f"STOP {self._slot}")

    def _options(self, answer: Answer) -> str:
        knobs = self._knobs
        options = {
            "tokens": answer.tokens,
            "finish": answer.finish,
            "prompt_tokens": self._work.prompt_tokens,
            "reused": self._service.held.reusable_tokens(self._request.prompt),
            "every_s": knobs.chunk_every_ms / 1000,
            "prefill_s": knobs.prefill_s,
            "prompt_chunk_s": knobs.prompt_chunk_s,
            "error_after": _count(knobs.error_after_chunks),
            "hang_after": _count(knobs.hang_after_chunks),
            "die_after": _count(knobs.engine_dies_after_chunks),
        }
        return " ".join(f"{name}={value}" for name, value in options.items())


def _count(number: int | None) -> int:
    """No token count is ever -1, so that means never."""
    return -1 if number is None else number


def _drain(lines: Lines) -> None:
    """Wait until the engine is done with a request that nobody wants any more."""
    while lines.get()[0] not in ("DONE", "ERR", "GONE"):
        pass
