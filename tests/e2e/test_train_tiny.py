"""The loop that learns, in its shortened form: a tiny model gets better at held-out tasks, by real attempts alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kit import ROOT

TORCH = "needs torch: pip install --extra-index-url https://download.pytorch.org/whl/cpu torch==2.13.0+cpu"


def test_a_tiny_model_learns(tmp_path: Path) -> None:
    """After a few rounds held-out tasks earn more, by more than chance explains (95 %); every call was captured,

    each round learnt from the weights it sampled with, and the curve is drawn of what was measured.
    """
    pytest.importorskip("torch", reason=TORCH)
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "train" / "train_tiny.py", "--short", "--home", tmp_path / "home",
         "--save", tmp_path / "figures.json"], capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["gained"]["interval"][0] > 0, done.stderr
    for number, one in enumerate(figures["rounds"]):
        assert one["trainable"] == one["valid"] == one["rollouts"], one
        assert one["versions"] == [figures["rounds"][number - 1]["version"] if number else "0"]
        assert abs(one["step"]["ratio"] - 1) < 0.05
    assert (tmp_path / "figures.svg").read_text().count("<circle") == len(figures["points"])
