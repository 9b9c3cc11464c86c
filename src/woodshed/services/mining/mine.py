"""Mining a repository: every commit is looked at, candidates are tried, and what can be trusted becomes a task."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from woodshed import plugins, settings
from woodshed.errors import UsageError
from woodshed.model import ModelSpec
from woodshed.services.confirming import confirm
from woodshed.services.home import Home
from woodshed.services.mining.calibrate import calibrate
from woodshed.services.mining.describe import describing
from woodshed.services.mining.journal import Journal, Kept, opened
from woodshed.services.mining.trial import Bench
from woodshed.tasks.calibrated import write_calibration
from woodshed.tasks.collection import check_place
from woodshed.tasks.git import Repository
from woodshed.tasks.git import opened as opened_repository
from woodshed.tasks.mine import Candidate, Commit, Project, Reason, Rejection, changes, commits, screen, select

Progress = Callable[[int, int | None, str], None]
"""Hears of (commits settled, commits in all, what was just settled)."""


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be mined. ``most`` bounds the tasks kept, newest first; ``since`` is a date or a commit.

    ``model`` words the instructions of tasks that are kept anew.
    """

    repo: Path
    out: Path
    ref: str = "HEAD"
    since: str | None = None
    most: int | None = None
    concurrency: int = 2
    engine: str = "native"
    timeout_s: float = 300.0
    force: bool = False
    calibrate: bool = True
    anew: bool = False
    model: ModelSpec | None = None


@dataclass(slots=True)
class Mined:
    """What mining came to: one row a commit that was looked at, in order of the history, newest first."""

    repository: str
    out: Path
    rows: list[dict[str, Any]] = field(default_factory=list)
    unseen: int = 0

    def record(self) -> dict[str, Any]:
        """For ``--json``. ``reasons`` counts the rejections, ``unseen`` are commits left alone once enough was kept."""
        kept = [row for row in self.rows if row["kept"]]
        reasons = Counter(row["reason"] for row in self.rows if not row["kept"])
        return {"repository": self.repository, "out": str(self.out), "commits": len(self.rows), "kept": len(kept),
                "unseen": self.unseen, "tasks": [row["task"] for row in kept], "reasons": dict(sorted(reasons.items())),
                "rows": self.rows}


async def mine(order: Order, *, home: Home, progress: Progress) -> Mined:
    """Mine ``order.repo`` and calibrate what is kept. What was found before is not done again.

    Raises UsageError for a repository that cannot be read or a folder that cannot be written, EnvironmentFault where
    the index or the sandboxes fail; all that was found until then stays in the journal.
    """
    out = order.out.expanduser().absolute()
    if out.exists() and not out.is_dir():
        raise UsageError("a file, not a folder", file=out, remedy="Choose another folder for the tasks.")
    repo = order.repo.expanduser()
    with opened_repository(repo) as repository:
        history = await asyncio.to_thread(commits, repository, ref=order.ref, since=order.since)
        name, patterns = await asyncio.to_thread(_known, repository, repo, order.ref)
        options = "\0".join((order.engine, str(order.timeout_s), *patterns, settings.setting("python"), sys.version))
        with opened(home.path, repo, name, options, anew=order.anew) as journal:
            engine = plugins.engine(order.engine, home.path)
            try:
                async with AsyncExitStack() as stack:
                    describe = await stack.enter_async_context(
                        describing(order.model, home, parallel=order.concurrency)) if order.model else None
                    bench = Bench(repository, name, engine, journal, lambda task: confirm(task, home, engine),
                                  order.timeout_s, describe)
                    mined = await _all(order, bench, history, patterns, Mined(name, out), progress)
            finally:
                await engine.close()
            if order.calibrate:
                await _calibrated(order, home, journal, mined, progress)
            return mined


async def _all(order: Order, bench: Bench, history: Sequence[Commit], patterns: Sequence[str], mined: Mined,
               progress: Progress) -> Mined:
    """Trials side by side, results in order of the history, so that ``most`` always means the newest ones."""
    reverted = {sha: commit.id for commit in history for sha in commit.takes_back}
    waiting, kept = deque(history), 0
    running: deque[tuple[Commit, asyncio.Task[Kept | Rejection]]] = deque()
    gate = asyncio.Semaphore(order.concurrency)
    try:
        while waiting or running:
            while waiting and len(running) < 4 * order.concurrency:
                commit = waiting.popleft()
                work = _settled(bench, commit, reverted, patterns, gate)
                running.append((commit, asyncio.create_task(work)))
            commit, task = running.popleft()
            found = await task
            if isinstance(found, Kept):
                await asyncio.to_thread(_publish, bench.journal, found, mined.out, order.force)
                kept += 1
            mined.rows.append(_row(commit, found, mined.out))
            progress(len(mined.rows), len(history), commit.id[:10])
            if order.most is not None and kept >= order.most:
                break
    finally:
        for _, task in running:
            task.cancel()
        await asyncio.gather(*(task for _, task in running), return_exceptions=True)
    mined.unseen = len(history) - len(mined.rows)
    return mined


