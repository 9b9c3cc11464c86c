"""``woodshed replay``: recorded attempts once more, with real tools, held against the record."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from woodshed.cli.driving import interruptible
from woodshed.cli.output import Json, emit_json, note, out, plain, table
from woodshed.cli.progress import counter
from woodshed.services import replaying
from woodshed.services.home import opened


def replay(
    name: Annotated[str, typer.Argument(metavar="ATTEMPT|RUN", help="An attempt's id, a run's, or 'last'.")],
    concurrency: Annotated[int, typer.Option("--concurrency", "-c", min=1, help="Attempts at a time.")] = 2,
    json: Json = False,
) -> None:
    """Do attempts again as recorded, in fresh sandboxes, and verify them. Exit 1 when a verdict is another one."""
    with opened() as home, counter() as progress:
        told = asyncio.run(interruptible(replaying.replay(home, name, progress, concurrency=concurrency)))
    if json:
        emit_json(told)
    else:
        _print(told)
    if told["verdicts"] < told["attempts"]:
        raise typer.Exit(1)


def _print(told: dict[str, Any]) -> None:
    table(
        ("attempt", "agent", "task", "verdict", "#calls", "#equal", "#settled", "#diverged", "files"),
        ((row["attempt"], row["agent"], row["task"], _verdict(row), str(row["calls"]), str(row["equal"]),
          str(row["settled"]), str(len(row["diverged"])), f"{len(row['files'])} differ" if row["files"] else "same")
         for row in told["replayed"]),
    )
    for row in told["replayed"]:
        for line in _differences(row):
            out.print(plain(f"{row['attempt']}: {line}"), style="yellow")
    for row in told["left_out"]:
        note(f"{row['attempt']} is left out: {row['why']}")
    out.print(f"{told['run']}: {told['verdicts']} of {told['attempts']} verdicts came out again; of {told['calls']} "
              f"calls {told['equal']} answered the same, {told['settled']} but for what is volatile, "
              f"{told['diverged']} not")


def _verdict(row: dict[str, Any]) -> str:
    if row["passed_now"] is None:
        return f"invalid: {row['invalid']}"
    said = "passed" if row["passed_now"] else "failed"
    return said if not row["verdict"] else f"{said}, otherwise than then"


def _differences(row: dict[str, Any]) -> Iterator[str]:
    yield from row["verdict"]
    yield from (f"{one['call']} ({one['name']}): {one['what']}" for one in row["diverged"])
    if row["asked_for_more"]:
        yield "its harness asked the model for more than was recorded"
