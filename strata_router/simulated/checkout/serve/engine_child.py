"""The native engine's stand-in: a process of its own, run as ``python -I -S engine_child.py``.

Speaks a line protocol like that of Strata's ``exe --serve``, with a slot number in every line so
that batch slots need no second dialect. It makes token numbers at a pace, no text.

    in   GEN slot key=value...      STOP slot      QUIT
    out  READY ctx stop             once, after the load
         RESUME slot reused         PP slot done total (per prompt chunk)      T slot number
         DONE slot generated finish ERR slot text

As with the real one: nothing is read before the load is over, so an orphan loads to the end; QUIT
and end of input take effect after the running requests; a write to a server that is gone ends the
process by SIGPIPE. Only modules that cost next to nothing are imported: every start runs this.
"""

import os
import select
import signal
import sys
import time

WINDOW_TOKENS = 64
"""Unpaced tokens that leave in one write, like the real engine's decode window."""


class Slot:
    """One running request: what is still to be made, and when."""

    def __init__(self, number: str, options: dict[str, str], now: float) -> None:
        self.number = number
        self.tokens = int(options["tokens"])
        self.every_s = float(options["every_s"])
        self.prefill_s = float(options["prefill_s"])
        self.prompt_chunk_s = float(options["prompt_chunk_s"])
        self.prompt_tokens = int(options["prompt_tokens"])
        self.error_after = int(options["error_after"])
        self.hang_after = int(options["hang_after"])
        self.die_after = int(options["die_after"])
        self.natural_finish = options["finish"]
        self.made = 0
        self.stopped = False
        self.read_s = 0.0
        self.due = now

    def advance(self, now: float) -> tuple[str, bool]:
        """Lines to write now, and whether the request is over. Sets the next due time."""
        if self.read_s < self.prefill_s:
            return self._read_prompt(now)
        lines = ""
        for _ in range(1 if self.every_s else WINDOW_TOKENS):
            # A STOP that comes after the last token stops nothing: the server sends one each time.
            if self.stopped and self.made < self.tokens:
                return lines + self._done("cancel"), True
            if self.made == self.die_after:
                write(lines)
                os.kill(os.getpid(), signal.SIGKILL)
            if self.made == self.error_after:
                return lines + f"ERR {self.number} the simulated engine was told to fail\n", True
            if self.made == self.hang_after:
                self.due = float("inf")
                return lines, False
            if self.made == self.tokens:
                return lines + self._done(self.natural_finish), True
            if self.made == 0:
                lines += f"PP {self.number} {self.prompt_tokens} {self.prompt_tokens}\n"
            lines += f"T {self.number} {self.made}\n"
            self.made += 1
        # Paced from the previous due time, not from now: a late wake-up must not slow the stream.
        # DONE comes with the last token, so a request that is complete is not held for a pause.
        is_last = self.made == self.tokens
        self.due = now if is_last or not self.every_s else max(now, self.due + self.every_s)
        return lines, False

    def stop(self, now: float) -> None:
        """Heard at once between tokens; while a chunk of the prompt is read, only after it."""
        self.stopped = True
        reads_chunk = self.prompt_chunk_s and self.prefill_s and self.made == 0
        if not reads_chunk or self.due == float("inf"):
            self.read_s = self.prefill_s
            self.due = now

    def _read_prompt(self, now: float) -> tuple[str, bool]:
        """Begin the next chunk of the prompt; the previous one, if any, is read now."""
        line = ""
        if self.read_s:
            read = int(self.prompt_tokens * self.read_s / self.prefill_s)
            line = f"PP {self.number} {read} {self.prompt_tokens}\n"
        if self.stopped and self.read_s:
            self.read_s = self.prefill_s
            return line, False
        chunk_s = self.prompt_chunk_s or self.prefill_s
        step_s = min(chunk_s, self.prefill_s - self.read_s)
        self.read_s += step_s
        self.due = now + step_s
        return line, False

    def _done(self, finish: str) -> str:
        return f"DONE {self.number} {self.made} {finish}\n"


class Engine:
    """The serve loop: one thread, one select, as many slots as the server opens."""

    def __init__(self) -> None:
        self.slots: dict[str, Slot] = {}
        self.buffer = b""
        self.is_quitting = False
        self.has_input = True

    def run(self, ignores_quit: bool) -> str:
        """Serve until QUIT or end of input and no request is left; return which it was."""
        ending = "eof"
        while True:
            if self.is_quitting and not self.slots and not ignores_quit:
                return ending
            now = time.monotonic()
            due = min((slot.due for slot in self.slots.values()), default=float("inf"))
            wait_s = None if due == float("inf") else max(0.0, due - now)
            inputs = [0] if self.has_input else []
            if select.select(inputs, [], [], wait_s)[0] and self._read_commands():
                ending = "quit"
            self._advance_due_slots()

    def _advance_due_slots(self) -> None:
        now = time.monotonic()
        for slot in list(self.slots.values()):
            if slot.due <= now:
                lines, over = slot.advance(now)
                if over:
                    del self.slots[slot.number]
                write(lines)

    def _read_commands(self) -> bool:
        """Carry out what the server sent; True once QUIT was among it."""
        data = os.read(0, 65_536)
        if not data:
            self.has_input = False
            self.is_quitting = True
        self.buffer += data
        *lines, self.buffer = self.buffer.split(b"\n")
        quits = False
        for line in lines:
            word, *rest = line.decode().split()
            if word == "GEN":
                options = dict(part.split("=", 1) for part in rest[1:])
                write(f"RESUME {rest[0]} {options['reused']}\n")
                self.slots[rest[0]] = Slot(rest[0], options, time.monotonic())
            elif word == "STOP" and rest[0] in self.slots:
                self.slots[rest[0]].stop(time.monotonic())
            elif word == "QUIT":
                quits = self.is_quitting = True
        return quits


def write(lines: str) -> None:
    data = lines.encode()
    while data:
        data = data[os.write(1, data) :]


def stamp(options: dict[str, str], event: str, more: str = "") -> None:
    """One line for the event file; ``model`` arrives as JSON text already."""
    fd = int(options["event_fd"])
    if fd >= 0:
        head = f'{{"event": "{event}", "at": {time.monotonic()}, "pid": {os.getpid()}'
        os.write(fd, f'{head}, "model": {options["model"]}{more}}}\n'.encode())


def main(arguments: list[str]) -> None:
    options = dict(part.split("=", 1) for part in arguments)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    if options["ignore_sigterm"] == "1":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    stamp(options, "native_start")
    time.sleep(float(options["load_s"]))
    if options["fail"] == "1":
        stamp(options, "native_exit", ', "why": "load"')
        os._exit(1)
    stamp(options, "native_loaded")
    write(f"INFO batch_slots={options['parallel']}\nREADY {options['context']} stop\n")
    why = Engine().run(options["ignore_quit"] == "1")
    time.sleep(float(options["exit_s"]))
    stamp(options, "native_exit", f', "why": "{why}"')


if __name__ == "__main__":
    # A terminal's Ctrl-C reaches the whole group; the server tells us to quit in its own way.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    main(sys.argv[1:])
