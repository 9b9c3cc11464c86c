"""What a build is given and what it has come to; and what its parts ask of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, Protocol

from woodshed.dockerfile import Dockerfile, Instruction, Stage
from woodshed.model import SandboxPolicy
from woodshed.sandbox.images.container import Image, Shelf, Tell
from woodshed.sandbox.images.crossing import Crossing
from woodshed.sandbox.images.dockerfile.context import Context
from woodshed.sandbox.images.dockerfile.steps import Place
from woodshed.sandbox.images.layers import Layers
from woodshed.sandbox.images.oci import Config, Source

BUILD_TIMEOUT_S = 3600.0
"""Of one RUN."""


class Bases(Protocol):
    """Where images come from, and where they and their layers are kept."""

    layers: Layers
    shelf: Shelf
    crossing: Crossing | None

    def get(self, image: str, tell: Tell | None = None) -> Image:
        """The image of that name."""

    def take_in(self, source: Source, tell: Tell | None = None) -> Image:
        """The image of ``source``."""


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be built, and how."""

    file: Path
    context: Path
    target: str | None = None
    arguments: Mapping[str, str] = field(default_factory=dict)
    policy: SandboxPolicy = field(default_factory=SandboxPolicy)
    timeout_s: float = BUILD_TIMEOUT_S


@dataclass(slots=True)
class State:
    """A stage as far as it has come. ``layers`` are topmost first; ``arguments`` what ARG has declared in it."""

    layers: tuple[str, ...]
    config: Config
    arguments: dict[str, str] = field(default_factory=dict)
    own_cmd: bool = False

    @property
    def variables(self) -> dict[str, str]:
        """For expansion: ENV wins over ARG."""
        return {**self.arguments, **self.config.env}


class Site(Protocol):
    """A build, as its parts see it."""

    parsed: Dockerfile
    context: Context

    def refuse(self, line: int, message: str, remedy: str | None = None, *, beyond: bool = False) -> NoReturn:
        """Raise the UsageError that names file and line."""

    def fill(self, state: State, step: Instruction, text: str) -> str:
        """``text`` with its variables put in."""

    def source(self, name: str, stage: Stage, line: int) -> Image:
        """What ``--from`` names: a stage before this one, or an image."""

    def key(self, what: str, layers: tuple[str, ...], *parts: object) -> str:
        """The name of a step's layer."""

    def layer(self, name: str, make: Callable[[Path, Crossing], None]) -> str:
        """The layer ``name`` of the store; ``make`` fills a directory where it is not there."""

    def place(self, layers: tuple[str, ...], config: Config, workdir: str = "/") -> Place:
        """Where a step acts: a sandbox of these layers."""
