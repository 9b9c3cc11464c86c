"""Teach a model of a few hundred thousand parameters to use tools, from nothing, through the whole of Woodshed.

    python examples/train/train_tiny.py                 # all of it: under ten minutes on two cores
    python examples/train/train_tiny.py --seeds 3       # the same three times
    python examples/train/train_tiny.py --short         # enough to see that it learns

Writes figures as JSON and curves as SVG. Needs torch: pip install --extra-index-url
https://download.pytorch.org/whl/cpu torch==2.13.0+cpu
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parent))

from tiny.loop import Learning, Plan

from woodshed.measure.curve import Line, curves
from woodshed.measure.rates import wilson
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
        return {"seed": plan.seed, **runner.run(Learning(place, plan, told, begun).run())}


def pooled(seeds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """All seeds together, before the first round and after the last; each has held-out tasks of its own."""
    return {when: {split: _rated([measured[at] for one in seeds if (measured := _points(one, split))])
                   for split in ("heldout", "unseen")} for when, at in (("before", 0), ("after", -1))}


def _rated(points: Sequence[dict[str, Any]]) -> dict[str, Any]:
    valid = sum(one["valid"] for one in points)
    told: dict[str, Any] = {"valid": valid}
    for name in ("passed", "full") if valid else ():
        count = sum(one[name] for one in points)
        told[name] = {"count": count, "rate": round(count / valid, 4), "least": round(
            min(one[name] / one["valid"] for one in points), 4), "interval": [
                round(one, 4) for one in wilson(count / valid, valid)]}
    return told


def _points(figures: dict[str, Any], split: str) -> list[dict[str, Any]]:
    return [one for one in figures["points"] if one["split"] == split and one["valid"]]


def drawn(seeds: Sequence[dict[str, Any]]) -> str:
    """The curves as SVG: how many held-out tasks passed; of a seed that stands alone, those of unseen templates too."""
    told = [(f"seed {one['seed']}, held out", _points(one, "heldout")) for one in seeds]
    told += [("templates never trained on", _points(seeds[0], "unseen"))] if len(seeds) == 1 else []
    lines = [Line(name, tuple((one["attempts"], one["rates"]["passed"]["rate"], *one["rates"]["passed"]["interval"])
                              for one in points)) for name, points in told if points]
    return curves(lines, title="train-tiny", across="attempts", up="pass rate, 95 % interval")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--seed", type=int, default=0, help="the first")
    parser.add_argument("--seeds", type=int, default=1, help="how many")
    parser.add_argument("--threads", type=int, default=1,
                        help="of the trainer; two are faster where nothing else runs, and much slower elsewhere")
    parser.add_argument("--home", type=Path, help="keep the state (runs, attempts, events) there")
    parser.add_argument("--save", type=Path, help="write figures to this file, and the curves beside it as .svg")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    plan = SHORT if given.short else Plan()
    with ExitStack() as stack:
        home = given.home or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="woodshed-train-")))
        seeds = [trained(replace(plan, seed=seed), home / f"seed-{seed}")
                 for seed in range(given.seed, given.seed + given.seeds)]
    figures = {**stamp(given.seed), "benchmark": "train-tiny", "torch": torch.__version__, "samples": seeds,
               "all": pooled(seeds), "longest_s": max(one["seconds"] for one in seeds)}
    if given.save is not None:
        publish(figures, given.save)
        given.save.with_suffix(".svg").write_text(drawn(seeds))


if __name__ == "__main__":
    main()
