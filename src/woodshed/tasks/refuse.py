"""What Harbor allows and Woodshed does not run is refused by name, with the remedy; nothing is ignored silently."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from woodshed.errors import UsageError
from woodshed.settings import setting
from woodshed.tasks.schema import (
    AgentTable,
    ArtifactTable,
    EnvironmentTable,
    NetworkMode,
    StepTable,
    TaskFile,
    VerifierTable,
)

_COMPOSE = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml")
_CANNOT = "Woodshed cannot run this task."
_GIVEN = "a task cannot give itself a network"
_LEND = ('Lend tasks the hosts they declare, WOODSHED_TASK_NETWORK=declared, or write network = "none" under '
         "[woodshed] if it can be judged offline (docs/network.md).")


class Refusal(NamedTuple):
    """One thing that is not supported. ``file`` is relative to the task folder."""

    field: str | None
    message: str
    remedy: str = _CANNOT
    file: str = "task.toml"


def refuse_unsupported(config: TaskFile, folder: Path) -> None:
    """Nothing in ``config`` or ``folder`` asks for what is not there. Raises UsageError naming file, field, remedy."""
    for refusal in _refusals(config, folder):
        raise UsageError(refusal.message, file=folder / refusal.file, field=refusal.field, remedy=refusal.remedy)


def _refusals(config: TaskFile, folder: Path) -> Iterator[Refusal]:
    yield from _steps(config, folder)
    yield from _environment("environment", config.environment)
    verifiers = [("verifier", config.verifier),
                 *((f"steps.{index}.verifier", step.verifier) for index, step in enumerate(config.steps or ()))]
    for name, verifier in verifiers:
        if verifier.environment is not None:
            yield from _environment(f"{name}.environment", verifier.environment)
    yield from _network(config)
    artifacts = [("artifacts", config.artifacts),
                 *((f"steps.{index}.artifacts", step.artifacts) for index, step in enumerate(config.steps or ()))]
    for name, rows in artifacts:
        for index, artifact in enumerate(rows):
            if isinstance(artifact, ArtifactTable) and artifact.service not in (None, "main"):
                yield Refusal(f"{name}.{index}.service",
                              f"services beside the main one are not supported ({artifact.service})")
    yield from _files(folder)


def _steps(config: TaskFile, folder: Path) -> Iterator[Refusal]:
    if config.steps:
        if config.woodshed.probes:
            yield Refusal("woodshed.probes", "nothing says after which step",
                          f"Write them under the steps: [woodshed.steps.{config.steps[-1].name}.probes.NAME].")
        return
    if config.steps is not None:
        yield Refusal("steps", "a list of no steps", "Remove it, or name the steps.")
    if config.multi_step_reward_strategy is not None:
        yield Refusal("multi_step_reward_strategy", "a task without steps", "Remove it, or name the steps.")
    if (folder / "steps").exists():
        yield Refusal(None, "a folder of steps, and task.toml names none", "Name them in [[steps]].", file="steps")


def _environment(name: str, table: EnvironmentTable) -> Iterator[Refusal]:
    if table.os != "linux":
        yield Refusal(f"{name}.os", f"{table.os} is not supported, only linux")
    if table.gpus:
        yield Refusal(f"{name}.gpus", "GPUs are not supported", "Set it to 0 if the task works without.")
    if table.gpu_types:
        yield Refusal(f"{name}.gpu_types", "GPUs are not supported", "Remove it if the task works without.")
    if table.tpu is not None:
        yield Refusal(f"{name}.tpu", "TPUs are not supported")
    if table.mcp_servers:
        yield Refusal(f"{name}.mcp_servers", "MCP servers are not supported")
    if table.skills_dir is not None:
        yield Refusal(f"{name}.skills_dir", "skills are not supported", "Remove it if the task works without.")


def _network(config: TaskFile) -> Iterator[Refusal]:
    """A network that the operator does not lend to tasks, by whichever table asks for one."""
    if config.woodshed.network == "none" or setting("task_network") == "declared":
        return
    if config.environment.allow_internet:
        yield Refusal("environment.allow_internet", _GIVEN, _LEND)
    tables: list[tuple[str, EnvironmentTable | AgentTable | VerifierTable]] = [("environment", config.environment)]
    holders: list[tuple[str, TaskFile | StepTable]] = [("", config)]
    holders += [(f"steps.{index}.", step) for index, step in enumerate(config.steps or ())]
    for name, holder in holders:
        tables += [(f"{name}agent", holder.agent), (f"{name}verifier", holder.verifier)]
        if (own := holder.verifier.environment) is not None:
            tables.append((f"{name}verifier.environment", own))
    for where, table in tables:
        if table.network_mode not in (None, NetworkMode.NONE):
            yield Refusal(f"{where}.network_mode", f"{_GIVEN} ({table.network_mode})", _LEND)


def _files(folder: Path) -> Iterator[Refusal]:
    for part in ("environment", "tests", "steps/*/tests"):
        for name in _COMPOSE:
            for found in sorted(folder.glob(f"{part}/{name}")):
                yield Refusal(None, "tasks of several services (compose) are not supported",
                              file=found.relative_to(folder).as_posix())
    if (folder / "trajectory.json").exists():
        yield Refusal(None, "starting from a recorded trajectory is not supported",
                      "Remove it if the task stands without.", file="trajectory.json")
