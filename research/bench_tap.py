"""Measures what the response tap costs per million SSE frames, beside taps that do less.

Run: ``python research/bench_tap.py [FRAMES]``. Each row is one kind of answer cut into reads of one
size; columns are CPU seconds per million frames (best of several rounds, interleaved): a tap that
only stores the moment (no-op), one that parses every frame with orjson and reads nothing from it
(parse-all), and ours. Prints Markdown. Single process, no I/O.
"""

import platform
import sys
import time
from collections.abc import Callable, Iterator

import orjson

from strata_router.core.moment import Moment
from strata_router.core.tap import BodyKind, ResponseTap

ROUNDS = 7
FRAME = (
    b'data: {"id":"chatcmpl-0f1e2d3c4b5a69788796a5b4","object":"chat.completion.chunk",'
    b'"created":1795973238,"model":"qwen3.8-flash-next-q2_0","choices":[{"index":0,'
    b'"delta":{"content":"%s"},"finish_reason":null}]%s}\n\n'
)
PROSE = (b" hello", b" world", b" the", b" caf\xc3\xa9", b"\\n", b",", b" and", b" of")
CODE = (b" print(", b'\\"', b"x", b'\\"', b")\\n", b"    ", b"return", b" a[0]")
USAGE = b',"usage":{"prompt_tokens":12,"completion_tokens":7,"total_tokens":19}'
NOW = Moment(1.0, 1.0)


class NoOpTap:
    def __init__(self) -> None:
        self.last: Moment | None = None

    def feed(self, chunk: bytes, now: Moment) -> None:
        self.last = now


class ParseAllTap:
    def __init__(self) -> None:
        self.rest = b""

    def feed(self, chunk: bytes, now: Moment) -> None:
        *lines, self.rest = (self.rest + chunk).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                orjson.loads(line[5:])


def streams(frames: int) -> Iterator[tuple[str, bytes]]:
    for name, texts, tail in (
        ("prose", PROSE, b""),
        ("code, escaped quotes", CODE, b""),
        ("usage in every frame", PROSE, USAGE),
    ):
        yield name, b"".join(FRAME % (texts[i % len(texts)], tail) for i in range(frames))


def cut(stream: bytes, frames_per_read: int | None) -> list[bytes]:
    if frames_per_read is None:
        return [stream[i : i + 65536] for i in range(0, len(stream), 65536)]
    events = [event + b"\n\n" for event in stream.split(b"\n\n")[:-1]]
    return [
        b"".join(events[i : i + frames_per_read]) for i in range(0, len(events), frames_per_read)
    ]


def cpu_s(feed: Callable[[bytes, Moment], None], reads: list[bytes]) -> float:
    started = time.process_time()
    for read in reads:
        feed(read, NOW)
    return time.process_time() - started


def main() -> None:
    frames = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    print(f"{platform.python_implementation()} {platform.python_version()}, {platform.machine()},")
    print(f"{frames} frames of about {len(FRAME)} bytes, best of {ROUNDS}.\n")
    print("| answer | frames per read | no-op | parse-all | this tap | of parse-all |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for name, stream in streams(frames):
        for size in (1, 8, None):
            reads = cut(stream, size)
            best = [float("inf")] * 3
            for _ in range(ROUNDS):
                feeds = (NoOpTap().feed, ParseAllTap().feed, ResponseTap(BodyKind.SSE).feed)
                for i, feed in enumerate(feeds):
                    best[i] = min(best[i], cpu_s(feed, reads) / frames * 1e6)
            label = "64 KiB reads" if size is None else str(size)
            print(
                f"| {name} | {label} | {best[0]:.3f} | {best[1]:.2f} | {best[2]:.2f} "
                f"| {best[2] / best[1]:.0%} |"
            )


if __name__ == "__main__":
    main()
