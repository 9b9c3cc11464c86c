"""A Python that has TRL and this package, for tests against the real one."""

from __future__ import annotations

from pathlib import Path

from kit import ROOT
from otherpython import python_with

NEEDS = ("torch==2.13.0", "trl==1.16.0", "datasets>=5,<6")


def python_with_trl(folder: Path) -> Path:
    """It is made in ``folder``, or that which WOODSHED_TEST_TRL names. Skips where the packages cannot be had."""
    return python_with(folder, *NEEDS, "-e", f"{ROOT}[trl]", variable="WOODSHED_TEST_TRL")
