"""One chat completion, from its body to its last byte.

Order of events, each observable from outside: the body is read and judged; a missing engine is
loaded (nothing is sent meanwhile, nobody watches the client); the disconnect watcher starts; the
head and the role chunk go out; the request waits for its turn; the engine generates.
"""

import contextlib
import os
import queue
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from .answers import Answer, Piece, plan
from .cache import prompt_tokens
from .chat_request import BadRequest, ChatRequest, parse_chat, parse_object
from .faults import ConnectionCut, answer_instead
from .frames import Frames, Work
from .http_wire import ClientGone, Reply
from .knobs import BadKnob, RequestKnobs, with_markers
from .ledger import Running
from .native import InputClosed, Lines, die
from .quiet import Quiet
from .service import Service
from .sinks import EngineFailed, Sink, sink_for
from .watcher import DisconnectWatcher

RESERVED_TOKENS = 8
"""Strata refuses a request unless prompt, answer and these fit into the context."""


def answer_chat(
    service: Service, connection: socket.socket, reply: Reply, sequence: int, body: bytes
) -> None:
    """Judge the body and answer it. Raises LoadFailed when a missing engine cannot be started."""
    try:
        request = parse_chat(parse_object(body))
        knobs = with_markers(service.profile.request, request.last_user_text)
        if knobs.answer != "normal":
            time.sleep(knobs.header_delay_s)
            answer_instead(reply, knobs.answer)
            return
        service.ensure_loaded()
        request = _fitted(request, service)
    except (BadRequest, BadKnob) as error:
        reply.error(400, str(error), "invalid_request_error")
        return
    ChatExchange(service, connection, reply, sequence, request, knobs).run()


def _fitted(request: ChatRequest, service: Service) -> ChatRequest:
    """``request`` with a max_tokens that the context has room for. Raises BadRequest."""
    profile = service.profile
    room = profile.context_tokens - prompt_tokens(request.prompt) - RESERVED_TOKENS
    wanted = room if request.max_tokens is None else request.max_tokens
    if room < 1 or (wanted > room and not profile.fit_max_tokens):
        raise BadRequest(f"the request does not fit into {profile.context_tokens} tokens")
    return replace(request, max_tokens=min(wanted, room))


