"""One run of the hidden tests over given changes, in one fresh sandbox, and the facts it left."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from woodshed.errors import VerifierFault
from woodshed.interfaces import BlobSink, Emit, ExecResult, Sandbox, SandboxEngine
from woodshed.model import ChangeKind, ChangeSet, EnvironmentSpec, EventKind, Framework, SandboxPolicy, Task, Upload
from woodshed.verify.canary import framework_of, make_canary
from woodshed.verify.filter import Filtered, filtered
from woodshed.verify.judge import Demands, Facts, Found, would_pass
from woodshed.verify.laid import Laid
from woodshed.verify.live import ready
from woodshed.verify.poison import Poison
from woodshed.verify.protect import Rules
from woodshed.verify.reports import (
    MAX_REPORT_BYTES,
    MAX_REWARD_BYTES,
    Report,
    Unreadable,
    read_ctrf,
    read_junit,
    read_reward_json,
    read_reward_txt,
)
from woodshed.verify.start import Start

TESTS, LOGS = "/tests", "/logs/verifier"
# Writing it makes the folder where an image has none: test.sh finds it there, and no report in it.
_MARK = f"{LOGS}/.woodshed"
_LARGE = 200_000  # bytes of a report beyond which parsing leaves the event loop
_READERS = {"junit.xml": read_junit, "ctrf.json": read_ctrf}


_FEW = 30  # changes up to here are filtered at once, more in a thread


@dataclass(frozen=True, slots=True)
class Ran:
    """One run of test.sh: its facts, what was asked of it, its output, and the image it ran on."""

    facts: Facts
    demands: Demands
    output: bytes
    image_digest: str
    memory_bytes: int | None = None
    """Peak of the sandbox, where the case asks for it and the engine can tell."""


@dataclass(frozen=True, slots=True)
class Case:
    """One verification: of which task, with which contents, where, and where it is recorded."""

    task: Task
    blobs: BlobSink
    engine: SandboxEngine
    emit: Emit
    measure: bool = False

    def record(self, name: str, ran: Ran, work: Filtered, flags: tuple[str, ...] = ()) -> None:
        """Append the event of one run: ``name`` is verify, poison or control."""
        facts = ran.facts
        self.emit(EventKind.VERIFIER, {
            "run": name,
            "exit_code": facts.exit_code,
            "seconds": round(facts.seconds, 3),
            "report": facts.report.format if facts.report else "reward" if facts.reward else facts.found.value,
            "output_blob": self.blobs.put(ran.output),
            "touched": [f"{touch}: {path}" for path, touch in work.touched[:100]],
            "flags": list(flags),
            **({"probes": {name: outcome.value for name, outcome in facts.answers.outcomes.items()},
                "probe_notes": dict(facts.answers.notes)} if facts.answers.outcomes else {}),
            **({} if ran.memory_bytes is None else {"memory_bytes": ran.memory_bytes}),
        })


async def restorable(case: Case, changes: ChangeSet) -> Filtered:
    """What of ``changes`` a run may restore. Raises VerifierFault for a protected pattern that is none."""
    start = Start.of(case.task.judged_in)
    try:
        rules = Rules.of(case.task, start.exists)
    except ValueError as error:
        raise VerifierFault(f"{case.task.id}: [woodshed] protected: {error}") from None
    if len(changes.changes) <= _FEW:
        return filtered(changes, rules, start, case.blobs)
    return await asyncio.to_thread(filtered, changes, rules, start, case.blobs)


SHUT, SHUT_S = 4, 30.0
"""So often a sandbox that does not open with an agent's changes is tried again before they are said to keep it shut,
each time after one opened without them; where that takes long, until so many seconds have passed. A machine that
refuses one sandbox in twenty is then believed to be the agent in one of three million."""


async def opens(case: Case) -> None:
    """The world of the task opens without the agent's changes. Raises what the engine raises where it does not."""
    sandbox = await case.engine.create(_world(case.task), policy_of(case.task))
    await sandbox.close()


async def run(case: Case, changes: ChangeSet, poison: Poison | None = None) -> Ran:
    """One fresh sandbox, one run of test.sh, what it left. Nothing of the sandbox outlives this."""
    task = case.task
    expected = task.verifier.expected_tests
    framework = framework_of(task.verifier) if expected else None
    canary = make_canary(framework, expected) if framework is not None else None
    probes = tuple(probe.id for probe in task.verifier.probes)
    demands = Demands(expected, task.verifier.rewards, canary.name if canary else "", probes)
    spec = _world(task)
    hidden = {canary.file: canary.content} if canary else {}
    hidden |= poison.files if poison else {}
    laid = Laid(case.blobs, {_MARK: b"", **{f"{TESTS}/{name}": content for name, content in hidden.items()}})
    sandbox = await case.engine.create(spec, policy_of(task), restore=(laid.before(changes), laid))
    try:
        if spec.user or spec.healthcheck is not None:
            await prepare(sandbox, spec)
        # As root, whatever USER of the image, unless the verifier names its own: it writes to /logs/verifier.
        result = await sandbox.exec(["bash", f"{TESTS}/test.sh"], cwd=spec.workdir, user=None if spec.user else 0,
                                    env=task.verifier.env, timeout_s=task.verifier.timeout_s)
        # What still runs could rewrite the report between two reads.
        await sandbox.kill_all()
        memory_bytes = (await sandbox.stats()).memory_peak_bytes if case.measure else None
        facts = await _facts(sandbox, result, framework)
        if canary is not None and would_pass(facts, demands):
            facts = replace(facts, rewritten=await _rewritten(sandbox, task, hidden))
    finally:
        await sandbox.close()
    output = result.stdout + (b"\n--- stderr ---\n" + result.stderr if result.stderr else b"")
    return Ran(facts, demands, output, sandbox.image_digest, memory_bytes)


