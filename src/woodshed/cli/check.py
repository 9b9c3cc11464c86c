"""``woodshed tasks check``: what tasks and their verifiers are worth, before anyone's attempts at them are believed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import typer
from rich.syntax import Syntax

from woodshed import settings
from woodshed.cli.driving import driven
from woodshed.cli.options import Engine
from woodshed.cli.output import Json, emit_json, note, number, out, plain, table, visible
from woodshed.errors import UsageError
from woodshed.model import CheckSpec, Label, Run, RunSpec, Task
from woodshed.services import measured, runs
from woodshed.services.calibration import check as service
from woodshed.services.calibration import report
from woodshed.services.calibration.report import Checked
from woodshed.services.home import Home, opened

_STYLES = {Label.SOUND: "green", Label.WEAK: "yellow"}
_SHOWN = 3

Paths = Annotated[list[Path] | None, typer.Argument(help="Task folders, or folders of them.", show_default=False)]
Nops = Annotated[int, typer.Option(min=1, help="Attempts that do nothing; all must fail.")]
Repeats = Annotated[int, typer.Option(min=1, help="Attempts by the reference; all must pass.")]
Doubtful = Annotated[int, typer.Option(min=0, help="Up to so many where a task's files speak of time or chance.")]
Variants = Annotated[int, typer.Option(min=0, help="Wrong end states of the reference that are judged, at most.")]
Cheats = Annotated[str, typer.Option(help="quick, all (those that cost a verifier its whole bound, too) or none.")]
Concurrency = Annotated[int | None, typer.Option("--concurrency", "-c", min=1, help="Attempts at a time (default: 2).")]
Seed = Annotated[int, typer.Option(help="Draws the variants.")]
Resume = Annotated[str | None, typer.Option(metavar="RUN", help="Finish an interrupted check; 'last' is the newest.")]
New = Annotated[bool, typer.Option("--new", help="Start anew even if the same check was interrupted.")]
Write = Annotated[bool, typer.Option("--write/--no-write", help="Sign the record off beside each task.")]
Survivors = Annotated[int, typer.Option(min=0, help="Survivors whose patches are printed for each task.")]
Save = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the figures there, with machine and commit.")]


def check(
    paths: Paths = None,
    nops: Nops = 3,
    repeats: Repeats = 5,
    doubtful: Doubtful = 25,
    variants: Variants = 20,
    cheats: Cheats = "quick",
    concurrency: Concurrency = None,
    seed: Seed = 0,
    engine: Engine = None,
    resume: Resume = None,
    new: New = False,
    write: Write = True,
    survivors: Survivors = _SHOWN,
    save: Save = None,
    json: Json = False,
) -> None:
    """Calibrate tasks: nothing fails, the reference passes, repeats agree, cheats and wrong fixes fail. Exit 0."""
    if cheats not in ("none", "quick", "all"):
        raise UsageError(f"unknown cheats '{cheats}'", field="--cheats", remedy="Say none, quick or all.")
    asked = CheckSpec(nops=nops, references=repeats, doubtful=doubtful, variants=variants,
                      cheats=cast(Literal["none", "quick", "all"], cheats))
    started = time.perf_counter()
    with opened() as home:
        if resume is not None and paths:
            raise UsageError("--resume takes no tasks", remedy="The check remembers them.")
        run: Run | None
        if resume is not None:
            run = _drive(lambda progress: service.resume(home, resume, progress, concurrency=concurrency))
            found = report.checked(home, run, runs.unchanged(run))
        else:
            if not paths:
                raise UsageError("nothing to check", remedy="Say: woodshed tasks check FOLDER")
            tasks, found = report.to_check(paths)
            spec = service.plan(tasks, asked, concurrency=concurrency or 2, seed=seed,
                                engine=engine or settings.setting("engine"))
            run = _start(home, spec, tasks, new) if tasks else None
            found += report.checked(home, run, tasks) if run else []
    for failed in report.write(found) if write else []:
        note(failed)
    _tell(found, run, time.perf_counter() - started, survivors, seed, save, json)


def _start(home: Home, spec: RunSpec, tasks: list[Task], new: bool) -> Run:
    earlier = None if new else runs.resumable(home, spec)
    if earlier is not None:
        note(f"the same check was interrupted before: resuming {earlier.id} (--new starts another)")
        return _drive(lambda progress: service.resume(home, earlier.id, progress, concurrency=spec.concurrency))
    return _drive(lambda progress: service.start(home, spec, tasks, progress))


def _drive(work: Callable[[runs.Progress], Coroutine[Any, Any, Run]]) -> Run:
    return driven(work, resume="woodshed tasks check --resume")


def _tell(
    found: Sequence[Checked], run: Run | None, elapsed_s: float, shown: int, seed: int, save: Path | None, json: bool
) -> None:
    rows = [one.row() for one in found]
    labels = Counter(str(row["label"] or "not judged") for row in rows)
    told = {"run": run.id if run else None, "elapsed_s": round(elapsed_s, 3), "labels": dict(sorted(labels.items()))}
    if save is not None:
        figures = report.figures(found, run)
        measured.publish({"benchmark": "tasks check", **told, **measured.stamp(seed), **figures}, save)
    if json:
        emit_json({**told, "tasks": rows})
        return
    table(
        ("task", "label", "#strength", "#killed", "#flake", "#nop", "#reference", "#cheats", "#verify s", "#MB", "why"),
        [_row(one) for one in found],
    )
    for one in found:
        _print_survivors(one, shown)
    out.print(f"{', '.join(f'{count} {label}' for label, count in labels.most_common())} in {elapsed_s:.1f} s")
    if run is not None:
        out.print(f"look closer: woodshed show {run.id}")


def _row(one: Checked) -> tuple[str, ...]:
    record = one.record
    if record is None:
        return (one.task, "not judged", *("–" for _ in range(8)), one.why)
    label = record.label
    return (
        one.task, label, number(record.strength, lambda v: f"{v:.2f}"),
        f"{record.killed}/{record.variants}" if record.variants else "–",
        number(record.flake_rate, lambda v: f"{v:.2f}"),
        f"{record.nop.passed}/{record.nop.valid}", f"{record.reference.passed}/{record.reference.valid}",
        f"{sum(record.cheats.values())}/{len(record.cheats)}" if record.cheats else "–",
        number(record.verify_s.measured, lambda v: f"{v:.2f}"), number(record.memory_mb.measured, lambda v: f"{v:.0f}"),
        "; ".join((*record.reasons, *record.warnings)),
    )  # fmt: skip


def _print_survivors(one: Checked, shown: int) -> None:
    for survivor in one.record.survivors[:shown] if one.record and shown else ():
        out.print(f"\n[bold]{plain(one.task)}[/] accepts {plain(survivor.name)}")
        out.print(Syntax(visible(survivor.patch), "diff", background_color="default"))
    more = len(one.record.survivors) - shown if one.record else 0
    if shown and more > 0:
        out.print(f"… and {more} more survivors of {plain(one.task)}; its calibration.json has them", style="dim")
