"""A worker's part in schedules, told the time by hand: what fires, what waits, what fails, on either database."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kit import EXAMPLES
from pgserver import postgresql_server, postgresql_url  # noqa: F401  fixtures, found by name
from woodshed.engine.watch import parse
from woodshed.errors import UsageError
from woodshed.model import Agent, RunSpec, RunState
from woodshed.model.sample import Sample
from woodshed.model.schedule import (
    Cron,
    Firing,
    FiringState,
    Missed,
    Once,
    Overlap,
    Schedule,
    ScheduleState,
    Standing,
    Trigger,
)
from woodshed.services import firing as firing_service
from woodshed.services import runs, scheduling, shared
from woodshed.services.firing import Scheduler
from woodshed.services.home import Home, opened

TASK = EXAMPLES / "first-steps" / "write-file"
MINUTELY = Cron(expression="* * * * *")


@dataclass
class Shop:
    """A home with a task of its own, a clock, and as many schedulers as are asked for."""

    home: Home
    tasks: Path
    at: datetime = field(default_factory=lambda: datetime.now(UTC).replace(second=30, microsecond=0))
    told: list[str] = field(default_factory=list)

    def scheduler(self, name: str = "one") -> Scheduler:
        start = self.at
        return Scheduler(self.home, name, self.told.append, clock=lambda: self.at,
                         steady=lambda: (self.at - start).total_seconds())

    def add(self, trigger: Trigger = MINUTELY, **terms: Any) -> Schedule:
        """A schedule that has looked at nothing since now."""
        order = Standing(paths=(str(self.tasks),), agents=(Agent(name="oracle", harness="oracle"),),
                         sample=terms.pop("sample", None))
        options = {key: terms.pop(key) for key in ("pin", "existing") if key in terms}
        schedule = scheduling.add(self.home, "nightly", trigger, order, **options, **terms)
        self.home.store.schedules.turn(schedule.id, ScheduleState.ACTIVE, None, cursor=self.at)
        return self.home.store.schedules.named(schedule.id)

    def firings(self) -> list[Firing]:
        """Oldest first."""
        return self.home.store.schedules.firings(self.home.store.schedules.named("nightly").id, 1000)[::-1]

    def states(self) -> list[str]:
        return [firing.state.value for firing in self.firings()]

    def end(self, number: int) -> None:
        """The run of a firing is over."""
        self.home.store.set_run_state(str(self.firings()[number].run), RunState.FINISHED)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def shop(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """See :class:`Shop`; on either database."""
    if request.param == "postgresql":
        monkeypatch.setenv("WOODSHED_DATABASE_URL", request.getfixturevalue("postgresql_url"))
    tasks = tmp_path / "tasks"
    shutil.copytree(TASK, tasks / "write-file")
    with opened(tmp_path / "home") as home:
        yield Shop(home, tasks)


def test_each_time_is_one_run_with_its_own_key(shop: Shop) -> None:
    """Minute after minute a run is queued, that records the task's digest; looking twice gives no second one."""
    shop.add(overlap=Overlap.ALLOW)
    scheduler = shop.scheduler()
    for _ in range(3):
        shop.at += timedelta(minutes=1)
        scheduler.tick()
        scheduler.tick()
    firings = shop.firings()
    found = shop.home.store.runs()
    assert [firing.run for firing in firings] == [run.id for run in found][::-1]
    assert len(found) == 3
    assert {run.state for run in found} == {RunState.QUEUED}
    assert {*found[0].spec.digests} == {str(shop.tasks / "write-file")}
    assert [shop.home.store.queue.find("default", firing.key) for firing in firings] == [f.run for f in firings]
    assert firings[0].key.startswith("schedule:s-")


def test_each_firing_draws_its_tasks_anew(shop: Shop) -> None:
    """So many as are asked for, the same whoever draws for a firing; too many are refused at once."""
    for name in ("copy-file", "rename-file", "list-files", "make-folder"):
        shutil.copytree(TASK.parent / name, shop.tasks / name)
    with pytest.raises(UsageError, match="asked for are 9 tasks, and there are 5"):
        shop.add(sample=Sample(count=9))
    schedule = shop.add(sample=Sample(count=2, by="chance"))
    scheduler, drawn = shop.scheduler(), []
    for _ in range(6):
        shop.at += timedelta(minutes=1)
        scheduler.tick()
        run = shop.home.store.run(str(shop.firings()[-1].run))
        assert run.spec.drawn is not None
        assert {attempt.task for attempt in shop.home.store.attempts(run.id)} == {*run.spec.drawn.tasks}
        assert sorted(Path(folder).name for folder in run.spec.digests) == sorted(
            name.rpartition("/")[2] for name in run.spec.drawn.tasks)
        assert run.spec.drawn.seed == runs.seed_of(schedule.order.seed, shop.firings()[-1].key, 0)
        drawn.append(run.spec.drawn.tasks)
        shop.end(-1)
    assert {len(one) for one in drawn} == {2}
    assert len(set(drawn)) > 1


