"""Commands of check rules: run on the start tree and on the end tree, each in a fresh sandbox without network."""

from __future__ import annotations

import time
from collections.abc import Sequence

from woodshed.errors import EnvironmentFault, ImageFault, SandboxDied, Unsupported
from woodshed.model import ChangeSet
from woodshed.model.grade import Checked, CheckRun
from woodshed.model.rules import CheckRule
from woodshed.verify.run import SHUT, SHUT_S, Case, opens, policy_of, restorable

TAIL_CHARS = 2000
_UNOPENED = 125
"""Recorded where the agent's changes keep the sandbox shut: what env and docker exit with before the command runs."""


async def checked(case: Case, changes: ChangeSet, rules: Sequence[CheckRule]) -> tuple[Checked, ...]:
    """What each command did before and after ``changes``, the protected among them left out.

    Every run has a sandbox of its own: what one leaves behind, or swaps on PATH, is not there for the next. Start and
    end take turns, so that a busy hour of the machine weighs on both. Faults of the engine on the start tree pass;
    on the end tree they are the agent's where the start opens just then.
    """
    work = (await restorable(case, changes)).changes if rules else changes
    found = []
    for rule in rules:
        before, after = list[CheckRun](), list[CheckRun]()
        for _ in range(rule.repeats):
            before.append(await _once(case, ChangeSet(), rule))
            after.append(await _end(case, work, rule))
        found.append(Checked(command=rule.command, timeout_s=rule.timeout_s, repeats=rule.repeats,
                             before=_best(before), after=_best(after)))
    return tuple(found)


async def _end(case: Case, work: ChangeSet, rule: CheckRule) -> CheckRun:
    said, began = "", time.monotonic()
    for _ in range(1 + SHUT):
        try:
            return await _once(case, work, rule)
        except EnvironmentFault as fault:
            if isinstance(fault, ImageFault | SandboxDied | Unsupported) or not work.changes:
                raise
            said = f"with these changes: {fault}"
        await opens(case)  # raises where it is not the changes that keep it shut
        if time.monotonic() - began > SHUT_S:
            break
    return CheckRun(exit_code=_UNOPENED, seconds=0.0, output=said[:TAIL_CHARS])


async def _once(case: Case, changes: ChangeSet, rule: CheckRule) -> CheckRun:
    task = case.task
    restore = (changes, case.blobs) if changes.changes else None
    sandbox = await case.engine.create(task.environment, policy_of(task), restore=restore)
    try:
        result = await sandbox.exec(rule.command, cwd=task.environment.workdir, timeout_s=rule.timeout_s)
    finally:
        await sandbox.close()
    output = (result.stdout + result.stderr).decode("utf-8", "replace")[-TAIL_CHARS:]
    return CheckRun(exit_code=result.exit_code, seconds=round(result.seconds, 6), timed_out=result.timed_out,
                    output=output)


def _best(runs: Sequence[CheckRun]) -> CheckRun:
    """One run for all: a failed one where any failed, for luck is no pass; else the fastest."""
    return min(runs, key=lambda run: (run.exit_code == 0 and not run.timed_out, run.seconds))
