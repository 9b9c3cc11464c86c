"""One writer of task folders, for importers and exporters: ordinary Harbor folders that Harbor itself can run."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import Field

from woodshed.errors import UsageError
from woodshed.model import Framework, Record, Task
from woodshed.tasks import toml
from woodshed.tasks.declare import WORKDIR
from woodshed.tasks.load import AGENT_TIMEOUT_S, load_task
from woodshed.tasks.probes import ProbeTable

LISTED = 20
"""More expected tests than these stand in a file of their own."""
_LIST = "expected_tests.txt"
_BASE = "python:3.12-slim"
_NODE_BASE = "node:22-slim"


class Draft(Record):
    """A task before it is a folder. Files are contents by relative path; ``*.sh`` and ``#!`` files become executable.

    ``tests`` needs test.sh (:mod:`woodshed.tasks.runners` makes it) and ``solution``, where there is one, solve.sh.
    """

    instruction: str
    workspace: dict[str, bytes] = {}
    tree: Path | None = Field(default=None, description="a folder whose files, modes and links are the workspace's too")
    tests: dict[str, bytes]
    solution: dict[str, bytes] = {}
    framework: Framework | None = None
    expected_tests: tuple[str, ...] = ()
    rewards: dict[str, tuple[str, ...]] = {}
    probes: dict[str, ProbeTable] = Field(default={}, description="by name; their files are among tests")
    protected: tuple[str, ...] = ()
    capture: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()
    image: str = "host"
    workdir: str = WORKDIR
    limits: dict[str, int | float] = {}
    env: dict[str, str] = {}
    verifier_env: dict[str, str] = {}
    solution_env: dict[str, str] = {}
    agent_timeout_s: float = Field(default=AGENT_TIMEOUT_S, gt=0)
    verifier_timeout_s: float = Field(default=600.0, gt=0)
    name: str | None = Field(default=None, description="[task] name; None: the folder's name")
    description: str = ""
    source: str | None = None
    metadata: dict[str, Any] = {}


def write_task(folder: Path, draft: Draft) -> Task:
    """``folder``, which must not exist or be empty, holds ``draft``; the Task it loads as.

    Raises UsageError for a path that is not below its part, and for whatever the loader refuses.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError("exists already", file=folder, remedy="Choose a new folder, or remove this one.")
    files = {
        "task.toml": toml.dumps(_table(draft)).encode(),
        "instruction.md": draft.instruction.encode(),
        "environment/Dockerfile": _dockerfile(draft).encode(),
    }
    if len(draft.expected_tests) > LISTED:
        files[_LIST] = "".join(f"{test}\n" for test in draft.expected_tests).encode()
    for part, contents in (("environment/workspace", draft.workspace), ("tests", draft.tests),
                           ("solution", draft.solution)):
        files |= {f"{part}/{_relative(path, folder / part)}": content for path, content in contents.items()}
    (folder / "environment" / "workspace").mkdir(parents=True)  # the Dockerfile copies it, even when it is empty
    if draft.tree is not None:
        shutil.copytree(draft.tree, folder / "environment" / "workspace", symlinks=True, dirs_exist_ok=True)
    for path, content in files.items():
        _write(folder / path, content)
    return load_task(folder)


def _write(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    file.chmod(0o755 if file.suffix == ".sh" or content.startswith(b"#!") else 0o644)


def _relative(path: str, part: Path) -> str:
    pure = PurePosixPath(path)
    if pure.is_absolute() or not pure.parts or ".." in pure.parts or "\0" in path or str(pure) != path:
        raise UsageError(f"{path!r} is no plain relative path", file=part, remedy="Name each file below its folder.")
    return path


def _table(draft: Draft) -> dict[str, Any]:
    """task.toml as plain values. What has its default is left out, but for the timeouts."""
    many = len(draft.expected_tests) > LISTED
    ours: dict[str, Any] = {
        "image": draft.image,
        "framework": draft.framework.value if draft.framework else None,
        "requirements": list(draft.requirements),
        "protected": list(draft.protected),
        "expected_tests": _LIST if many else list(draft.expected_tests),
        "capture": list(draft.capture),
        "rewards": {name: list(ids) for name, ids in draft.rewards.items()},
        "limits": dict(draft.limits),
        "probes": {name: probe.model_dump(exclude_defaults=True) for name, probe in draft.probes.items()},
    }
    package = {"name": draft.name, "description": draft.description} if draft.name else {}
    table: dict[str, Any] = {
        "schema_version": "1.4",
        "source": draft.source,
        "task": package,
        "metadata": draft.metadata,
        "agent": {"timeout_sec": draft.agent_timeout_s},
        "verifier": {"timeout_sec": draft.verifier_timeout_s, "env": draft.verifier_env},
        "environment": {"network_mode": "no-network", "workdir": draft.workdir, "env": draft.env},
        "solution": {"env": draft.solution_env},
        "woodshed": _kept(ours),
    }
    return _kept({key: _kept(value) if isinstance(value, dict) and key != "metadata" else value
                  for key, value in table.items()})


def _kept(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if value not in (None, [], {}, "")}


def _dockerfile(draft: Draft) -> str:
    return docker_lines(draft.framework, draft.requirements, draft.workdir)


def docker_lines(
    framework: Framework | None, requirements: Sequence[str], workdir: str, *, base: str | None = None,
    files: bool = True,
) -> str:
    """What Harbor builds: the same start upon ``base``, with the test tools and requirements installed."""
    place = f"WORKDIR {workdir}\n" + (f"COPY workspace/ {workdir}/\n" if files else "")
    if framework is Framework.NODE:
        return f"FROM {base or _NODE_BASE}\n{place}"
    packages = [*(["pytest"] if framework is Framework.PYTEST else []), *requirements]
    install = f"RUN pip install --no-cache-dir {shlex.join(packages)}\n" if packages else ""
    return f"FROM {base or _BASE}\n{install}{place}"
