"""A task as a Harbor folder that Harbor can build and judge, and what of it Harbor has no words for.

The folder stays one of ours too: the ``[woodshed]`` table goes along, which Harbor ignores, and the task that is loaded
from it is the same one.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from woodshed.errors import UsageError
from woodshed.model import Task
from woodshed.tasks import toml
from woodshed.tasks.collection import check_place
from woodshed.tasks.load import load_task
from woodshed.tasks.write import docker_lines

_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]*/[a-zA-Z0-9][a-zA-Z0-9._-]*")
_LEFT_OUT = shutil.ignore_patterns("__pycache__")
_WORKSPACE = "environment/workspace"
_OURS = {
    "expected_tests": "no expected test ids and no canary: Harbor believes the reward file of test.sh",
    "rewards": "no named rewards but those that test.sh writes to reward.json",
    "rules": "no reward rules",
    "probes": "no probes",
    "protected": "no protected paths",
    "capture": "no capture: the whole container is judged",
}
_LIMITS = ("pids", "disk_mb", "files", "output_bytes")


@dataclass(frozen=True, slots=True)
class Exported:
    """``folder`` holds the task; ``warnings`` say what Harbor does not hold to or cannot express."""

    task: str
    folder: Path
    warnings: tuple[str, ...]


@dataclass(slots=True)
class _Folder:
    """The export of one task, as it is made."""

    task: Task
    folder: Path
    config: dict[str, Any]
    warnings: list[str] = field(default_factory=list)

    def table(self, *names: str) -> dict[str, Any]:
        """The table of that name, made where there is none."""
        found = self.config
        for name in names:
            found = found.setdefault(name, {})
        return found


def export_harbor(source: Path, to: Path, *, force: bool = False) -> Exported:
    """The task in ``source`` as a Harbor folder ``to``/NAME. Raises UsageError for what is no task, or stands there."""
    task = load_task(source)
    place = to.expanduser().absolute() / task.id.rpartition("/")[2]
    if place == task.folder or place.is_relative_to(task.folder) or task.folder.is_relative_to(place):
        raise UsageError("the task's own folder", file=place, field="--to", remedy="Choose another folder.")
    check_place(place, force)
    place.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
    staging = scratch / place.name
    try:
        shutil.copytree(task.folder, staging, symlinks=True, ignore=_LEFT_OUT)
        (staging / "calibration.json").unlink(missing_ok=True)
        made = _Folder(task, staging, tomllib.loads((staging / "task.toml").read_text("utf-8")))
        for part in (_package, _environment, _network, _world, _verifier):
            part(made)
        (staging / "task.toml").write_text(toml.dumps(_ordered(made.config)), "utf-8")
        load_task(staging)
        if place.exists():
            shutil.rmtree(place)
        staging.replace(place)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return Exported(task.id, place, tuple(made.warnings))


def _ordered(config: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in config.items() if value != {} or name == "metadata"}
    return {"schema_version": "1.4", **{name: value for name, value in kept.items() if name != "version"}}


def _package(made: _Folder) -> None:
    """Harbor's names have an organisation; without one the folder's name is the task's in both."""
    package = made.config.get("task")
    if package is not None and not _NAME.fullmatch(package["name"]):
        del made.config["task"]
        lost = sorted(package.keys() - {"name"})
        made.warnings.append("task.name: no org/name, so that the folder's name takes its place"
                             + (f"; {', '.join(lost)} of [task] left out" if lost else ""))


def _environment(made: _Folder) -> None:
    """Today's spelling, and what Harbor would otherwise take from the image."""
    table, task = made.table("environment"), made.task
    for old, new, value in (("memory", "memory_mb", task.environment.limits.memory_mb),
                            ("storage", "storage_mb", task.environment.limits.disk_mb)):
        if table.pop(old, None) is not None:
            table[new] = value
    table["workdir"] = task.environment.workdir
    if task.verifier.environment is not None and "environment" in made.config.get("verifier", {}):
        made.config["verifier"]["environment"]["workdir"] = task.verifier.environment.workdir
    for name in _LIMITS:
        if name in made.config.get("woodshed", {}).get("limits", {}):
            made.warnings.append(f"woodshed.limits.{name}: Harbor has no such limit")
    for where, env in _variables(made.config):
        for name, value in env.items():
            if isinstance(value, str) and value.startswith("${"):
                made.warnings.append(f"{where}.{name}: Harbor takes the variable of the host wherever it is set")


