"""A plan beside the run that it is of, as `woodshed bench plan` measures it, for docs/benchmarks.md.

usage: python benchmarks/run_plan.py TASKS... [options of woodshed bench plan]
       python benchmarks/run_plan.py --docs       only write the figures into the document again

The document's table stands between `<!-- figures plan.json -->` and `<!-- end -->`, and is written here alone.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCE = "plan.json"
RESULT = ROOT / "benchmarks" / "results" / SOURCE
PAGE = ROOT / "docs" / "benchmarks.md"


def main() -> int:
    """Measure, write ``results/plan.json``, and renew the document."""
    if len(sys.argv) < 2:
        sys.stderr.write(__doc__ or "")
        return 2
    if sys.argv[1:] != ["--docs"]:
        command = [sys.executable, "-m", "woodshed", "bench", "plan", *sys.argv[1:], "--save", str(RESULT)]
        if code := subprocess.run(command, check=False).returncode:
            return code
    block = re.compile(rf"(?<=<!-- figures {re.escape(SOURCE)} -->\n).*?(?=<!-- end -->)", re.DOTALL)
    PAGE.write_text(block.sub(lambda _: "\n".join(lines(json.loads(RESULT.read_text()))), PAGE.read_text()))
    return 0


def lines(figures: Mapping[str, Any]) -> list[str]:
    """The table: a row a round, and what it comes to."""
    machine = figures["machine"]
    told = ["", f"{figures['attempts']} attempts of {figures['tasks']} tasks by `{figures['agent']}`, "
                f"{figures['concurrency']} at a time, foretold by a pilot of {figures['pilot']}:", "",
            "| foretold | 9 of 10 | took | off by |", "|---:|---:|---:|---:|"]
    told += [f"| {one['foretold_p50_s']:.1f} s | {one['foretold_p90_s']:.1f} s | {one['took_s']:.1f} s | "
             f"{100 * one['off']:+.1f} % |" for one in figures["samples"]]
    where = f"{machine['cores']} cores, kernel {machine['kernel']}, Python {machine['python']}"
    off = f"off by {figures['off_percent']:.1f} % at the median; the aim is {100 * figures['aim']:.0f} %"
    return [*told, "", f"- {off}", f"- commit {figures['commit']}, {figures['at'][:10]}, {where}", "", ""]


if __name__ == "__main__":
    sys.exit(main())
