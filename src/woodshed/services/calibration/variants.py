"""Variants of a task's reference as end states, kept beside the run: a resumed check judges the same ones."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from woodshed.errors import StoreFault
from woodshed.model import ChangeSet, Record, Survivor, Task
from woodshed.services.calibration.leaks import leaked_files, leaked_history
from woodshed.services.calibration.tree import Ends, Tree, after, files_of, solved_files
from woodshed.services.home import Home
from woodshed.verify.run import Case, restorable
from woodshed.verify.strength import Kind, variants

_PATCH_CHARS = 20_000


class Variation(Record):
    """One wrong end state: what an author reads of it, and the changes to the start that make it.

    ``step`` is the index of the step that it is judged by, where the task has steps.
    """

    survivor: Survivor
    changes: ChangeSet
    step: int | None = None


class Findings(Record):
    """What follows from a task's first attempts, in order: the wrong end states to judge, and what its start leaks.

    ``unexplored`` says why neither could be found out, where that is so.
    """

    version: int = 1
    leaks: tuple[str, ...] = ()
    variations: tuple[Variation, ...] = ()
    unexplored: str = ""


async def reference_ends(task: Task, changes: ChangeSet, tree: Tree, case: Case) -> Ends:
    """What end states are made of. Of the reference only what a verification restores counts (tests do not)."""
    kept = (await restorable(case, changes)).changes
    workdir = task.environment.workdir
    return Ends(tree, kept, solved_files(kept, tree.files, case.blobs, workdir), workdir, case.blobs)


async def step_ends(task: Task, changes: Sequence[ChangeSet], tree: Tree, case: Case) -> list[Ends]:
    """As :func:`reference_ends`, of every step that the reference came to: each upon the end of the one before.

    What a step's own setup made counts as its reference's work: a capture does not tell them apart.
    """
    made: list[Ends] = []
    start, before, own = tree, ChangeSet(), set(tree.files)
    for index, captured in enumerate(changes[: len(task.steps)]):
        brought = task.steps[index].workdir
        late = files_of(() if brought is None else (brought,))
        own |= late.files.keys()
        start = after(start, solved_files(before, start.files, case.blobs, task.environment.workdir), late)
        ends = await reference_ends(task.at(index), captured, start, replace(case, task=task.at(index)))
        new = {name: content for name, content in ends.solved.items() if start.files.get(name) != content}
        made.append(replace(ends, solved=new, own=frozenset(own),
                            before={change.path: change for change in before.changes}))
        before = ends.reference
    return made


def by_step(task: Task, ends: Sequence[Ends], *, seed: int, at_most: int) -> Iterator[Variation]:
    """At most ``at_most`` wrong end states in all, of each step in its turn; named after it."""
    for index, one in enumerate(ends):
        name = task.steps[index].name
        for variation in variations(task.at(index), one, seed=seed, at_most=max(1, at_most // len(ends))):
            told = variation.survivor.model_copy(update={"name": f"{name}: {variation.survivor.name}"})
            yield Variation(survivor=told, changes=variation.changes, step=index)


def variations(task: Task, ends: Ends, *, seed: int, at_most: int) -> Iterator[Variation]:
    """At most ``at_most`` wrong end states of ``task``: of its files' contents, and of links, folders and modes."""
    left = at_most
    for change, without in ends.left_out():
        if left <= 0:
            return
        left -= 1
        name = f"{Kind.HUNK}:{change.path}:0:left-out"
        told = Survivor(name=_shown(name), kind=Kind.HUNK, path=_shown(change.path),
                        patch=_shown(f"the reference's {change.kind} {change.path} is left out\n"))
        yield Variation(survivor=told, changes=without)
    for variant in variants(ends.start.files, ends.solved, seed=seed, at_most=left, examples=(task.instruction,)):
        told = Survivor(name=_shown(variant.name), kind=variant.kind, path=_shown(variant.path),
                        patch=_shown(variant.patch)[:_PATCH_CHARS])
        yield Variation(survivor=told, changes=ends.changes(
            variant.files, upon_reference=variant.kind is not Kind.SUPERFICIAL))


def leaks(task: Task, tree: Tree, ends: Sequence[Ends]) -> tuple[str, ...]:
    """What the start of ``task`` gives away, a sentence each; compared with where the reference (each step) ends."""
    solution = {}
    for folder in {step.solution for step in task.steps} | {task.solution}:
        for path in sorted(folder.rglob("*")) if folder else ():
            if path.is_file() and not path.is_symlink():
                solution[path.relative_to(folder or path).as_posix()] = path.read_bytes()
    solved = {name: content for one in ends for name, content in one.solved.items()}
    return (*leaked_history(tree.folders), *map(_shown, leaked_files(tree.files, solved, solution)))


def findings_file(home: Home, run: str, task: Task) -> Path:
    """Where the findings on ``task`` are kept."""
    return home.path / "runs" / run / "variants" / f"{task.digest}.json"


def keep(home: Home, run: str, task: Task, findings: Findings) -> None:
    """Write them, in one piece. Raises StoreFault."""
    file = findings_file(home, run, task)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_suffix(".tmp")
        temporary.write_text(json.dumps(findings.to_json()))
        temporary.replace(file)
    except OSError as error:
        raise StoreFault(f"the variants of {task.id} could not be kept: {error}") from error


def kept(home: Home, run: str, task: Task) -> Findings | None:
    """The findings on ``task``, None where it has none yet. Raises StoreFault for a file that is not ours."""
    file = findings_file(home, run, task)
    try:
        return Findings.model_validate(json.loads(file.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise StoreFault(f"{file} cannot be read: {error}") from error


def _shown(text: str) -> str:
    """A name may hold bytes that are no UTF-8; records hold text."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
