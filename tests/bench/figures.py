"""From results to figures: medians over rounds, spread, what was added, ratios within a round.

A figure is a function of one round's results of one target; None where that measurement failed.
"Added" is a target's figure less ``direct``'s of the same round.
"""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from tests.bench.measures import Result
from tests.bench.rounds import Results

Reading = Callable[[Result], float | None]


@dataclass(frozen=True, slots=True)
class Figure:
    """One column. unit: for the heading. added: whether ``direct``'s is subtracted in ratios."""

    key: str
    heading: str
    scenario: str
    read: Reading
    digits: int = 0
    added: bool = False


def _part(part: str, field: str) -> Reading:
    return lambda result: result.get(part, {}).get(field)


def _per_second(field: str) -> Reading:
    return lambda result: result[field] / result["seconds"]


def _cpu_percent(result: Result) -> float | None:
    return 100 * float(result["cpu_s_per_s"]) or None


def _cpu_s_per_million(result: Result) -> float | None:
    tokens_per_s = result["tokens"] / result["seconds"]
    return 1e6 * result["cpu_s_per_s"] / tokens_per_s or None if tokens_per_s else None


FIGURES = (
    Figure("ttft", "TTFT p50, us", "ttft_idle", _part("ttft", "p50_us"), added=True),
    Figure("ttft_p99", "p99", "ttft_idle", _part("ttft", "p99_us")),
    Figure(
        "ttft_busy",
        "TTFT p50 beside 32 streams, us",
        "ttft_busy",
        _part("ttft", "p50_us"),
        added=True,
    ),
    Figure(
        "delay_1", "delay per token p50, us: 1 stream", "paced_1", _part("delay", "p50_us"), 0, True
    ),
    Figure("delay_8", "8", "paced_8", _part("delay", "p50_us"), added=True),
    Figure("delay_32", "32", "paced_32", _part("delay", "p50_us"), added=True),
    Figure("delay_32_p99", "32, p99", "paced_32", _part("delay", "p99_us")),
    Figure("cpu", "CPU % at 32 x 100/s", "paced_32", _cpu_percent, 1),
    Figure("cpu_paced", "CPU s per million tokens, paced", "paced_32", _cpu_s_per_million, 1),
    Figure("cpu_blast", "CPU s per million tokens, blast", "blast", _cpu_s_per_million, 2),
    Figure("cpu_in_blast", "CPU % in the blast", "blast", _cpu_percent),
    Figure("blast", "tokens/s, blast", "blast", _per_second("tokens")),
    Figure("batched", "32 tokens per send", "blast_batched", _per_second("tokens")),
    Figure("offered", "tokens/s of 100,000 offered", "offered_100k", _per_second("tokens")),
    Figure("offered_p99", "delay p99 then, us", "offered_100k", _part("delay", "p99_us")),
    Figure("short_1", "short requests/s, 1 connection", "short_1", _per_second("answers")),
    Figure("short_32", "32", "short_32", _per_second("answers")),
    Figure("hang_up", "client gone to upstream closed p50, us", "hang_up", lambda r: r["p50_us"]),
)

BY_KEY = {figure.key: figure for figure in FIGURES}


def rounds_of(results: Results, target: str, figure: Figure) -> list[float | None]:
    """The figure of every round, in order."""
    return [
        None if result.get("failed") else figure.read(result)
        for result in results.get(target, {}).get(figure.scenario, [])
    ]


def middle(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def absolute(results: Results, target: str, key: str) -> float | None:
    """Median over the rounds."""
    return middle(rounds_of(results, target, BY_KEY[key]))


def added_by_round(results: Results, target: str, key: str) -> list[float | None]:
    """Per round, less ``direct``'s where that is what is meant; never below a microsecond."""
    figure = BY_KEY[key]
    own = rounds_of(results, target, figure)
    if not figure.added:
        return own
    base = rounds_of(results, "direct", figure)
    return [
        None if a is None or b is None else max(1.0, a - b) for a, b in zip(own, base, strict=False)
    ]


def added(results: Results, target: str, key: str) -> float | None:
    return middle(added_by_round(results, target, key))


def ratio(results: Results, target: str, to: str, key: str) -> float | None:
    """Median over the rounds of ``target`` / ``to``, added where that is what is meant."""
    pairs = zip(
        added_by_round(results, target, key), added_by_round(results, to, key), strict=False
    )
    return middle([None if a is None or not b else a / b for a, b in pairs])
