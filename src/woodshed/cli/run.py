"""``woodshed run``: tasks × agents × attempts, with a live bar and a closing table."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from woodshed.cli.driving import driven
from woodshed.cli.options import Asked, Informative, Sampled, drawn_by, grouped
from woodshed.cli.output import Json, emit_json, note, number, out, percent, plain, table, warn
from woodshed.errors import UsageError
from woodshed.model import Run, RunSpec, Task
from woodshed.model.counted import counted
from woodshed.sandbox.native.places import sweep
from woodshed.services import curriculum, durations, projects, report, runs, shared
from woodshed.services.home import Home, opened

_WORKERS = partial(typer.Option, rich_help_panel="Left to workers")

Tasks = Annotated[list[str] | None, typer.Argument(help="Task folders, or folders of them.", show_default=False)]
Concurrency = Annotated[int | None, typer.Option("--concurrency", "-c", min=1, help="Attempts at a time (default: 2).")]
Resume = Annotated[str | None, typer.Option(metavar="RUN", help="Finish an interrupted run; 'last' is the newest.")]
New = Annotated[bool, typer.Option("--new", help="Start anew even if the same run was interrupted.")]
Detach = Annotated[bool, _WORKERS("--detach", help="Leave it to workers ('woodshed worker'); starts nothing here.")]
Priority = Annotated[int | None, _WORKERS(help="With --detach: a higher one goes first (default: 0).")]
Pool = Annotated[str, _WORKERS(metavar="NAME", help="With --detach: for workers of this pool alone.")]
Key = Annotated[str | None, _WORKERS(help="With --detach: given again, it names the run made with it before.")]
Project = Annotated[str | None, typer.Option(
    metavar="NAME", help="Whose run it is: projects share workers evenly (default: WOODSHED_PROJECT or default).")]
NotBefore = Annotated[datetime | None, _WORKERS(
    metavar="ISO", formats=["%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M%z", "%Y-%m-%dT%H:%M"],
    help="With --detach: begin at this time at the earliest; local unless it says otherwise.")]


@grouped
def run(
    *,
    tasks: Tasks = None,
    asked: Asked,
    concurrency: Concurrency = None,
    resume: Resume = None,
    new: New = False,
    detach: Detach = False,
    priority: Priority = None,
    key: Key = None,
    not_before: NotBefore = None,
    pool: Pool = "",
    project: Project = None,
    sample: Sampled = None,
    by_informative: Informative = False,
    json: Json = False,
) -> None:
    """Attempt tasks and judge each attempt in a fresh sandbox. Exit 0 when the run finished, whatever the pass rate."""
    if resume is not None:
        _alone(asked, tasks=tasks, project=project, sample=sample)
    draw = drawn_by(sample, by_informative)
    _for_workers(detach, resume, given=not (priority is None and key is None and not_before is None and not pool))
    project = projects.named(project)
    with opened() as home:
        if resume is not None:
            _go_on(home, resume, concurrency, asked.run_deadline, json)
            return
        if not tasks or not asked.agent:
            raise UsageError("nothing to run", remedy="Say: woodshed run FOLDER --agent oracle")
        spec, found = runs.plan(tasks, concurrency=concurrency or 2, tell=note, **asked.order())
        if draw is not None:
            spec, found = curriculum.narrowed(home, spec, found, draw)
        if detach:
            _detach(shared.submit(home, spec, found, priority=priority or 0, key=key, slots=concurrency, pool=pool,
                                  not_before=not_before.astimezone(UTC) if not_before else None, project=project), json)
        else:
            _start(home, spec, found, new, project, json)


def _for_workers(detach: bool, resume: str | None, *, given: bool) -> None:
    """What is for workers goes with --detach, and nothing else does. Raises UsageError."""
    if given and not detach:
        raise UsageError("--priority, --key, --not-before and --pool are for workers", remedy="Add --detach.")
    if detach and resume is not None:
        raise UsageError("--resume works here and now", remedy="Leave --detach out, or say: woodshed runs open RUN")


def _alone(asked: Asked, *, tasks: list[str] | None, project: str | None, sample: int | None) -> None:
    """Nothing stands beside --resume that would seem to change the run. Raises UsageError naming it."""
    given = ["tasks"] * bool(tasks) + asked.given() + ["project"] * (project is not None) + \
        ["sample"] * (sample is not None)
    if (given := [name for name in given if name != "run_deadline"]):
        named = ", ".join(name if name == "tasks" else f"--{name.replace('_', '-')}" for name in given)
        raise UsageError(f"--resume goes on with the run as it was, and takes no {named}",
                         remedy="The run remembers them; --concurrency and --run-deadline may be others.")


def _detach(run: Run, json: bool) -> None:
    if json:
        emit_json({"run": run.id, "project": run.project, "state": run.state.value})
    else:
        out.print(f"{run.id}: {run.state.value}")
        note(f"workers take it from here: woodshed worker · woodshed show {run.id} · woodshed runs cancel {run.id}")


def _start(home: Home, spec: RunSpec, found: list[Task], new: bool, project: str, json: bool) -> None:
    earlier = None if new else runs.resumable(home, spec, project)
    if earlier is not None:
        note(f"the same run was interrupted before: resuming {earlier.id} (--new starts another)")
        _go_on(home, earlier.id, spec.concurrency, None, json)
    else:
        _finish(home, lambda p: runs.start(home, spec, found, p, sweep=partial(sweep, home.path), tell=note,
                                           project=project), json)


def _go_on(home: Home, run: str, concurrency: int | None, run_deadline: str | None, json: bool) -> None:
    run_s = durations.seconds(run_deadline, "--run-deadline") if run_deadline else None
    _finish(home, lambda p: runs.resume(home, run, p, concurrency=concurrency, run_s=run_s,
                                         sweep=partial(sweep, home.path), tell=note), json)


def _finish(home: Home, drive: Callable[[runs.Progress], Coroutine[Any, Any, Run]], json: bool) -> None:
    finished = driven(drive, resume="woodshed run --resume")
    summary = report.summary(home, finished)
    folder = report.write_results(home, finished, summary)
    if json:
        emit_json(summary)
    else:
        print_summary(summary, folder)


def print_summary(summary: dict[str, Any], folder: Path | None) -> None:
    """The closing table: agent × task group, and where the results lie."""
    k = max((row["k"] for row in summary["groups"]), default=1)
    graded = any(row["unknown_totals"] or row["mean_total"] not in (None, row["passed"] / max(row["valid"], 1))
                 for row in summary["groups"])
    rows = [
        (
            row["agent"] if row["model"] is None else f"{row['agent']} ({row['model']})", row["group"],
            str(row["attempts"]), percent(row["valid_rate"]), str(row["passed"]), _causes(row["invalid"]),
            percent(row["pass_at_1"]), *((percent(row["pass_at_k"]),) if k > 1 else ()),
            *((number(row["mean_total"], lambda v: f"{v:.3f}"),) if graded else ()), number(row["mean_turns"]),
            number(row["mean_tokens"], lambda v: f"{v:.0f}"), number(row["mean_seconds"], lambda v: f"{v:.2f}"),
        )
        for row in summary["groups"]
    ]  # fmt: skip
    columns = (
        "agent", "tasks", "#attempts", "#valid", "#passed", "invalid", "#pass@1",
        *((f"#pass@{k}",) if k > 1 else ()), *(("#total",) if graded else ()), "#turns", "#tokens", "#seconds",
    )  # fmt: skip
    table(columns, rows)
    out.print(f"{summary['run']}: {summary['state']} in {summary['elapsed_s']:.1f} s"
              + (f" ({plain(summary['reason'])})" if summary["reason"] else ""))
    if summary["used"]["all"]["sandboxes"]:
        out.print(f"sandboxes: {_used(summary['used']['all'])}; the verifier's: {_used(summary['used']['verifier'])}")
    if (drawn := summary.get("drawn")) is not None:
        among = counted(drawn["among"], "task")
        out.print(f"drawn: {drawn['count']} of {among}, by {drawn['by']}, seed {drawn['seed']}")
    if (person := summary.get("person")) is not None:
        out.print(_spoken(person))
    if (captured := summary.get("capture")) is not None:
        calls = ", ".join(f"{count} {level}" for level, count in captured["calls"].items()) or "none"
        flawed = counted(captured["flawed_attempts"], "attempt")
        lost = f"; {captured['flawed_calls']} of them, in {flawed}, cannot be trained on"
        out.print(f"captured calls: {calls}{lost if captured['flawed_calls'] else ''}",
                  style="bold red" if captured["flawed_calls"] else None)
        if captured["drift"]:
            out.print(f"their prompts: {', '.join(f'{count} {kind}' for kind, count in captured['drift'].items())}")
    warn(summary)
    if folder is not None:
        out.print(f"results: {folder}")
    out.print(f"look closer: woodshed show {summary['run']} · woodshed trace {summary['run']}.1")


def _spoken(person: dict[str, Any]) -> str:
    """What the model took that plays persons, in a few words."""
    cost = f", {person['micros'] / 1e6:.4f} {person['currency']}" if person["micros"] is not None else ""
    return (f"person ({plain(person['model'])}): {counted(person['calls'], 'call')}, "
            f"{person['prompt_tokens'] + person['completion_tokens']} tokens{cost}; no agent's figures count them")


def _used(used: dict[str, Any]) -> str:
    """What sandboxes took, in a few words; what is unknown is a dash."""
    megabytes = {name: number(used[f"{name}_bytes"], lambda v: f"{v / (1 << 20):.0f} MB")
                 for name in ("memory_peak", "disk")}
    return (f"{used['sandbox_s']:.1f} s, {number(used['cpu_s'], lambda v: f'{v:.1f} s')} of CPU, "
            f"at most {megabytes['memory_peak']} of memory and {megabytes['disk']} of disk")


def _causes(invalid: dict[str, int]) -> str:
    return ", ".join(f"{count} {cause}" for cause, count in sorted(invalid.items())) or "–"
