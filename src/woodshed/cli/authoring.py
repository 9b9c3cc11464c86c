"""``woodshed tasks new`` and ``woodshed tasks from-attempt``: tasks by hand."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from woodshed import settings
from woodshed.cli.options import Engine
from woodshed.cli.output import Json, emit_json, note, out, plain
from woodshed.errors import UsageError
from woodshed.model import Framework
from woodshed.model.counted import counted
from woodshed.services import authoring
from woodshed.services.confirming import confirmed
from woodshed.services.home import opened

Name = Annotated[Path, typer.Argument(help="The task's folder, which must not exist; its last part is its name.")]
Runner = Annotated[str, typer.Option("--framework", help="What runs the hidden tests: pytest, script or node.")]
AttemptId = Annotated[str, typer.Argument(metavar="ATTEMPT", help="An attempt's id, or 'last'.")]
Into = Annotated[Path | None, typer.Option("--out", help="Folder that the task folder is written into.")]
Approve = Annotated[bool, typer.Option("--approve", help="You looked at the end state, and it is right as it is.")]
Tree = Annotated[Path | None, typer.Option(metavar="DIR", help="A folder that holds the end state as it should be.")]
Export = Annotated[Path | None, typer.Option(metavar="DIR", help="Only lay the end state down there, to be mended.")]
Command = Annotated[list[str] | None, typer.Option("--command", help="Must pass in the end state; repeatable.")]
Called = Annotated[str | None, typer.Option("--name", help="Name of the task's folder.")]
Force = Annotated[bool, typer.Option("--force", help="Replace a task folder of the same name.")]


def new(name: Name, framework: Runner = "pytest", json: Json = False) -> None:
    """A first task to change into your own: small, whole, and green as it is. docs/writing-tasks.md goes on."""
    if framework not in {known.value for known in Framework}:
        raise UsageError(f"unknown framework '{framework}'", field="--framework", remedy="Say pytest, script or node.")
    task = authoring.new(name, Framework(framework))
    if json:
        emit_json({"task": task.id, "folder": str(task.folder), "framework": framework})
        return
    out.print(f"a task in {plain(str(task.folder))}")
    out.print(f"next: change it, then woodshed tasks check {plain(str(name))}")


def from_attempt(
    attempt: AttemptId,
    into: Into = None,
    approve: Approve = False,
    tree: Tree = None,
    export: Export = None,
    command: Command = None,
    name: Called = None,
    force: Force = False,
    engine: Engine = None,
    json: Json = False,
) -> None:
    """A task drafted of an attempt: its instruction, its start, and the end state that you approve."""
    with opened() as home:
        if export is not None:
            place = authoring.export_end(home, attempt, export)
            if json:
                emit_json({"exported": str(place)})
            else:
                out.print(f"the end state lies in {plain(str(place))}; mend it, then say --tree {plain(str(export))}")
            return
        if into is None:
            raise UsageError("nowhere to write the task", field="--out", remedy="Say --out FOLDER.")
        made = authoring.from_attempt(
            home, attempt, into, approve=approve, tree=tree, commands=command or (), name=name, force=force)
        wrong = asyncio.run(confirmed(made.task, home, engine or settings.setting("engine")))
    if json:
        emit_json({"task": made.task.id, "folder": str(made.task.folder), "files": made.files,
                   "commands": list(made.commands), "suggested": list(made.suggested), "missing": list(made.missing),
                   "wrong": wrong})
        return
    counts = f"{counted(made.files, 'file')} compared, {counted(len(made.commands), 'command')} run"
    out.print(f"a draft in {plain(str(made.task.folder))}: {counts}")
    for sentence in made.missing:
        note(f"not recovered: {sentence}")
    if made.suggested:
        note(f"{counted(len(made.suggested), 'command')} of the attempt now in tests/commands.txt, switched off")
    out.print(f"the draft does not hold yet: {plain(wrong)}" if wrong else
              "its reference passes and doing nothing fails; now edit instruction.md, tests/files.txt and "
              "tests/commands.txt")
