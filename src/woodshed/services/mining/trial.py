"""One candidate, from its files to a task or a reason: environment, runs of both sides, and the proof at the end."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from woodshed.errors import EnvironmentFault, ImageFault, UsageError
from woodshed.interfaces import SandboxEngine
from woodshed.model import Task
from woodshed.services.mining.describe import Describe
from woodshed.services.mining.journal import Journal, Kept
from woodshed.services.mining.probe import probe
from woodshed.tasks.git import Repository
from woodshed.tasks.mine import (
    TIMES,
    Candidate,
    Material,
    Pair,
    Ran,
    Reason,
    Rejection,
    Side,
    draft,
    judge,
    settled,
    slug,
    write,
)

Confirm = Callable[[Task], Awaitable[str | None]]
"""Tries a finished task; what is wrong with it, None where nothing is."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One way to run a candidate's tests: what is installed, and which test files are run (all where empty)."""

    requirements: tuple[str, ...]
    scope: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Names the plan in the journal."""
        text = "\0".join((*self.requirements, "|", *self.scope))
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Bench:
    """What trials share: the repository, the sandboxes, the journal, and who has the last word."""

    repository: Repository
    name: str
    engine: SandboxEngine
    journal: Journal
    confirm: Confirm
    timeout_s: float
    describe: Describe | None = None

    async def settle(self, candidate: Candidate) -> Kept | Rejection:
        """What ``candidate`` comes to, written down. Raises EnvironmentFault where the world is at fault."""
        commit = candidate.commit.id
        try:
            material = await asyncio.to_thread(Material.of, self.repository, candidate, self.name)
        except UsageError as error:
            found: Kept | Rejection = Rejection(reason=Reason.TOO_LARGE, detail=error.message)
        else:
            try:
                found = await self._tried(material)
            except UsageError as error:
                found = Rejection(reason=Reason.UNLOADABLE, detail=f"{error.message} ({_last(error.file)})")
        if isinstance(found, Kept):
            self.journal.add_kept(commit, found)
        else:
            self.journal.add_rejection(commit, found)
        return found

    async def _tried(self, material: Material) -> Kept | Rejection:
        verdict: Pair | Rejection = Rejection(reason=Reason.ENVIRONMENT)
        plan = Plan(())
        for guess in (True, False):
            plan = Plan(material.requirements(guess=guess))
            verdict = await self._judged(material, plan)
            if isinstance(verdict, Rejection) and verdict.reason is Reason.TOO_SLOW:
                plan = Plan(plan.requirements, material.candidate.test_files)
                verdict = await self._judged(material, plan)
            if not isinstance(verdict, Rejection) or verdict.reason is not Reason.ENVIRONMENT:
                break
        return verdict if isinstance(verdict, Rejection) else await self._kept(material, plan, verdict)

    async def _judged(self, material: Material, plan: Plan) -> Pair | Rejection:
        """Three runs of each side, those of the journal included, or fewer where they settle it."""
        commit = material.candidate.commit.id
        if (why := self.journal.unbuildable(commit, plan.key)) is not None:
            return Rejection(reason=Reason.ENVIRONMENT, detail=why)
        runs = self.journal.runs(commit, plan.key)
        with tempfile.TemporaryDirectory(prefix="trial-", dir=self.journal.folder) as place:
            task: Task | None = None
            while (side := _next(runs, material.candidate.test_files)) is not None:
                if task is None:
                    task = await asyncio.to_thread(self._drafted, material, plan, Path(place) / "task")
                try:
                    ran = await self._run(task, side, material.project.name())
                except ImageFault as fault:
                    why = " ".join(str(fault).split())[:300]
                    self.journal.add_unbuildable(commit, plan.key, why)
                    return Rejection(reason=Reason.ENVIRONMENT, detail=why)
                self.journal.add_run(commit, plan.key, ran)
                runs.append(ran)
        return judge(runs, material.candidate.test_files)

    def _drafted(self, material: Material, plan: Plan, folder: Path) -> Task:
        made = draft(material, requirements=plan.requirements, scope=plan.scope)
        return write(self.repository, material, made, folder)[0]

    async def _run(self, task: Task, side: Side, own: str) -> Ran:
        try:
            return await probe(self.engine, task, side, own=own, timeout_s=self.timeout_s)
        except EnvironmentFault as fault:
            if not fault.retryable:
                raise
            return await probe(self.engine, task, side, own=own, timeout_s=self.timeout_s)

    async def _kept(self, material: Material, plan: Plan, pair: Pair) -> Kept | Rejection:
        """The finished folder in the journal's keeping, if it is confirmed."""
        name = f"{slug(self.name)}-{material.candidate.commit.id[:10]}"
        facts = {"scope": "changed test files" if plan.scope else "all tests"}
        described = await self.describe(material.candidate) if self.describe is not None else None
        made = await asyncio.to_thread(draft, material, requirements=plan.requirements, scope=plan.scope, pair=pair,
                                       facts=facts, described=described)
        with tempfile.TemporaryDirectory(prefix="trial-", dir=self.journal.folder) as place:
            task, dropped = await asyncio.to_thread(write, self.repository, material, made, Path(place) / name)
            if (wrong := await self.confirm(task)) is not None:
                return Rejection(reason=Reason.UNSOUND, detail=wrong)
            home = self.journal.folder / "tasks"
            home.mkdir(exist_ok=True)
            shutil.rmtree(home / name, ignore_errors=True)
            task.folder.rename(home / name)
        return Kept(
            task=name, digest=task.digest, fail_to_pass=len(pair.fail_to_pass), pass_to_pass=len(pair.pass_to_pass),
            unstable=len(pair.unstable),
            notes=tuple(f"link left out: {path.encode('utf-8', 'replace').decode()}" for path in dropped[:20]),
        )


def _next(runs: Sequence[Ran], test_files: Sequence[str]) -> Side | None:
    """Which side is to be run next; None where nothing more is to be learned."""
    counts = {side: sum(ran.side == side for ran in runs) for side in ("before", "after")}
    if runs and (runs[0].outcomes is None or runs[0].timed_out):
        return None  # nothing of it can pass: the other side tells nothing
    if counts["after"] >= 1 and counts["before"] >= 1 and settled(judge(runs, test_files)):
        return None
    if counts["after"] >= TIMES and counts["before"] >= TIMES:
        return None
    return "after" if counts["after"] <= counts["before"] else "before"


def _last(file: object) -> str:
    return Path(str(file)).name
