"""What the rest of the project is given: folders, profiles, and a document in step with the knobs."""

import json
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from strata_router.simulated import DEMO, STRATA_DIR, strata_dir, write_profile
from strata_router.simulated.checkout.serve.knobs import BadKnob, EngineKnobs, RequestKnobs
from strata_router.simulated.knob_docs import knob_table, marker_table
from tests.simulated.harness import Yard

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "simulated-engine.md"


def test_both_checkouts_are_folders_with_a_serve_package() -> None:
    assert strata_dir() == STRATA_DIR
    for folder in (strata_dir(), strata_dir(ready_file=True)):
        assert folder.is_absolute()
        assert (folder / "serve" / "__init__.py").is_file()


def test_a_written_profile_has_the_keys_of_setup_and_the_knobs(tmp_path: Path) -> None:
    path = write_profile(tmp_path / "p.json", "model-a", {"load_s": 2}, parallel=2, port=9)
    profile = json.loads(path.read_text())
    assert {"exe", "args", "cwd", "tokenizer", "model_name"} <= set(profile)
    assert (profile["model_name"], profile["parallel"], profile["port"]) == ("model-a", 2, 9)
    assert profile["simulated"] == {"load_s": 2}


@pytest.mark.parametrize(
    "knobs", [{"nope": 1}, {"load_s": "x"}, {"usage": "x"}, {"done": 1}, {"workers": True}]
)
def test_a_profile_with_a_wrong_knob_is_not_written(
    tmp_path: Path, knobs: dict[str, object]
) -> None:
    with pytest.raises(BadKnob):
        write_profile(tmp_path / "p.json", "m", knobs)
    assert not (tmp_path / "p.json").exists()


def test_the_demo_is_pleasant_to_watch(yard: Yard) -> None:
    assert DEMO["load_s"] == 1.5
    engine = yard.start(**{**DEMO, "load_s": 0})
    timings = engine.chat("FX:tokens=12", stream=True).chunks()[-1]["timings"]
    assert 25 < timings["predicted_per_second"] < 36
    text = engine.chat("What are you? FX:chunk_every_ms=0", stream=True).text()
    assert text.startswith("This is the simulated engine, answering as m. ")
    assert text.endswith(".")
    assert 30 <= len(text.split()) <= 90


def test_the_document_lists_every_knob_as_it_is() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    for table in (knob_table(EngineKnobs), knob_table(RequestKnobs), marker_table()):
        assert table in text, "run python -m strata_router.simulated.knob_docs"


def test_the_tables_can_be_printed() -> None:
    command = [sys.executable, "-m", "strata_router.simulated.knob_docs"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert knob_table(RequestKnobs) in shown


def test_every_knob_is_used_by_a_test() -> None:
    """A fault that no test switches on may have stopped working."""
    folder = Path(__file__).resolve().parent
    tests = "\n".join(path.read_text(encoding="utf-8") for path in folder.glob("test_*.py"))
    for table in (EngineKnobs, RequestKnobs):
        for name in table.__dataclass_fields__:
            assert f"{name}=" in tests or f'"{name}"' in tests, f"{name} is in no test"


def test_the_checkout_imports_nothing_but_the_standard_library() -> None:
    imports = set()
    for path in (STRATA_DIR / "serve").glob("*.py"):
        for line in path.read_text(encoding="utf-8").splitlines():
            words = line.split()
            if words[:1] in (["import"], ["from"]) and not words[1].startswith("."):
                imports.add(words[1].split(".")[0])
    assert imports <= sys.stdlib_module_names
    assert zlib.__name__ in imports
