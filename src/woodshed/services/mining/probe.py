"""One run of a drafted task's tests, on its start or after its reference, in a fresh sandbox without network."""

from __future__ import annotations

import asyncio
from collections import Counter
from xml.etree import ElementTree

from woodshed.interfaces import ExecResult, Sandbox, SandboxEngine
from woodshed.model import SandboxPolicy, Task, TestOutcome, Upload
from woodshed.tasks.mine import Ran, Side, speaks_of_network
from woodshed.verify.reports import MAX_REPORT_BYTES, Report, Unreadable, read_junit

_REPORT = "/logs/verifier/junit.xml"
_TAIL = 600
_INSTALLED = """\
import importlib.metadata, re, sys
plain = lambda name: re.sub(r"[-_.]+", "-", name or "").lower()
sys.exit(plain(sys.argv[1]) not in {plain(found.name) for found in importlib.metadata.distributions()})
"""
_BAD = (TestOutcome.FAILED, TestOutcome.ERROR)


async def probe(engine: SandboxEngine, task: Task, side: Side, *, own: str, timeout_s: float) -> Ran:
    """The outcomes of one run. ``own`` names the project's distribution.

    Raises ImageFault where the environment does not build, EnvironmentFault.
    """
    uploads = (*task.environment.uploads, Upload(source=task.verifier.tests, target="/tests"))
    if side == "after" and task.solution is not None:
        uploads += (Upload(source=task.solution, target="/solution"),)
    spec = task.environment.model_copy(update={"uploads": uploads})
    sandbox = await engine.create(spec, SandboxPolicy(limits=spec.limits))
    try:
        if side == "after" and own:
            found = await sandbox.exec(["python3", "-I", "-c", _INSTALLED, own], cwd=spec.workdir, timeout_s=timeout_s)
            if found.exit_code == 0:
                return Ran(side=side, outcomes=None, installed=True)
        if side == "after":
            done = await sandbox.exec(["bash", "/solution/solve.sh"], cwd=spec.workdir, timeout_s=timeout_s)
            if done.exit_code:
                return Ran(side=side, outcomes=None, detail=f"its files cannot be laid: {_tail(done)}")
        done = await sandbox.exec(["bash", "/tests/test.sh"], cwd=spec.workdir, timeout_s=timeout_s)
        await sandbox.kill_all()
        return await _read(sandbox, side, done)
    finally:
        await sandbox.close()


async def _read(sandbox: Sandbox, side: Side, done: ExecResult) -> Ran:
    if done.timed_out:
        return Ran(side=side, outcomes=None, timed_out=True, detail=f"not within {done.seconds:.0f} s")
    try:
        content = await sandbox.read(_REPORT, max_bytes=MAX_REPORT_BYTES)
        report = await asyncio.to_thread(read_junit, content)
    except (OSError, Unreadable):
        output = (done.stdout + done.stderr).decode(errors="replace")
        away = ("*",) if speaks_of_network(output) else ()
        return Ran(side=side, outcomes=None, network=away, detail=f"no report, exit {done.exit_code}: {_tail(done)}")
    outcomes = _outcomes(report)
    failing = any(outcome in _BAD for outcome in outcomes.values())
    network = await asyncio.to_thread(_network, content, report) if failing else ()
    return Ran(side=side, outcomes=outcomes, network=network)


def _outcomes(report: Report) -> dict[str, TestOutcome]:
    """By id; what the report names twice cannot be demanded and is left out."""
    seen = Counter(case.id for case in report.cases)
    return {case.id: case.outcome for case in report.cases if seen[case.id] == 1}


def _network(content: bytes, report: Report) -> tuple[str, ...]:
    """The ids of failing tests whose own texts tell of a missing network."""
    try:
        root = ElementTree.fromstring(content)  # noqa: S314 - read_junit has refused document types and entities
    except ElementTree.ParseError:  # control characters that our reader forgives
        return ()
    elements = list(root.iter("testcase"))
    if len(elements) != len(report.cases):
        return ()
    return tuple(case.id for case, element in zip(report.cases, elements, strict=True)
                 if case.outcome in _BAD and speaks_of_network(" ".join(element.itertext()) + _messages(element)))


def _messages(element: ElementTree.Element) -> str:
    return " ".join(child.get("message", "") for child in element)


def _tail(done: ExecResult) -> str:
    text = (done.stdout + done.stderr).decode(errors="replace").strip()
    return " ".join(text[-_TAIL:].split())
