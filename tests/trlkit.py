"""A Python that has TRL and this package, for tests against the real one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kit import ROOT

NEEDS = ("torch==2.13.0", "trl==1.16.0", "datasets>=5,<6")


def python_with_trl(folder: Path) -> Path:
    """It is made in ``folder``, or that which WOODSHED_TEST_TRL names. Skips where the packages cannot be had."""
    if given := os.environ.get("WOODSHED_TEST_TRL"):
        return Path(given)
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    done = subprocess.run([folder / "bin" / "pip", "install", "-q", *NEEDS, "-e", ROOT], capture_output=True, text=True,
                          check=False)
    if done.returncode:
        pytest.skip(f"needs the packages {', '.join(NEEDS)}: pip failed ({done.stderr.strip()[-200:]})")
    return folder / "bin" / "python"
