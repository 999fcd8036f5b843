"""Runs every ``async def`` test under trio, with an upper bound on its life.

Our own twenty lines instead of pytest-trio, whose last release (0.8.0, 2022) predates the pytest and
trio we pin; RESEARCH.md, "Libraries". A test that asks for ``autojump_clock`` runs on virtual time.
"""

import inspect
import os
import signal

import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, settings

TEST_BOUND_S = 60.0
"""Real seconds an async test may take before it is cancelled; virtual time is bounded separately."""

VIRTUAL_BOUND_S = 86_400.0 * 30

settings.register_profile(
    "steady", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("steady")
"""Timing never decides a test: a busy machine may take as long as it likes over an example."""

settings.register_profile(
    "fuzz",
    max_examples=int(os.environ.get("EXAMPLES", "5000")),
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
"""For ``make fuzz``: a property with a number of its own multiplies that by ROUNDS instead."""


def pytest_configure() -> None:
    """A shell's background job ignores SIGINT, and so would every child of ours that Ctrl-C is tried on."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def autojump_clock() -> trio.testing.MockClock:
    """Virtual time that jumps to the next deadline whenever every task is blocked."""
    return trio.testing.MockClock(autojump_threshold=0)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    clock = pyfuncitem.funcargs.get("autojump_clock")
    assert clock is None or isinstance(clock, trio.abc.Clock)
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    marker = pyfuncitem.get_closest_marker("bound_s")
    bound_s = marker.args[0] if marker else TEST_BOUND_S

    async def bounded() -> None:
        with trio.fail_after(VIRTUAL_BOUND_S if clock is not None else bound_s):
            await pyfuncitem.obj(**arguments)

    trio.run(bounded, clock=clock, strict_exception_groups=True)
    return True
