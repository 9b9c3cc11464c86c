"""python3 -m deploycheck deploy.json"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from deploycheck import validate


def main(path: str) -> int:
    try:
        config = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        print(f"{path}: {error}", file=sys.stderr)
        return 2
    problems = validate(config)
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
