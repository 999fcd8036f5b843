"""The descriptor limit bounds the connections, and the operator is told so."""

import logging
import resource

import pytest

from strata_router.runtime.descriptors import claim_descriptors


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """What the kernel would allow; the limits of the tests' own process stay."""
    kernel = {"soft": 1024, "hard": 1024}

    def set_limits(_: int, wanted: tuple[int, int]) -> None:
        kernel["soft"], kernel["hard"] = wanted

    monkeypatch.setattr(resource, "getrlimit", lambda _: (kernel["soft"], kernel["hard"]))
    monkeypatch.setattr(resource, "setrlimit", set_limits)
    return kernel


def test_the_soft_limit_becomes_the_hard_one(limits: dict[str, int]) -> None:
    limits["hard"] = 524_288
    assert claim_descriptors(4096) == 4096
    assert limits == {"soft": 524_288, "hard": 524_288}


@pytest.mark.parametrize(
    ("hard", "connections"),
    [(64 + 2 * 100, 100), (64 + 2 * 100 - 1, 99), (66, 1), (65, 1), (20, 1), (-1, 100)],
)
def test_each_connection_has_two_and_the_daemon_sixty_four_at_least_one_connection_is_served(
    limits: dict[str, int], hard: int, connections: int
) -> None:
    """-1 is RLIM_INFINITY."""
    limits["hard"] = hard
    assert claim_descriptors(100) == connections


def test_a_bound_that_is_lower_than_the_configured_one_is_told_with_the_remedy(
    limits: dict[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    limits["hard"] = 264
    claim_descriptors(100)
    assert caplog.records == []
    claim_descriptors(101)
    (said,) = caplog.records
    assert said.levelno == logging.WARNING
    for part in ("100 connections", "max_connections (101)", "264 open files", "LimitNOFILE="):
        assert part in said.getMessage()
