"""``woodshed tasks mine``: a repository's own history becomes tasks, with a table of what was kept and why not."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer

from woodshed import settings
from woodshed.cli.driving import interruptible
from woodshed.cli.options import Engine
from woodshed.cli.output import Json, emit_json, err, note, number, out, percent, plain, table
from woodshed.cli.progress import bar
from woodshed.model import Sampling
from woodshed.model.counted import counted
from woodshed.services import agents, mining
from woodshed.services.home import opened

Repo = Annotated[Path, typer.Argument(help="A git repository: a clone's folder, or a bare one.")]
Into = Annotated[Path, typer.Option("--out", help="Folder that the task folders are written into.")]
Since = Annotated[str | None, typer.Option(help="Leave out what is older: a date, '3 months ago', a tag or a commit.")]
Most = Annotated[int | None, typer.Option("--max", min=1, help="Tasks to keep at most, newest first.")]
Ref = Annotated[str, typer.Option(help="The branch, tag or commit whose history is mined.")]
Concurrency = Annotated[int, typer.Option("--concurrency", "-c", min=1, help="Commits tried at a time.")]
Timeout = Annotated[float, typer.Option(min=1, metavar="SECONDS", help="Of one run of a commit's tests.")]
Force = Annotated[bool, typer.Option("--force", help="Replace task folders of the same names.")]
Model = Annotated[str | None, typer.Option(help="Words the instructions: local, local:NAME, FILE.gguf, NAME@URL.")]
New = Annotated[bool, typer.Option("--new", help="Forget what was found of this repository before.")]
Calibrate = Annotated[bool, typer.Option("--calibrate/--no-calibrate", help="Check what is kept, as tasks check does.")]


def mine(
    repo: Repo,
    into: Into,
    since: Since = None,
    most: Most = None,
    ref: Ref = "HEAD",
    concurrency: Concurrency = 2,
    engine: Engine = None,
    timeout: Timeout = 300.0,
    force: Force = False,
    calibrate: Calibrate = True,
    new: New = False,
    model: Model = None,
    json: Json = False,
) -> None:
    """Tasks from a repository's history: commits whose own tests fail before them and pass after. Resumes by itself."""
    order = mining.Order(
        repo=repo, out=into, ref=ref, since=since, most=most, concurrency=concurrency,
        engine=engine or settings.setting("engine"), timeout_s=timeout, force=force, calibrate=calibrate, anew=new,
        model=agents.parse_model(model, sampling=Sampling()) if model else None,
    )  # fmt: skip
    try:
        with opened() as home, bar() as progress:
            mined = asyncio.run(interruptible(mining.mine(order, home=home, progress=progress)))
    except (KeyboardInterrupt, asyncio.CancelledError):
        err.print("interrupted; nothing is lost. The same command goes on where this one ended.")
        raise SystemExit(130) from None
    record = mined.record()
    if json:
        emit_json(record)
    else:
        show(record)


def show(record: dict[str, Any]) -> None:
    """The table of a mining's record, and what to do next. Subjects and details are anyone's text."""
    table(
        ("commit", "date", "subject", "kept", "#fail→pass", "#pass→pass", "#strength", "why not"),
        (
            (
                row["commit"][:10], row["date"], row["subject"][:50], (row["label"] or "yes") if row["kept"] else "–",
                number(row["fail_to_pass"], str), number(row["pass_to_pass"], str), percent(row["strength"]),
                "" if row["kept"] else f"{row['reason']}: {row['detail']}"[:120],
            )
            for row in record["rows"]
        ),
    )  # fmt: skip
    left = ", ".join(f"{count} {reason}" for reason, count in record["reasons"].items())
    out.print(f"{record['kept']} of {record['commits']} commits kept" + (f"; not: {left}" if left else ""))
    if record["unseen"]:
        note(f"not looked at: {counted(record['unseen'], 'older commit')} (--max)")
    if record["kept"]:
        out.print(f"next: woodshed run {plain(record['out'])} --agent oracle --agent nop")
