"""``woodshed runs``: pause, open and cancel runs that workers execute."""

from __future__ import annotations

from typing import Annotated

import typer

from woodshed.cli.output import Json, emit_json, out, plain
from woodshed.services import shared
from woodshed.services.home import opened
from woodshed.store.queue import SubmissionState

app = typer.Typer(no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="RUN", help="A run's id, or 'last'.")]
Reason = Annotated[str | None, typer.Option(help="Why; 'woodshed show' tells it.")]


@app.command()
def pause(run: Name, reason: Reason = None, json: Json = False) -> None:
    """Hand out nothing more of a run; what runs goes on to its end."""
    _turn(run, SubmissionState.PAUSED, reason, json)


@app.command("open")
def reopen(run: Name, json: Json = False) -> None:
    """Let a paused run go on."""
    _turn(run, SubmissionState.OPEN, None, json)


@app.command()
def cancel(run: Name, reason: Reason = None, json: Json = False) -> None:
    """End a run: nothing more is handed out, what runs is stopped within seconds, its evidence kept."""
    _turn(run, SubmissionState.CANCELLED, reason, json)


def _turn(name: str, state: SubmissionState, reason: str | None, json: bool) -> None:
    with opened() as home:
        run = shared.turn(home, name, state, reason)
    if json:
        emit_json({"run": run.id, "state": run.state.value, "reason": run.reason})
    else:
        out.print(f"{run.id}: {run.state.value}" + (f" ({plain(run.reason)})" if run.reason else ""))
