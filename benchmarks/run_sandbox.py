"""What sandboxes cost, as `woodshed bench sandbox` measures it, for benchmarks/results/ and docs/benchmarks.md.

usage: python benchmarks/run_sandbox.py NAME [options of woodshed bench sandbox]
       python benchmarks/run_sandbox.py NAME --docs      only write NAME's figures into the document again

The document's tables stand between `<!-- figures NAME.json -->` and `<!-- end -->`, and are written here alone.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "benchmarks.md"
MEASURES = {
    "create_exec_destroy_ms": "create, `true`, destroy",
    "exec_ms": "`true` in a sandbox that stands",
    "warm_claim_ms": "claim of a warm sandbox, `true`",
    "snapshot_ms": "snapshot of a live sandbox",
    "fork_ms": "fork of a snapshot, `true`, destroy",
}


def main() -> int:
    """Measure, write ``results/NAME.json``, and renew the document."""
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.stderr.write(__doc__ or "")
        return 2
    name, rest = sys.argv[1], sys.argv[2:]
    path, code = RESULTS / f"{name}.json", 0
    if rest != ["--docs"]:
        command = [sys.executable, "-m", "woodshed", "bench", "sandbox", *rest, "--save", str(path)]
        code = subprocess.run(command, check=False).returncode
    if code == 0:
        page = PAGE.read_text()
        block = re.compile(rf"(?<=<!-- figures {re.escape(path.name)} -->\n).*?(?=<!-- end -->)", re.DOTALL)
        PAGE.write_text(block.sub(lambda _: "\n".join(lines(json.loads(path.read_text()), path.name)), page))
    return code


def lines(figures: dict[str, Any], source: str) -> list[str]:
    """The tables, a line for each figure that was measured; each names the key it comes from."""
    found = ["", "| engine | measure | median | 95th percentile |", "|---|---|---:|---:|"]
    for name, row in figures["engines"].items():
        for key, title in MEASURES.items():
            if row.get(key):
                where = f"engines.{name}.{key}.p50"
                cell = f"{row[key]['p50']:.2f} ms | {row[key]['p95']:.2f}"
                found.append(f"| `{name}` | {title} | {cell} <!-- {source} {where} --> |")
    found += ["", "| target | bound | measured |", "|---|---:|---:|"]
    for row in figures["targets"]:
        bound = f"at most {row['at_most']:g}" if "at_most" in row else f"at least {row['at_least']:g}"
        value = "not measured" if row["value"] is None else f"{row['value']:.3f}"
        found.append(f"| `{row['name']}` | {bound} | {value} |")
    return [*found, "", *_parts(figures, source), "", ""]


def _parts(figures: dict[str, Any], source: str) -> list[str]:
    machine, found = figures["machine"], []
    for name, cell in figures["phases_ms"].get(figures["engine"], {}).items():
        where = f"phases_ms.{figures['engine']}.{name}.p50"
        found.append(f"- of a cycle, {name.replace('_', ' ')}: {cell['p50']:.2f} ms <!-- {source} {where} -->")
    if churn := figures["churn"]:
        found.append(f"- {churn['n']} cycles on {churn['workers']} workers: {churn['churn_per_s']:.1f} cycles/s, left: "
                     f"{', '.join(figures['left']) or 'nothing'} <!-- {source} churn.churn_per_s -->")
    if (idle := figures["idle"]) and idle["idle_mb"]:
        found.append(f"- {idle['n']} idle sandboxes: {idle['idle_mb']:.2f} MiB each ({idle['method']}; "
                     f"{idle['available_mb']:.2f} by MemAvailable)")
    who = "root" if machine["root"] else "an ordinary user"
    found.append(f"- commit {figures['commit']}, {figures['at'][:10]}, {machine['cores']} cores, kernel "
                 f"{machine['kernel']}, Python {machine['python']}, {who}")
    return found


if __name__ == "__main__":
    sys.exit(main())
