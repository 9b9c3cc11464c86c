"""Building a wheel of a source distribution: only ever inside a sandbox."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.utils import InvalidWheelFilename, parse_sdist_filename, parse_wheel_filename

from woodshed import pypi
from woodshed.errors import EnvironmentFault, ImageFault, UsageError
from woodshed.interfaces import SandboxEngine
from woodshed.model import EnvironmentSpec, SandboxPolicy, Upload
from woodshed.sandbox.images.requirement import parse
from woodshed.sandbox.images.tree import EPOCH_S

_OUT = "/build/wheels"
_DEFAULT_TOOLS = ["setuptools>=40.8.0"]
_LARGEST_TABLE = 1 << 20


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
    max_bytes: int = 500_000_000


@dataclass(frozen=True, slots=True)
class BuildResult:
    """How the command ended, and the end of what it printed."""

    exit_code: int
    output: str


Builder = Callable[[BuildJob], BuildResult]
"""Blocking; called from a thread that is not the event loop's. Raises EnvironmentFault when the sandbox failed."""


async def run_build(engine: SandboxEngine, job: BuildJob) -> BuildResult:
    """Do ``job`` in a sandbox of ``engine``: what a Builder needs, once it has crossed to the event loop's thread.

    Raises EnvironmentFault when the sandbox failed or the outcome is larger than allowed.
    """
    sandbox = await engine.create(job.spec, SandboxPolicy(limits=job.spec.limits))
    try:
        done = await sandbox.exec(job.command, env=job.env, timeout_s=job.timeout_s)
        output = (done.stdout + done.stderr).decode(errors="replace")
        if done.timed_out:
            return BuildResult(124, f"{output}\nstopped after {job.timeout_s:.0f} s")
        left = job.max_bytes
        for entry in await sandbox.list(job.collect) if done.exit_code == 0 else ():
            if entry.kind != "file" or "/" in entry.name:
                continue
            if (left := left - entry.size) < 0:
                raise EnvironmentFault(f"the build made more than {job.max_bytes} bytes")
            content = await sandbox.read(f"{job.collect}/{entry.name}", max_bytes=entry.size + 1)
            (job.into / entry.name).write_bytes(content)
        return BuildResult(done.exit_code, output)
    finally:
        await sandbox.close()


def build_wheel(
    requirement: str, python: str, build: Builder, prepare: Callable[[tuple[str, ...]], None], scratch: Path
) -> Path:
    """The wheel built of the source distribution that answers ``requirement`` for ``python`` (``3.11.7``).

    ``prepare`` makes the layer of the tools that the source asks for, before any sandbox opens. Raises ImageFault
    naming the requirement, EnvironmentFault for trouble with the index or the sandbox.
    """
    try:
        source = pypi.fetch(requirement, scratch / "source", kind="sdist", python=python)
        tools = _tools(source)
        prepare(tools)
    except (UsageError, ImageFault) as error:
        raise ImageFault(f"requirement {requirement!r}: no wheel, and none can be built: {error}") from error
    into = scratch / "wheels"
    into.mkdir()
    spec = EnvironmentSpec(requirements=tools, workdir="/build",
                           uploads=(Upload(source=source, target=f"/build/{source.name}"),))
    command = ("/opt/venv/bin/python", "-m", "pip", "wheel", "--no-index", "--no-deps", "--no-build-isolation",
               "--no-cache-dir", "--wheel-dir", _OUT, f"/build/{source.name}")
    result = build(BuildJob(spec, command, _OUT, into, {"SOURCE_DATE_EPOCH": str(EPOCH_S)}))
    if result.exit_code != 0:
        raise ImageFault(f"requirement {requirement!r}: building {source.name} ended with {result.exit_code}:\n"
                         f"{result.output[-2000:].strip()}")
    return _made(requirement, source, into)


def _made(requirement: str, source: Path, into: Path) -> Path:
    """The one wheel in ``into``, of the name and version of ``source``: its build is hostile code."""
    name, version = parse_sdist_filename(source.name)
    for path in sorted(into.iterdir()):
        try:
            found, made, _, _ = parse_wheel_filename(path.name)
        except InvalidWheelFilename:
            continue
        if found == name and made.public == version.public and path.is_file() and not path.is_symlink():
            return path
    raise ImageFault(f"requirement {requirement!r}: building {source.name} made no wheel of that name and version")


def _tools(source: Path) -> tuple[str, ...]:
    """What the source asks for to be built (PEP 518); setuptools where it says nothing, as pip assumes."""
    table: dict[str, Any] = {}
    with pypi.open_archive(source) as members:
        for member, content in members:
            if member.kind == "file" and re.fullmatch(r"[^/]+/pyproject\.toml", member.path):
                table = _toml(source, content.read(_LARGEST_TABLE)).get("build-system", {})
    wanted = table.get("requires", _DEFAULT_TOOLS) if isinstance(table, dict) else _DEFAULT_TOOLS
    if not isinstance(wanted, list) or not all(isinstance(text, str) for text in wanted):
        raise UsageError("is not a list of requirements", file=source, field="build-system.requires")
    tools = parse(wanted, field="build-system.requires")
    # setuptools before 70.1 needs it to make wheels, and hardly any source says so.
    return parse([*tools, "wheel"]) if any(text.startswith("setuptools") for text in tools) else tools


def _toml(source: Path, data: bytes) -> dict[str, Any]:
    try:
        return tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"is no TOML ({error})", file=source, field="pyproject.toml") from None
