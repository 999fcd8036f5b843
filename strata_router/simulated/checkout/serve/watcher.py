"""Notices a client that left: a thread per request that looks at the socket twice a second.

Readable with end of file, or an error, means gone; a half-close looks the same. Bytes in the socket
mean present, however long the client has been gone behind them: Strata's watcher is blind there.
"""

import socket
import threading
from collections.abc import Callable


class DisconnectWatcher:
    """Calls ``on_gone`` at most once, from its own thread, until it is stopped."""

    def __init__(
        self, connection: socket.socket, poll_s: float, on_gone: Callable[[], None]
    ) -> None:
        self._connection = connection
        self._poll_s = poll_s
        self._on_gone = on_gone
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def _watch(self) -> None:
        while not self._stopped.wait(self._poll_s):
            if self._is_gone():
                self._on_gone()
                return

    def _is_gone(self) -> bool:
        try:
            return not self._connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True
