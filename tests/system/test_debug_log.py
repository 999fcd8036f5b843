"""--log-level debug: a line per decision, with ids and numbers only (reliability.md, "Logging")."""

from pathlib import Path

from tests.system.harness import daemon


async def test_every_decision_is_a_line_at_debug_level_and_none_at_the_default(
    tmp_path: Path,
) -> None:
    verbose = ("sh", "-c", 'exec "$@" --log-level debug', "sh")
    for through, expected in ((verbose, True), ((), False)):
        directory = tmp_path / str(expected)
        directory.mkdir()
        async with daemon(directory, {"a": {}}, start=False) as it:
            it.launch(*through)
            await it.wait_serving()
            assert (await it.chat("a")).status == 200
            assert (await it.off())["ok"]
            lines = [line.rpartition(": ")[2] for line in it.log.splitlines()]
            for line in ("admit 1 to a (switch)", "load a", "unload"):
                assert (line in lines) is expected
