"""What sandboxes cost, as `woodshed bench sandbox` measures it; figures go to benchmarks/results/.

usage: python benchmarks/run_sandbox.py NAME [options of woodshed bench sandbox]
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


def main() -> int:
    """Measure, and write ``results/NAME.json``."""
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.stderr.write(__doc__ or "")
        return 2
    name, rest = sys.argv[1], sys.argv[2:]
    save = str(RESULTS / f"{name}.json")
    command = [sys.executable, "-m", "woodshed", "bench", "sandbox", *rest, "--save", save]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
