"""What Harbor allows and Woodshed does not run yet is refused by name, with the remedy; nothing is ignored silently."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from woodshed.errors import UsageError
from woodshed.tasks.schema import AgentTable, ArtifactTable, EnvironmentTable, NetworkMode, TaskFile, VerifierTable

_COMPOSE = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml")
_LATER = "Woodshed 0.1 cannot run this task"
_NETWORK = "a task cannot give itself a network"
_OFFLINE = ('Write network = "none" under [woodshed] if it can be judged offline; its agents get hosts from '
            "woodshed run --policy (docs/network.md).")


class Refusal(NamedTuple):
    """One thing that is not supported. ``file`` is relative to the task folder."""

    field: str | None
    message: str
    remedy: str = _LATER + "."
    file: str = "task.toml"


def refuse_unsupported(config: TaskFile, folder: Path) -> None:
    """Nothing in ``config`` or ``folder`` asks for what 0.1 lacks. Raises UsageError naming file, field, remedy."""
    for refusal in _refusals(config, folder):
        raise UsageError(refusal.message, file=folder / refusal.file, field=refusal.field, remedy=refusal.remedy)


def _refusals(config: TaskFile, folder: Path) -> Iterator[Refusal]:
    yield from _steps(config, folder)
    yield from _environment(config.environment)
    yield from _network(config)
    for name, table in (("agent", config.agent), ("verifier", config.verifier)):
        yield from _user(name, table)
    if config.verifier.environment is not None:
        yield Refusal("verifier.environment", "a verifier with its own environment is not supported",
                      "Remove it: verification always runs in a fresh copy of [environment].")
    if config.verifier.collect:
        yield Refusal("verifier.collect", "commands that collect live state are not supported",
                      "Let the task leave files to be judged instead of running processes.")
    for index, artifact in enumerate(config.artifacts):
        if isinstance(artifact, ArtifactTable):
            yield from _artifact(f"artifacts.{index}", artifact)
    yield from _files(folder)


def _steps(config: TaskFile, folder: Path) -> Iterator[Refusal]:
    message = "multi-step tasks are recognised but not run yet"
    if config.steps is not None:
        yield Refusal("steps", message)
    if config.multi_step_reward_strategy is not None:
        yield Refusal("multi_step_reward_strategy", message, "Remove it from a task of one step.")
    if (folder / "steps").exists():
        yield Refusal(None, message, file="steps")


def _environment(table: EnvironmentTable) -> Iterator[Refusal]:
    if table.os != "linux":
        yield Refusal("environment.os", f"{table.os} is not supported, only linux")
    if table.gpus:
        yield Refusal("environment.gpus", "GPUs are not supported", "Set it to 0 if the task works without.")
    if table.gpu_types:
        yield Refusal("environment.gpu_types", "GPUs are not supported", "Remove it if the task works without.")
    if table.tpu is not None:
        yield Refusal("environment.tpu", "TPUs are not supported")
    if table.mcp_servers:
        yield Refusal("environment.mcp_servers", "MCP servers are not supported")
    if table.healthcheck is not None:
        yield Refusal("environment.healthcheck", "health checks are not supported: tasks with live services cannot run",
                      "Remove it if the task works on files alone.")
    if table.skills_dir is not None:
        yield Refusal("environment.skills_dir", "skills are not supported", "Remove it if the task works without.")


def _network(config: TaskFile) -> Iterator[Refusal]:
    if config.woodshed.network == "none":
        return
    if config.environment.allow_internet:
        yield Refusal("environment.allow_internet", _NETWORK, _OFFLINE)
    for name, table in (("environment", config.environment), ("agent", config.agent), ("verifier", config.verifier)):
        if table.network_mode not in (None, NetworkMode.NONE):
            yield Refusal(f"{name}.network_mode", f"{_NETWORK} ({table.network_mode})", _OFFLINE)
        if table.allowed_hosts:
            yield Refusal(f"{name}.allowed_hosts", _NETWORK, _OFFLINE)


def _user(name: str, table: AgentTable | VerifierTable) -> Iterator[Refusal]:
    if table.user not in (None, "root", 0, "0"):
        yield Refusal(f"{name}.user", f"only root is supported, not {table.user!r}",
                      "Remove it: the sandbox's root has no rights on the host.")


def _artifact(field: str, artifact: ArtifactTable) -> Iterator[Refusal]:
    if artifact.service not in (None, "main"):
        yield Refusal(f"{field}.service", f"services beside the main one are not supported ({artifact.service})")
    if artifact.destination is not None:
        yield Refusal(f"{field}.destination", "a destination is not supported", "Remove it: what changed is kept.")
    if artifact.exclude:
        yield Refusal(f"{field}.exclude", "patterns to exclude are not supported", "Name the parts to keep instead.")


def _files(folder: Path) -> Iterator[Refusal]:
    for name in _COMPOSE:
        if (folder / "environment" / name).exists():
            yield Refusal(None, "tasks of several services (compose) are not supported", file=f"environment/{name}")
    if (folder / "trajectory.json").exists():
        yield Refusal(None, "starting from a recorded trajectory is not supported",
                      "Remove it if the task stands without.", file="trajectory.json")
