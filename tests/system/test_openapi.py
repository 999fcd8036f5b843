"""The served description against the running daemon, by schemathesis (issue 7)."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import trio

from tests.system.harness import daemon

EXAMPLES = 15 * int(os.environ.get("ROUNDS", "1"))


async def test_the_daemon_answers_as_its_own_description_says(tmp_path: Path) -> None:
    async with daemon(tmp_path, {"a": {}}) as it:
        await it.chat("a")
        document = await it.get_json("/openapi.json")
        (tmp_path / "openapi.json").write_text(json.dumps(document))
        command = [
            str(Path(sys.executable).with_name("schemathesis")),
            *("run", f"http://127.0.0.1:{it.port}/openapi.json"),
            *(
                "--checks",
                "not_a_server_error,content_type_conformance,response_schema_conformance",
            ),
            *("--phases", "examples,coverage,fuzzing", "--max-examples", str(EXAMPLES)),
            *("--seed", "20261129", "--generation-database", "none", "--no-color"),
        ]
        outcome = await trio.to_thread.run_sync(
            partial(
                subprocess.run, command, cwd=tmp_path, capture_output=True, text=True, check=False
            )
        )
        assert outcome.returncode == 0, outcome.stdout[-6000:] + outcome.stderr[-2000:]
        assert "Traceback" not in it.log
