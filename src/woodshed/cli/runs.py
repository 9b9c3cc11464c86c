"""``woodshed runs``: how runs stand, what is said to their agents, and whether workers may go on with them."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from woodshed.cli.output import Json, emit_json, out, plain, table
from woodshed.model import Run
from woodshed.model.counted import counted
from woodshed.model.status import AttemptStatus, RunStatus
from woodshed.services import projects, sending, shared
from woodshed.services.home import opened
from woodshed.store.queue import SubmissionState

app = typer.Typer(no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="RUN", help="A run's id, or 'last'.")]
Reason = Annotated[str | None, typer.Option(help="Why; 'woodshed show' tells it.")]
Either = Annotated[str, typer.Argument(metavar="NAME", help="An attempt's id, or a run's, or 'last'.")]
Text = Annotated[str, typer.Argument(metavar="TEXT", help="What is said; '-' reads it from standard input.")]
Key = Annotated[str | None, typer.Option(help="Given again, it names the message sent with it before.")]
Project = Annotated[str | None, typer.Option(metavar="NAME", help="Only a run of this project.")]
OneOrAll = Annotated[str | None, typer.Argument(
    metavar="RUN", help="A run's id, or 'last'; with --project alone, every paused run of it.", show_default=False)]


@app.command()
def status(name: Either, project: Project = None, json: Json = False) -> None:
    """How a run or an attempt stands: who has it, at which stage and turn, since when, what it has yet to hear."""
    with opened() as home:
        found = sending.status(home, name, project=project)
    if json:
        emit_json(found.to_json())
    elif isinstance(found, AttemptStatus):
        _told([found])
    else:
        _told_of_run(found)


@app.command()
def say(name: Either, text: Text, key: Key = None, project: Project = None, json: Json = False) -> None:
    """Say something to an agent at work, or to all agents of a run; they hear it between two of their turns."""
    with opened() as home:
        sent = sending.say(home, name, sys.stdin.read() if text == "-" else text, key=key, project=project)
    if json:
        emit_json({"messages": [one.to_json() for one in sent]})
    else:
        for one in sent:
            heard = f"heard by execution {one.execution}" if one.execution is not None else "sent"
            out.print(f"{one.attempt}: message {one.number} {heard}")


@app.command()
def pause(run: Name, reason: Reason = None, project: Project = None, json: Json = False) -> None:
    """Hand out nothing more of a run; what runs goes on to its end."""
    with opened() as home:
        _say(shared.turn(home, run, SubmissionState.PAUSED, reason, project=project), json)


@app.command("open")
def reopen(run: OneOrAll = None, project: Project = None, json: Json = False) -> None:
    """Let a paused run go on, or all paused runs of a project."""
    with opened() as home:
        if run is not None:
            _say(shared.turn(home, run, SubmissionState.OPEN, project=project), json)
            return
        whose = projects.demanded(home, project)
        opened_ = shared.reopen(home, whose)
    if json:
        emit_json({"runs": [_json(one) for one in opened_]})
    else:
        for one in opened_:
            _say(one, json)
        if not opened_:
            out.print(f"{plain(whose)} has no paused run")


@app.command()
def cancel(run: Name, reason: Reason = None, project: Project = None, json: Json = False) -> None:
    """End a run: nothing more is handed out, what runs is stopped within seconds, its evidence kept."""
    with opened() as home:
        _say(shared.turn(home, run, SubmissionState.CANCELLED, reason, project=project), json)


def _json(run: Run) -> dict[str, str | None]:
    return {"run": run.id, "project": run.project, "state": run.state.value, "reason": run.reason}


def _say(run: Run, json: bool) -> None:
    if json:
        emit_json(_json(run))
    else:
        out.print(f"{run.id}: {run.state.value}" + (f" ({plain(run.reason)})" if run.reason else ""))


def _told_of_run(found: RunStatus) -> None:
    why = f" ({plain(found.reason)})" if found.reason else ""
    since = f"{found.since:%Y-%m-%d %H:%M:%S} UTC"
    unheard = f"; {counted(found.pending, 'message')} not heard yet" if found.pending else ""
    out.print(f"{found.run} of {plain(found.project)}: {found.state.value}{why} since {since}; "
              f"{found.done} of {found.attempts} done{unheard}")
    if found.at_work:
        _told(found.at_work)


def _told(found: tuple[AttemptStatus, ...] | list[AttemptStatus]) -> None:
    table(("attempt", "state", "stage", "#turn", "since (UTC)", "worker", "#unheard"), [
        (one.attempt, one.state.value, one.stage or "–", str(one.turn), f"{one.since:%Y-%m-%d %H:%M:%S}",
         (f"{one.pid} on {one.host}" if one.host else one.worker) or "–", str(one.pending)) for one in found])
