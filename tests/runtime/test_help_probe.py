"""Asking an engine's help, with real commands."""

import os
from pathlib import Path

import pytest
import trio

from strata_router.core.engine.kinds import LaunchPlan
from strata_router.runtime import help_probe
from strata_router.runtime.help_probe import HelpProbe
from strata_router.runtime.procfs import descendants

OPTION = "--ready-file"


def command(directory: Path, script: str) -> LaunchPlan:
    """A checkout whose server is a shell script; it counts its runs in ``runs``."""
    (directory / "serve").mkdir(exist_ok=True)
    (directory / "serve" / "server.py").touch()
    program = directory / "program"
    program.write_text(f"#!/bin/sh\necho run >>{directory}/runs\n{script}\n")
    program.chmod(0o700)
    return LaunchPlan((str(program), "--help"), str(directory))


def runs(directory: Path) -> int:
    return (directory / "runs").read_text().count("run")


@pytest.mark.parametrize(
    ("text", "offered"),
    [
        ("usage: server.py [-h] [--port PORT] [--ready-file PATH]", True),
        ("  --ready-file PATH  JSON with pid and model", True),
        ("  -r, --ready-file PATH", True),
        ("  --ready-file, -r PATH", True),
        ("usage: server.py [--ready-file-later PATH]", False),
        ("usage: server.py [--not--ready-file]", False),
        ("", False),
    ],
)
async def test_an_option_is_offered_when_the_help_has_it_as_a_word(
    tmp_path: Path, text: str, offered: bool
) -> None:
    assert await HelpProbe().offers(command(tmp_path, f"echo '{text}'"), OPTION) is offered


async def test_the_environment_of_an_engine_is_that_of_its_help(tmp_path: Path) -> None:
    plan = command(tmp_path, 'echo "$OFFERED $STRATA_API_KEY"')
    plan = LaunchPlan(plan.argv, plan.cwd, {"OFFERED": OPTION, "STRATA_API_KEY": "--secret"})
    probe = HelpProbe()
    assert await probe.offers(plan, OPTION)
    assert not await probe.offers(plan, "--secret")


@pytest.mark.parametrize("script", ["exit 3", "kill -9 $$", "exec 1>&-; exit 2"])
async def test_a_failing_command_offers_nothing(tmp_path: Path, script: str) -> None:
    assert not await HelpProbe().offers(command(tmp_path, script), OPTION)


async def test_a_command_that_does_not_exist_offers_nothing(tmp_path: Path) -> None:
    plan = LaunchPlan((str(tmp_path / "none"), "--help"), str(tmp_path))
    assert not await HelpProbe().offers(plan, OPTION)
    assert not await HelpProbe().offers(LaunchPlan(plan.argv, None), OPTION)


async def test_the_answer_is_remembered_until_the_source_changes(tmp_path: Path) -> None:
    probe = HelpProbe()
    plan = command(tmp_path, f"echo {OPTION}")
    for _ in range(3):
        assert await probe.offers(plan, OPTION)
    assert not await probe.offers(plan, "--other")
    assert runs(tmp_path) == 1
    command(tmp_path, "echo nothing")
    os.utime(tmp_path / "serve" / "server.py", (1, 1))
    assert not await probe.offers(plan, OPTION)
    assert runs(tmp_path) == 2


async def test_a_command_that_hangs_is_ended_and_offers_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(help_probe, "HELP_S", 0.2)
    before = descendants(os.getpid())
    plan = command(tmp_path, f"echo {OPTION}x; setsid sleep 1000 & sleep 1000")
    with trio.fail_after(5):
        assert not await HelpProbe().offers(plan, OPTION)
    assert set(descendants(os.getpid())) <= set(before)


async def test_what_a_cancelled_question_started_is_ended_with_it(tmp_path: Path) -> None:
    before = descendants(os.getpid())
    plan = command(tmp_path, "setsid sleep 1000 & sleep 1000")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(HelpProbe().offers, plan, OPTION)
        with trio.fail_after(5):
            while not (tmp_path / "runs").exists():
                await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    assert set(descendants(os.getpid())) <= set(before)


async def test_no_room_for_the_text_is_an_error_of_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    with pytest.raises(OSError, match="No such file"):
        await HelpProbe().offers(command(tmp_path, "echo"), OPTION)
