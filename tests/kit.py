"""Runs the real command line in a process of its own, and looks at what it left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples" / "tasks"


def woodshed(
    *arguments: str | Path,
    home: Path,
    env: Mapping[str, str] | None = None,
    prefix: Sequence[str] = (),
    timeout: float = 600,
) -> subprocess.CompletedProcess[str]:
    """The finished command. ``timeout`` guards the suite against a hang; it is no claim about speed."""
    return subprocess.run(
        [*prefix, sys.executable, "-m", "woodshed", *map(str, arguments)],
        env={**os.environ, "WOODSHED_HOME": str(home), "NO_COLOR": "1", "COLUMNS": "200", **(env or {})},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def run_json(*arguments: str | Path, home: Path, **options: Any) -> dict[str, Any]:
    """The one object that ``woodshed run --json`` ends with."""
    done = woodshed("run", *arguments, "--json", home=home, **options)
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def agent_row(summary: Mapping[str, Any], agent: str) -> dict[str, Any]:
    """The summary's row of one agent."""
    row: dict[str, Any] = next(row for row in summary["agents"] if row["agent"] == agent)
    return row


def leftovers(home: Path) -> list[str]:
    """Everything of a finished process that should not be there: processes, mounts, cgroups, directories."""
    found = _leftovers(home)
    if any(line.startswith("an orphaned process") for line in found):
        time.sleep(2)  # tests beside this one kill engines, whose boxes take a moment to follow
        return [line for line in _leftovers(home) if line in found]
    return found


def _leftovers(home: Path) -> list[str]:
    found = [f"directory {path}" for path in (home / "sandboxes").glob("*/*") if path.is_dir()]
    found += [f"mount {line.split()[1]}" for line in Path("/proc/mounts").read_text().splitlines() if str(home) in line]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if int(process.name) != os.getpid() and str(home).encode() in (process / "environ").read_bytes():
                found.append(f"process {process.name} {(process / 'cmdline').read_bytes()!r}")
            # Sandboxes hide their environment; a live one always has a live fork server, and that a live engine.
            name, _, fields = (process / "stat").read_text().partition("(")[2].rpartition(")")
            if name == "woodshed-box" and fields.split()[:2] != ["Z", "1"] and fields.split()[1] == "1":
                found.append(f"an orphaned process of a sandbox, {process.name}")
        except OSError:
            continue
    found += [f"cgroup {path}" for path in Path("/sys/fs/cgroup").glob("**/*woodshed*") if _names(path, home)]
    return found


def _names(cgroup: Path, home: Path) -> bool:
    instances = {path.name for path in (home / "sandboxes").glob("*")}
    return any(instance in str(cgroup) for instance in instances)
