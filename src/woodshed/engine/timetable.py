"""Timetable: which times of a schedule are due now. Pure: nothing is lost, nothing comes twice, whatever clocks say.

Cron expressions are cronsim's (as Healthchecks uses it), which follows Debian's cron where clocks change: a job at a
fixed time that falls into the missing hour fires once the hour is over, one that falls into the hour that comes twice
fires the first time only, and jobs with ``*`` as minute or hour follow the time that passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from zoneinfo import ZoneInfo

from woodshed.errors import UsageError
from woodshed.model.schedule import Cron, Files, Firing, FiringState, Missed, Once, Schedule, ScheduleState, Trigger

MOST = 1000
"""Times that one call looks at. What is left is the next call's, so that a year of missed minutes holds up nobody."""


@dataclass(frozen=True, slots=True)
class Due:
    """What a schedule gives now: firings that are new, and the cursor after them. ``more``: ask again at once."""

    firings: tuple[Firing, ...]
    cursor: datetime
    ended: bool = False
    more: bool = False


def times(trigger: Trigger, after: datetime) -> Iterator[datetime]:
    """The trigger's times later than ``after``, ascending, in UTC. Raises UsageError for what cron does not know."""
    match trigger:
        case Once():
            if trigger.at > after:
                yield trigger.at
        case Cron():
            yield from _cron(trigger, after.astimezone(UTC))
        case Files():
            return


def _cron(trigger: Cron, after: datetime) -> Iterator[datetime]:
    from cronsim import CronSim, CronSimError  # no other command needs it

    if len(trigger.expression.split()) != 5:
        raise UsageError(f"'{trigger.expression}' has not five fields", field="cron",
                         remedy="Say minute, hour, day of month, month and weekday: '0 2 * * 1-5'.")
    try:
        found = CronSim(trigger.expression, after.astimezone(zone(trigger.zone)))
    except CronSimError as error:
        raise UsageError(f"'{trigger.expression}': {str(error).lower()}", field="cron",
                         remedy="Fields are those of cron: '0 2 * * 1-5' is 02:00 on weekdays.") from None
    last = after  # started inside an hour that comes twice, it tells the first of both, which is over
    for local in found:
        at = local.astimezone(UTC)
        if at > last:
            last = at
            yield at


def zone(name: str) -> ZoneInfo:
    """The time zone of this name. Raises UsageError."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # unknown, a path, a folder
        raise UsageError(f"no time zone '{name}'", field="zone", remedy="Say one like Europe/Berlin, or UTC.") from None


def due(schedule: Schedule, now: datetime, most: int = MOST) -> Due:
    """What is to be fired, or recorded as missed, of a schedule whose cursor is where it was left.

    Times are taken in order, each once its jitter is over. Every time between the old cursor and the new one stands in
    exactly one of the firings. A clock that goes back gives nothing until it has passed the cursor.
    """
    if schedule.state is not ScheduleState.ACTIVE or isinstance(schedule.trigger, Files):
        return Due((), schedule.cursor)
    ready: list[datetime] = []
    following: datetime | None = None
    for at in islice(times(schedule.trigger, schedule.cursor), most + 1):
        if schedule.jittered(at) > now:
            break
        if len(ready) == most:
            following = at
            break
        ready.append(at)
    if not ready:
        return Due((), schedule.cursor)
    return Due(_sorted_out(schedule, ready, following, now), ready[-1], ended=isinstance(schedule.trigger, Once),
               more=following is not None)


def _sorted_out(
    schedule: Schedule, ready: list[datetime], following: datetime | None, now: datetime
) -> tuple[Firing, ...]:
    late = [at for at in ready if schedule.is_late(at, now)]
    if schedule.missed is Missed.ALL:
        late = []
    elif schedule.missed is Missed.ONE and not (following is not None and schedule.is_late(following, now)):
        late = late[:-1]  # the latest of them fires
    fired = tuple(Firing(schedule=schedule.id, due=at, created_at=now) for at in ready[len(late):])
    if not late:
        return fired
    reason = "nobody fired it in time"
    if schedule.missed is Missed.ONE:
        reason += "; a later one stands for it"
    span = Firing(schedule=schedule.id, due=late[-1], state=FiringState.MISSED, count=len(late), since=late[0],
                  reason=reason, created_at=now, settled_at=now)
    return (span, *fired)
