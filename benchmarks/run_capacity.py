"""Twenty thousand sandboxes at once on two hundred nodes, on paper, by the simulator of `woodshed plan`.

usage: python benchmarks/run_capacity.py            simulate, write results/capacity.json, and renew the document
       python benchmarks/run_capacity.py --docs     only write the figures into the document again

The document's tables stand between `<!-- figures capacity.json -->` and `<!-- end -->`, and are written here alone.
Nothing is measured, so nothing depends on the machine: the same seed gives the same figures anywhere.
"""

from __future__ import annotations

import json
import math
import random
import re
import statistics
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from woodshed.errors import Cause
from woodshed.measure.simulation import Failures, Limits, Node, Sample, Simulated, simulate
from woodshed.model.retry import Broken
from woodshed.services.measured import publish, stamp

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "capacity.md"
SOURCE = "capacity.json"
SEED = 7
BASE = "as assumed"


@dataclass(frozen=True)
class Inputs:
    """All that is assumed. An execution takes a log-normal time, cut off at its deadline."""

    attempts: int = 60_000
    nodes: int = 200
    slots: int = 100
    cores: int = 64
    median_s: float = 480.0
    spread: float = 1.0
    deadline_s: float = 7200.0
    model_share: float = 0.6
    cpu_s: float = 60.0
    prompt_tokens: int = 60_000
    completion_tokens: int = 8_000
    broken: float = 0.01
    node_days: float = 10.0
    repair_s: float = 900.0
    noticed_s: float = 10.0
    claims_per_s: float = 50.0
    places: int | None = None
    come_s: float = 0.0
    rounds: int = 1


ROWS: Mapping[str, dict[str, Any]] = {
    BASE: {},
    "nothing breaks, no node fails": {"broken": 0.0, "node_days": math.inf},
    "a node fails every 2 days": {"node_days": 2.0},
    "a node fails every 12 hours": {"node_days": 0.5},
    "5 % of executions break": {"broken": 0.05},
    "heavier tail (spread 1.5)": {"spread": 1.5},
    "deadline of 1 hour": {"deadline_s": 3600.0},
    "12 claims a second": {"claims_per_s": 12.0},
    "endpoint serves 8,000 at once": {"places": 8_000},
    "8 processors a node": {"cores": 8},
    "nodes come over an hour": {"come_s": 3600.0},
    "100 nodes": {"nodes": 100},
    "400 nodes": {"nodes": 400},
}
"""What is asked in each row: what differs from the base."""


def main() -> int:
    """Simulate all rows, write the results, and renew the document."""
    if sys.argv[1:] not in ([], ["--docs"]):
        sys.stderr.write(__doc__ or "")
        return 2
    path = RESULTS / SOURCE
    if not sys.argv[1:]:
        publish(figures(), path)
    page = PAGE.read_text()
    block = re.compile(rf"(?<=<!-- figures {re.escape(SOURCE)} -->\n).*?(?=<!-- end -->)", re.DOTALL)
    PAGE.write_text(block.sub(lambda _: "\n".join(lines(json.loads(path.read_text()))), page))
    return 0


def figures() -> dict[str, Any]:
    """The results file."""
    rows, samples = {}, {}
    for name, changed in ROWS.items():
        inputs = replace(Inputs(), **changed)
        made = [one_round(inputs, SEED + number) for number in range(inputs.rounds)]
        samples[name] = [round(one.makespan_s, 3) for one in made]
        rows[name] = row(inputs, made)
        sys.stderr.write(f"{name}: {rows[name]['makespan_h']:.2f} h, {rows[name]['bottleneck']}\n")
    base = {field.name: getattr(Inputs(), field.name) for field in fields(Inputs)}
    return {**stamp(SEED), "benchmark": "capacity", "inputs": base, "changed": dict(ROWS_JSON), "rows": rows,
            "samples": samples}


ROWS_JSON = {name: {key: None if value == math.inf else value for key, value in changed.items()}
             for name, changed in ROWS.items()}


def one_round(inputs: Inputs, seed: int) -> Simulated:
    """One simulation."""
    failures = Failures(inputs.node_days * 86_400, inputs.repair_s, inputs.noticed_s)
    return simulate(
        ["t"] * inputs.attempts, {"t": drawn(inputs, seed)}, nodes(inputs), seed=seed,
        limits=Limits(places=inputs.places, apart_s=1 / inputs.claims_per_s),
        failures=failures if math.isfinite(inputs.node_days) else None,
    )


