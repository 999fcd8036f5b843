"""The guard: a small process between daemon and engine, so that no engine outlives its daemon.

It starts the engine in a session of its own, reports on it, carries out the stop ladder, and ends only
when no process is below it any more. It decides nothing: the daemon says when to stop. It is a child
subreaper, so a process that leaves the engine's group and session still comes to it, and it is the one
process whose end of a socket tells that the daemon is gone, however the daemon died: then everything
below is killed. Should the guard itself be killed, the kernel kills the engine (parent-death signal,
armed by the guard's only thread) and the daemon does the rest (``runtime.orphans``).

Started by ``runtime.guard_link`` as ``python -I -S guard.py``, stdlib only and few imports, because a
model switch waits for it (16 ms on an idle machine). Its stdin is the channel, an AF_UNIX stream::

    daemon -> guard   8 bytes of length, then marshal of (argv, cwd, environment, log, survivors_ms)
                      "term"          SIGTERM to the engine, at most once in its life
                      "stop MS"       the same, and SIGKILL to everything when it lives MS later
                      "kill"          SIGKILL to everything
                      end of file     the same: the daemon is gone
    guard -> daemon   "heard"         answer to each line
                      "log ERRNO"     the log cannot be opened; the engine's output is discarded
                      "started PID START_TICKS"      or      "refused STAGE ERRNO"
                      "exited STATUS"                exit code, or minus the signal
                      "survivors N"   processes that the engine left behind
                      "killing"       SIGKILL goes out from now on
                      "stuck PID"     this one has been killed and is still there
                      "end N"         nothing is left; N processes besides the engine were killed

    STARTING --program runs--> RUNNING --term, stop--> TERMINATING
                                  |                    |       |
                                  `---- engine gone ---'       `-- MS over --.
                                            |                                v
                                        SURVIVORS ------ survivors_ms ---> KILLING

    "kill" and end of file lead to KILLING from everywhere; every state ends when nothing is below.
"""

import ctypes
import marshal
import os
import select
import signal
import sys
from time import monotonic  # noqa: TID251 - a program of its own, without trio and its clock

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36

NEVER = float("inf")
FIRST_PAUSE_S = 0.001
"""After a round of SIGKILL: most processes are gone within this; forked ones are found by the next round."""
LONGEST_PAUSE_S = 0.5
"""What SIGKILL does not end (uninterruptible, frozen) is looked at this often; its end wakes us anyway."""
STUCK_S = 1.0
"""Killed this long ago and still there: worth naming to the daemon."""
DEAD_STATES = (b"Z", b"X")


class Process:
    """One line of /proc/PID/stat; ``runtime.procfs`` has the full reader, too slow to import here."""

    __slots__ = ("pgrp", "pid", "ppid", "start", "state")

    def __init__(self, content: bytes) -> None:
        self.pid = int(content[: content.index(b" ")])
        # The name stands in parentheses and may hold spaces and parentheses itself.
        fields = content[content.rindex(b")") + 2 :].split()
        self.state, self.ppid, self.pgrp, self.start = (
            fields[0],
            int(fields[1]),
            int(fields[2]),
            int(fields[19]),
        )


