"""Schedules as a user asks for them: add, look, pause, resume, remove, fire by hand; and how a firing gets its run.

A firing's run is planned anew each time, from the folders as they are then, and its record says what they were. A
schedule that is pinned refuses tasks that have changed since it was added.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import islice
from typing import Any

from woodshed.engine import timetable, watch
from woodshed.engine.control import Control
from woodshed.errors import StoreFault, UsageError
from woodshed.model import RunSpec
from woodshed.model.schedule import (
    Cron,
    Files,
    Firing,
    FiringState,
    Once,
    Schedule,
    ScheduleState,
    Standing,
)
from woodshed.services import curriculum, projects, runs, shared
from woodshed.services.home import Home
from woodshed.store.ids import new_schedule_id

Tell = Callable[[str], None]
SHOWN = 5
"""Coming times that are told of a schedule."""


def add(
    home: Home, name: str, trigger: Cron | Once | Files, order: Standing, *, pin: bool = False,
    existing: bool = False, tell: Tell = lambda sentence: None, project: str | None = None, **terms: Any,
) -> Schedule:  # fmt: skip
    """The schedule, checked as a run would be and recorded. ``terms`` are other fields of :class:`Schedule`.

    Its runs are the ``project``'s (default: as the setting says), in which its name is its own.

    Files that are there already do not fire unless ``existing``. Raises UsageError for tasks, agents or a trigger that
    cannot work.
    """
    at, whose = home.store.schedules.now(), projects.named(project)
    _check_trigger(trigger, at)
    shared.pool_name(order.pool)
    spec, tasks = planned(order, tell)
    if order.sample is not None:
        curriculum.narrowed(home, spec, tasks, order.sample)  # refused now, and not at night
    if pin:
        order = order.model_copy(update={"pinned": spec.digests})
    known = watch.existing(trigger) if isinstance(trigger, Files) and not existing else []
    schedule = Schedule.parse({"id": new_schedule_id(at), "project": whose, "name": name, "trigger": trigger,
                               "order": order, "cursor": at, "created_at": at, **terms})
    Control(home.store).schedule(schedule, known)
    return schedule


def _check_trigger(trigger: Cron | Once | Files, at: datetime) -> None:
    match trigger:
        case Cron() if next(timetable.times(trigger, at), None) is None:
            raise UsageError(f"'{trigger.expression}' never comes", field="cron", remedy="Name days that exist.")
        case Once() if trigger.at <= at:
            raise UsageError(f"{trigger.at.isoformat()} is over", field="at",
                             remedy="Say a later time, or: woodshed run")
        case Files():
            for _ in watch.walk(trigger):
                pass


def planned(order: Standing, tell: Tell) -> tuple[RunSpec, list[Any]]:
    """The run that the order asks for now, and its tasks. Raises UsageError as :func:`woodshed.services.runs.plan`."""
    return runs.plan(
        order.paths, order.agents, attempts=order.attempts, concurrency=order.slots or 2, seed=order.seed,
        engine=order.engine, verifier=order.verifier, rules=order.rules, retry=order.retry, deadlines=order.deadlines,
        strict=order.strict, quarantined=order.quarantined, person=order.person, tell=tell,
    )


def named(home: Home, name: str, project: str | None = None) -> Schedule:
    """The schedule of this name in the project, or with this id. Raises UsageError."""
    whose = projects.named(None) if project is None else projects.existing(home, project)
    return home.store.schedules.named(name, whose)


def pause(home: Home, name: str, reason: str | None = None, *, project: str | None = None) -> Schedule:
    """The schedule, firing no more; what waits for its turn keeps waiting. Raises UsageError where it has ended."""
    schedule = _living(home, name, project)
    home.store.schedules.turn(schedule.id, ScheduleState.PAUSED, reason)
    return home.store.schedules.named(schedule.id)


def resume(home: Home, name: str, *, project: str | None = None) -> Schedule:
    """The schedule, firing again: times of the pause are let go, files that came meanwhile fire.

    Raises UsageError where its one time has passed.
    """
    schedule = _living(home, name, project)
    if schedule.state is ScheduleState.ACTIVE:
        return schedule
    at = home.store.schedules.now()
    if isinstance(schedule.trigger, Once) and schedule.trigger.at <= at:
        raise UsageError(f"the time of '{schedule.name}' passed while it was paused", field="schedule",
                         remedy=f"Say: woodshed schedules fire {schedule.name}")
    home.store.schedules.turn(schedule.id, ScheduleState.ACTIVE, None, cursor=at)
    return home.store.schedules.named(schedule.id)


def _living(home: Home, name: str, project: str | None) -> Schedule:
    schedule = named(home, name, project)
    if schedule.state is ScheduleState.ENDED:
        raise UsageError(f"'{schedule.name}' has fired, and ended", field="schedule", remedy="Add another.")
    return schedule


def remove(home: Home, name: str, *, project: str | None = None) -> Schedule:
    """The schedule that was, and its list of firings with it; the runs that it began stay."""
    schedule = named(home, name, project)
    home.store.schedules.remove(schedule.id)
    return schedule


def fire(home: Home, name: str, tell: Tell, *, project: str | None = None) -> Firing:
    """One firing more, now, by the schedule's rule for overlaps; paused or not. Its run waits for workers."""
    schedule = named(home, name, project)
    at = home.store.schedules.now()
    firing = home.store.schedules.fire(schedule, Firing(schedule=schedule.id, due=at, by="hand", created_at=at))
    settle(home, [one for one in home.store.schedules.unsettled() if one.schedule == schedule.id], tell)
    found = [one for one in home.store.schedules.firings(schedule.id) if firing is not None and one.due == firing.due]
    if not found:
        raise UsageError(f"'{schedule.name}' was removed", field="schedule", remedy="Add it again.")
    return found[0]


