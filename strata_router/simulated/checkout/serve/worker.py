"""A helper process of the simulated engine, run as ``python -I -S worker.py``.

Does no work: it exists in the server's process group (or, with setsid, outside of it), holds the
inherited life lock, and outlives the server by as long as it was told.
"""

import os
import signal
import sys
import time


def stamp(options: dict[str, str], event: str) -> None:
    fd = int(options["event_fd"])
    if fd >= 0:
        head = f'{{"event": "{event}", "at": {time.monotonic()}, "pid": {os.getpid()}'
        os.write(fd, f'{head}, "model": {options["model"]}}}\n'.encode())


def main(arguments: list[str]) -> None:
    options = dict(part.split("=", 1) for part in arguments)
    linger_s = float(options["linger_s"])
    if options["ignore_sigterm"] == "1":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    stamp(options, "worker_start")
    if options["stopped"] == "1":
        os.kill(os.getpid(), signal.SIGSTOP)
    # The write end is the server's alone, so end of file is its death, whatever killed it.
    while os.read(0, 1):
        pass
    time.sleep(linger_s if linger_s >= 0 else 10**9)
    stamp(options, "worker_exit")


if __name__ == "__main__":
    main(sys.argv[1:])
