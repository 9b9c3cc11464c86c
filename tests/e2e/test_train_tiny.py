"""The loop that learns, in its shortened form: a tiny model gets better at held-out tasks, by real attempts alone."""

from __future__ import annotations

import asyncio
import json
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from kit import ROOT
from woodshed.model import ModelSpec, Valid
from woodshed.services import families
from woodshed.services.home import opened
from woodshed.tasks.families import instance, named
from woodshed.tasks.load import find_tasks

TORCH = "needs torch: pip install --extra-index-url https://download.pytorch.org/whl/cpu torch==2.13.0+cpu"


def test_a_tiny_model_learns(tmp_path: Path) -> None:
    """After a few rounds more held-out tasks pass, by more than chance explains (95 %); every call was captured,

    each round learnt from the weights it sampled with, and the curve is drawn of what was measured.
    """
    pytest.importorskip("torch", reason=TORCH)
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "train" / "train_tiny.py", "--short", "--home", tmp_path / "home",
         "--save", tmp_path / "figures.json"], capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr
    figures, = json.loads((tmp_path / "figures.json").read_text())["samples"]
    assert figures["gained"]["passed"]["interval"][0] > 0, done.stderr
    for number, one in enumerate(figures["rounds"]):
        assert one["trainable"] == one["valid"] == one["rollouts"], one
        assert one["versions"] == [figures["rounds"][number - 1]["version"] if number else "0"]
        assert abs(one["step"]["ratio"] - 1) < 0.05
    assert (tmp_path / "figures.svg").read_text().count("<circle") == len(figures["points"])


@pytest.mark.slow
def test_a_demonstration_of_each_template_earns_everything(tmp_path: Path) -> None:
    """What the warm start shows is right: its calls, a look and the end earn all that the rules give, for any task."""
    pytest.importorskip("torch", reason=TORCH)
    from tiny.babble import babbler
    from tiny.loop import Learning, Plan

    tasks = find_tasks(families.generate("first-commands", "train", tmp_path / "tasks", count=30, seed=9))
    family = named("first-commands")
    shown = {one.exercise.instruction: one.exercise.calls for one in (
        instance(family, task.metadata["template"], task.metadata["number"]) for task in tasks)}

    async def demonstrated() -> list[float | None]:
        with opened(tmp_path / "home") as home:
            async with babbler(shown, (1.0, 1.0)) as url:
                learning = Learning(home, Plan(), lambda text: None)
                run = await learning._attempts(ModelSpec(name="shows", base_url=url), tasks, 1, 0)
            verdicts = [one.outcome.verdict for one in home.store.attempts(run.id) if one.outcome]
            return [one.total for one in verdicts if isinstance(one, Valid)]

    assert asyncio.run(demonstrated()) == [1.0] * 30


def test_a_killed_training_leaves_no_server(tmp_path: Path) -> None:
    """Whoever serves the tiny model as a child ends when its parent is killed (SIGKILL)."""
    pytest.importorskip("torch", reason=TORCH)
    begun = subprocess.Popen([sys.executable, "-c", """
import asyncio, sys
from pathlib import Path
from tiny.child import Child
from tiny.network import Network, Shape
from tiny.server import save
from tiny.text import Vocabulary

async def main(folder):
    save(Network(Shape(264, width=8, layers=1)), Vocabulary(), folder)
    async with Child(folder, slots=1) as child:
        print(child._process.pid, flush=True)
        await asyncio.sleep(600)

asyncio.run(main(Path(sys.argv[1])))
""", str(tmp_path)], cwd=ROOT / "examples" / "train", stdout=subprocess.PIPE, text=True)
    assert begun.stdout is not None
    with begun:
        server = os.pidfd_open(int(begun.stdout.readline()))
        begun.kill()
    try:
        assert select.select([server], [], [], 60)[0]
    finally:
        os.close(server)
