"""Times a command many times over, in a process of its own that is small and does nothing else.

usage: python -I -S timed.py JOB     JOB is JSON; prints the milliseconds of each run, one a line

``argv`` is the command and ``count`` how often; ``fresh`` names a directory that is made with ``u`` and ``w`` before
each run and removed after it, inside the measured time; ``errors`` a file for what the command complains about.
A run that exits with anything but 0 ends everything with exit code 1.
"""
# ruff: noqa: PTH102, PTH103, PTH123
# (Standard library alone, and no pathlib: what this process weighs is paid by every command it starts.)

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from typing import Any


def main(job: dict[str, Any]) -> int:
    """Run ``job``; the exit code."""
    argv, fresh = job["argv"], job.get("fresh")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
        (os.POSIX_SPAWN_OPEN, 2, job["errors"], flags, 0o600),
    ]
    for _ in range(job["count"]):
        began = time.perf_counter()
        if fresh:
            os.makedirs(fresh + "/u")
            os.mkdir(fresh + "/w")
        pid = os.posix_spawnp(argv[0], argv, os.environ, file_actions=actions)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if fresh:
            shutil.rmtree(fresh)
        took = time.perf_counter() - began
        if code:
            with open(job["errors"], errors="replace") as file:
                sys.stderr.write(f"{argv[0]} ended with {code}: {file.read()[-500:].strip()}\n")
            return 1
        sys.stdout.write(f"{1000 * took:.4f}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
