"""The soft descriptor limit is the hard one once the daemon serves (reliability.md, "Bounds")."""

from pathlib import Path

from tests.system.harness import daemon

LOW = ("sh", "-c", 'ulimit -Sn 256 && exec "$@"', "sh")


async def test_a_low_soft_limit_is_raised_to_the_hard_one_at_the_start(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {}}, start=False) as it:
        it.launch(*LOW)
        await it.wait_serving()
        (line,) = (
            line
            for line in Path(f"/proc/{it.pid}/limits").read_text().splitlines()
            if line.startswith("Max open files")
        )
        soft, hard = line.split()[3:5]
        assert soft == hard != "256"
        assert (await it.chat("a")).status == 200
