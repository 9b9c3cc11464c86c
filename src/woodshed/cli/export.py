"""``woodshed export``: a run's attempts in others' formats."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from woodshed.cli.output import Json, emit_json, out, plain
from woodshed.services import exporting
from woodshed.services.home import opened


def export(
    run: Annotated[str, typer.Argument(help="A run's id, or 'last'.")],
    out_folder: Annotated[Path, typer.Option("--out", help="Folder for the files; one a trajectory.")],
    format_: Annotated[str, typer.Option("--format", help="atif")] = "atif",
    json: Json = False,
) -> None:
    """Write every finished attempt as an ATIF 1.8 trajectory."""
    with opened() as home:
        chosen = home.store.run(run)
        files = exporting.export(home, chosen, format_, out_folder)
    if json:
        emit_json({"run": chosen.id, "format": format_, "files": [str(file) for file in files]})
    else:
        out.print(f"{len(files)} trajectories in {plain(str(out_folder))}")
