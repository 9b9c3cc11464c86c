"""python3 -m reporting 2026-q3 /reports [--data DIR]"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

from reporting.quarter import Quarter, build


def main() -> None:
    parser = argparse.ArgumentParser(prog="reporting", description=__doc__)
    parser.add_argument("quarter", type=Quarter.parse)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path, default=Path("data"))
    arguments = parser.parse_args()
    try:
        report = build(arguments.data, arguments.quarter)
    except (ArithmeticError, KeyError, OSError, ValueError) as error:
        sys.exit(f"reporting: {type(error).__name__}: {error}")
    _land(arguments.out / f"{str(arguments.quarter).lower()}.json", json.dumps(report, indent=2) + "\n")


def _land(path: Path, text: str) -> None:
    """Put the finished file there; the draft is written elsewhere, so that the folder never holds one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        draft = Path(folder) / path.name
        draft.write_text(text, encoding="utf-8")
        shutil.move(draft, path)


if __name__ == "__main__":
    main()
