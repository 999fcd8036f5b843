"""The simulated engine: one stand-in for Strata that serves the demo and every test.

``checkout`` and ``checkout_readyfile`` are what a configuration names as ``strata_dir``; they run in
a process of their own and import nothing of strata_router. This module says where they are and
writes profiles for them; ``events`` reads what they stamped; ``llama`` stands in for
llama.cpp's server. All knobs: docs/simulated-engine.md. Called by the demo command and by tests.
"""

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from strata_router.simulated.checkout.serve.knobs import from_profile

STRATA_DIR = Path(__file__).resolve().parent / "checkout"
"""A checkout like public Strata, without ``--ready-file``."""

DEMO: Mapping[str, Any] = {"load_s": 1.5, "chunk_every_ms": 33}
"""Knobs that make the engine pleasant to watch: about 30 tokens per second."""


def strata_dir(*, ready_file: bool = False) -> Path:
    """The folder to use as ``strata_dir``; with ``ready_file`` the server offers that option."""
    return STRATA_DIR.with_name("checkout_readyfile") if ready_file else STRATA_DIR


def write_profile(
    path: Path, model_name: str, simulated: Mapping[str, Any] | None = None, **keys: Any
) -> Path:
    """Write the profile of one model, as Strata's setup would, and return its path.

    simulated: knobs; an unknown one raises BadKnob here rather than in a process nobody watches.
    keys: further profile keys, or replacements of the usual ones.
    """
    from_profile(simulated or {})
    profile = {
        "exe": "strata",
        "args": ["--pack", "weights.pack", "--native", "--max-context", "32768"],
        "cwd": str(path.parent),
        "tokenizer": "tokenizer",
        "model_name": model_name,
        "lib_dirs": [],
        "port": 8080,
        **keys,
        "simulated": dict(simulated or {}),
    }
    path.write_text(json.dumps(profile, indent=1), encoding="utf-8")
    return path


def write_llama_server(path: Path) -> Path:
    """Write an executable that stands in for llama.cpp's ``llama-server``, and return its path."""
    command = shlex.join([sys.executable, "-m", "strata_router.simulated.llama.server"])
    path.write_text(f'#!/bin/sh\nexec {command} "$@"\n', encoding="utf-8")
    path.chmod(0o700)
    return path
