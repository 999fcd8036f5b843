"""What is measured: the double itself, this daemon, and what others put in its place.

Each target listens on loopback and sends the chat path to a double that runs on the load's core. What
a machine lacks is Missing, with the reason for the report; peers from a package index are installed
into environments of their own below the user's cache directory, at the versions pinned here.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.bench import processes
from tests.bench.processes import LOAD_CPU, ROUTER_CPU, Missing, Programs

MODEL = "bench"
OTHER_MODEL = "bench-other"
"""A second model of the daemon, for requests that have to wait."""

VLLM_ROUTER = "vllm-router==0.1.17"
LITELLM = "litellm[proxy]==1.100.5"

INSTALL_S = 300
START_S = 30.0
SLOW_START_S = 90.0


@dataclass
class Target:
    """One running target.

    pids: the processes whose CPU and memory are its own; the double and a guard are not.
    double_port: where its double listens. is_slow: stopped while others are measured, and spared the
    loads that it would be busy with for minutes after their clients have gone.
    """

    name: str
    version: str
    port: int
    double_port: int
    pids: Callable[[], list[int]]
    process: subprocess.Popen[bytes] | None = None
    is_slow: bool = False
    facts: dict[str, Any] = field(default_factory=dict)

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self.is_slow and self.process is not None:
            os.killpg(self.process.pid, number)

    def stop(self) -> None:
        if self.process is not None:
            processes.stop(self.process)


@dataclass(frozen=True)
class Workshop:
    """Where and with what targets are made. double_port: the one that all but the daemon share."""

    directory: Path
    programs: Programs
    double_port: int

    def start(self, name: str, *argv: str | Path, **environment: str) -> subprocess.Popen[bytes]:
        log = self.directory / f"{name}.log"
        return processes.start(
            argv, ROUTER_CPU, log, cwd=self.directory, environment=environment or None
        )

    def peer(
        self, name: str, version: str, port: int, process: subprocess.Popen[bytes], within_s: float
    ) -> Target:
        """A target once it answers a chat request; ended again, and Missing, when it does not."""
        try:
            processes.wait_until(
                lambda: process.poll() is not None or _answers(port), within_s, f"{name} answers"
            )
            if process.poll() is not None:
                tail = (self.directory / f"{name}.log").read_text(errors="replace")[-300:]
                raise Missing(f"{name} ended at once: {tail.strip()!r}")
        except Missing:
            processes.stop(process)
            raise
        pids = lambda: processes.descendants(process.pid)  # noqa: E731 - a name would say less
        return Target(name, version, port, self.double_port, pids, process)


def ask(port: int, method: str, path: str, body: Any = None, timeout_s: float = 5) -> Any:
    """One request with JSON both ways. Raises OSError (HTTPError is one)."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}",
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json", "Authorization": "Bearer sk-bench"},
    )
    with urllib.request.urlopen(request, timeout=timeout_s) as reply:
        return json.loads(reply.read())


def chat(model: str = MODEL, text: str = "bench 0 1.", *, stream: bool = False) -> dict[str, Any]:
    return {"model": model, "stream": stream, "messages": [{"role": "user", "content": text}]}


def _answers(port: int) -> bool:
    try:
        return "choices" in ask(port, "POST", "/v1/chat/completions", chat())
    except (OSError, ValueError):
        return False


def _version_of(*argv: str | Path) -> str:
    words = [str(word) for word in argv]
    shown = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    return (shown.stdout + shown.stderr).strip().partition("\n")[0]


# ---- the double alone, and this daemon -----------------------------------------------------------


def direct(workshop: Workshop) -> Target:
    return Target("direct", "the upstream double", workshop.double_port, workshop.double_port, list)


OURS = (sys.executable, "-m", "strata_router")


def daemon(
    workshop: Workshop,
    *,
    name: str = "daemon",
    program: Sequence[str | Path] = OURS,
    tree: Path | None = None,
) -> Target:
    """This daemon as an operator runs it: records, JSONL, scheduling, tap; the double is its engine.

    tree: another checkout to run it from.
    """
    port, double_port = processes.free_port(), processes.free_port()
    directory = workshop.directory / name
    directory.mkdir()
    control = directory / "control"
    control.mkdir(mode=0o700)
    model = {
        "family": "bench",
        "engine": "double",
        "args": ["--cpu", str(LOAD_CPU)],
        "installed": True,
        "compatible": True,
    }
    config = {
        "listen": f"127.0.0.1:{port}",
        "backend_port": double_port,
        "control_socket": str(control / "control.sock"),
        "engines": {"double": {"kind": "llama-server", "command": str(workshop.programs.double)}},
        "models": {name: {**model, "upstream_model": name} for name in (MODEL, OTHER_MODEL)},
        "wait_when_busy": True,
        "max_pending": 2048,  # more streams at once than the curves open
        "response_ms": 0,
        "drain_ms": 2000,
        "request_log_path": str(directory / "requests.jsonl"),
    }
    path = directory / "config.json"
    path.write_text(json.dumps(config))
    began = time.monotonic()
    log = workshop.directory / f"{name}.log"
    process = processes.start((*program, "daemon", path), ROUTER_CPU, log, cwd=tree)
    processes.wait_until(lambda: _accepts(port), START_S, "the daemon accepts")
    accepts_s = time.monotonic() - began
    cpu_s = processes.cpu_s([process.pid])
    target = workshop.peer(name, _version_of(*OURS, "--version"), port, process, START_S)
    target.double_port = double_port
    target.pids = lambda: [process.pid]
    target.facts = {
        "accepts_s": accepts_s,
        "start_cpu_s": cpu_s,
        "control": [str(control / "control.sock")],
    }
    return target


