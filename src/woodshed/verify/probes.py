"""Probes: the program under test is asked in a sandbox of its own, and its answers are compared outside.

Nothing that says what is expected enters that sandbox: no hidden test, no report, no comparison. Whatever code in it
does to its process, its neighbours or its disk, it can give an answer and nothing else.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from woodshed.interfaces import ExecResult, Sandbox
from woodshed.model import ChangeSet, TestOutcome
from woodshed.model.probe import Probe
from woodshed.verify.judge import Answers
from woodshed.verify.run import Case, Ran, judging, policy_of, prepare

_SLACK = 4096  # bytes kept of an output beyond what is expected: enough to see that it is too long
_NOT_RUNNABLE = (126, 127)


@dataclass(frozen=True, slots=True)
class _Answer:
    outcome: TestOutcome
    note: str = ""
    timed_out: bool = False
    not_runnable: bool = False


async def asked(case: Case, changes: ChangeSet, ran: Ran) -> Ran:
    """``ran`` with the answers to the task's probes over ``changes``; itself where there are none.

    One fresh sandbox for all of them, one after another; what a probe left running is ended before the next. They share
    the verifier's ``timeout_s``; one that it leaves no time for is MISSING. Raises what the engine raises.
    """
    probes = case.task.verifier.probes
    if not probes:
        return ran
    spec = judging(case.task)
    answers: dict[str, _Answer] = {}
    end = time.monotonic() + case.task.verifier.timeout_s
    sandbox = await case.engine.create(spec, policy_of(case.task), restore=(changes, case.blobs))
    try:
        if spec.user or spec.healthcheck is not None:
            await prepare(sandbox, spec)
        for probe in probes:
            left = end - time.monotonic()
            answers[probe.id] = await _ask(case, sandbox, probe, left) if left > 0 else _Answer(
                TestOutcome.MISSING, "no time was left", timed_out=True)
            await sandbox.kill_all()
    finally:
        await sandbox.close()
    return replace(ran, facts=replace(ran.facts, answers=_told(answers)))


def _told(answers: Mapping[str, _Answer]) -> Answers:
    return Answers(
        outcomes={name: answer.outcome for name, answer in answers.items()},
        notes={name: answer.note for name, answer in answers.items() if answer.note},
        timed_out=any(answer.timed_out for answer in answers.values()),
        not_runnable=any(answer.not_runnable for answer in answers.values()),
    )


async def _ask(case: Case, sandbox: Sandbox, probe: Probe, left_s: float) -> _Answer:
    try:
        for path, source in probe.inputs.items():
            await sandbox.write(path, await asyncio.to_thread(source.read_bytes))
    except OSError as error:  # the agent's folder stands where the input should: a fault of the sandbox is no OSError
        return _Answer(TestOutcome.FAILED, f"an input could not be laid: {error.strerror or error}")
    expected = await asyncio.to_thread(_expected, probe)
    stdin = probe.stdin.encode() if probe.stdin is not None else None
    if probe.stdin_file is not None:
        stdin = await asyncio.to_thread(probe.stdin_file.read_bytes)
    result = await sandbox.exec(
        probe.argv, cwd=judging(case.task).workdir or None, env=case.task.verifier.env, stdin=stdin or b"",
        timeout_s=min(probe.timeout_s, left_s), output_bytes=len(expected or b"") + _SLACK,
    )
    if (wrong := _wrong(probe, result, expected)) is not None:
        return wrong
    return await _files(sandbox, probe)


def _expected(probe: Probe) -> bytes | None:
    if probe.stdout_file is not None:
        return probe.stdout_file.read_bytes()
    return None if probe.stdout is None else probe.stdout.encode()


def _wrong(probe: Probe, result: ExecResult, expected: bytes | None) -> _Answer | None:
    if result.timed_out:
        return _Answer(TestOutcome.ERROR, f"did not end within {result.seconds:.0f} s", timed_out=True)
    if result.exit_code != probe.exit_code:
        return _Answer(TestOutcome.FAILED, f"exit status {result.exit_code}, not {probe.exit_code}",
                       not_runnable=result.exit_code in _NOT_RUNNABLE)
    if expected is not None and (result.truncated or not equal(probe.match, result.stdout, expected)):
        return _Answer(TestOutcome.FAILED, "standard output differs")
    return None


async def _files(sandbox: Sandbox, probe: Probe) -> _Answer:
    for path, source in probe.files.items():
        expected = await asyncio.to_thread(source.read_bytes)
        try:
            found = await sandbox.read(path, max_bytes=len(expected) + 1)
        except OSError as error:
            return _Answer(TestOutcome.FAILED, f"{path}: {error.strerror or error}")
        if found != expected:
            return _Answer(TestOutcome.FAILED, f"{path} differs")
    return _Answer(TestOutcome.PASSED)


def equal(match: str, found: bytes, expected: bytes) -> bool:
    """True where ``found`` is ``expected`` as ``match`` has it (see :class:`Probe`); hostile bytes are unequal."""
    if match == "exact":
        return found == expected
    if match == "lines":
        return _lines(found) == _lines(expected)
    try:
        return _same(json.loads(found, parse_constant=_refused), json.loads(expected))
    except (ValueError, RecursionError):
        return False


def _lines(text: bytes) -> list[bytes]:
    return [line.rstrip() for line in text.rstrip().split(b"\n")]


def _same(found: Any, expected: Any) -> bool:
    """Equal values of the same kinds: for Python True is 1, and for JSON it is not."""
    if isinstance(found, bool) or isinstance(expected, bool):
        return found is expected
    if isinstance(expected, dict):
        return isinstance(found, dict) and found.keys() == expected.keys() and all(
            _same(found[key], value) for key, value in expected.items())
    if isinstance(expected, list):
        return isinstance(found, list) and len(found) == len(expected) and all(map(_same, found, expected))
    return bool(found == expected)


def _refused(word: str) -> Any:
    raise ValueError(f"{word} is no number of JSON")
