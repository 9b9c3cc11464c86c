"""Rejection sampling: attempts that passed, exported for SFT, are what TRL's own trainer learns from."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from exportkit import BROKEN, Emit, Talk, filled, valid
from kit import ROOT, woodshed
from trlkit import python_with_trl
from woodshed.services.home import opened

pytestmark = pytest.mark.slow
STEPS = 30


def solved(emit: Emit) -> None:
    talk = Talk(emit, "copy notes.txt to backup.txt")
    talk.says("", "cp notes.txt backup.txt", output="")
    talk.says("It is copied.")


def missed(emit: Emit) -> None:
    Talk(emit, "copy notes.txt to backup.txt").says("NEVER TO BE LEARNT")


def test_a_trainer_learns_what_passed(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The loss of the real trainer falls to less than half; what it learns is the answers of attempts that passed, and

    nothing of the prompt, of an attempt that failed, or of one that broke.
    """
    with opened(tmp_path / "home") as home:
        filled(home, [("t", valid(1.0), solved), ("t", valid(0.0), missed), ("t", BROKEN, missed)])
    done = woodshed("export", "last", "--format", "sft", "--out", tmp_path / "sft", "--json", home=tmp_path / "home")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["card"]["rows"] == 2
    seen = _trained(python_with_trl(tmp_path_factory.mktemp("trl")), tmp_path / "sft", tmp_path)
    assert sum(seen["losses"][-5:]) < 0.5 * sum(seen["losses"][:5])
    assert len(seen["losses"]) == STEPS
    learnt = sorted(seen["learnt"])
    assert [one.endswith("<end>") for one in learnt] == [True, True]
    assert any("It is copied." in one for one in learnt)
    assert any("cp notes.txt backup.txt" in one for one in learnt)
    assert not any("NEVER" in one for one in seen["given"])
    assert not any("[user]" in one for one in learnt)


def _trained(python: Path, folder: Path, out: Path) -> dict[str, Any]:
    env = {**os.environ, "HF_HOME": str(out / "hub"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([python, ROOT / "tests" / "trlsft.py", folder, str(STEPS), out / "seen.json"], env=env,
                          capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    seen: dict[str, Any] = json.loads((out / "seen.json").read_text())
    return seen
