"""The life of one server process: arguments, load, listen, stop, exit status.

Exit statuses: 0 after a stop by signal, 2 for a taken port, bad arguments or an empty API key, 1 for
a load that failed or a profile that cannot be used. A signal that comes while the model loads ends
the process by that signal, without clean-up; the native engine then loads to its end and goes.
Source: facts about Strata's server, sections 1 and 2.
"""

import argparse
import contextlib
import errno
import json
import os
import signal
import socket
import sys
import threading
import time
from types import FrameType
from typing import NoReturn

from . import READY_FILE_OPTION
from .connection import serve_in_thread
from .native import EngineStuck, LoadFailed, die, start_workers
from .profile import Overrides, Profile, ProfileError, read_profile
from .service import Service
from .stamps import Stamps

BACKLOG = 256
DEFAULT_PORT = 8095
EARLY_POLL_S = 0.02


def main(arguments: list[str], stamps: Stamps) -> int:
    """Run the server; return its exit status unless a signal ends the process first."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.engine != "strata" or not options.config:
        parser.error("--engine strata needs --config")
    overrides = Overrides(
        host=options.host,
        api_key=options.api_key,
        idle_unload_s=options.idle_unload,
        lazy=options.lazy,
        fit_max_tokens=options.fit_max_tokens,
    )
    try:
        profile = read_profile(options.config, overrides, os.environ)
    except ProfileError as error:
        print(error, file=sys.stderr)
        return 1
    try:
        status = _run(parser, options, profile, stamps)
    except SystemExit as end:
        status = int(end.code or 0)
    except (LoadFailed, EngineStuck, OSError) as error:
        with contextlib.suppress(OSError):
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        status = error.server_status if isinstance(error, LoadFailed) else 1
    if status < 0:
        stamps.stamp("dies", where="loading")
        die(status)
    stamps.stamp("exit", status=status)
    # Not sys.exit: request threads may be in the middle of a stream, and are cut here.
    os._exit(status)


def _parser() -> argparse.ArgumentParser:
    """Strata's flags; those that mean nothing here are accepted and ignored."""
    parser = argparse.ArgumentParser(prog="server.py", description="Strata (simulated)")
    parser.add_argument("--engine", default="mock")
    parser.add_argument("--config")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT)
    parser.add_argument("--api-key")
    parser.add_argument("--idle-unload", type=float, metavar="SECONDS")
    parser.add_argument("--lazy", action="store_true")
    parser.add_argument("--fit-max-tokens", action="store_true")
    for flag in ("--open", "--api-monitor"):
        parser.add_argument(flag, action="store_true")
    for flag in ("--script", "--gpu", "--tokenizer", "--mcp-config", "--min-free-vram-mib"):
        parser.add_argument(flag)
    for flag in ("--before-load", "--slot-save-path", "--replicas"):
        parser.add_argument(flag)
    if READY_FILE_OPTION:
        parser.add_argument(
            "--ready-file", metavar="PATH", help="JSON with pid and model, when ready"
        )
    return parser


def _run(
    parser: argparse.ArgumentParser,
    options: argparse.Namespace,
    profile: Profile,
    stamps: Stamps,
) -> int:
    knobs = profile.engine
    if knobs.ignore_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        _bound(profile, options.port).close()
    except OSError as error:
        parser.error(_port_problem(error, profile.host, options.port))
    start_workers(profile, stamps)
    if knobs.die_loading_after_s is not None:
        _die_later(knobs.die_loading_after_s, stamps)
    service = Service(profile, stamps)
    ready_file = getattr(options, "ready_file", None)
    early = _listen_early(service, options.port) if knobs.early_listener else None
    print("loading the model ...", flush=True)
    if not profile.lazy_load:
        if knobs.ready_file == "before_load":
            _write_ready_file(ready_file, profile)
        service.first_load()
    if profile.blank_key:
        parser.error("the API key is set but empty")
    listener = early or _listening(profile, options.port)
    service.is_starting = False
    stamps.stamp("listening", port=options.port)
    if knobs.ready_file != "before_load":
        _report_ready_later(ready_file, profile)
    service.ledger.touch()
    if service.minds_idleness:
        threading.Thread(target=service.watch_idleness, daemon=True).start()
    return _serve_until_stopped(service, listener, options.port)


def _serve_until_stopped(service: Service, listener: socket.socket, port: int) -> int:
    if not service.profile.engine.ignore_sigterm:
        signal.signal(signal.SIGTERM, _interrupt)
    try:
        print(f"ready: http://{service.profile.host}:{port}/v1", flush=True)
        service.stamps.stamp("ready")
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                # No descriptor left: the connection waits in the backlog until one is free.
                time.sleep(EARLY_POLL_S)
                continue
            serve_in_thread(service, connection)
    except KeyboardInterrupt:
        service.stamps.stamp("stopping")
        # The listener stays open and nobody accepts; what connects now is reset at the end.
        service.native.stop()
    print("[strata] stopped", flush=True)
    return 0


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _bound(profile: Profile, port: int) -> socket.socket:
    """A socket bound to the port, not listening. Raises OSError."""
    bound = socket.socket(socket.AF_INET6 if ":" in profile.host else socket.AF_INET)
    try:
        if not profile.engine.no_reuseaddr:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((profile.host, port))
    except OSError:
        bound.close()
        raise
    return bound


def _listening(profile: Profile, port: int) -> socket.socket:
    listener = _bound(profile, port)
    listener.listen(BACKLOG)
    return listener


def _port_problem(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is already in use"
    return f"cannot listen on {host}:{port}: {error}"


def _listen_early(service: Service, port: int) -> socket.socket:
    """A listener that a thread serves until the model is loaded; then the main thread takes over."""
    listener = _listening(service.profile, port)
    listener.settimeout(EARLY_POLL_S)

    def serve_while_starting() -> None:
        while service.is_starting:
            with contextlib.suppress(TimeoutError):
                connection, _ = listener.accept()
                connection.settimeout(None)
                serve_in_thread(service, connection)
        listener.settimeout(None)

    threading.Thread(target=serve_while_starting, daemon=True).start()
    return listener


def _die_later(delay_s: float, stamps: Stamps) -> None:
    def end() -> None:
        time.sleep(delay_s)
        stamps.stamp("dies", where="loading")
        die(-signal.SIGKILL)

    threading.Thread(target=end, daemon=True).start()


def _report_ready_later(path: str | None, profile: Profile) -> None:
    delay_s = profile.engine.ready_file_delay_s
    if not delay_s:
        _write_ready_file(path, profile)
        return
    timer = threading.Timer(delay_s, _write_ready_file, (path, profile))
    timer.daemon = True
    timer.start()


def _write_ready_file(path: str | None, profile: Profile) -> None:
    """Write the readiness file in one step, with the fault that the profile asks for."""
    how = profile.engine.ready_file
    if path is None or how == "never":
        return
    pid = os.getppid() if how == "wrong_pid" else os.getpid()
    model = "another-model" if how == "wrong_model" else profile.reported_model
    text = json.dumps({"pid": pid, "model": model})
    text = {"garbage": '{"pid": ', "not_object": "[]"}.get(how, text)
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(temporary, path)