class ChatExchange:
    """One request that will be generated. ``run`` is called once, by the connection's thread."""

    def __init__(
        self,
        service: Service,
        connection: socket.socket,
        reply: Reply,
        sequence: int,
        request: ChatRequest,
        knobs: RequestKnobs,
    ) -> None:
        self._service = service
        self._connection = connection
        self._sequence = sequence
        self._request = request
        self._knobs = knobs
        self._model = service.profile.reported_model
        if request.model in service.profile.aliases:
            self._model = str(request.model)
        frames = Frames(f"chatcmpl-{os.urandom(12).hex()}", int(time.time()), self._model)
        self._sink: Sink = sink_for(request, reply, frames, knobs)
        self._work = Work(prompt_tokens(request.prompt))
        self._running = Running(self._work.prompt_tokens, request.max_tokens or 0)
        self._slot: int | None = None
        self._shown = 0
        self._text: list[str] = []
        self._is_muted = False
        self._is_over = False
        self._leaving = threading.Lock()
        self._gone = threading.Event()

    def run(self) -> None:
        """Answer the request, or break off; what is counted and stamped is so in either case."""
        service = self._service
        watcher = DisconnectWatcher(
            self._connection, service.profile.engine.disconnect_poll_s, lambda: self._leave("eof")
        )
        service.ledger.arrived(self._running)
        watcher.start()
        finish = "error"
        try:
            finish = self._answer()
        finally:
            watcher.stop()
            with self._leaving:
                self._is_over = True
            finish = "disconnect" if self._gone.is_set() else finish
            if self._running.phase != "queued":
                service.held.remember(self._request.prompt, "".join(self._text))
            service.ledger.left(self._running, self._history_entry(finish))
            service.stamps.stamp("finish", seq=self._sequence, finish=finish, chunks=self._shown)

    def _answer(self) -> str:
        """All of it; how it finished. Raises ConnectionCut, OSError (dead standard output)."""
        if self._gone.wait(self._knobs.header_delay_s):
            return "disconnect"
        self._die_at("headers")
        self._send(self._sink.begin)
        if self._knobs.die_at == "role":
            self._send(self._sink.flush)
            self._die_at("role")
        self._wait_for_turn()
        try:
            finish = self._generate()
        except EngineFailed as error:
            failure = error
            self._send(lambda: self._sink.fail(failure))
            return "error"
        finally:
            self._service.turn.release()
        self._complete(finish)
        return finish

    def _wait_for_turn(self) -> None:
        """A plain lock: silence, and nobody can leave the queue. Batch slots send heartbeats."""
        if self._service.profile.parallel == 1:
            self._service.turn.acquire()
            return
        while not self._service.turn.acquire(timeout=self._service.profile.engine.keepalive_s):
            self._send(self._sink.silence)

    def _generate(self) -> str:
        """Drive the engine to the end of this request. Raises EngineFailed."""
        native = self._service.native
        knobs = self._knobs
        answer = plan(self._request, knobs, self._model, self._request.max_tokens or 0)
        self._work.reasoning_tokens = answer.reasoning_tokens
        reused = self._service.held.reusable_tokens(self._request.prompt)
        slot = self._service.free_slots.pop()
        lines = native.open_slot(slot)
        self._running.begins_reading(slot)
        try:
            self._slot = slot
            native.send(f"GEN {slot} {_options(answer, knobs, self._work, reused)}")
            if self._gone.is_set():
                self._stop_engine()
            finish = self._relay(lines, answer)
        except (ConnectionCut, OSError):
            self._stop_engine()
            _drain(lines)
            raise
        except InputClosed as error:
            raise EngineFailed(str(error)) from error
        finally:
            self._slot = None
            native.close_slot(slot)
            self._service.free_slots.append(slot)
        return finish

    def _relay(self, lines: Lines, answer: Answer) -> str:
        """Engine lines to the sink until the request is over; how the engine says it finished."""
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
                        self._send(self._sink.silence)
                    case "T":
                        self._count_token()
                        if upcoming is not None:
                            piece, upcoming = upcoming, next(answer.pieces, None)
                            self._show(piece, is_last=upcoming is None)
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
        if quiet.take_tick(now):
            self._service.ledger.say(f"[strata] {self._running.phase} {self._running.generated}")
            self._send(self._sink.tick)
        if quiet.take_comment(now):
            self._send(self._sink.silence)
        if quiet.is_hopeless(now):
            self._service.native.kill()
            raise EngineFailed(
                f"the engine said nothing for {quiet.silence_s:g} s during the request;"
                " the next request restarts it"
            )

    def _count_token(self) -> None:
        if not self._work.generated:
            self._work.prompt_s = self._running.begins_generating()
        self._work.generated += 1
        self._running.generated = self._work.generated

    def _show(self, piece: Piece, *, is_last: bool) -> None:
        self._break_off(piece)
        self._send(lambda: self._sink.piece(piece, self._work, is_last=is_last))
        if not self._shown:
            self._service.stamps.stamp("first_chunk", seq=self._sequence)
        self._shown += 1
        self._text.append(piece.content or "")

    def _break_off(self, piece: Piece | None) -> None:
        """Die or cut the connection if so many chunks were shown; ``piece`` is what would follow."""
        knobs = self._knobs
        dies = knobs.die_after_chunks == self._shown
        if not dies and knobs.cut_after_chunks != self._shown:
            return
        self._send(self._sink.flush)
        if knobs.cut == "mid_event" and piece is not None:
            self._send(lambda: self._sink.half_piece(piece))
        if dies:
            self._die(f"after {self._shown} chunks")
        raise ConnectionCut(by_reset=knobs.cut == "reset")

    def _complete(self, finish: str) -> None:
        """The last chunk and the mark of the end."""
        self._break_off(None)
        self._service.ledger.say(
            f"[strata] chat: prompt {self._work.prompt_tokens} cached {self._work.reused}"
            f" output {self._work.generated} {finish}"
        )
        self._service.ledger.last_timings = self._work.timings(self._knobs)
        shown = "stop" if finish == "cancel" else finish
        self._send(lambda: self._sink.final(self._knobs.finish_as or shown, self._work))
        self._die_at("final")
        with self._leaving:
            # A client may leave the moment it has read [DONE]; that is no disconnect.
            self._is_over = True
        self._send(self._sink.done)
        self._die_at("done")

    def _die_at(self, place: str) -> None:
        if self._knobs.die_at == place:
            self._die(place)

    def _die(self, where: str) -> None:
        self._service.stamps.stamp("dies", where=where, seq=self._sequence)
        die(self._knobs.die_exit)

    def _send(self, step: Callable[[], None]) -> None:
        """Do one step of the sink; a client that turns out to be gone silences all later ones."""
        if self._is_muted:
            return
        try:
            step()
        except ClientGone:
            self._is_muted = True
            self._leave("write")

    def _leave(self, how: str) -> None:
        """The client is gone: noticed by the watcher (``eof``) or by a failed write (``write``)."""
        with self._leaving:
            if self._is_over or self._gone.is_set():
                return
            self._gone.set()
        self._service.stamps.stamp("disconnect", seq=self._sequence, how=how, chunks=self._shown)
        self._stop_engine()

    def _stop_engine(self) -> None:
        slot = self._slot
        if slot is not None:
            with contextlib.suppress(InputClosed):
                self._service.native.send(f"STOP {slot}")

    def _history_entry(self, finish: str) -> dict[str, object]:
        """One entry of /metrics ``requests``."""
        work = self._work
        return {
            "finish": "stop" if finish == "tool_calls" else finish,
            "prompt_tokens": work.prompt_tokens if work.generated else 0,
            "prompt_total": work.prompt_tokens,
            "prompt_read": work.prompt_tokens - work.reused if work.generated else 0,
            "reused": work.reused,
            "output_tokens": work.generated,
            "engine_generated": work.generated,
            "total_s": round(time.monotonic() - self._running.started, 3),
        }


def _options(answer: Answer, knobs: RequestKnobs, work: Work, reused: int) -> str:
    options = {
        "tokens": answer.tokens,
        "finish": answer.finish,
        "prompt_tokens": work.prompt_tokens,
        "reused": reused,
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