def _accepts(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1):
            return True
    except OSError:
        return False


# ---- peers ---------------------------------------------------------------------------------------

NGINX = """\
daemon off; worker_processes 1; pid {directory}/nginx.pid; error_log {directory}/nginx-errors.log warn;
events {{ worker_connections 4096; }}
http {{
  access_log off; keepalive_requests 1000000; client_max_body_size 64m; client_body_buffer_size 1m;
  client_body_temp_path {directory}/nginx-a; proxy_temp_path {directory}/nginx-b;
  fastcgi_temp_path {directory}/nginx-c; uwsgi_temp_path {directory}/nginx-d;
  scgi_temp_path {directory}/nginx-e;
  upstream double {{ server 127.0.0.1:{double}; keepalive 64; keepalive_requests 1000000; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://double; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; proxy_read_timeout 3600;
    }}
  }}
}}
"""

HAPROXY = """\
global
  maxconn 4096
  nbthread 1
defaults
  mode http
  timeout connect 5s
  timeout client 3600s
  timeout server 3600s
  option http-no-delay
frontend front
  bind 127.0.0.1:{port}
  default_backend double
backend double
  http-reuse always
  server one 127.0.0.1:{double}
"""

LITELLM_CONFIG = """\
model_list:
  - model_name: {model}
    litellm_params: {{model: openai/{model}, api_base: "http://127.0.0.1:{double}/v1", api_key: sk-bench}}
litellm_settings: {{telemetry: false, num_retries: 0}}
"""

LLAMA_SWAP_CONFIG = """\
models:
  {model}:
    cmd: {double} --port ${{PORT}} --alias {model} --cpu {cpu}
    checkEndpoint: /health
"""


def nginx(workshop: Workshop) -> Target:
    binary = _installed("nginx", "/usr/sbin/nginx")
    port = processes.free_port()
    path = workshop.directory / "nginx.conf"
    places = {"directory": workshop.directory, "double": workshop.double_port, "port": port}
    path.write_text(NGINX.format(**places))
    process = workshop.start("nginx", binary, "-c", path, "-p", workshop.directory)
    return workshop.peer("nginx", _version_of(binary, "-v"), port, process, START_S)


def haproxy(workshop: Workshop) -> Target:
    binary = _installed("haproxy", "/usr/sbin/haproxy")
    port = processes.free_port()
    path = workshop.directory / "haproxy.cfg"
    path.write_text(HAPROXY.format(double=workshop.double_port, port=port))
    process = workshop.start("haproxy", binary, "-f", path, "-db")
    return workshop.peer("haproxy", _version_of(binary, "-v"), port, process, START_S)


def vllm_router(workshop: Workshop) -> Target:
    environment = _environment(VLLM_ROUTER)
    port = processes.free_port()
    process = workshop.start(
        "vllm-router",
        environment / "bin" / "vllm-router",
        *("--host", "127.0.0.1", "--port", str(port), "--policy", "round_robin"),
        *("--worker-urls", f"http://127.0.0.1:{workshop.double_port}"),
        *("--prometheus-port", str(processes.free_port()), "--log-level", "warning"),
    )
    return workshop.peer("vllm-router", VLLM_ROUTER, port, process, START_S)


def litellm(workshop: Workshop) -> Target:
    environment = _environment(LITELLM)
    port = processes.free_port()
    path = workshop.directory / "litellm.yaml"
    path.write_text(LITELLM_CONFIG.format(model=MODEL, double=workshop.double_port))
    process = workshop.start(
        "litellm",
        environment / "bin" / "litellm",
        *("--config", path, "--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"),
        LITELLM_TELEMETRY="False",
        LITELLM_LOCAL_MODEL_COST_MAP="True",  # else it fetches a list from the network
        LITELLM_LOG="ERROR",
        DISABLE_ADMIN_UI="True",
    )
    target = workshop.peer("litellm", LITELLM, port, process, SLOW_START_S)
    target.is_slow = True
    return target


def llama_swap(workshop: Workshop, binary: str) -> Target:
    if not Path(binary).is_file():
        raise Missing(f"llama-swap: {binary} is no file")
    port = processes.free_port()
    path = workshop.directory / "llama-swap.yaml"
    path.write_text(
        LLAMA_SWAP_CONFIG.format(model=MODEL, double=workshop.programs.double, cpu=LOAD_CPU)
    )
    process = workshop.start(
        "llama-swap", binary, "--config", path, "--listen", f"127.0.0.1:{port}", GOMAXPROCS="1"
    )
    target = workshop.peer("llama-swap", _version_of(binary, "--version"), port, process, START_S)
    target.pids = lambda: [process.pid]
    return target


def _installed(name: str, usual: str) -> str:
    found = shutil.which(name) or (usual if Path(usual).exists() else None)
    if found is None:
        raise Missing(f"{name} is not installed (Debian: apt-get install {name})")
    return found


def _environment(requirement: str) -> Path:
    """An environment that has just this package, made once and kept in the user's cache directory."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    environment = cache / "strata-router-bench" / requirement.replace("[", "-").replace("]", "")
    if (environment / "complete").exists():
        return environment
    try:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(environment)], check=True)
        install = [environment / "bin" / "python", "-m", "pip", "--quiet", "install", requirement]
        subprocess.run([str(word) for word in install], check=True, timeout=INSTALL_S)
    except (subprocess.SubprocessError, OSError) as error:
        raise Missing(f"{requirement} cannot be installed ({type(error).__name__})") from error
    (environment / "complete").touch()
    return environment
