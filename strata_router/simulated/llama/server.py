"""The life of a simulated llama-server: arguments, load, listen, stop.

Run as ``python -m strata_router.simulated.llama.server --host H --port P --alias NAME ...``;
``--simulated JSON`` takes knobs (docs/simulated-engine.md says which), and every other flag is
ignored, as are the weights it would name.
"""

import argparse
import json
import os
import signal
import socket
import sys
import threading
import time
from dataclasses import replace
from types import FrameType
from typing import NoReturn

from strata_router.simulated.checkout.serve.http_wire import BadRequestBody, BadRequestHead
from strata_router.simulated.checkout.serve.knobs import BadKnob, RequestKnobs, from_profile
from strata_router.simulated.checkout.serve.native import die
from strata_router.simulated.checkout.serve.stamps import Stamps
from strata_router.simulated.llama.connection import Connection
from strata_router.simulated.llama.state import Server

STOP_POLL_S = 0.02


def main(arguments: list[str]) -> int:
    options = _options(arguments)
    try:
        engine, request = from_profile(json.loads(options.simulated))
    except (BadKnob, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    # Real ones send usage only when asked; a test that says otherwise means it.
    if request.usage == RequestKnobs().usage:
        request = replace(request, usage="asked")
    stamps = Stamps(engine.event_file, options.alias)
    server = Server(engine.wrong_model or options.alias, engine, request, stamps)
    try:
        listener = socket.create_server((options.host, options.port), backlog=256)
    except OSError:
        print(f"couldn't bind HTTP server socket, port: {options.port}", file=sys.stderr)
        stamps.stamp("exit", status=1)
        return 1
    signal.signal(signal.SIGTERM, signal.SIG_IGN if engine.ignore_sigterm else _interrupt)
    stamps.stamp("listening", port=options.port)
    status = 0
    try:
        threading.Thread(target=_load, args=(server,), daemon=True).start()
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=_serve, args=(server, connection), daemon=True).start()
    except KeyboardInterrupt:
        stamps.stamp("stopping")
        server.is_stopping.set()
        _wait_for_streams(server)
    time.sleep(engine.exit_s)
    stamps.stamp("exit", status=status)
    os._exit(status)


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="llama-server", allow_abbrev=False)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--alias", "-a", default="model")
    parser.add_argument("--simulated", default="{}")
    return parser.parse_known_args(arguments)[0]


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _load(server: Server) -> None:
    knobs = server.engine
    time.sleep(10**9 if knobs.hang_load else knobs.load_s)
    if knobs.fail_load is not None:
        server.stamps.stamp("exit", status=knobs.fail_load)
        die(knobs.fail_load)
    server.is_loaded = True
    server.stamps.stamp("ready")


def _wait_for_streams(server: Server) -> None:
    """Half a minute at the default ``ladder_s``, as measured."""
    deadline = time.monotonic() + 1.5 * server.engine.ladder_s
    while server.streams and time.monotonic() < deadline:
        time.sleep(STOP_POLL_S)


def _serve(server: Server, connection: socket.socket) -> None:
    try:
        with connection, connection.makefile("rb") as reader:
            Connection(server, connection).run(reader)
    except (OSError, BadRequestHead, BadRequestBody):
        # The peer left, or spoke no HTTP: this connection is over, the server is not.
        return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
