"""A foreign command, timed many times over by a small process of its own: what Python weighs is paid by nobody."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence
from importlib.resources import as_file, files
from pathlib import Path

from woodshed.services.benching.subject import Burst, Missing

_HANGS_AFTER_S = 120.0
_TAIL_CHARS = 400


class External:
    """Runs commands below ``scratch``; ``prefix`` is put before the timing process, and is not measured."""

    def __init__(self, scratch: Path, prefix: Sequence[str] = ()) -> None:
        self.scratch, self._prefix = scratch, tuple(prefix)
        scratch.mkdir(parents=True, exist_ok=True)

    def burst(self, *argv: str | Path, fresh: bool = False) -> Burst:
        """Measures ``argv``. With ``fresh`` each run gets ``scratch/fresh/{u,w}``: making and removal are measured."""

        async def samples(count: int) -> list[float]:
            return await asyncio.to_thread(self.run, argv, count, fresh=fresh)

        return samples

    def run(self, argv: Sequence[str | Path], count: int = 1, *, fresh: bool = False) -> list[float]:
        """Blocking: the milliseconds of ``count`` runs. Raises Missing where one fails or hangs."""
        job = {"argv": [str(word) for word in argv], "count": count, "errors": str(self.scratch / "errors"),
               "fresh": str(self.scratch / "fresh") if fresh else None}
        with as_file(files("woodshed.services.benching") / "timed.py") as timed:
            return told([*self._prefix, sys.executable, "-I", "-S", str(timed), json.dumps(job)])


def told(command: Sequence[str]) -> list[float]:
    """What ``command`` prints, one number a line. Raises Missing with the end of its complaint."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                              timeout=_HANGS_AFTER_S)
    except subprocess.TimeoutExpired:
        raise Missing(f"did not end within {_HANGS_AFTER_S:.0f} s") from None
    except OSError as error:
        raise Missing(str(error)) from error
    if done.returncode:
        raise Missing(f"does not work here: {done.stderr.strip()[-_TAIL_CHARS:] or f'exit code {done.returncode}'}")
    return [float(line) for line in done.stdout.split()]


def version(*command: str) -> str:
    """The first line that ``command`` prints."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return next(iter(done.stdout.splitlines()), command[0]).strip()
