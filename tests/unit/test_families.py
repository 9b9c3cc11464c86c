"""Families: tasks from templates, the same each time, training and held-out ones apart, and sound."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kit import woodshed
from woodshed.errors import Cause, UsageError
from woodshed.measure.curriculum import Curriculum
from woodshed.model import Agent, Assurance, EventKind, ModelSpec, Outcome, Run, RunSpec, StopReason, Valid
from woodshed.model.event import now
from woodshed.services import curriculum, families, runs
from woodshed.services.home import opened
from woodshed.store.eventlog import EventLog
from woodshed.tasks.families import FAMILIES, Split, instance, instances
from woodshed.tasks.load import find_tasks

FAMILY = FAMILIES["first-commands"]


def test_no_task_of_one_split_is_in_another_whatever_the_seeds() -> None:
    """Hundreds of tasks of several seeds: what they say and start with is in one split alone, and so are templates."""
    marks: dict[Split, set[int]] = {split: set() for split in Split}
    for split in Split:
        for seed in (0, 1, 2):
            found = list(instances(FAMILY, split, count=150, seed=seed))
            assert len({one.exercise.mark() for one in found}) == len({one.name for one in found}) == 150
            assert {one.template for one in found} == set(FAMILY.of(split))
            marks[split] |= {one.exercise.mark() for one in found}
    assert not any(marks[one] & marks[other] for one in Split for other in Split if one is not other)
    assert not FAMILY.templates.keys() & FAMILY.unseen.keys()


def test_template_and_number_make_the_same_task(tmp_path: Path) -> None:
    """Two folders that were asked for alike hold the same bytes, and another seed others."""
    made = [families.generate("first-commands", "train", tmp_path / name, count=20, seed=seed)
            for name, seed in (("a", 3), ("b", 3), ("c", 4))]
    digests = [{task.id: task.digest for task in find_tasks(folders)} for folders in made]
    assert digests[0] == digests[1]
    assert not set(digests[0].values()) & set(digests[2].values())
    task = find_tasks(made[0])[0]
    one = instance(FAMILY, task.metadata["template"], task.metadata["number"])
    assert (one.split.value, f"first-commands/{one.name}") == (task.metadata["split"], task.id)


def test_what_cannot_be_generated_is_refused(tmp_path: Path) -> None:
    """An unknown family or split, a folder with tasks in it, and more tasks than a template has."""
    for family, split in (("last-commands", "train"), ("first-commands", "test")):
        with pytest.raises(UsageError, match="there is no"):
            families.generate(family, split, tmp_path / "x", count=1)
    families.generate("first-commands", "train", tmp_path / "full", count=1)
    with pytest.raises(UsageError, match="not empty"):
        families.generate("first-commands", "train", tmp_path / "full", count=1)
    small = type(FAMILY)("small", "", {"one": lambda dice: FAMILY.templates["write"](type(dice)(0))}, {})
    with pytest.raises(UsageError, match="no 2 different"):
        list(instances(small, Split.TRAIN, count=2, seed=0) if instance(small, "one", 0).split is Split.TRAIN
             else instances(small, Split.HELDOUT, count=2, seed=0))


@pytest.mark.slow
def test_every_template_is_admitted(tmp_path: Path, new_home: Callable[[], Path]) -> None:
    """Two tasks of each template pass the check: doing nothing fails, the reference passes again and again, no cheat

    earns anything, and broken references fail.
    """
    for split, count in (("train", 20), ("unseen", 8)):
        families.generate("first-commands", split, tmp_path / split, count=count)
    done = woodshed("tasks", "check", tmp_path / "train", tmp_path / "unseen", "--json", home=new_home())
    told = json.loads(done.stdout.splitlines()[-1])
    assert {row["task"]: row["reasons"] for row in told["tasks"] if row["label"] != "sound"} == {}
    assert len(told["tasks"]) == 28


def test_a_task_of_a_family_holds(tmp_path: Path, new_home: Callable[[], Path]) -> None:
    """Of each template, by the command line: the reference passes and doing nothing does not."""
    home = new_home()
    made = woodshed("tasks", "generate", "first-commands", "--out", tmp_path / "t", "--count", "10", "--json",
                    home=home)
    assert json.loads(made.stdout)["count"] == 10, made.stderr
    done = woodshed("run", tmp_path / "t", "-a", "oracle", "-a", "nop", "-c", "4", "--json", home=home)
    rows = {row["agent"]: row for row in json.loads(done.stdout.splitlines()[-1])["agents"]}
    assert (rows["oracle"]["passed"], rows["nop"]["passed"], rows["nop"]["valid"]) == (10, 0, 10), done.stderr


def _ran(home: Path, folders: list[Path], outcomes: dict[str, list[bool]], agent: Agent) -> None:
    """A run of ``agent`` in the store, whose attempts ended so by task."""
    with opened(home) as place:
        tasks = find_tasks(folders)
        spec = RunSpec(tasks=tuple(str(task.folder) for task in tasks), agents=(agent,), engine="native",
                       digests={str(task.folder): task.digest for task in tasks},
                       groups={task.id: task.group for task in tasks},
                       attempts=max(map(len, outcomes.values())), concurrency=1, seed=0)
        run = Run(id=f"r-{agent.name}-{len(place.store.runs())}", spec=spec, created_at=now())
        place.store.create_run(run, runs.planned(run, tasks))
        for attempt in place.store.attempts(run.id):
            number = place.store.begin_execution(attempt.id, "x")
            assert number is not None
            log = EventLog(place.store, attempt.id, number)
            log.emit(EventKind.NOTE, {"text": "t"})
            passed = outcomes[attempt.task][attempt.index]
            cause = None if passed else Cause.AGENT
            verdict = Valid(rewards={"reward": float(passed)}, total=float(passed), cause=cause,
                            assurance=Assurance.CANARY)
            assert log.finish(Outcome(verdict=verdict, stop=StopReason.FINISHED))


def test_tasks_are_listed_by_what_runs_tell_of_them(tmp_path: Path, new_home: Callable[[], Path]) -> None:
    """Half solved comes before untried, never and always solved last; oracles tell nothing, and old tasks neither."""
    home = new_home()
    folders = families.generate("first-commands", "train", tmp_path / "t", count=4)
    names = [task.id for task in find_tasks(folders)]
    model = Agent(name="m", harness="loop", model=ModelSpec(name="m", base_url="http://127.0.0.1:1/v1"))
    ended = dict(zip(names, ([True, False] * 4, [False] * 8, [True] * 8), strict=False))
    _ran(home, folders[:3], ended, model)
    _ran(home, folders, dict.fromkeys(names, [True] * 8), Agent(name="oracle", harness="oracle"))
    done = woodshed("tasks", "list", tmp_path / "t", "--by-informative", "--json", home=home)
    rows = json.loads(done.stdout)["tasks"]
    assert [row["task"] for row in rows[:2]] == [names[0], names[3]], done.stderr
    assert [row["standing"] for row in rows] == ["informative", "unseen", "never solved", "always solved"] or \
        [row["standing"] for row in rows] == ["informative", "unseen", "always solved", "never solved"]
    assert (rows[0]["pass_rate"], rows[2]["dropped"], rows[3]["dropped"]) == (0.5, True, True)
    with opened(home) as place:
        tasks = find_tasks(folders)
        assert not curriculum.history(place, tasks, agent="nobody").tasks
        changed = [task.model_copy(update={"digest": "0"}) for task in tasks]
        assert not curriculum.history(place, changed).tasks
        tried = curriculum.history(place, tasks)
        chosen = curriculum.choose(tasks, tried, Curriculum(explore=0.0), count=2, seed=1)
        assert {task.id for task in chosen} == {names[0], names[3]}
