"""Teach a model of a few hundred thousand parameters to use tools, from nothing, through the whole of Woodshed.

    python examples/train/train_tiny.py                 # all of it: under ten minutes on two cores
    python examples/train/train_tiny.py --short         # enough to see that it learns

Writes figures as JSON and the curve as SVG. Needs torch: pip install --extra-index-url
https://download.pytorch.org/whl/cpu torch==2.13.0+cpu
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parent))

from tiny.loop import Learning, Plan

from woodshed.measure.curve import Line, curves
from woodshed.services.home import opened
from woodshed.services.measured import publish, stamp

SHORT = replace(
    Plan(), templates=("write", "delete", "folder", "append"), tasks=80, heldout=60, unseen=0, between=0, babble=300,
    warm=400, rounds=5, groups=16, seconds=600.0)
"""Four templates and five rounds: enough to see that it learns."""


def trained(plan: Plan, home: Path, begun: Path | None = None) -> dict[str, Any]:
    """The figures of one learning whose state stands in ``home``; several may share a warm start, ``begun``."""
    def told(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    with opened(home) as place, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        figures = runner.run(Learning(place, plan, told, begun).run())
    return {**stamp(plan.seed), "benchmark": "train-tiny", "torch": torch.__version__, **figures}


def drawn(figures: dict[str, Any]) -> str:
    """The curve as SVG: what is earned in full of held-out tasks, and what rounds of training earned."""
    points = [one for one in figures["points"] if one["valid"]]
    lines = []
    for split, name in (("heldout", "held-out tasks, in full"), ("unseen", "templates never trained on, in full")):
        told = [(one["attempts"], one["rates"]["full"]["rate"], *one["rates"]["full"]["interval"])
                for one in points if one["split"] == split]
        lines += [Line(name, tuple(told))] if told else []
    return curves(lines, title=f"train-tiny, seed {figures['seed']}", across="attempts", up="rate, 95 % interval")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1,
                        help="of the trainer; two are faster where nothing else runs, and much slower elsewhere")
    parser.add_argument("--home", type=Path, help="keep the state (runs, attempts, events) there")
    parser.add_argument("--save", type=Path, help="write figures to this file, and the curve beside it as .svg")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    with ExitStack() as stack:
        home = given.home or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="woodshed-train-")))
        figures = trained(replace(SHORT if given.short else Plan(), seed=given.seed), home)
    if given.save is not None:
        publish(figures, given.save)
        given.save.with_suffix(".svg").write_text(drawn(figures))


if __name__ == "__main__":
    main()
