"""``woodshed bench``: the published measurements, reproducible."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from woodshed.cli.output import Json, emit_json, note, out, table
from woodshed.services import measured, overhead

app = typer.Typer(no_args_is_help=True)


@app.callback()
def _root() -> None:
    """Options of every measurement."""


@app.command("run")
def run(
    tasks: Annotated[list[Path], typer.Argument(help="Task folders with references, e.g. an imported HumanEvalFix.")],
    attempts: Annotated[int, typer.Option("-n", "--attempts", min=1, help="Attempts of each task.")] = 2,
    concurrency: Annotated[int, typer.Option("-c", "--concurrency", min=1, help="Attempts at a time, bare too.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Alternating rounds; the ratio is their median.")] = 3,
    seed: Annotated[int, typer.Option(help="Seed of the runs.")] = 0,
    save: Annotated[Path | None, typer.Option(help="Also write the figures to this file.")] = None,
    json: Json = False,
) -> None:
    """The same oracle attempts through Woodshed and bare: attempts a second, their ratio, CPU of an attempt."""
    figures = overhead.measure(
        tasks, attempts=attempts, concurrency=concurrency, rounds=rounds, seed=seed, told=note
    )
    if save is not None:
        measured.publish(figures, save)
    if json:
        emit_json(figures)
        return
    table(
        ("", "#attempts/s", "#busy CPU ms an attempt"),
        (
            ("bare", f"{figures['bare_per_s']:.1f}", f"{figures['cpu_ms_per_attempt']['bare']:.1f}"),
            ("woodshed", f"{figures['woodshed_per_s']:.1f}", f"{figures['cpu_ms_per_attempt']['woodshed']:.1f}"),
        ),
        title=f"{figures['attempts']} attempts, {figures['concurrency']} at a time",
    )
    stages = {k: v for k, v in figures["cpu_ms_per_attempt"].items() if k.startswith("own_")}
    out.print("our own process, CPU ms by stage: " + "  ".join(f"{k[4:]} {v:.1f}" for k, v in stages.items()))
    out.print(f"ratio {figures['ratio']:.2f} (rounds: {', '.join(map(str, figures['ratios']))})")
