"""Engines for tests: a yard of their own, empty again afterwards, or one plain engine per module."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.simulated.harness import Engine, Yard, yard_in


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    with yard_in(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An engine without knobs that a module's tests share; none may end or change it."""
    with yard_in(tmp_path_factory.mktemp("plain")) as made:
        yield made.start()