def drawn(inputs: Inputs, seed: int, count: int = 10_000) -> list[Sample]:
    """What executions take: so many draws of the assumed distribution."""
    chance = random.Random(seed)
    fault = Broken(cause=Cause.ENVIRONMENT, stage="prepare", retryable=True)
    made = []
    for _ in range(count):
        seconds = min(inputs.deadline_s, inputs.median_s * math.exp(chance.gauss(0.0, inputs.spread)))
        made.append(Sample(
            seconds, cpu_s=min(inputs.cpu_s, seconds), model_s=inputs.model_share * seconds,
            prompt_tokens=inputs.prompt_tokens, completion_tokens=inputs.completion_tokens,
            broken=fault if chance.random() < inputs.broken else None,
        ))
    return made


def nodes(inputs: Inputs) -> list[Node]:
    """The machines, coming one after the other where they do."""
    return [Node(inputs.slots, cores=float(inputs.cores), from_s=inputs.come_s * number / inputs.nodes)
            for number in range(inputs.nodes)]


def row(inputs: Inputs, made: list[Simulated]) -> dict[str, Any]:
    """The means of a row's rounds; ``makespan_h`` is their median, ``most_h`` when 99 of a hundred are done."""
    def mean(name: str) -> float:
        return statistics.fmean(getattr(one, name) for one in made)

    span = statistics.median(one.makespan_s for one in made)
    use = {
        "slots": mean("busy_s") / (inputs.nodes * inputs.slots * span),
        "processors": mean("cpu_s") / (inputs.nodes * inputs.cores * span),
        "claims": mean("executions") / inputs.claims_per_s / span,
    }
    if inputs.places:
        use["endpoint"] = mean("model_s") / (inputs.places * span)
    tail = (mean("makespan_s") - mean("main_s")) / span
    narrow = max(use, key=lambda name: use[name])
    bottleneck = "what runs alone" if tail > 0.2 else narrow if use[narrow] > 0.5 else "the longest attempts"
    return {
        "makespan_h": round(span / 3600, 3), "most_h": round(mean("most_s") / 3600, 3),
        "at_once": round(mean("most_at_once")),
        "slots_used_percent": round(100 * use["slots"], 2), "claims_used_percent": round(100 * use["claims"], 2),
        "processors_used_percent": round(100 * use["processors"], 2), "failures": round(mean("failures"), 1),
        "lost_percent": round(100 * mean("lost_s") / mean("busy_s"), 3), "alone": round(mean("alone"), 1),
        "retried_percent": round(100 * mean("retried_s") / mean("busy_s"), 3),
        "given_up": round(mean("given_up"), 1), "begun_per_s": round(mean("executions") / span, 2),
        "completion_tokens_per_s": round(mean("completion_tokens") / span), "bottleneck": bottleneck,
    }


def lines(found: Mapping[str, Any]) -> list[str]:
    """The document's tables."""
    told = ["", "| input | assumed |", "|---|---:|"]
    told += [f"| `{name}` | {'no bound' if value is None else f'{value:,}'} |"
             for name, value in found["inputs"].items()]
    told += ["", "| | hours | 99 % done | at once | slots used | claims used | nodes failed | lost | ran alone | "
             "waits for |",
             "|---|---:|---:|---:|---:|---:|---:|---:|---:|---|"]
    for name, one in found["rows"].items():
        told.append(
            f"| {name} | {one['makespan_h']:.2f} | {one['most_h']:.2f} | {one['at_once']:,} | "
            f"{one['slots_used_percent']:.1f} % | {one['claims_used_percent']:.1f} % | {one['failures']:,.0f} | "
            f"{one['lost_percent']:.2f} % | {one['alone']:,.0f} | {one['bottleneck']} |")
    base = found["rows"][BASE]
    told += [
        "",
        f"As assumed, {base['begun_per_s']:.1f} executions begin in a second over the whole run, and the model is to "
        f"make {base['completion_tokens_per_s']:,} tokens in each.", "", "",
    ]
    return told



if __name__ == "__main__":
    sys.exit(main())
