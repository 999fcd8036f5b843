"""The client's side of one chat exchange: what is shown to it, whether it is there, when it is cut.

All bytes of a chat answer pass through ``Client.send``; the disconnect watcher reports here too.
"""

import threading
from collections.abc import Callable
from typing import NoReturn

from .answers import Piece
from .faults import ConnectionCut
from .frames import Work
from .http_wire import ClientGone
from .knobs import RequestKnobs
from .native import die
from .sinks import Sink
from .stamps import Stamps


class Client:
    """One client. shown: chunks behind the role chunk so far. text: the content in them."""

    def __init__(self, sink: Sink, knobs: RequestKnobs, stamps: Stamps, sequence: int) -> None:
        self.sink = sink
        self.shown = 0
        self.text: list[str] = []
        self.gone = threading.Event()
        self.on_gone: Callable[[], None] | None = None
        self._knobs = knobs
        self._stamps = stamps
        self._sequence = sequence
        self._lock = threading.Lock()
        self._is_muted = False
        self._is_over = False

    def send(self, step: Callable[[], None]) -> None:
        """Do one step of the sink; a client that turns out to be gone silences all later ones."""
        if self._is_muted:
            return
        try:
            step()
        except ClientGone:
            self._is_muted = True
            self.leave("write")

    def show(self, piece: Piece, work: Work, *, is_last: bool) -> None:
        """One generated token. Raises ConnectionCut, or ends the process, if a fault is due."""
        self.break_off(piece)
        self.send(lambda: self.sink.piece(piece, work, is_last=is_last))
        if not self.shown:
            self._stamps.stamp("first_chunk", seq=self._sequence)
        self.shown += 1
        self.text.append(piece.content or "")

    def break_off(self, piece: Piece | None) -> None:
        """Die or cut the connection if so many chunks were shown; ``piece`` is what would follow."""
        knobs = self._knobs
        dies = knobs.die_after_chunks == self.shown
        if not dies and knobs.cut_after_chunks != self.shown:
            return
        self.send(self.sink.flush)
        if knobs.cut == "mid_event" and piece is not None:
            self.send(lambda: self.sink.half_piece(piece))
        if dies:
            self._die(f"after {self.shown} chunks")
        raise ConnectionCut(by_reset=knobs.cut == "reset")

    def die_at(self, place: str) -> None:
        """End the process if the knob ``die_at`` names this place; what was gathered is sent first."""
        if self._knobs.die_at == place:
            if place == "role":
                self.send(self.sink.flush)
            self._die(place)

    def leave(self, how: str) -> None:
        """The client is gone: noticed by the watcher (``eof``) or by a failed write (``write``)."""
        with self._lock:
            if self._is_over or self.gone.is_set():
                return
            self.gone.set()
        facts = {"seq": self._sequence, "how": how, "chunks": self.shown}
        self._stamps.stamp("disconnect", **facts)
        if self.on_gone is not None:
            self.on_gone()

    def may_go(self) -> None:
        """From now on leaving is no disconnect: the client has all, or the exchange is over."""
        with self._lock:
            self._is_over = True

    def _die(self, where: str) -> NoReturn:
        self._stamps.stamp("dies", where=where, seq=self._sequence)
        die(self._knobs.die_exit)
