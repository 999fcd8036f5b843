"""One daemon for all tests of a module that leave it as they found it.

Every test runs in an event loop of its own, so the shared daemon's harness lives in a thread with
another one, and a test visits it with connections of its own.

    @pytest.fixture(scope="module")
    def shared(tmp_path_factory): with running(tmp_path_factory.mktemp("d"), {"a": {}}) as it: yield it

    async with visiting(shared) as it: ...
"""

import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import trio

from tests.system.harness import DaemonUnderTest, daemon

END_S = 30.0
"""The daemon, its drain and its engine's stop are bounded by less."""


def _nothing(it: DaemonUnderTest) -> None:
    """Leave the configuration as it is."""


@contextmanager
def running(
    directory: Path,
    models: Mapping[str, Mapping[str, Any]],
    config: Mapping[str, Any] | None = None,
    prepare: Callable[[DaemonUnderTest], None] = _nothing,
) -> Iterator[DaemonUnderTest]:
    """A started daemon; ``prepare`` may change its configuration before the start."""
    started: Future[tuple[DaemonUnderTest, Callable[[], None]]] = Future()

    async def live() -> None:
        async with daemon(directory, models, config, start=False) as it:
            prepare(it)
            await it.start()
            over = trio.Event()
            token = trio.lowlevel.current_trio_token()
            started.set_result((it, lambda: token.run_sync_soon(over.set)))
            await over.wait()

    failure: list[BaseException] = []

    def run() -> None:
        try:
            trio.run(live, strict_exception_groups=True)
        except BaseException as exc:
            failure.append(exc)
            if not started.done():
                started.set_exception(exc)

    thread = threading.Thread(target=run)
    thread.start()
    it, end = started.result(END_S)
    try:
        yield it
    finally:
        end()
        thread.join(END_S)
        assert not thread.is_alive()
    if failure:
        raise failure[0]


@asynccontextmanager
async def visiting(shared: DaemonUnderTest) -> AsyncIterator[DaemonUnderTest]:
    """The same daemon for one test, whose connections are closed at its end.

    Started anew if the test before has ended it, so that no test depends on which one that was.
    """
    assert shared.process is not None
    if shared.process.poll() is not None:
        await shared.start()
    it = replace(shared, clients=[])
    try:
        yield it
    finally:
        for client in it.clients:
            client.stream.socket.close()