def test_a_second_worker_takes_over_and_fires_nothing_again(shop: Shop) -> None:
    """Of two, one looks; when it has left, the other goes on where it was."""
    shop.add(overlap=Overlap.ALLOW)
    one, two = shop.scheduler("one"), shop.scheduler("two")
    one.tick()
    for turn in range(4):
        shop.at += timedelta(minutes=1)
        for scheduler in (two, one) if turn < 2 else (two, two):
            scheduler.tick()
        if turn == 1:
            one.leave()
    assert len(shop.home.store.runs()) == len(shop.firings()) == 4


@pytest.mark.parametrize(("overlap", "states"), [
    (Overlap.ALLOW, ["fired", "fired", "fired"]),
    (Overlap.SKIP, ["fired", "skipped", "skipped"]),
    (Overlap.QUEUE, ["fired", "pending", "pending"]),
])
def test_an_overlap_is_treated_as_the_schedule_says(shop: Shop, overlap: Overlap, states: list[str]) -> None:
    """While the first run is open the next two fire, are skipped or wait; once it is over the next one fires."""
    shop.add(overlap=overlap)
    scheduler = shop.scheduler()
    for _ in states:
        shop.at += timedelta(minutes=1)
        scheduler.tick()
    assert shop.states() == states
    shop.end(0)
    scheduler.tick()
    after = {Overlap.QUEUE: ["fired", "fired", "pending"]}.get(overlap, states)
    assert shop.states() == after
    if overlap is Overlap.QUEUE:
        shop.end(1)
        scheduler.tick()
        assert shop.states() == ["fired"] * 3


@pytest.mark.parametrize(("missed", "fired"), [(Missed.SKIP, 0), (Missed.ONE, 1), (Missed.ALL, 9)])
def test_what_an_outage_missed_is_listed(shop: Shop, missed: Missed, fired: int) -> None:
    """After an outage of nine minutes none, one or all of them fire; all are accounted for, with a reason."""
    shop.add(missed=missed, overlap=Overlap.ALLOW, grace_s=20)
    shop.at += timedelta(minutes=9)
    scheduler = shop.scheduler()
    for _ in range(3):
        scheduler.tick()
    assert len(shop.home.store.runs()) == fired
    tally = shop.home.store.schedules.tally(shop.firings()[0].schedule)
    assert tally.get("fired", 0) == fired
    assert tally.get("missed", 0) == 9 - fired
    for firing in shop.firings():
        assert (firing.state is FiringState.MISSED) == ("in time" in (firing.reason or ""))


