"""Probing: which tests of a task pass on its start, and which after its reference, before any of them is expected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from woodshed.errors import VerifierFault
from woodshed.interfaces import Sandbox, SandboxEngine
from woodshed.model import SandboxPolicy, Task, TestOutcome, Upload
from woodshed.tasks.import_pypi import Probe, State
from woodshed.verify.reports import Report, Unreadable, read_junit

_REPORT = "/logs/verifier/junit.xml"
_REPORT_BYTES = 64_000_000
_TAIL_CHARS = 2000


def probe_with(engine: SandboxEngine) -> Probe:
    """A Probe whose sandboxes are ``engine``'s."""

    async def probe(task: Task, state: State) -> Mapping[str, TestOutcome]:
        uploads = (*task.environment.uploads, Upload(source=task.verifier.tests, target="/tests"))
        if state == "reference" and task.solution is not None:
            uploads += (Upload(source=task.solution, target="/solution"),)
        spec = task.environment.model_copy(update={"uploads": uploads})
        sandbox = await engine.create(spec, SandboxPolicy(limits=spec.limits))
        try:
            if state == "reference":
                await _succeed(sandbox, task, "bash /solution/solve.sh", task.agent_timeout_s)
            return _outcomes(await _report(sandbox, task))
        finally:
            await sandbox.close()

    return probe


async def _report(sandbox: Sandbox, task: Task) -> Report:
    """The fresh report of the task's own tests, whatever they say. Raises VerifierFault when there is none."""
    done = await sandbox.exec(
        ["bash", "/tests/test.sh"], cwd=task.environment.workdir, timeout_s=task.verifier.timeout_s
    )
    try:
        return read_junit(await sandbox.read(_REPORT, max_bytes=_REPORT_BYTES))
    except (OSError, Unreadable) as error:
        output = (done.stdout + done.stderr).decode(errors="replace")[-_TAIL_CHARS:]
        how = "timed out" if done.timed_out else f"exit {done.exit_code}"
        raise VerifierFault(f"{task.id}: its tests gave no report ({how}): {output}") from error


async def _succeed(sandbox: Sandbox, task: Task, command: str, timeout_s: float) -> None:
    done = await sandbox.exec(command, cwd=task.environment.workdir, env=task.solution_env, timeout_s=timeout_s)
    if done.exit_code:
        output = (done.stdout + done.stderr).decode(errors="replace")[-_TAIL_CHARS:]
        raise VerifierFault(f"{task.id}: '{command}' failed with exit {done.exit_code}: {output}")


def _outcomes(report: Report) -> dict[str, TestOutcome]:
    """By id; what the report names twice cannot be demanded and is left out."""
    seen = Counter(case.id for case in report.cases)
    return {case.id: case.outcome for case in report.cases if seen[case.id] == 1}
