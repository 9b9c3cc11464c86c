"""``[[steps]]``: each a task of its own within the task, with its instruction, tests and reference below steps/NAME."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from woodshed.errors import UsageError
from woodshed.model import TaskStep
from woodshed.tasks.declare import Declared
from woodshed.tasks.folder import check_history, check_part
from woodshed.tasks.schema import AgentTable, StepTable, TaskFile, VerifierTable

Read = Callable[[Path], str]
"""The text of an instruction. Raises UsageError."""

SETUP = "setup.sh"
_NAME = re.compile(r'[^<>:"/\\|?*\x00-\x1f\x7f]{1,200}')
_DEVICE = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[1-9¹²³])", re.IGNORECASE)
_Table = TypeVar("_Table", AgentTable, VerifierTable)


def steps(declared: Declared, instruction: Read, solution: Path | None, timeout_s: float) -> tuple[TaskStep, ...]:
    """The steps that the file of ``declared`` names, in order. ``solution`` is that of steps without their own.

    Raises UsageError for a step that is not whole, and for folders that belong to none.
    """
    tables = declared.config.steps or ()
    _check_names(declared, tables)
    return tuple(_step(declared, index, table, instruction, solution, timeout_s) for index, table in enumerate(tables))


def _check_names(declared: Declared, tables: tuple[StepTable, ...]) -> None:
    seen: set[str] = set()
    for index, table in enumerate(tables):
        field, name = f"steps.{index}.name", table.name
        plain = _NAME.fullmatch(name) and name.strip(" ") and not name.endswith((".", " "))
        if not plain or _DEVICE.fullmatch(name.partition(".")[0].rstrip(" ")):
            declared.fail(field, f"{name[:80]!r} is no name of a folder everywhere", "Use letters, digits and '-'.")
        key = unicodedata.normalize("NFC", name).casefold()
        if key in seen:
            declared.fail(field, f"{name!r} is the name of two steps", "Give each its own.")
        seen.add(key)
    top = declared.folder / "steps"
    for path in sorted(top.iterdir()) if top.is_dir() else ():
        if path.name not in {table.name for table in tables}:
            declared.fail("steps", f"steps/{path.name} belongs to none of them", "Name it in [[steps]], or remove it.")
    for name in sorted(declared.config.woodshed.steps.keys() - {table.name for table in tables}):
        declared.fail(f"woodshed.steps.{name}", "there is no such step", "Name it in [[steps]], or remove it.")


def _step(
    task: Declared, index: int, table: StepTable, instruction: Read, solution: Path | None, timeout_s: float
) -> TaskStep:
    folder, field = task.folder / "steps" / table.name, f"steps.{index}"
    if folder.is_symlink() or not folder.is_dir():
        task.fail(f"{field}.name", f"there is no folder steps/{table.name}", "Add it, with instruction.md and tests/.")
    own = _merged(task, index, table)
    workdir = _part(folder / "workdir")
    if workdir is not None:
        check_history(workdir)
    reference = _part(folder / "solution")
    if reference is not None and not (reference / "solve.sh").is_file():
        task.fail(field, f"steps/{table.name}/solution has no solve.sh", "Add it, or remove the folder.")
    least = table.min_reward if isinstance(table.min_reward, dict) else {"reward": table.min_reward}
    return TaskStep(
        name=table.name,
        instruction=instruction(folder),
        workdir=workdir,
        setup=workdir is not None and (workdir / SETUP).is_file(),
        healthcheck=own.healthcheck(table.healthcheck),
        verifier=own.verifier(),
        solution=reference or solution,
        agent_timeout_s=table.agent.timeout_sec or task.config.agent.timeout_sec or timeout_s,
        min_reward={name: value for name, value in least.items() if value is not None},
    )


def _merged(task: Declared, index: int, table: StepTable) -> Declared:
    """The step's file as if it were a task of its own: its own words, and the task's where it is silent."""
    config, field = task.config, f"steps.{index}"
    if table.agent.user not in (None, config.agent.user):
        task.fail(f"{field}.agent.user", "all steps of a task are one user's", "Write it under [agent].")
    given = {"network_mode", "allowed_hosts"} & table.agent.model_fields_set
    if any(getattr(table.agent, name) != getattr(config.agent, name) for name in given):
        task.fail(f"{field}.agent.network_mode", "the steps of a task share one sandbox and its network",
                  "Write it under [agent] or [environment].")
    verifier = _over(config.verifier, table.verifier)
    both = {"env": {**config.verifier.env, **table.verifier.env},
            "collect": (*config.verifier.collect, *table.verifier.collect)}
    ours = config.woodshed.steps.get(table.name)
    woodshed = config.woodshed if ours is None else config.woodshed.model_copy(
        update={name: getattr(ours, name) for name in ours.model_fields_set})
    merged: TaskFile = config.model_copy(update={
        "verifier": verifier.model_copy(update=both), "artifacts": (*config.artifacts, *table.artifacts),
        "woodshed": woodshed, "steps": None,
    })
    return Declared(merged, task.folder, part=f"steps/{table.name}", where=f"{field}.verifier")


def _over(below: _Table, above: _Table) -> _Table:
    return below.model_copy(update={name: getattr(above, name) for name in above.model_fields_set})


def _part(folder: Path) -> Path | None:
    if folder.is_symlink():
        raise UsageError("a link in the place of a step's folder", file=folder, remedy="Copy the files in its place.")
    if not folder.exists():
        return None
    check_part(folder.resolve(), f"{folder.name}/")
    return folder
