"""What a benchmark has started ends with it, also where it is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from kit import ROOT
from woodshed.services.benching.left import descendants

_STARTS = """
import json, signal, subprocess, sys, time
from woodshed.services.benching.bound import bound
shell = subprocess.Popen(["sh", "-c", "sleep 600 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
inner = int(shell.stdout.readline())
if sys.argv[1] == "bound":
    bound(shell)
print(json.dumps([shell.pid, inner]), flush=True)
time.sleep(600)
"""


def living(pids: list[int]) -> list[int]:
    """Those that are there, and no zombies."""
    found = []
    for pid in pids:
        with suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                found.append(pid)
    return found


@pytest.mark.parametrize("how", ["bound", "free"])
def test_what_a_killed_benchmark_had_started_ends(how: str) -> None:
    """A shell and what it started are gone once their starter is killed; left free they stay."""
    with subprocess.Popen([sys.executable, "-c", _STARTS, how], stdout=subprocess.PIPE, text=True,
                          env={**os.environ, "PYTHONPATH": str(ROOT / "src")}) as starter:
        assert starter.stdout is not None
        pids = json.loads(starter.stdout.readline())
        assert living(pids) == pids
        starter.kill()
    try:
        if how == "bound":
            while living(pids):
                time.sleep(0.01)
        else:
            assert living(pids) == pids
    finally:
        for pid in living(pids):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
def test_a_killed_thousand_leaves_no_process(tmp_path: Path) -> None:
    """Its workers, and all that they have started, are gone."""
    command = [sys.executable, "-m", "woodshed", "bench", "thousand", "--kills", "0"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                          env={**os.environ, "WOODSHED_HOME": str(tmp_path)}) as bench:
        while len(found := descendants(bench.pid)) < 6:  # two workers, with their fork servers
            assert bench.poll() is None
            time.sleep(0.05)
        bench.kill()
    while living(list(found)):
        time.sleep(0.05)
