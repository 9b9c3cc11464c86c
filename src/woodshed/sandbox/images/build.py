"""Building a wheel of a source distribution: only ever inside a sandbox."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from woodshed.model import EnvironmentSpec


@dataclass(frozen=True, slots=True)
class BuildJob:
    """A command to run to its end in a fresh sandbox of ``spec`` without network.

    Afterwards the regular files directly in ``collect`` (a directory of the sandbox) are copied into the host folder
    ``into``, by descriptor from inside, no more than ``max_bytes`` together.
    """

    spec: EnvironmentSpec
    command: tuple[str, ...]
    collect: str
    into: Path
    env: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float = 1800.0
    max_bytes: int = 2_000_000_000


@dataclass(frozen=True, slots=True)
class BuildResult:
    """How the command ended, and the end of what it printed."""

    exit_code: int
    output: str


Builder = Callable[[BuildJob], BuildResult]
"""Blocking; called from a thread that is not the event loop's. Raises EnvironmentFault when the sandbox failed."""


def build_wheel(
    requirement: str, python: str, build: Builder, prepare: Callable[[tuple[str, ...]], None], scratch: Path
) -> Path:
    """The wheel built of the source distribution that answers ``requirement``. Raises ImageFault."""
    raise NotImplementedError
