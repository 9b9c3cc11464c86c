"""Teach the tiny model again and again while the infrastructure breaks, and see what that does to the learning.

    python examples/train/train_faults.py --save benchmarks/results/train-faults.json     # three seeds, five arms each
    python examples/train/train_faults.py --short --seeds 1 --follows nothing             # the parts fit together

Each seed learns without faults; then, for each thing that faults may follow, with a share of attempts broken that are
invalid, and with the same share taken for zeros; all from one warm start. Goes on where it was killed, with --home.
Needs torch, as train_tiny.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tiny.faults import Faults, Follows, Treatment
from tiny.loop import Plan
from train_tiny import SHORT, trained

from woodshed.measure.curve import Line, curves
from woodshed.measure.rates import wilson
from woodshed.services.measured import publish, stamp

NAMES = {None: "no faults", Treatment.INVALID: "faults are invalid", Treatment.ZERO: "faults are zeros"}
Arm = tuple[Follows | None, Treatment | None]
FULL = replace(SHORT, rounds=6, every=3, between=60, seconds=3600.0, enough=2.0)
"""All arms learn equally long, and none is ended by what it has reached."""
TRY = replace(FULL, tasks=40, heldout=20, between=20, every=1, babble=80, warm=60, rounds=2, groups=4)


def arms(follows: Sequence[Follows]) -> list[Arm]:
    """Without faults, and both treatments of each kind."""
    return [(None, None), *((one, treatment) for one in follows for treatment in Treatment)]


def learned(plan: Plan, arm: Arm, home: Path) -> dict[str, Any]:
    """The figures of one learning; those that stand already, where it was done before."""
    follows, treatment = arm
    faults = None if follows is None or treatment is None else Faults(follows, treatment)
    folder = home / f"{follows or 'none'}-{treatment or 'none'}-{plan.seed}"
    done = folder / "figures.json"
    if done.exists():
        kept: dict[str, Any] = json.loads(done.read_text())
        return kept
    print(f"{follows or 'no faults'}, {treatment or '-'}, seed {plan.seed}", file=sys.stderr, flush=True)
    begun = stamp(plan.seed)  # of this learning: it may be pooled by a later commit
    figures = begun | trained(replace(plan, faults=faults), folder / "state", home / f"warm-{plan.seed}")
    publish(figures, done)
    return figures


def pooled(runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """How many held-out tasks passed in all seeds of an arm, by round, with Wilson's 95 % interval."""
    counted: dict[int, list[int]] = {}
    for run in runs:
        by_round = {point["round"]: point for point in run["points"] if point["split"] == "heldout" and point["valid"]}
        for round_, point in by_round.items():  # of two measures of the same weights the later, which is of more tasks
            both = counted.setdefault(round_, [0, 0])
            both[0] += point["passed"]
            both[1] += point["valid"]
    return [{"round": round_, "passed": passed, "tried": tried, "rate": round(passed / tried, 4),
             "interval": [round(one, 4) for one in wilson(passed / tried, tried)]}
            for round_, (passed, tried) in sorted(counted.items())]


def drawn(figures: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """For each thing that faults follow, its name and the three curves as SVG."""
    for follows in figures["follows"]:
        told = [one for one in figures["arms"] if one["follows"] in (None, follows)]
        lines = [Line(one["name"], tuple((p["round"], p["rate"], *p["interval"]) for p in one["points"]))
                 for one in told]
        share = round(100 * figures["share"])
        yield follows, curves(lines, title=f"{share} % broken by faults that follow {follows}, "
                                           f"{len(figures['seeds'])} seeds", across="rounds",
                              up="pass rate of held-out tasks, 95 % interval")


def measured(plan: Plan, follows: Sequence[Follows], seeds: int, home: Path) -> dict[str, Any]:
    """All arms by all seeds; ``samples`` are the learnings, by arm and seed."""
    told = []
    runs: dict[Arm, list[dict[str, Any]]] = {arm: [] for arm in arms(follows)}
    for seed in range(plan.seed, plan.seed + seeds):  # whole seeds first: what stands can be compared
        for arm, done in runs.items():
            done.append(learned(replace(plan, seed=seed), arm, home))
    for (kind, treatment), done in runs.items():
        told.append({"follows": kind, "treatment": treatment, "name": NAMES[treatment], "points": pooled(done)})
    learnings = [one for done in runs.values() for one in done]
    return {**stamp(plan.seed), "commit": " ".join(sorted({str(one["commit"]) for one in learnings})),
            "at": max(one["at"] for one in learnings), "benchmark": "train-faults", "torch": torch.__version__,
            "share": Faults().share, "success": Faults().success, "seeds": list(range(plan.seed, plan.seed + seeds)),
            "follows": list(follows), "arms": told, "samples": list(runs.values())}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--seed", type=int, default=0, help="the first")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--follows", nargs="+", type=Follows, choices=list(Follows), metavar="WHAT",
                        default=[Follows.NOTHING, Follows.SUCCESS], help="nothing, success, length")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--home", type=Path, help="keep the state there, and go on with what is done")
    parser.add_argument("--save", type=Path, help="write figures to this file, and the curves beside it as .svg")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    with ExitStack() as stack:
        home = given.home or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="woodshed-faults-")))
        plan = replace(TRY if given.short else FULL, seed=given.seed)
        figures = measured(plan, given.follows, given.seeds, home)
    if given.save is not None:
        publish(figures, given.save)
        for follows, curve in drawn(figures):
            given.save.with_name(f"{given.save.stem}-{follows}.svg").write_text(curve)


if __name__ == "__main__":
    main()
