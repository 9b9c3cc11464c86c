"""Hand-made attempts for tests of reward rules: what an agent called, what came back, what was judged."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from woodshed.model import (
    Assurance,
    Change,
    ChangeKind,
    ChangeSet,
    EnvironmentSpec,
    Observation,
    Step,
    StopReason,
    Task,
    TestOutcome,
    ToolCall,
    Trajectory,
    Valid,
    VerifierSpec,
)
from woodshed.model.grade import Component, FilePatch, Observed, Patch
from woodshed.model.rules import RuleSet, rule_set
from woodshed.verify.rules import Evidence, graded
from woodshed.verify.rules.grade import Plugin

TESTS = ("test_a::one", "test_a::two", "test_a::three", "test_a::four")


def rules(*tables: Any) -> RuleSet:
    return rule_set(tables, file="rules.toml")


def task(**changes: Any) -> Task:
    verifier = VerifierSpec(tests=Path("/nowhere/tests"), expected_tests=TESTS, rewards={"docs": TESTS[:2]})
    made = Task(id="t", folder=Path("/nowhere"), digest="0" * 64, instruction="do it", environment=EnvironmentSpec(),
                verifier=verifier)
    return made.model_copy(update=changes)


def verdict(passed: int = len(TESTS), **changes: Any) -> Valid:
    """A verdict of which the first ``passed`` tests passed."""
    total = 1.0 if passed == len(TESTS) else 0.0
    tests = {name: TestOutcome.PASSED if number < passed else TestOutcome.FAILED for number, name in enumerate(TESTS)}
    made = Valid(rewards={"reward": total}, total=total, assurance=Assurance.CANARY, tests=tests)
    return made.model_copy(update=changes)


def patch(**lines: int) -> Patch:
    """Files below the workdir, by name without ``.py``, and how many lines were added to each."""
    return Patch(files=tuple(
        FilePatch(path=f"/workspace/{name}.py", added=count, removed=0, test=name.startswith("test_"))
        for name, count in lines.items()))


Call = tuple[str, dict[str, Any], int, str]
"""A tool's name and arguments, and the exit status and output that came back."""


def bash(command: str, exit_code: int = 0, content: str = "") -> Call:
    return "bash", {"command": command}, exit_code, content


def tool(name: str, exit_code: int = 0, **arguments: Any) -> Call:
    return name, arguments, exit_code, ""


def trajectory(*calls: Call, said: str = "") -> Trajectory:
    """A step for each call, and a last message."""
    steps = [
        Step(index=number, source="agent", tool_calls=(ToolCall(id=f"c{number}", name=name, arguments=arguments),),
             observations=(Observation(call=f"c{number}", content=content, exit_code=code),))
        for number, (name, arguments, code, content) in enumerate(calls)
    ]
    last = [Step(index=len(steps), source="agent", message=said)] if said else []
    return Trajectory(attempt="r.1", execution=1, task="t", agent="a", steps=(*steps, *last))


def changed(*paths: str) -> ChangeSet:
    return ChangeSet(changes=tuple(Change(path=path, kind=ChangeKind.FILE, sha256="0" * 64) for path in paths))


def seen(
    *calls: Call, said: str = "", judged: Valid | None = None,
    stop: StopReason | None = StopReason.FINISHED, changes: ChangeSet | None = None, of: Task | None = None,
    observed: Observed | None = None, policy: tuple[dict[str, Any], ...] = (),
) -> Evidence:
    """Evidence of an attempt that solved the task by a change of ``/workspace/add.py``, unless told otherwise."""
    return Evidence(
        verdict=judged or verdict(), changes=changes or changed("/workspace/add.py"), stop=stop, policy=policy,
        trajectory=trajectory(*calls, said=said), task=of or task(), observed=observed or Observed(),
    )


def value(table: Mapping[str, Any], evidence: Evidence, plugins: Mapping[str, Plugin] | None = None) -> float | None:
    return component(table, evidence, plugins).value


def component(table: Mapping[str, Any], evidence: Evidence, plugins: Mapping[str, Plugin] | None = None) -> Component:
    """What one rule makes of ``evidence``."""
    return graded(rules(table), evidence, plugins or {}).components[0]
