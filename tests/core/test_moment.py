"""core.moment: text to the millisecond, durations from the monotonic half only."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strata_router.core.moment import Moment, elapsed_ms


@pytest.mark.parametrize(
    ("unix_s", "text"),
    [
        (0.0, "1970-01-01T00:00:00.000Z"),
        (1795982400.0004, "2026-11-29T20:00:00.000Z"),
        (1795982400.0005, "2026-11-29T20:00:00.001Z"),
        (1795982400.9996, "2026-11-29T20:00:01.000Z"),
        (1795982400.123, "2026-11-29T20:00:00.123Z"),
    ],
)
def test_rfc3339_has_milliseconds_and_ends_in_z(unix_s: float, text: str) -> None:
    assert Moment(0, unix_s).rfc3339() == text


@given(st.integers(0, 4_000_000_000_000))
def test_whole_milliseconds_survive_as_text(unix_ms: int) -> None:
    text = Moment(0, unix_ms / 1000).rfc3339()
    parsed = datetime.fromisoformat(text.replace("Z", "+00:00"))
    assert round((parsed - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1000) == unix_ms


@pytest.mark.parametrize(
    ("start_s", "end_s", "ms"),
    [(1.0, 1.0, 0), (1.0, 1.0004, 0), (1.0, 1.0006, 1), (1.0, 3.5, 2500), (2.0, 1.0, 0)],
)
def test_durations_are_whole_milliseconds_and_never_negative(
    start_s: float, end_s: float, ms: int
) -> None:
    assert elapsed_ms(Moment(start_s, 0), Moment(end_s, 0)) == ms


def test_a_wall_clock_that_steps_back_changes_no_duration() -> None:
    assert elapsed_ms(Moment(10.0, 5000.0), Moment(11.0, 100.0)) == 1000
