"""``woodshed limits``: how many attempts of a project, or that load an endpoint, are at work, or begin in a minute."""

from __future__ import annotations

from typing import Annotated

import typer

from woodshed.cli.output import Json, emit_json, number, table
from woodshed.services import shared
from woodshed.services.home import opened
from woodshed.store.limits import Limit

app = typer.Typer(no_args_is_help=True)

Scope = Annotated[str, typer.Argument(metavar="SCOPE", help="project:NAME, or endpoint:URL as a model has it.")]
Slots = Annotated[int | None, typer.Option(min=0, metavar="N", help="At most so many at work at once, on all workers.")]
Rate = Annotated[float | None, typer.Option(min=0.001, metavar="R", help="At most so many begin in a minute.")]


@app.command("set")
def set_limit(scope: Scope, slots: Slots = None, per_minute: Rate = None, json: Json = False) -> None:
    """Bound a project or an endpoint; without a bound, lift what stands. Workers heed it from their next claim on."""
    with opened() as home:
        limit = shared.limit(home, scope, slots=slots, per_minute=per_minute)
    if json:
        emit_json(limit.to_json())
    else:
        _print([limit])


@app.command("list")
def list_limits(json: Json = False) -> None:
    """The bounds that stand, how many of each are at work, and for how long an endpoint asked for patience."""
    with opened() as home:
        found = home.store.limits.all()
    if json:
        emit_json({"limits": [limit.to_json() for limit in found]})
        return
    _print(found)


def _print(found: list[Limit]) -> None:
    table(("scope", "#slots", "#at work", "#per minute", "#held for s"), (
        (one.scope, number(one.slots, _short), str(one.busy), number(one.per_minute, _short), number(one.held_s))
        for one in found))


def _short(value: float) -> str:
    return f"{value:g}"
