"""``python -m tests.bench`` (``make bench``): measures, and writes research/bench/DATE.md.

    --rounds N        interleaved rounds (3)
    --shorten F       factor on every window, for trying the bench itself
    --without NAME    leave a target out (repeat)
    --llama-swap PATH also measure this llama-swap binary
    --output DIR      instead of research/bench
    --rounds-only     no memory, no curves, no profiles

Loopback only; everything it starts it ends, also on Ctrl-C. Wall time decides nothing here: the tests that
hold these costs count calls (tests/runtime/test_cost_per_event.py).
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import date
from pathlib import Path

from tests.bench import curves, memory, processes, profile, report, targets
from tests.bench.budget import Beside, lines
from tests.bench.measures import measure, settle
from tests.bench.processes import LOAD_CPU, Missing
from tests.bench.rounds import STREAMS, Noise, Rounds, cpus
from tests.bench.targets import MODEL, Target, Workshop

PROFILES = "profiles.md"
REPORTS = Path(__file__).resolve().parent.parent.parent / "research" / "bench"


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shorten", type=float, default=1.0)
    parser.add_argument("--without", action="append", default=[])
    parser.add_argument("--llama-swap", default="")
    parser.add_argument("--output", type=Path, default=REPORTS)
    parser.add_argument("--rounds-only", action="store_true")
    return parser.parse_args()


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def start_targets(
    workshop: Workshop, arguments: argparse.Namespace, owned: ExitStack
) -> tuple[list[Target], list[str]]:
    """(targets that run, what is missing and why)."""
    makers: dict[str, Callable[[Workshop], Target]] = {
        "direct": targets.direct,
        "daemon": targets.daemon,
        "nginx": targets.nginx,
        "haproxy": targets.haproxy,
        "vllm-router": targets.vllm_router,
        "litellm": targets.litellm,
    }
    if arguments.llama_swap:
        makers["llama-swap"] = lambda shop: targets.llama_swap(shop, arguments.llama_swap)
    started, missing = [], []
    for name, make in makers.items():
        if name in arguments.without:
            missing.append(f"{name}: left out by --without")
            continue
        say(f"starting {name}")
        try:
            target = make(workshop)
        except Missing as why:
            say(f"  {why}")
            missing.append(str(why))
            continue
        owned.callback(target.stop)
        target.pause()
        started.append(target)
    if not arguments.llama_swap:
        missing.append("llama-swap: no binary given (--llama-swap PATH)")
    return started, missing


def command_cpu_ms(*words: str) -> float:
    """Processor milliseconds of one ``strata-router`` command, the best of five."""
    best = float("inf")
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, "-m", "strata_router", *words], capture_output=True, check=False
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        best = min(best, used)
    return best * 1000


def measure_memory(
    started: Sequence[Target], program: Path
) -> tuple[list[tuple[str, float, float]], dict[str, float | None]]:
    """(rows of the table, the daemon's further states)."""
    rows, further = [], {}
    for target in started:
        if target.name == "direct":
            continue
        target.resume()
        settle(target)
        rows.append((target.name, *memory.idle_and_streaming(target, program)))
        settle(target)
        target.pause()
    daemon = next((target for target in started if target.name == "daemon"), None)
    if daemon is not None:
        further["queued_streams_mb"] = _if_possible(lambda: memory.queued_streams_mb(daemon))
        further["queued_bodies_mb"] = _if_possible(lambda: memory.queued_bodies_mb(daemon))
    return rows, further


def _if_possible(call: Callable[[], float]) -> float | None:
    try:
        return call()
    except (OSError, Missing) as why:
        say(f"  {why}")
        return None


def run(arguments: argparse.Namespace, directory: Path, owned: ExitStack) -> report.Run:
    began = time.monotonic()
    noise = Noise()
    programs = processes.compile_programs(directory)
    double_port = processes.free_port()
    words = (programs.double, "--port", str(double_port), "--alias", MODEL)
    double = processes.start(words, LOAD_CPU, directory / "double.log")
    owned.callback(processes.stop, double)
    workshop = Workshop(directory, programs, double_port)
    started, missing = start_targets(workshop, arguments, owned)
    by_name = {target.name: target for target in started}

    rows: list[tuple[str, float, float]] = []
    further: dict[str, float | None] = {}
    idle_before = {t.name: processes.pss_mb(t.pids()) for t in started}
    streams_before = {
        t.name: measure(STREAMS, programs.load, t)["pss_mb"] for t in started if t.name == "daemon"
    }
    rounds = Rounds(started, programs.load, arguments.shorten)
    rounds.run(arguments.rounds)
    open_streams: list[tuple[int, float, float]] = []
    queued: list[str] = []
    pages: list[tuple[int, float]] = []
    if not arguments.rounds_only:
        say("scaling")
        if "daemon" in by_name:
            open_streams = curves.open_streams(by_name["daemon"], programs.load, 2)
        queued, pages = curves.queued_tickets(), curves.ring_pages()
        say("memory")
        rows, further = measure_memory(started, programs.load)
        if "daemon" in by_name:
            say("profiles")
            profile.write(profile.take(workshop), directory / PROFILES)
    looks = [cpus(), noise.words()]
    costs = [cost for _, cost, _ in open_streams]
    facts = by_name["daemon"].facts if "daemon" in by_name else {}
    beside = Beside(
        idle_mb=idle_before.get("daemon"),
        streams_mb=streams_before.get("daemon"),
        open_streams_ratio=max(costs) / costs[0] if costs else None,
        accepts_s=facts.get("accepts_s"),
        help_cpu_ms=command_cpu_ms("--help"),
        status_cpu_ms=command_cpu_ms("status", *facts.get("control", [])),
        litellm_idle_mb=idle_before.get("litellm"),
        **further,
    )
    return report.Run(
        day=date.today(),  # noqa: DTZ011 - the day that the user sees on the clock
        rounds=arguments.rounds,
        took_s=time.monotonic() - began,
        targets=started,
        missing=missing,
        noise=looks,
        results=rounds.results,
        memory=rows,
        beside=beside,
        budget=lines(rounds.results, beside),
        open_streams=open_streams,
        queued_tickets=queued,
        ring_pages=pages,
    )


def main() -> int:
    arguments = read_arguments()
    with tempfile.TemporaryDirectory(prefix="strata-bench-") as directory, ExitStack() as owned:
        try:
            done = run(arguments, Path(directory), owned)
        except Missing as why:
            say(f"bench: {why}")
            return 1
        path = report.write(done, arguments.output)
        if (Path(directory) / PROFILES).exists():
            profiles = arguments.output / f"{done.day.isoformat()}-profiles.md"
            profiles.write_text((Path(directory) / PROFILES).read_text())
    print(report.text(done, []))
    say(f"written to {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
