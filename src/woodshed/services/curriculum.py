"""Curriculum: what runs tell of how often each task is solved, and which tasks are worth trying next.

Nothing is kept for it: the history of a task is its attempts in all runs of the store, by agents that have a model.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from woodshed.errors import UsageError
from woodshed.measure.curriculum import Curriculum, History, standing
from woodshed.model import Attempt, Run, RunSpec, Task, Valid
from woodshed.model.counted import counted
from woodshed.model.sample import Drawn, Sample
from woodshed.services.home import Home
from woodshed.tasks.load import find_tasks


def kind(task: Task) -> str:
    """What ``task`` is alike to: others of its template, where it was made from one; else nothing."""
    family, template = task.metadata.get("family"), task.metadata.get("template")
    return f"{family}/{template}" if isinstance(family, str) and isinstance(template, str) else task.id


def history(home: Home, tasks: Sequence[Task], *, agent: str | None = None) -> History:
    """What was tried of each task as it is now, oldest run first.

    ``agent`` is a name, where only one's attempts count. Runs of ``tasks check`` and attempts that are not valid tell
    nothing.
    """
    known = {task.id: task for task in tasks}
    found = History()
    for task, ended in _groups(home, {task.id: task.digest for task in tasks}, agent):
        found.add(task, kind(known[task]), ended)
    return found


def told(tasks: Sequence[Task], tried: History, curriculum: Curriculum) -> list[dict[str, Any]]:
    """A row each task, the one that a group is expected to teach most with first."""
    worths = curriculum.worths({task.id: kind(task) for task in tasks}, tried)
    rows = []
    for task in tasks:
        own = tried.of(task.id)
        rows.append({
            "task": task.id, "kind": kind(task), "standing": standing(own).value,
            "pass_rate": None if own.rate is None else round(own.rate, 4), "groups": own.groups,
            "informative": round(worths[task.id], 4), "dropped": curriculum.dropped(own), "folder": str(task.folder),
        })
    return sorted(rows, key=lambda row: (-row["informative"], row["task"]))


def listing(
    home: Home, paths: Sequence[Path], *, agent: str | None = None, size: int = 8
) -> list[dict[str, Any]]:
    """:func:`told` of the tasks in folders, for groups of ``size`` attempts. Raises UsageError."""
    tasks = find_tasks(list(paths))
    return told(tasks, history(home, tasks, agent=agent), Curriculum(size=size))


def choose(
    tasks: Sequence[Task], tried: History, curriculum: Curriculum, *, count: int, seed: int
) -> list[Task]:
    """``count`` of the tasks to try next, drawn by what is known of them; the same ``seed`` draws the same."""
    by_name = {task.id: task for task in tasks}
    names = curriculum.choose({task.id: kind(task) for task in tasks}, tried, count=count, seed=seed)
    return [by_name[name] for name in names]


def narrowed(
    home: Home, spec: RunSpec, tasks: Sequence[Task], sample: Sample, *, seed: int | None = None
) -> tuple[RunSpec, list[Task]]:
    """The run with so many of its tasks, drawn by its seed or by ``seed``, and the record of the draw (``spec.drawn``).

    A run of single attempts is drawn for groups of two: a lone attempt is no group. Raises UsageError where there are
    fewer tasks than are asked for.
    """
    if sample.count > len(tasks):
        raise UsageError(f"asked for are {counted(sample.count, 'task')}, and there are {len(tasks)}", field="sample",
                         remedy=f"Ask for {len(tasks)} at the most.")
    seed = spec.seed if seed is None else seed
    drawn = Drawn(count=sample.count, among=len(tasks), by=sample.by, seed=seed, tasks=())
    by_name = {task.id: task for task in tasks}
    if sample.by == "chance":
        names = random.Random(seed).sample(sorted(by_name), sample.count)  # noqa: S311 (repeatable, not secret)
    else:
        tried, curriculum = history(home, tasks), Curriculum(size=max(2, spec.attempts))
        names = [task.id for task in choose(tasks, tried, curriculum, count=sample.count, seed=seed)]
        worths = curriculum.worths({task.id: kind(task) for task in tasks}, tried)
        drawn = drawn.model_copy(update={
            "size": curriculum.size, "groups": sum(one.groups for one in tried.tasks.values()),
            "history": _digest(tried), "worths": {name: round(worths[name], 6) for name in names}})
    chosen = [by_name[name] for name in names]
    folders = {str(task.folder) for task in chosen}
    return spec.model_copy(update={
        "tasks": tuple(str(task.folder) for task in chosen),
        "digests": {folder: digest for folder, digest in spec.digests.items() if folder in folders},
        "groups": {name: spec.groups[name] for name in names},
        "drawn": drawn.model_copy(update={"tasks": tuple(names)})}), chosen


def _digest(tried: History) -> str:
    """Of everything that a draw asks of the past."""
    known = [sorted((name, one.passed, one.failed, one.groups) for name, one in part.items())
             for part in (tried.tasks, tried.kinds)]
    return hashlib.sha256(json.dumps(known).encode()).hexdigest()


def results(attempts: Sequence[Attempt]) -> list[tuple[str, list[bool]]]:
    """The groups (of one agent and task) among finished attempts: the task, and whether each valid one passed."""
    groups: dict[tuple[str, str], list[bool]] = {}
    for attempt in attempts:
        if attempt.outcome is not None and isinstance(verdict := attempt.outcome.verdict, Valid):
            groups.setdefault((attempt.task, attempt.agent), []).append(verdict.passed)
    return [(task, ended) for (task, _), ended in groups.items()]


def _groups(home: Home, digests: Mapping[str, str], agent: str | None) -> Iterator[tuple[str, Sequence[bool]]]:
    for run in sorted(home.store.runs(), key=lambda run: (run.created_at, run.id)):
        wanted = {one.name for one in run.spec.agents if one.model is not None and agent in (None, one.name)}
        if run.spec.check is None and wanted and not digests.keys().isdisjoint(run.spec.groups):
            attempts = [one for one in home.store.attempts(run.id) if one.agent in wanted]
            same = _unchanged(run, digests)
            yield from ((task, ended) for task, ended in results(attempts) if task in same)


def _unchanged(run: Run, digests: Mapping[str, str]) -> set[str]:
    """Tasks that the run had as they are now. A run knows digests by folder."""
    then = set(run.spec.digests.values())
    return {task for task in run.spec.groups if digests.get(task) in then}