def _variables(config: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for where in ("environment", "verifier", "solution"):
        yield f"{where}.env", config.get(where, {}).get("env", {})


def _network(made: _Folder) -> None:
    """Said in full: a task that is silent has no network here, and all of it in Harbor."""
    environment = made.table("environment")
    allow = environment.pop("allow_internet", None)
    if made.config.get("woodshed", {}).get("network") == "none":
        environment["network_mode"] = "no-network"
        environment.pop("allowed_hosts", None)
        for table in _phases(made.config):
            table.pop("network_mode", None)
            table.pop("allowed_hosts", None)
    environment.setdefault("network_mode", "public" if allow else "no-network")
    for table in _phases(made.config):
        if (own := table.get("environment")) is not None:
            inherited = own.pop("allow_internet", None)
            own.setdefault("network_mode", "public" if inherited else "no-network")


def _phases(config: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for holder in (config, *config.get("steps", ())):
        yield from (holder[name] for name in ("agent", "verifier") if name in holder)


def _world(made: _Folder) -> None:
    """Something that Harbor can build: its own image's name, the task's Dockerfile, or one made for it."""
    ours, image = made.table("woodshed"), made.task.environment.image
    _move_workspace(made, ours)
    file = made.folder / "environment" / "Dockerfile"
    kind, _, rest = image.partition(":")
    if made.config.get("environment", {}).get("docker_image") and "image" not in ours:
        return
    if kind == "dockerfile" and "image" in ours:
        _bring_context(made, Path(rest), file)
    elif kind in ("dir", "oci", "archive"):
        ours["image"] = _within(made, image)
        made.warnings.append(f"woodshed.image: Harbor cannot use {kind}:, and its Dockerfile starts from a plain image")
    if not file.exists():
        if image == "host":
            ours["image"] = "host"
        base = rest.removeprefix("//") if kind == "docker" else None
        file.parent.mkdir(exist_ok=True)
        spec = made.task.environment
        file.write_text(docker_lines(made.task.verifier.framework, spec.requirements, spec.workdir, base=base,
                                     files=(made.folder / _WORKSPACE).is_dir()))
        named = ours.get("image") or image
        made.warnings.append(f"environment/Dockerfile: made for Harbor; Woodshed goes on using {named}")
    if made.task.environment.requirements and kind not in ("host",):
        made.warnings.append("woodshed.requirements: Harbor installs what the Dockerfile says, and no more")


def _move_workspace(made: _Folder, ours: dict[str, Any]) -> None:
    """The workspace lies where a Dockerfile can copy it from."""
    named = ours.get("workspace")
    if named is None or named.strip("/") == _WORKSPACE:
        return
    target = made.folder / _WORKSPACE
    if target.exists():
        raise UsageError("an environment/workspace that is not the workspace", file=made.task.folder,
                         field="woodshed.workspace", remedy="Remove one of the two.")
    shutil.copytree(made.folder / named, target, symlinks=True)
    shutil.rmtree(made.folder / named)
    ours["workspace"] = _WORKSPACE


def _bring_context(made: _Folder, source: Path, file: Path) -> None:
    """A Dockerfile from elsewhere stands where Harbor looks for it, with the files beside it."""
    if source == made.task.folder / "environment" / "Dockerfile":
        return
    if file.exists():
        raise UsageError("an environment/Dockerfile that is not the image's", file=made.task.folder,
                         field="woodshed.image", remedy="Remove one of the two.")
    shutil.copytree(source.parent, file.parent, symlinks=True, dirs_exist_ok=True)
    if source.name != "Dockerfile":
        (file.parent / source.name).rename(file)
    made.table("woodshed")["image"] = "dockerfile:environment/Dockerfile"


def _within(made: _Folder, image: str) -> str:
    """``image`` with a path below the task's folder written as relative to it, and any other as absolute."""
    kind, _, rest = image.partition(":")
    path = Path(rest)
    return f"{kind}:{path.relative_to(made.task.folder)}" if path.is_relative_to(made.task.folder) else image


def _verifier(made: _Folder) -> None:
    """What makes our verdicts hard to fake has no place in Harbor's."""
    ours = made.table("woodshed")
    for name, says in _OURS.items():
        if ours.get(name):
            made.warnings.append(f"woodshed.{name}: {says}")
    for step in ours.get("steps", {}):
        made.warnings.append(f"woodshed.steps.{step}: Harbor does not read it")
    if made.config.get("verifier", {}).get("environment_mode") is None and made.task.verifier.environment is None:
        made.warnings.append("verifier.environment_mode: Harbor judges in the agent's own container; "
                             'write "separate" with artifacts for a fresh one')
    if made.task.steps and made.task.step_reward == "mean":
        made.warnings.append("multi_step_reward_strategy: Harbor leaves steps that were not reached out of the mean")
