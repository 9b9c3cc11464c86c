"""``woodshed schedules``: runs that begin by themselves, at times or upon files."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from woodshed.cli.options import Asked, Informative, Sampled, drawn_by, grouped
from woodshed.cli.output import Json, emit_json, note, out, plain, table
from woodshed.engine import timetable, watch
from woodshed.errors import UsageError
from woodshed.model.schedule import Cron, Files, Firing, FiringState, Missed, Once, Overlap, Schedule, Standing
from woodshed.services import projects, scheduling
from woodshed.services.home import Home, opened

app = typer.Typer(no_args_is_help=True)

_TIMES = ["%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M%z", "%Y-%m-%dT%H:%M"]
Name = Annotated[str, typer.Argument(metavar="NAME", help="A schedule's name, or its id.")]
Project = Annotated[str | None, typer.Option(
    metavar="NAME", help="Whose schedule and runs they are (default: WOODSHED_PROJECT or default).")]
Tasks = Annotated[list[str], typer.Argument(help="Task folders, or folders of them.")]
CronText = Annotated[str | None, typer.Option("--cron", metavar="EXPR", help="Five fields, as '0 2 * * 1-5'.")]
Zone = Annotated[str | None, typer.Option(metavar="ZONE", help="Time zone of --cron, as Europe/Berlin (default: UTC).")]
At = Annotated[datetime | None, typer.Option(
    "--at", metavar="ISO", formats=_TIMES, help="Once, at this time; local unless it says otherwise.")]
Glob = Annotated[str | None, typer.Option(
    "--files", metavar="GLOB", help="When files come or change: a folder, or 'folder/**/*.json'.")]
Settle = Annotated[float | None, typer.Option(
    min=0, metavar="SECONDS", help="With --files: they fire when they were still for so long (default: 2).")]
Existing = Annotated[bool, typer.Option("--existing", help="Files that are there already fire, too.")]
MissedRule = Annotated[Missed, typer.Option(help="Times at which no worker was there: none fires, the latest, or all.")]
OverlapRule = Annotated[Overlap | None, typer.Option(
    help="While an earlier run is not over: fire all the same, not at all, or after it (default: skip; queue with "
         "--files).")]
Jitter = Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Fire up to so much later, by chance.")]
Grace = Annotated[float, typer.Option(min=1, metavar="SECONDS", help="A time not fired for so long was missed.")]
Failures = Annotated[int, typer.Option("--max-failures", min=1, help="Failures in a row that pause the schedule.")]
Pin = Annotated[bool, typer.Option("--pin", help="Refuse tasks that have changed since now.")]
Priority = Annotated[int, typer.Option(help="A higher one goes first.")]
Pool = Annotated[str, typer.Option(metavar="NAME", help="For workers of this pool alone.")]
Slots = Annotated[int | None, typer.Option("--concurrency", "-c", min=1, help="Attempts at a time, at most.")]
Reason = Annotated[str | None, typer.Option(help="Why; 'schedules show' tells it.")]
Most = Annotated[int, typer.Option("--last", min=1, help="So many firings are shown.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What becomes of times that come too early, too late, or in vain."""

    missed: MissedRule = Missed.ONE
    overlap: OverlapRule = None
    jitter: Jitter = 0.0
    grace: Grace = 60.0
    max_failures: Failures = 3

    def of(self, trigger: Cron | Once | Files) -> dict[str, Any]:
        """As fields of a :class:`Schedule`."""
        overlap = self.overlap or (Overlap.QUEUE if isinstance(trigger, Files) else Overlap.SKIP)
        return {"missed": self.missed, "overlap": overlap, "jitter_s": self.jitter, "grace_s": self.grace,
                "most_failures": self.max_failures}


@app.command()
@grouped
def add(
    *,
    name: Name,
    tasks: Tasks,
    cron: CronText = None,
    zone: Zone = None,
    at: At = None,
    files: Glob = None,
    settle: Settle = None,
    existing: Existing = False,
    terms: Terms,
    pin: Pin = False,
    asked: Asked,
    sample: Sampled = None,
    by_informative: Informative = False,
    concurrency: Slots = None,
    priority: Priority = 0,
    pool: Pool = "",
    project: Project = None,
    json: Json = False,
) -> None:
    """Let a run begin by itself: by --cron, once --at a time, or upon --files. Workers fire it."""
    trigger = _trigger(cron, zone, at, files, settle)
    _fits(trigger, terms.jitter, existing)
    order = Standing(paths=tuple(str(Path(path).expanduser().absolute()) for path in tasks), slots=concurrency,
                     priority=priority, pool=pool, sample=drawn_by(sample, by_informative), **asked.order())
    with opened() as home:
        _tell(home, scheduling.add(home, name, trigger, order, pin=pin, existing=existing, tell=note, project=project,
                                   **terms.of(trigger)), json)


def _fits(trigger: Cron | Once | Files, jitter: float, existing: bool) -> None:
    """What is said besides makes sense with this trigger. Raises UsageError."""
    if isinstance(trigger, Files) and jitter:
        raise UsageError("files have no time to be late for", field="--jitter", remedy="Leave it out.")
    if existing and not isinstance(trigger, Files):
        raise UsageError("there are no files to wait for", field="--existing", remedy="Say --files.")