def test_all_that_was_missed_waits_in_line_and_none_is_lost(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 'all' and 'queue', more than may wait at a time stay due, and fire one after another."""
    monkeypatch.setattr(firing_service, "MOST_WAITING", 4)
    shop.add(missed=Missed.ALL, overlap=Overlap.QUEUE)
    shop.at += timedelta(minutes=7)
    scheduler = shop.scheduler()
    scheduler.tick()
    assert sorted(shop.states()) == ["fired", *["pending"] * 3]
    for number in range(6):
        shop.end(number)
        scheduler.tick()
        scheduler.tick()
    assert shop.states() == ["fired"] * 7


def test_failures_are_told_and_pause_the_schedule_in_the_end(shop: Shop) -> None:
    """A folder that is gone fails each firing with its name and the machine's; the third pauses; mended, it goes on."""
    schedule = shop.add(most_failures=3)
    shop.tasks.rename(shop.tasks.with_name("away"))
    scheduler = shop.scheduler()
    for _ in range(5):
        shop.at += timedelta(minutes=1)
        scheduler.tick()
    assert shop.states() == ["failed"] * 3
    assert str(shop.tasks) in str(shop.firings()[0].reason)
    paused = shop.home.store.schedules.named("nightly")
    assert paused.state is ScheduleState.PAUSED
    assert str(paused.reason).startswith("3 firings failed in a row; the last: ")
    assert any("is paused" in line for line in shop.told)
    shop.tasks.with_name("away").rename(shop.tasks)
    shop.home.store.schedules.turn(schedule.id, ScheduleState.ACTIVE, None, cursor=shop.at)
    shop.at += timedelta(minutes=1)
    scheduler.tick()
    assert shop.states() == ["failed"] * 3 + ["fired"]


def test_one_schedule_that_fails_holds_up_no_other(shop: Shop) -> None:
    """A fault nobody thought of, in planning one run, is that firing's alone."""
    shop.add()
    other = shop.home.store.schedules.named("nightly").model_copy(update={"id": "s-other", "name": "other"})
    broken = other.order.model_copy(update={"engine": "no-such-engine", "paths": ("/nowhere",)})
    shop.home.store.schedules.add(other.model_copy(update={"order": broken}))
    shop.at += timedelta(minutes=1)
    shop.scheduler().tick()
    assert shop.states() == ["fired"]
    [failed] = shop.home.store.schedules.firings("s-other")
    assert failed.state is FiringState.FAILED


def test_pinned_tasks_must_be_what_they_were(shop: Shop) -> None:
    """Without a pin a changed task runs as it is; with one the firing fails and names it, as it does for a new task."""
    shop.add(pin=True, overlap=Overlap.ALLOW)
    scheduler = shop.scheduler()
    shop.at += timedelta(minutes=1)
    scheduler.tick()
    shutil.copytree(shop.tasks / "write-file", shop.tasks / "another")
    (shop.tasks / "another" / "task.toml").write_text(
        (TASK / "task.toml").read_text().replace("write-file", "another"))
    shop.at += timedelta(minutes=1)
    scheduler.tick()
    assert shop.states() == ["fired", "failed"]
    assert "a pinned task has changed" in str(shop.firings()[1].reason)
    assert str(shop.tasks / "another") in str(shop.firings()[1].reason)


def test_once_is_once(shop: Shop) -> None:
    """A one-off fires at its time, has ended then, and cannot be resumed; one in the past is refused."""
    due = shop.at + timedelta(hours=3)
    shop.add(Once(at=due))
    scheduler = shop.scheduler()
    shop.at = due - timedelta(seconds=1)
    scheduler.tick()
    assert shop.states() == []
    for _ in range(3):
        shop.at += timedelta(seconds=1)
        scheduler.tick()
    assert shop.states() == ["fired"]
    assert shop.home.store.schedules.named("nightly").state is ScheduleState.ENDED
    with pytest.raises(UsageError, match="has fired, and ended"):
        scheduling.resume(shop.home, "nightly")
    scheduling.remove(shop.home, "nightly")
    with pytest.raises(UsageError, match=r"at: .* is over"):
        shop.add(Once(at=datetime(2020, 1, 1, tzinfo=UTC)))


def test_by_hand_it_fires_paused_or_not(shop: Shop) -> None:
    """A firing by hand has its run at once, without a worker; it keeps to the rule for overlaps."""
    shop.add()
    scheduling.pause(shop.home, "nightly", "a holiday")
    first = scheduling.fire(shop.home, "nightly", shop.told.append)
    second = scheduling.fire(shop.home, "nightly", shop.told.append)
    assert (first.state, first.by) == (FiringState.FIRED, "hand")
    assert (second.state, second.reason) == (FiringState.SKIPPED, f"{first.run} is not over")
    shop.at += timedelta(minutes=5)
    shop.scheduler().tick()
    assert len(shop.firings()) == 2


def test_files_fire_once_by_what_they_hold(shop: Shop, tmp_path: Path) -> None:
    """What was there does not fire; what comes does, with its digest; touched, copied or after a restart, not again."""
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "old").write_text("old")
    shop.add(parse(f"{folder}/*", 2.0), overlap=Overlap.ALLOW)
    scheduler = shop.scheduler()

    def later(scheduler: Scheduler) -> None:
        for _ in range(4):
            shop.at += timedelta(seconds=1)
            scheduler.tick()

    later(scheduler)
    assert shop.firings() == []
    (folder / "new").write_text("new")
    (folder / "twin").write_text("new")
    later(scheduler)
    [firing] = shop.firings()
    assert (firing.state, firing.by) == (FiringState.FIRED, "files")
    assert [trace.path for trace in firing.files] == ["new", "twin"]
    (folder / "new").write_text("new")
    (folder / "copy").write_text("new")
    later(scheduler)
    scheduler.leave()
    later(shop.scheduler("after a restart"))
    assert shop.firings() == [firing]
    (folder / "new").write_text("newer")
    scheduler.leave()
    again = shop.scheduler("again")
    again.rows.release("after a restart")
    later(again)
    assert [trace.path for trace in shop.firings()[1].files] == ["new"]


