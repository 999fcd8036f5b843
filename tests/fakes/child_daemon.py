"""A stand-in for the daemon: runs trio, starts one child_engine, and sleeps until it is killed.

    python child_daemon.py NOTES [key=value ...]       the arguments of child_engine

Appends "daemon pid" and, once the engine is started, "guard pid" to NOTES as well.
"""

import os
import sys
from pathlib import Path

import trio

from strata_router.runtime.engine_process import Launch, start_engine
from strata_router.runtime.orphans import become_subreaper

ENGINE = Path(__file__).with_name("child_engine.py")


async def main() -> None:
    notes = Path(sys.argv[1])
    become_subreaper()
    arguments = (sys.executable, "-I", "-S", str(ENGINE), *sys.argv[1:])
    async with trio.open_nursery() as nursery:
        process = await start_engine(Launch(arguments, None, dict(os.environ), None), nursery)
        async with await trio.open_file(notes, "a") as file:
            await file.write(f"daemon {os.getpid()}\nguard {process.guard_pid}\n")
        await trio.sleep_forever()


trio.run(main)
