"""``woodshed groups``: a run's attempts by task and agent, as they complete together."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from woodshed.cli.output import Json, emit_json, err, number, out, plain, table, warn
from woodshed.services import groups as service
from woodshed.services import naming
from woodshed.services.home import Home, opened

Name = Annotated[str, typer.Argument(metavar="RUN", help="A run's id, or 'last'.")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Tell each group when it completes, until none can.")]
_LOOK_S = 0.5


def groups(run: Name, follow: Follow = False, json: Json = False) -> None:
    """All attempts of a task by an agent are a group: which are complete, in order, and what they came to."""
    with opened() as home:
        if follow:
            _follow(home, run, json)
            return
        name = naming.run(home, run).id
        found, warned = [one.told() for one in service.listing(home, name)], service.warned(home, name)
    if json:
        emit_json({"run": name, "groups": found, **warned})
        return
    table(
        ("#place", "task", "agent", "#done", "#valid", "rewards", "state", "consumer"),
        ((str(row["place"] or "–"), row["task"], row["agent"], f"{row['done']}/{row['total']}", str(row["valid"]),
          _rewards(row), row["state"], row["consumer"] or "–") for row in found),
    )  # fmt: skip
    warn(warned)


def _follow(home: Home, name: str, json: bool) -> None:
    """One line a group, in order of completion, then warnings on standard error; takes none."""
    run_id, told = naming.run(home, name).id, 0
    while True:
        ended = service.complete(home, home.store.run(run_id))
        for one in service.listing(home, run_id)[told:]:
            if one.group.place is None:
                break
            told += 1
            row = one.told()
            if json:
                emit_json(row)
            else:
                out.print(f"{row['place']} {plain(row['task'])} {plain(row['agent'])}: {row['valid']}/{row['total']} "
                          f"valid, rewards {_rewards(row)}")
        if ended:
            warn(service.warned(home, run_id), err)
            return
        time.sleep(_LOOK_S)


def _rewards(row: dict[str, Any]) -> str:
    return " ".join(number(reward, lambda v: f"{v:g}") for reward in row["rewards"])