def test_a_folder_that_stays_gone_pauses_its_schedule(shop: Shop, tmp_path: Path) -> None:
    """For the schedule's grace it may be away, as a network disk is at times; then a failure is listed."""
    folder = tmp_path / "in"
    folder.mkdir()
    shop.add(parse(f"{folder}/*", 2.0), grace_s=10)
    scheduler = shop.scheduler()
    folder.rmdir()
    for _ in range(10):
        scheduler.tick()
        shop.at += timedelta(seconds=1)
    assert shop.firings() == []
    for _ in range(3):
        scheduler.tick()
        shop.at += timedelta(seconds=1)
    assert shop.states() == ["failed"]
    paused = shop.home.store.schedules.named("nightly")
    assert paused.state is ScheduleState.PAUSED
    assert str(folder) in str(paused.reason)


@pytest.mark.parametrize("bad", ["0 0 31 4 *", "* * *", "@hourly"])
def test_a_trigger_that_cannot_work_is_refused_at_once(shop: Shop, bad: str) -> None:
    """Nothing is recorded of a schedule that never comes, whose name is odd, or whose tasks are not there."""
    with pytest.raises(UsageError, match="cron"):
        shop.add(Cron(expression=bad))
    with pytest.raises(UsageError, match="zone"):
        shop.add(Cron(expression="* * * * *", zone="Mars/Olympus"))
    shop.tasks.rename(shop.tasks.with_name("away"))
    with pytest.raises(UsageError, match="tasks"):
        shop.add()
    assert shop.home.store.schedules.all() == []


def _no_plan(*_asked: object, **_how: object) -> tuple[Any, list[Any]]:
    return RunSpec(tasks=("/t",), agents=(Agent(name="oracle", harness="oracle"),)), []


MOVES = st.lists(st.one_of(st.integers(-300, 300), st.sampled_from(["close", "crash", "other", "look"])), max_size=15)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(MOVES, st.sampled_from(Overlap), st.sampled_from(Missed))
def test_whatever_happens_each_time_has_at_most_one_run(
    new_folder: Callable[[], Path], moves: list[int | str], overlap: Overlap, missed: Missed
) -> None:
    """Clocks that jump, runs that end, workers that die before or after they submit: one run for each that fired,

    never two open ones without leave, and every time up to the cursor in one row.
    """
    with pytest.MonkeyPatch.context() as patch, opened(new_folder()) as home:
        patch.setattr(scheduling, "planned", _no_plan)
        shop = Shop(home, Path("/t"))
        start, schedule = shop.at, shop.add(overlap=overlap, missed=missed)
        scheduler, names = shop.scheduler(), iter(range(1000))
        for move in [*moves, "look", "look"]:
            if isinstance(move, int):
                shop.at += timedelta(seconds=move)
            elif move == "close":
                for run in home.store.runs(unfinished=True)[-1:]:
                    home.store.set_run_state(run.id, RunState.FINISHED)
            elif move == "other":
                scheduler.leave()
                scheduler = shop.scheduler(f"w{next(names)}")
            elif move == "crash":
                _crash(scheduler, next(names) % 2 == 0)
            scheduler.tick()
            if overlap is not Overlap.ALLOW:
                assert len(home.store.runs(unfinished=True)) <= 1
        firings = shop.firings()
        fired = [firing.run for firing in firings if firing.state is FiringState.FIRED]
        assert sorted(map(str, fired)) == sorted(run.id for run in home.store.runs())
        assert FiringState.STARTING not in {firing.state for firing in firings}
        minutes = int((home.store.schedules.named(schedule.id).cursor - start).total_seconds() + 30) // 60
        assert sum(firing.count for firing in firings) == minutes


def _crash(scheduler: Scheduler, after: bool) -> None:
    """A look that ends before, or after, the first run is submitted, as by a kill."""
    class Killed(BaseException):
        pass

    submitted = shared.submit

    def submit(*asked: Any, **how: Any) -> Any:
        if after:
            submitted(*asked, **how)
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared, "submit", submit)
        with suppress(Killed):
            scheduler.tick()


@pytest.fixture
def new_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """Homes of their own for each example, with tables made once."""
    template = tmp_path_factory.mktemp("template")
    with opened(template):
        pass

    def made() -> Path:
        home = tmp_path_factory.mktemp("shop")
        shutil.copy(template / "woodshed.db", home)
        return home

    return made