async def _calibrated(order: Order, home: Home, journal: Journal, mined: Mined, progress: Progress) -> None:
    """Every kept task is checked; one that a run would leave in quarantine is taken away, and its row says why."""
    rows = {Path(row["task"]): row for row in mined.rows if row["kept"]}
    records = await calibrate(home, list(rows), concurrency=order.concurrency, engine=order.engine, progress=progress)
    for folder, record in records.items():
        row = rows[folder]
        if record.label.quarantined:
            rejection = Rejection(reason=Reason.UNSOUND, detail=f"{record.label}: {'; '.join(record.reasons)}")
            journal.add_rejection(row["commit"], rejection)
            shutil.rmtree(folder)
            row |= _refused(rejection)
            continue
        kept = journal.kept[row["commit"]]
        row |= {"label": record.label.value, "strength": record.strength}
        if (kept.label, kept.strength) != (record.label.value, record.strength):
            journal.add_kept(row["commit"], kept.model_copy(update={
                "label": record.label.value, "strength": record.strength}))
            await asyncio.to_thread(write_calibration, journal.folder / "tasks" / kept.task, record)


async def _settled(bench: Bench, commit: Commit, reverted: dict[str, str], patterns: Sequence[str],
                   gate: asyncio.Semaphore) -> Kept | Rejection:
    """What one commit comes to: as the journal has it, or by looking, and where that is not enough by trying."""
    journal = bench.journal
    known = journal.kept.get(commit.id)
    if known is not None and (journal.folder / "tasks" / known.task).is_dir():
        return known
    # A commit that a later one takes back: later history decides, so no journal can.
    if (refused := screen(commit, reverted)) is not None:
        return refused
    if commit.id in journal.rejections:
        return journal.rejections[commit.id]
    async with gate:
        found = await asyncio.to_thread(_looked_at, bench.repository, commit, patterns)
        if isinstance(found, Rejection):
            journal.add_rejection(commit.id, found)
            return found
        return await bench.settle(found)


def _looked_at(repository: Repository, commit: Commit, patterns: Sequence[str]) -> Candidate | Rejection:
    def read(blob: str) -> bytes:
        return next(repository.blobs([blob]))[1]

    return select(commit, changes(repository, commit), read, patterns)


def _known(repository: Repository, repo: Path, ref: str) -> tuple[str, tuple[str, ...]]:
    """The project's name, and how it names its tests, as its newest state says."""
    commit = repository.commit(ref)
    paths = [entry.path for entry in repository.entries(commit)]
    project = Project.of(paths, lambda path: repository.read(commit, path))
    folder = repo.resolve()
    return project.name() or (folder.parent if folder.name == ".git" else folder).name, project.patterns()


def _publish(journal: Journal, kept: Kept, out: Path, force: bool) -> None:
    """The kept folder stands in ``out``, whole; one that stands there already, unchanged, is left alone."""
    source, place = journal.folder / "tasks" / kept.task, out / kept.task
    if place.exists() and not force and _digest(place) == kept.digest:
        return
    check_place(place, force)
    out.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".mining-", dir=out))
    try:
        shutil.copytree(source, staging / kept.task, symlinks=True)
        shutil.rmtree(place, ignore_errors=True)
        os.rename(staging / kept.task, place)  # noqa: PTH104 - of a folder, onto nothing
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _digest(place: Path) -> str:
    from woodshed.tasks.load import load_task

    try:
        return load_task(place).digest
    except UsageError:
        return ""


def _row(commit: Commit, found: Kept | Rejection, out: Path) -> dict[str, Any]:
    head = {"commit": commit.id, "date": commit.at.date().isoformat(), "subject": commit.subject[:200],
            "kept": isinstance(found, Kept)}
    if isinstance(found, Kept):
        return {**head, "reason": None, "detail": "; ".join(found.notes), "task": str(out / found.task),
                "fail_to_pass": found.fail_to_pass, "pass_to_pass": found.pass_to_pass, "unstable": found.unstable,
                "label": found.label, "strength": found.strength}
    return head | _refused(found)


def _refused(found: Rejection) -> dict[str, Any]:
    return {"kept": False, "reason": found.reason.value, "detail": found.detail or found.reason.sentence, "task": None,
            "fail_to_pass": None, "pass_to_pass": None, "unstable": None, "label": None, "strength": None}