def judging(task: Task) -> EnvironmentSpec:
    """Where ``task`` is judged, without its hidden tests. The health check of the agent's world is not this one's."""
    spec, verifier = task.judged_in, task.verifier
    if spec.user or verifier.user or (spec.healthcheck and verifier.environment is None):
        check = None if verifier.environment is None else spec.healthcheck
        spec = spec.model_copy(update={"user": verifier.user, "healthcheck": check})
    return spec


def _world(task: Task) -> EnvironmentSpec:
    spec, verifier = judging(task), task.verifier
    if verifier.common_tests is not None:
        spec = with_folder(spec, verifier.common_tests, TESTS)
    return with_folder(spec, verifier.tests, TESTS)


async def prepare(sandbox: Sandbox, spec: EnvironmentSpec) -> None:
    """The verifier's own user can write its report, and the health check of its own world succeeded."""
    if spec.user:
        await sandbox.exec(["chown", "-R", spec.user, LOGS], user=0)
    await ready(sandbox, spec)


def with_folder(environment: EnvironmentSpec, source: Path, target: str) -> EnvironmentSpec:
    """The task's world plus one more folder."""
    uploads = (*environment.uploads, Upload(source=source, target=target))
    return environment.model_copy(update={"uploads": uploads})


def policy_of(task: Task) -> SandboxPolicy:
    """The network and limits the task declares (none, if it is silent); of its time, the verifier's bound decides."""
    limits = task.judged_in.limits.model_copy(update={"wall_s": None})
    return SandboxPolicy(limits=limits, network=task.verifier.network)


async def _facts(sandbox: Sandbox, result: ExecResult, framework: Framework | None) -> Facts:
    """What stands in /logs/verifier, read without following a link."""
    if framework is Framework.SCRIPT:
        names: Sequence[str] = ("ctrf.json", "junit.xml")
    elif framework is not None:
        names = ("junit.xml", "ctrf.json")
    else:
        names = ("reward.json", "reward.txt")
    found, name, content = await _found(sandbox, names)
    facts = Facts(exit_code=result.exit_code, timed_out=result.timed_out, oom_killed=result.oom_killed, found=found,
                  seconds=result.seconds, detail=name if content is None else "")
    if content is None:
        return facts
    if len(content) > _LARGE:
        return await asyncio.to_thread(_read, facts, name, content)
    return _read(facts, name, content)


async def _found(sandbox: Sandbox, names: Sequence[str]) -> tuple[Found, str, bytes | None]:
    try:
        entries = {entry.name: entry for entry in await sandbox.list(LOGS)}
    except OSError as error:
        return Found.FORGED, f"{LOGS}: {error.strerror or error}", None
    for name in names:
        if (entry := entries.get(name)) is None:
            continue
        if entry.kind != "file":
            return Found.FORGED, f"{name} is a {entry.kind}", None
        limit = MAX_REWARD_BYTES if name.startswith("reward") else MAX_REPORT_BYTES
        try:
            return Found.FRESH, name, await sandbox.read(f"{LOGS}/{name}", max_bytes=limit)
        except OSError as error:
            return Found.UNREADABLE, f"{name}: {error.strerror or error}", None
    return Found.MISSING, "", None


def _read(facts: Facts, name: str, content: bytes) -> Facts:
    report: Report | None = None
    reward: dict[str, float] | None = None
    state, detail = Found.FRESH, ""
    try:
        if name in _READERS:
            report = _READERS[name](content)
        else:
            reward = read_reward_json(content) if name == "reward.json" else read_reward_txt(content)
    except Unreadable as error:
        state, detail = Found.FORGED if error.forged else Found.UNREADABLE, f"{name}: {error}"
    return replace(facts, found=state, report=report, reward=reward, detail=detail)


class _Sums:
    """A sink that keeps nothing but what capture needs: the sum."""

    def put(self, content: bytes | BinaryIO) -> str:
        digest = hashlib.sha256()
        for part in (content,) if isinstance(content, bytes) else iter(lambda: content.read(1 << 20), b""):
            digest.update(part)
        return digest.hexdigest()

    def open(self, sha256: str) -> BinaryIO:
        raise NotImplementedError("nothing is kept")


async def _rewritten(sandbox: Sandbox, task: Task, written: dict[str, bytes]) -> tuple[str, ...]:
    """The hidden tests that the run itself changed or removed (new files beside them are caches and the like).

    A flood of new files that would hide it counts as such a change.
    """
    common = task.verifier.common_tests
    start = Start((*(() if common is None else ((common, TESTS),)), (task.verifier.tests, TESTS)))
    found = []
    changes = await sandbox.changes(_Sums(), roots=(TESTS,))
    if changes.over_limit is not None:
        return (f"over {changes.over_limit}",)  # the walk ended before it had seen all
    for change in changes.changes:
        name = change.path.removeprefix(f"{TESTS}/")
        content = written.get(name) if name in written else start.read(change.path)
        if change.kind is ChangeKind.FILE:
            differs = content is not None and hashlib.sha256(content).hexdigest() != change.sha256
        else:
            differs = change.kind is not ChangeKind.DIRECTORY and (name in written or start.exists(change.path))
        if differs:
            found.append(name)
    return tuple(found)
