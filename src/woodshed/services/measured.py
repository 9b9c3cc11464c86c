"""Where a published figure comes from: commit, machine, time, seed; and the one way to publish it."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from woodshed.model.event import now
from woodshed.version import __version__


def stamp(seed: int) -> dict[str, Any]:
    """What makes a figure reproducible: version, commit (None outside a checkout), machine, time, seed."""
    return {
        "version": __version__,
        "commit": _commit(),
        "at": now().isoformat(timespec="seconds"),
        "machine": {
            "system": platform.system(),
            "kernel": platform.release(),
            "architecture": platform.machine(),
            "cores": os.cpu_count(),
            "processor": _processor(),
            "python": platform.python_version(),
            "root": os.geteuid() == 0,
        },
        "seed": seed,
    }


def publish(figures: dict[str, Any], path: Path) -> None:
    """Write the figures to ``path`` as indented JSON, in one piece."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(figures, indent=1) + "\n")
    temporary.replace(path)


def _commit() -> str | None:
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=Path(__file__).parent, capture_output=True, text=True, check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()
