"""The overhead of a run over bare work, as `woodshed bench run` measures it; figures go to benchmarks/results/.

usage: python benchmarks/run_overhead.py NAME TASKS... [-- options of woodshed bench run]
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


def main() -> int:
    """Measure, and write ``results/NAME.json``."""
    if len(sys.argv) < 3:
        sys.stderr.write(__doc__ or "")
        return 2
    name, rest = sys.argv[1], [argument for argument in sys.argv[2:] if argument != "--"]
    save = str(RESULTS / f"{name}.json")
    command = [sys.executable, "-m", "woodshed", "bench", "run", *rest, "--save", save]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
