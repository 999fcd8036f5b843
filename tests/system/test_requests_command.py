"""``strata-router requests`` as an operator sees it: real records, and a follower over a restart."""

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import trio

from tests.cli.commands import CLEAN_ENVIRONMENT, command_line
from tests.system.harness import DaemonUnderTest, daemon, until

HEADER = ["time", "model", "tier", "queue", "load", "ttft", "tokens", "tok/s", "outcome"]


async def shown(it: DaemonUnderTest, *words: str) -> list[str]:
    """What the command prints, line by line."""
    ran = await trio.run_process(
        command_line("requests", "--url", f"http://127.0.0.1:{it.port}", *words),
        env=CLEAN_ENVIRONMENT,
        capture_stdout=True,
        capture_stderr=True,
    )
    assert ran.stderr == b""
    return ran.stdout.decode().splitlines()


class Follower:
    """A running ``requests --follow``, whose two streams go to one file each."""

    def __init__(self, it: DaemonUnderTest) -> None:
        self._out = it.directory / "followed"
        self._err = it.directory / "told"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                command_line(
                    "requests", "--follow", "--json", "--url", f"http://127.0.0.1:{it.port}"
                ),
                env=CLEAN_ENVIRONMENT,
                stdout=out,
                stderr=err,
            )

    @property
    def records(self) -> list[tuple[str, int]]:
        """(request id without its number, seq) of each line so far."""
        lines = [json.loads(line) for line in self._out.read_text().splitlines()]
        return [(line["request_id"].rpartition("-")[0], line["seq"]) for line in lines]

    @property
    def told(self) -> str:
        return self._err.read_text()


@contextmanager
def following(it: DaemonUnderTest) -> Iterator[Follower]:
    follower = Follower(it)
    try:
        yield follower
    finally:
        follower.process.kill()
        follower.process.wait()


async def test_the_table_shows_where_the_time_of_each_request_went(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {"load_s": 0.6}}) as it:
        await it.chat("a", "FX:prefill_s=0.3 FX:chunk_every_ms=20", stream=True)
        await it.chat("a")
        await it.chat("no-such-model")
        header, *rows = await shown(it)
        assert header.split() == HEADER
        records = await it.records()
        assert len(rows) == len(records) == 3
        for row, record in zip(rows, records, strict=True):
            cells = row.split()
            when = datetime.fromisoformat(record["completed_at"]).astimezone()
            assert cells[:2] == [f"{when:%m-%d}", f"{when:%H:%M:%S}"]
        streamed = rows[0].split()[2:]
        assert (streamed[0], streamed[1]) == ("a", "-")
        record = records[0]
        assert record["model_load_ms"] >= 600
        assert record["ttft_ms"] >= 900
        assert streamed[2] == f"{record['queue_wait_ms']}ms"
        assert streamed[3] == _short(record["model_load_ms"])
        assert streamed[4] == _short(record["ttft_ms"])
        assert streamed[5] == f"{record['prompt_tokens']}/{record['completion_tokens']}"
        assert streamed[6] == f"{record['predicted_per_second']:.1f}"
        assert streamed[7:] == ["completed"]
        assert rows[1].split()[4:7] == [f"{records[1]['queue_wait_ms']}ms", "-", "-"]
        assert rows[2].split()[2:] == [*"-------", "invalid_request", "404"]
        _, newest = await shown(it, "--limit", "1")
        assert newest.split() == rows[2].split()


def _short(ms: int) -> str:
    return f"{ms}ms" if ms < 1000 else f"{ms / 1000:.1f}s"


async def test_json_lines_are_the_daemon_s_records(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {}}) as it:
        await it.chat("a", stream=True)
        await it.chat("zzz")
        assert [json.loads(line) for line in await shown(it, "--json")] == await it.records()
        (last,) = await shown(it, "--json", "--limit", "1")
        assert json.loads(last)["seq"] == 2


async def test_a_follower_misses_and_repeats_nothing_over_a_restart(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {}}) as it:
        await it.chat("zzz")
        with following(it) as follower:
            await until(lambda: len(follower.records) == 1)
            await it.chat("zzz")
            await it.chat("a", stream=True)
            await until(lambda: len(follower.records) == 3)
            first = follower.records[0][0]
            await it.stop()
            await until(lambda: "waiting for the daemon" in follower.told)
            await it.start()
            # More than before the restart, so that the old cursor would look right.
            for _ in range(5):
                await it.chat("zzz")
            await until(lambda: len(follower.records) == 8)
            second = follower.records[-1][0]
            assert follower.records == [
                *((first, seq) for seq in (1, 2, 3)),
                *((second, seq) for seq in (1, 2, 3, 4, 5)),
            ]
            assert first != second
            told = follower.told.splitlines()
            assert len(told) == 3
            assert "waiting for the daemon" in told[0]
            assert "answers again" in told[1]
            assert "restarted" in told[2]


async def test_a_quick_restart_that_no_poll_noticed_is_noticed_by_the_instance(
    tmp_path: Path,
) -> None:
    async with daemon(tmp_path, {"a": {}}) as it:
        for _ in range(3):
            await it.chat("zzz")
        with following(it) as follower:
            await until(lambda: len(follower.records) == 3)
            follower.process.send_signal(signal.SIGSTOP)
            await it.stop()
            await it.start()
            await it.chat("zzz")
            follower.process.send_signal(signal.SIGCONT)
            await until(lambda: len(follower.records) == 4)
            assert follower.records[3][1] == 1
            assert "restarted" in follower.told
