"""The budget, line by line, against what was measured.

Source: spec/performance.md, "Budget"; issue 8. Must and aim are bounds on figures of one run.
"""

from dataclasses import dataclass

from tests.bench.figures import absolute, added, ratio
from tests.bench.rounds import Results


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the budget. value: as measured, None when it was not. most: bounds are upper ones."""

    name: str
    value: float | None
    must: float
    aim: float
    unit: str
    most: bool = True

    @property
    def verdict(self) -> str:
        if self.value is None:
            return "not measured"
        if self._within(self.aim):
            return "aim"
        return "must" if self._within(self.must) else "**missed**"

    def _within(self, bound: float) -> bool:
        assert self.value is not None
        return self.value <= bound if self.most else self.value >= bound


@dataclass(frozen=True, slots=True)
class Beside:
    """What was measured beside the rounds; None where it was not. *_mb: PSS."""

    idle_mb: float | None = None
    streams_mb: float | None = None
    queued_streams_mb: float | None = None
    queued_bodies_mb: float | None = None
    open_streams_ratio: float | None = None
    accepts_s: float | None = None
    status_cpu_ms: float | None = None
    help_cpu_ms: float | None = None
    litellm_idle_mb: float | None = None


def _scaled(value: float | None, by: float) -> float | None:
    return None if value is None else value * by


def _quotient(a: float | None, b: float | None) -> float | None:
    return None if a is None or not b else a / b


def lines(results: Results, beside: Beside) -> list[Line]:
    """Every line that a run can decide."""

    def to_nginx(key: str) -> float | None:
        return ratio(results, "daemon", "nginx", key)

    def to_litellm(key: str) -> float | None:
        return ratio(results, "daemon", "litellm", key)

    def ms(key: str) -> float | None:
        return _scaled(added(results, "daemon", key), 1e-3)

    return [
        Line("added TTFT p50, idle", ms("ttft"), 0.6, 0.3, "ms"),
        Line("the same, to nginx", to_nginx("ttft"), 15, 7, "x"),
        Line("added TTFT p50 beside 32 streams", ms("ttft_busy"), 1.5, 0.5, "ms"),
        Line(
            "added delay per token p50, 32 x 100/s, to nginx", to_nginx("delay_32"), 3.5, 2.3, "x"
        ),
        Line("CPU per token, 32 x 100/s, to nginx", to_nginx("cpu_paced"), 4.5, 2.5, "x"),
        Line("full blast, tokens/s, to nginx", to_nginx("blast"), 1, 1, "x", most=False),
        Line("full blast, CPU per token, to nginx", to_nginx("cpu_blast"), 1, 1, "x"),
        Line(
            "full blast, tokens/s, to vllm-router",
            ratio(results, "daemon", "vllm-router", "blast"),
            1,
            1.5,
            "x",
            most=False,
        ),
        Line(
            "100,000 tokens/s offered, p99 delay",
            _scaled(absolute(results, "daemon", "offered_p99"), 1e-3),
            20,
            5,
            "ms",
        ),
        Line(
            "100,000 tokens/s offered, delivered",
            absolute(results, "daemon", "offered"),
            99_000,
            99_000,
            "tokens/s",
            most=False,
        ),
        Line(
            "short requests/s, 32 connections",
            absolute(results, "daemon", "short_32"),
            2000,
            4000,
            "/s",
            most=False,
        ),
        Line("memory idle", beside.idle_mb, 50, 30, "MB"),
        Line("memory, 32 streams", beside.streams_mb, 55, 40, "MB"),
        Line("memory, 500 queued streams", beside.queued_streams_mb, 90, 60, "MB"),
        Line("1 to 1,000 open streams, cost per token", beside.open_streams_ratio, 1.5, 1.1, "x"),
        Line(
            "client gone to upstream closed",
            _scaled(absolute(results, "daemon", "hang_up"), 1e-3),
            50,
            2,
            "ms",
        ),
        Line("start to accepting", beside.accepts_s, 1, 1, "s"),
        Line("`strata-router --help`, CPU", beside.help_cpu_ms, 150, 150, "ms"),
        Line("`strata-router status`, CPU", beside.status_cpu_ms, 150, 150, "ms"),
        Line("added TTFT to LiteLLM", to_litellm("ttft"), 1 / 20, 1 / 50, "x"),
        Line("CPU per token to LiteLLM", to_litellm("cpu_paced"), 1 / 10, 1 / 20, "x"),
        Line(
            "memory to LiteLLM",
            _quotient(beside.idle_mb, beside.litellm_idle_mb),
            1 / 5,
            1 / 5,
            "x",
        ),
    ]
