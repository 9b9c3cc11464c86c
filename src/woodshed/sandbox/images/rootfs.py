"""A prepared root file system: everything an engine mounts, and the digest that names it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from woodshed.sandbox.images.account import Account


@dataclass(frozen=True, slots=True)
class Bind:
    """A host directory that stands read-only, nosuid and nodev at ``target``, over the overlay."""

    source: Path
    target: str


@dataclass(frozen=True, slots=True)
class Rootfs:
    """What a sandbox starts from. Nothing in it may be written to; changes go to the engine's own upper directory.

    ``digest`` is ``sha256:`` and hex, and covers every lower layer and the identity of what is bound. ``lowers`` are
    overlay lower directories, topmost first. ``env`` is the image's own environment: an EnvironmentSpec adds to it.
    ``shell`` is ``/bin/bash`` where there is one, else ``/bin/sh``. ``workdir`` is where a sandbox works whose task
    does not say otherwise. ``account`` is who commands are by USER of the image or of the task; None where that is
    root. ``own_tmp``: /tmp and /run are the image's, on disk, for images have files there. ``building``: it is for a
    step of a Dockerfile.
    """

    digest: str
    lowers: tuple[Path, ...]
    binds: tuple[Bind, ...]
    env: Mapping[str, str]
    shell: str
    workdir: str = "/workspace"
    account: Account | None = None
    own_tmp: bool = False
    building: bool = False
