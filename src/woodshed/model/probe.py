"""Probe: one question to the program under test, and its answer. What is expected never enters a sandbox."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from woodshed.model.record import Record

PREFIX = "probe::"
"""Of the names that probes have among a verdict's tests."""


class Probe(Record):
    """Run ``argv`` in the workdir and compare. Files (``*_file``, values of dicts) are the host's, below tests/.

    ``inputs`` are put at their path (absolute, in the sandbox) before the run; ``files`` must stand at theirs after it,
    byte for byte. ``match`` is how standard output is compared: ``exact``; ``lines`` (blanks at ends of lines and
    empty lines at the end do not count); ``json`` (equal values). None of ``stdout``: it is not looked at.
    """

    name: str
    argv: tuple[str, ...]
    stdin: str | None = None
    stdin_file: Path | None = None
    inputs: dict[str, Path] = {}
    stdout: str | None = None
    stdout_file: Path | None = None
    match: Literal["exact", "lines", "json"] = "exact"
    files: dict[str, Path] = {}
    exit_code: int = Field(default=0, ge=0, le=255)
    timeout_s: float = Field(default=10.0, gt=0)

    @property
    def id(self) -> str:
        """Its name among a verdict's tests."""
        return PREFIX + self.name