def read_process(pid: int) -> Process | None:
    """None: no such process (any more)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return Process(file.read())
    except OSError:
        return None


def processes_below(root: int) -> list[Process]:
    """Everything that descends from ``root``, children first, as far as one pass over /proc can see it.

    The pass is no snapshot: a process whose parent ends meanwhile may be missed, and is found by the
    next one. That nothing is below us is known from waitpid alone.
    """
    children: dict[int, list[Process]] = {}
    try:
        names = os.listdir("/proc")
    except OSError:
        return []  # no memory or file left on the host: the next pass may have it
    for name in names:
        if name.isdigit() and (process := read_process(int(name))) is not None:
            children.setdefault(process.ppid, []).append(process)
    found: list[Process] = []
    parents = [root]
    while parents:
        kin = children.get(parents.pop(), [])
        found += kin
        parents += [process.pid for process in kin]
    return found


def prctl(option: int, argument: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    none = ctypes.c_ulong(0)
    if libc.prctl(option, argument, none, none, none) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def become_engine(spec: "Spec", guard: int, status: int) -> None:
    """In the forked child: turn into the engine, or write to ``status`` what went wrong. Never returns.

    ``status`` closes itself by a successful exec, which is how the guard knows of it.
    """
    stage = "prepare"
    try:
        # Gone again when the program is set-user-id or has file capabilities; engines are neither.
        prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
        if os.getppid() != guard:
            return  # the guard died before the signal was armed; the finally ends this process
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)  # ignored ones would stay ignored
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        output = null if spec.log is None else open_log(spec.log, null, status)
        for descriptor, source in ((0, null), (1, output), (2, output)):
            os.dup2(source, descriptor, inheritable=True)
        stage = "chdir"
        if spec.cwd is not None:
            os.chdir(spec.cwd)
        stage = "exec"
        os.execve(spec.argv[0], spec.argv, spec.environment)
    except OSError as error:
        os.write(status, f"refused {stage} {error.errno or 0}\n".encode())
    finally:
        os._exit(127)


def open_log(path: bytes, otherwise: int, status: int) -> int:
    """A descriptor that appends to the log, or ``otherwise``: an engine starts without its log too."""
    try:
        # O_NONBLOCK: a pipe somebody put there must not hang us; regular files ignore it.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        log = os.open(path, flags, 0o600)
        if os.fstat(log).st_mode & 0o170000 != 0o100000:  # S_ISREG, without importing stat
            raise OSError(22, "not a regular file")
        os.set_blocking(log, True)
    except OSError as error:
        os.write(status, f"log {error.errno or 0}\n".encode())
        return otherwise
    return log


class Spec:
    """What to start. Strings are bytes as the kernel takes them."""

    def __init__(self, encoded: bytes) -> None:
        # marshal: no import cost, and both ends are the same interpreter file.
        self.argv: list[bytes]
        self.cwd: bytes | None
        self.environment: dict[bytes, bytes]
        self.log: bytes | None
        self.survivors_ms: int
        self.argv, self.cwd, self.environment, self.log, self.survivors_ms = marshal.loads(encoded)


class Guard:
    """One engine, from fork to the last process below."""

    def __init__(self, channel: int, spec: Spec) -> None:
        self.channel = channel
        self.spec = spec
        self.pid = os.getpid()
        self.unread = b""  # the beginning of a command whose end has not come yet
        self.leader = 0
        # Forked and not reaped: its number cannot mean another process.
        self.leader_is_there = False
        # The pipe on which the child says what went wrong; None once it has been read to its end.
        self.start_status: int | None = None
        self.start_text = b""
        self.survivors_uncounted = False
        self.terminated = False
        self.kill_at = NEVER
        self.killing_since: float | None = None
        self.pause_s = FIRST_PAUSE_S
        self.nothing_ended = True  # since the last round of SIGKILL
        self.killed = 0  # processes besides the leader
        self.stuck = 0
        self.poll = select.poll()
        self.wakeup, write_end = os.pipe()
        os.set_blocking(self.wakeup, False)
        os.set_blocking(write_end, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # without a handler there is no wake-up
        self.poll.register(self.wakeup, select.POLLIN)
        self.poll.register(channel, select.POLLIN)

    def run(self) -> None:
        """Return when nothing is below this process any more."""
        self.fork_engine()
        while self.reap():
            if self.survivors_uncounted:
                self.count_survivors()
            if self.killing_since is None and monotonic() >= self.kill_at:
                self.begin_killing()
            if self.killing_since is not None:
                self.kill_below()
            self.wait()
        self.say(f"end {self.killed}")

    def fork_engine(self) -> None:
        try:
            prctl(PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1))
            read_end, write_end = os.pipe()
            # Until the child has its own dispositions a signal waits: it would be lost to ours.
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            pid = os.fork()
        except OSError as error:
            self.say(f"refused fork {error.errno or 0}")
            return
        if pid == 0:
            become_engine(self.spec, self.pid, write_end)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.close(write_end)
        self.leader, self.leader_is_there, self.start_status = pid, True, read_end
        self.poll.register(self.start_status, select.POLLIN)

    def wait(self) -> None:
        """Sleep until a child ends, the daemon speaks, the engine has started, or a deadline is due."""
        if self.killing_since is not None:
            patient = min(2 * self.pause_s, LONGEST_PAUSE_S)
            self.pause_s = timeout_s = patient if self.nothing_ended else FIRST_PAUSE_S
            self.nothing_ended = True
        else:
            timeout_s = max(0.0, self.kill_at - monotonic())
        ready = self.poll.poll(None if timeout_s == NEVER else 1000 * timeout_s)
        for descriptor, _ in ready:
            if descriptor == self.wakeup:
                os.read(self.wakeup, 4096)
            elif descriptor == self.channel:
                self.hear()
            else:
                self.read_start_status()

    def read_start_status(self) -> None:
        """Take what the child says while it starts; at its end of file the program runs or never will."""
        assert self.start_status is not None
        piece = os.read(self.start_status, 4096)
        self.start_text += piece
        if piece:
            return
        self.poll.unregister(self.start_status)
        os.close(self.start_status)
        self.start_status = None
        for line in self.start_text.splitlines():
            self.say(line.decode())
        if b"refused" not in self.start_text:
            process = read_process(self.leader)  # there, if only as a zombie: it is not reaped yet
            self.say(f"started {self.leader} {process.start if process else 0}")

    def reap(self) -> bool:
        """Collect ended children. False: there are none at all, ended or not, so nothing is below us
        (whatever loses its parent becomes our child at that instant)."""
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, options)
            except ChildProcessError:
                return False
            if ended is None:
                return True
            if ended.si_pid == self.leader:
                # Its end of the pipe is closed, so this comes to the end of file without blocking;
                # before the reaping, because the start time is read from the zombie.
                while self.start_status is not None:
                    self.read_start_status()
            self.collect(ended.si_pid)

    def collect(self, pid: int) -> None:
        self.nothing_ended = False
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if pid == self.leader and self.leader_is_there:
            self.leader_is_there = False
            self.leader_exited(status)
        elif self.killing_since is not None and status == -signal.SIGKILL:
            self.killed += 1

    def leader_exited(self, status: int) -> None:
        self.say(f"exited {status}")
        if self.killing_since is None:
            self.kill_at = monotonic() + self.spec.survivors_ms / 1000
            self.survivors_uncounted = True

    def count_survivors(self) -> None:
        self.survivors_uncounted = False
        survivors = [p for p in processes_below(self.pid) if p.state not in DEAD_STATES]
        if survivors:
            self.say(f"survivors {len(survivors)}")

    def hear(self) -> None:
        """Carry out what the daemon says; its silence for ever is the order to kill."""
        try:
            piece = os.read(self.channel, 4096)
        except ConnectionError:
            piece = b""
        if not piece:
            self.poll.unregister(self.channel)
            self.begin_killing()
            return
        *lines, self.unread = (self.unread + piece).split(b"\n")
        for line in lines:
            self.say("heard")
            command, *arguments = line.split()
            if command == b"kill":
                self.begin_killing()
            elif self.leader_is_there:
                self.terminate()
                if command == b"stop":
                    self.kill_at = min(self.kill_at, monotonic() + int(arguments[0]) / 1000)

    def terminate(self) -> None:
        # Once only: a second SIGTERM makes Strata kill its native engine without clean-up.
        if not self.terminated:
            self.terminated = True
            os.kill(self.leader, signal.SIGTERM)

    def begin_killing(self) -> None:
        if self.killing_since is None:
            self.killing_since = monotonic()
            self.say("killing")
        self.nothing_ended = True
        self.pause_s = FIRST_PAUSE_S

    def kill_below(self) -> None:
        """One round of SIGKILL; the rounds go on until ``reap`` finds no child, whatever forks meanwhile.

        Children first, and alone while they keep ending: this is fast enough to meet even a process that
        does nothing but fork, leave its session and end. The rest of the tree becomes our children as its
        parents end, so it is searched for only at first and when nothing has ended for a while.
        """
        groups_done = {os.getpgrp()}  # ours, where a child is that has not made its session yet
        for pid in self.children():
            self.kill_child(pid, groups_done)
        if self.nothing_ended:
            remaining = processes_below(self.pid)
            for process in remaining:
                self.kill_descendant(process, groups_done)
            self.name_the_stuck([p.pid for p in remaining if p.state not in DEAD_STATES])

    def children(self) -> list[int]:
        try:
            with open(f"/proc/self/task/{self.pid}/children", "rb") as file:
                return [int(pid) for pid in file.read().split()]
        except OSError:  # a kernel without CONFIG_PROC_CHILDREN
            return [p.pid for p in processes_below(self.pid) if p.ppid == self.pid]

    def kill_child(self, pid: int, groups_done: set[int]) -> None:
        """SIGKILL to a child of ours and its group. Its numbers mean nobody else: it is not reaped."""
        try:
            # The group first: the kernel lets no member fork past a signal to its group, so this alone
            # ends what forks faster than we count. Its session began below us, so all of it is ours.
            group = os.getpgid(pid)
            if group not in groups_done:
                groups_done.add(group)
                os.killpg(group, signal.SIGKILL)
            # Zombies too: one whose first thread has ended may have others that run.
            os.kill(pid, signal.SIGKILL)
        except OSError:
            return  # of another user (set-user-id); it will be named as stuck

    def kill_descendant(self, process: Process, groups_done: set[int]) -> None:
        """SIGKILL to exactly this process, unless its group has had it or its number is reused."""
        if process.pgrp in groups_done:
            return
        try:
            descriptor = os.pidfd_open(process.pid)
        except OSError:
            return  # gone; or no descriptor is free, and the next round tries again
        try:
            now = read_process(process.pid)
            if now is not None and now.start == process.start:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        except OSError:
            return  # reaped by its parent in between, or of another user
        finally:
            os.close(descriptor)

    def name_the_stuck(self, alive: list[int]) -> None:
        assert self.killing_since is not None
        if alive and monotonic() - self.killing_since > STUCK_S:
            topmost = alive[0]
            if topmost != self.stuck:
                self.stuck = topmost
                self.say(f"stuck {topmost}")

    def say(self, line: str) -> None:
        try:
            os.write(self.channel, line.encode() + b"\n")
        except ConnectionError:
            return  # the daemon is gone, which its end of file tells; one that hung up may still read


def read_exactly(descriptor: int, count: int) -> bytes:
    """Raises EOFError when the daemon is gone before it has said what to start."""
    content = b""
    while len(content) < count:
        piece = os.read(descriptor, count - len(content))
        if not piece:
            raise EOFError
        content += piece
    return content


def main() -> None:
    # What a terminal or a careless operator sends to the whole group must not end the guard before
    # the engine; the engine gets the defaults back.
    for name in ("INT", "QUIT", "HUP", "TERM", "TSTP", "TTIN", "TTOU", "USR1", "USR2", "ALRM"):
        signal.signal(getattr(signal, "SIG" + name), signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # If the daemon runs with a closed standard stream, none of our own may take its number.
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    prctl(PR_SET_NAME, ctypes.c_char_p(b"strata-guard"))
    channel = sys.stdin.fileno()
    try:
        spec = Spec(read_exactly(channel, int.from_bytes(read_exactly(channel, 8), "little")))
    except (EOFError, ConnectionError):
        return
    Guard(channel, spec).run()


if __name__ == "__main__":
    main()
    os._exit(0)  # the daemon waits for our end, and there is nothing to tidy up
