"""A small stand-in for an engine process and what it leaves behind; knows no HTTP and no models.

    python -I -S child_engine.py NOTES [key=value ...]

NOTES is a file to which every process of it appends one line "role pid" once it is set up, and the
engine itself "ended pid" when it has ended in order.

on_term=default|ignore|end   what SIGTERM does; "end" takes end_s seconds and exits with status
status=N, end_s=S, life_s=S  exit status; length of an orderly end; end by itself after this long
worker_s=S                   a process in its group that lives this long after the engine
deep=N                       a chain of N processes below it, each the child of the one before
stopped=1                    a process in its group that has stopped itself
escaped=1                    a process that left group and session, has lost its parent, is deaf to SIGTERM
forker=group|session         a process that does nothing but fork and end, in its group or never twice in one
forkers=N                    how many of them
crowd=N                      N processes in a session of their own
zombie=1                     a child that has ended and is not reaped
port=N                       listens there (an escaped process inherits the socket)
report=FILE                  writes what it was given (descriptors, signals, environment, ...) as JSON
"""

import os
import signal
import socket
import sys
import time


def main() -> None:
    notes, *pairs = sys.argv[1:]
    settings = dict(pair.split("=", 1) for pair in pairs)
    log = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def note(role: str) -> None:
        os.write(log, f"{role} {os.getpid()}\n".encode())

    if "report" in settings:
        report(settings["report"], log)
    if "port" in settings:
        listener = socket.create_server(("127.0.0.1", int(settings["port"])))
        listener.set_inheritable(True)
    if "worker_s" in settings:
        engine = os.getpid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            note("worker")
            while os.getppid() == engine:
                time.sleep(0.002)
            time.sleep(float(settings["worker_s"]))
            note("worker-ended")
            os._exit(0)
    for _ in range(int(settings.get("crowd", "0"))):
        if os.fork() == 0:
            os.setsid()
            note("crowd")
            time.sleep(1000)
    if "stopped" in settings and os.fork() == 0:
        note("stopped")
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(1000)
    if "escaped" in settings and os.fork() == 0:
        os.setsid()
        parent = os.getpid()
        if os.fork():
            os._exit(0)
        while os.getppid() == parent:
            time.sleep(0.001)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        note("escaped")
        time.sleep(1000)
    if "forker" in settings:
        for _ in range(int(settings.get("forkers", "1"))):
            if os.fork() == 0:
                fork_for_ever(settings["forker"], note)
    if "zombie" in settings and os.fork() == 0:
        note("zombie")
        os._exit(0)
    depth = int(settings.get("deep", "0"))
    if depth and os.fork() == 0:
        for _ in range(depth - 1):
            note("deep")
            if os.fork():
                time.sleep(1000)
        note("deep")
        time.sleep(1000)

    on_term = settings.get("on_term", "default")
    if on_term == "ignore":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif on_term == "end":
        count = 0

        def end(*_: object) -> None:
            nonlocal count
            count += 1
            note(f"sigterm-{count}")
            if count == 1:
                time.sleep(float(settings.get("end_s", "0")))
                note("ended")
                os._exit(int(settings.get("status", "0")))

        signal.signal(signal.SIGTERM, end)
    note("engine")
    time.sleep(float(settings.get("life_s", "1000")))
    note("ended")
    sys.exit(int(settings.get("status", "0")))


def fork_for_ever(kind: str, note: object) -> None:
    assert callable(note)
    note("forker")
    while True:
        if os.fork():
            os._exit(0)
        if kind == "session":
            os.setsid()


def report(path: str, log: int) -> None:
    import json  # only this one is worth its import

    with open("/proc/self/status") as file:
        status = dict(line.split(":\t", 1) for line in file if ":\t" in line)
    descriptors = {
        int(name): os.readlink(f"/proc/self/fd/{name}")
        for name in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{name}") and int(name) != log
    }
    content = {
        "descriptors": descriptors,
        "signals_ignored": int(status["SigIgn"], 16),
        "signals_blocked": int(status["SigBlk"], 16),
        "pid": os.getpid(),
        "pgrp": os.getpgrp(),
        "session": os.getsid(0),
        "cwd": os.getcwd(),
        "environment": dict(os.environ),
        "arguments": sys.argv,
    }
    with open(path + ".part", "w") as file:
        json.dump(content, file)
    os.rename(path + ".part", path)


main()
