"""One chat completion, from its body to its last byte.

Order of events, each observable from outside: the body is read and judged; a missing engine is
loaded (nothing is sent meanwhile, nobody watches the client); the disconnect watcher starts; the
head and the role chunk go out; the request waits for its turn; the engine generates.
"""

import os
import socket
import time
from dataclasses import replace

from .answers import plan
from .cache import prompt_tokens
from .chat_request import BadRequest, ChatRequest, parse_chat, parse_object
from .client import Client
from .faults import answer_instead
from .frames import Frames, Work
from .generation import Generation
from .http_wire import Reply
from .knobs import BadKnob, RequestKnobs, with_markers
from .ledger import Running
from .service import Service
from .sinks import EngineFailed, sink_for
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
        sink = sink_for(request, reply, frames, knobs)
        self._client = Client(sink, knobs, service.stamps, sequence)
        self._work = Work(prompt_tokens(request.prompt))
        self._running = Running(self._work.prompt_tokens, request.max_tokens or 0)

    def run(self) -> None:
        """Answer the request, or break off; what is counted and stamped is so in either case."""
        service, client = self._service, self._client
        poll_s = service.profile.engine.disconnect_poll_s
        watcher = DisconnectWatcher(self._connection, poll_s, lambda: client.leave("eof"))
        service.ledger.arrived(self._running)
        watcher.start()
        finish = "error"
        try:
            finish = self._answer()
        finally:
            watcher.stop()
            client.may_go()
            finish = "disconnect" if client.gone.is_set() else finish
            if self._running.phase != "queued":
                service.held.remember(self._request.prompt, "".join(client.text))
            service.ledger.left(self._running, self._history_entry(finish))
            service.stamps.stamp("finish", seq=self._sequence, finish=finish, chunks=client.shown)

    def _answer(self) -> str:
        """All of it; how it finished. Raises ConnectionCut, OSError (dead standard output)."""
        client = self._client
        if client.gone.wait(self._knobs.header_delay_s):
            return "disconnect"
        client.die_at("headers")
        client.send(client.sink.begin)
        client.die_at("role")
        self._wait_for_turn()
        try:
            answer = plan(self._request, self._knobs, self._model, self._running.max_tokens)
            self._work.reasoning_tokens = answer.reasoning_tokens
            finish = Generation(
                self._service, self._request, self._knobs, client, self._work, self._running
            ).run(answer)
        except EngineFailed as error:
            failure = error
            client.send(lambda: client.sink.fail(failure))
            return "error"
        finally:
            self._service.turn.release()
        self._complete(finish)
        return finish

    def _wait_for_turn(self) -> None:
        """A plain lock: silence, and nobody can leave the queue. Batch slots send heartbeats."""
        profile, client = self._service.profile, self._client
        if profile.parallel == 1:
            self._service.turn.acquire()
            return
        while not self._service.turn.acquire(timeout=profile.engine.keepalive_s):
            client.send(client.sink.silence)

    def _complete(self, finish: str) -> None:
        """The last chunk and the mark of the end."""
        client, work = self._client, self._work
        client.break_off(None)
        self._service.ledger.last_timings = work.timings(self._knobs)
        self._service.ledger.say(
            f"[strata] chat: prompt {work.prompt_tokens} cached {work.reused}"
            f" output {work.generated} {finish}"
        )
        shown = self._knobs.finish_as or ("stop" if finish == "cancel" else finish)
        client.send(lambda: client.sink.final(shown, work))
        client.die_at("final")
        client.may_go()
        client.send(client.sink.done)
        client.die_at("done")

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