def _trigger(
    cron: str | None, zone: str | None, at: datetime | None, files: str | None, settle: float | None
) -> Cron | Once | Files:
    if sum(one is not None for one in (cron, at, files)) != 1:
        raise UsageError("a schedule has one trigger", field="--cron", remedy="Say one of --cron, --at and --files.")
    if zone is not None and cron is None:
        raise UsageError("a time zone is for --cron", field="--zone", remedy="Write it into --at: 18:00+02:00.")
    if settle is not None and files is None:
        raise UsageError("there are no files to wait for", field="--settle", remedy="Say --files.")
    if cron is not None:
        return Cron(expression=cron, zone=zone or "UTC")
    if at is not None:
        return Once(at=at.astimezone(UTC))
    return watch.parse(files or "", 2.0 if settle is None else settle)


@app.command("list")
def list_(
    project: Annotated[str | None, typer.Option(metavar="NAME", help="Only those of this project.")] = None,
    json: Json = False,
) -> None:
    """Every schedule, how it stands, and when it fires next."""
    with opened() as home:
        only = None if project is None else projects.existing(home, project)
        found = [(schedule, home.store.schedules.tally(schedule.id)) for schedule in home.store.schedules.all()
                 if only in (None, schedule.project)]
    if json:
        emit_json({"schedules": [_json(schedule, tally) for schedule, tally in found]})
        return
    table(("name", "project", "when", "state", "next", "#fired", "#skipped", "#missed", "#failed"), [
        (schedule.name, schedule.project, _told(schedule), schedule.state.value,
         *([_shown(schedule, at) for at in scheduling.coming(schedule, 1)] or ["–"]),
         *(str(tally.get(state.value, 0)) for state in
           (FiringState.FIRED, FiringState.SKIPPED, FiringState.MISSED, FiringState.FAILED)))
        for schedule, tally in found])


@app.command()
def show(name: Name, last: Most = 20, project: Project = None, json: Json = False) -> None:
    """A schedule: its next times, and what became of the last ones."""
    with opened() as home:
        _tell(home, scheduling.named(home, name, project), json, last)


@app.command()
def pause(name: Name, reason: Reason = None, project: Project = None, json: Json = False) -> None:
    """Fire no more until it is resumed."""
    with opened() as home:
        _say(scheduling.pause(home, name, reason, project=project), json)


@app.command()
def resume(name: Name, project: Project = None, json: Json = False) -> None:
    """Fire again. Times that passed during the pause are let go."""
    with opened() as home:
        _say(scheduling.resume(home, name, project=project), json)


@app.command()
def remove(name: Name, project: Project = None, json: Json = False) -> None:
    """Forget a schedule and its firings; runs that it began stay."""
    with opened() as home:
        gone = scheduling.remove(home, name, project=project)
    if json:
        emit_json({"id": gone.id, "name": gone.name, "state": "removed"})
    else:
        out.print(f"{gone.name}: removed")


@app.command()
def fire(name: Name, project: Project = None, json: Json = False) -> None:
    """Fire once more, now, paused or not. The run waits for workers."""
    with opened() as home:
        firing = scheduling.fire(home, name, note, project=project)
        told = _firing(home, firing)
    if json:
        emit_json(told)
    else:
        out.print(f"{plain(name)}: {firing.state.value}" + (f" ({plain(firing.reason)})" if firing.reason else ""))


def _say(schedule: Schedule, json: bool) -> None:
    if json:
        emit_json(_json(schedule, {}))
    else:
        why = f" ({plain(schedule.reason)})" if schedule.reason else ""
        out.print(f"{schedule.name}: {schedule.state.value}{why}")


def _tell(home: Home, schedule: Schedule, json: bool, last: int = 20) -> None:
    firings = [_firing(home, one) for one in home.store.schedules.firings(schedule.id, last)]
    if json:
        emit_json({**_json(schedule, home.store.schedules.tally(schedule.id)), "firings": firings})
        return
    out.print(f"{schedule.name} ({schedule.id}): {schedule.state.value}"
              + (f" ({plain(schedule.reason)})" if schedule.reason else ""))
    out.print(plain(_told(schedule)) + f"; missed: {schedule.missed.value}, overlap: {schedule.overlap.value}")
    for at in scheduling.coming(schedule):
        out.print(f"next: {_shown(schedule, at)}")
    if firings:
        table(("due", "by", "state", "run", "", "why"), [
            (_shown(schedule, datetime.fromisoformat(one["due"])), one["by"],
             one["state"] + (f" ({one['count']})" if one["count"] > 1 else ""), one["run"] or "–",
             one["run_state"] or "", one["reason"] or ", ".join(file["path"] for file in one["files"][:5]))
            for one in firings])


def _json(schedule: Schedule, tally: dict[str, int]) -> dict[str, Any]:
    return {**schedule.to_json(), "next": [at.isoformat() for at in scheduling.coming(schedule)], "firings_by": tally}


def _firing(home: Home, firing: Firing) -> dict[str, Any]:
    run = home.store.run(firing.run) if firing.run else None
    return {**firing.to_json(), "run_state": run.state.value if run else None,
            "digests": run.spec.digests if run else {}}


def _told(schedule: Schedule) -> str:
    match schedule.trigger:
        case Cron() as cron:
            return f"{cron.expression} {cron.zone}" + (f" +{schedule.jitter_s:g} s" if schedule.jitter_s else "")
        case Once() as once:
            return f"once at {_shown(schedule, once.at)}"
        case Files() as files:
            return f"{files.folder}/{files.pattern}"


def _shown(schedule: Schedule, at: datetime) -> str:
    """The time on the clocks that the schedule goes by."""
    zone = timetable.zone(schedule.trigger.zone) if isinstance(schedule.trigger, Cron) else None
    return at.astimezone(zone).isoformat(sep=" ", timespec="seconds")