def coming(schedule: Schedule, most: int = SHOWN) -> list[datetime]:
    """When it fires next, its jitter included; nothing where it is paused, over, or waits for files."""
    if schedule.state is not ScheduleState.ACTIVE:
        return []
    return [schedule.jittered(at) for at in islice(timetable.times(schedule.trigger, schedule.cursor), most)]


def settle(
    home: Home, unsettled: Sequence[Firing], tell: Tell, going: Callable[[], bool] = lambda: True
) -> None:
    """Decide on firings whose turn it is, in their order, and submit their runs, for as long as it is ``going``.

    Raises StoreFault: then it is tried again. Whatever else goes wrong with one is told of it, and no other suffers.
    """
    waits: set[str] = set()
    schedules: dict[str, Schedule] = {}
    for firing in unsettled:
        if not going():
            return
        if firing.schedule in waits:
            continue
        if firing.schedule not in schedules:
            schedules[firing.schedule] = home.store.schedules.named(firing.schedule)
        schedule = schedules[firing.schedule]
        decided = home.store.schedules.decide(firing, schedule) if firing.state is FiringState.PENDING else firing
        match decided.state:
            case FiringState.PENDING:
                waits.add(firing.schedule)
            case FiringState.STARTING:
                _submit(home, schedule, decided, tell)
            case FiringState.SKIPPED:
                tell(f"schedule {schedule.name}: {_when(decided)} is skipped: {decided.reason}")


def _submit(home: Home, schedule: Schedule, firing: Firing, tell: Tell) -> None:
    """The firing's run, which is submitted once however often this is called."""
    try:
        run = home.store.queue.find(schedule.project, firing.key) or _submitted(home, schedule, firing)
    except StoreFault:
        raise
    except Exception as error:  # whatever a folder, a plug-in or a catalogue may raise: the schedule goes on
        said = str(error) if isinstance(error, UsageError) else f"{type(error).__name__}: {error}"
        reason = f"{said} (on {platform.node()})"
        paused = home.store.schedules.failed(firing, reason)
        tell(f"schedule {schedule.name}: {_when(firing)} failed: {reason}")
        if paused:
            tell(f"schedule {schedule.name} is paused: {paused}")
    else:
        home.store.schedules.fired(firing, run)
        tell(f"schedule {schedule.name}: {_when(firing)} is {run}")


def _submitted(home: Home, schedule: Schedule, firing: Firing) -> str:
    order = schedule.order
    spec, tasks = planned(order, lambda sentence: None)
    if order.pinned is not None and spec.digests != order.pinned:
        changed = sorted(key for key in spec.digests.keys() | order.pinned.keys()
                         if spec.digests.get(key) != order.pinned.get(key))
        raise UsageError("a pinned task has changed, came or went", file=changed[0],
                         remedy=f"Restore it, or remove '{schedule.name}' and add it again.")
    if order.sample is not None:
        spec, tasks = curriculum.narrowed(home, spec, tasks, order.sample,
                                          seed=runs.seed_of(order.seed, firing.key, 0))
    return shared.submit(home, spec, tasks, priority=order.priority, key=firing.key, slots=order.slots,
                         pool=order.pool, project=schedule.project).id


def _when(firing: Firing) -> str:
    return f"{firing.due:%Y-%m-%d %H:%M:%S} UTC"
