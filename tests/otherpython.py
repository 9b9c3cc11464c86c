"""A Python of its own with packages that ours is without: made by venv and pip, or named by a variable."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def python_with(folder: Path, *needs: str | Path, variable: str | None = None) -> Path:
    """A Python in ``folder`` that has ``needs`` (words for pip), or the one that ``variable`` of the environment names.

    Skips the test where the packages cannot be had.
    """
    if variable is not None and (given := os.environ.get(variable)):
        return Path(given)
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    done = subprocess.run([folder / "bin" / "pip", "install", "-q", *needs], capture_output=True, text=True,
                          check=False)
    if done.returncode:
        named = f" (or {variable}, naming such a Python)" if variable else ""
        asked = ", ".join(map(str, needs))
        pytest.skip(f"needs the packages {asked}{named}: pip failed ({done.stderr.strip()[-200:]})")
    return folder / "bin" / "python"
