"""A deadline shorter than a task gives its verifier bounds the verification, and nobody is wronged by it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from cheatbench import make_task
from stepped import Stepped, a_task
from woodshed.attempt import Parts, run_attempt
from woodshed.errors import Cause
from woodshed.interfaces import Acting
from woodshed.model import Agent, Deadlines, EventKind, Invalid, Outcome, StopReason, Task, Valid
from woodshed.sandbox.conformance import MemoryBlobs
from woodshed.sandbox.native.engine import NativeEngine
from woodshed.verify.hurry import LEAST_S, TIMES, Pace
from woodshed.verify.verifier import FreshVerifier

START = {"calc.py": "def add(a, b):\n    return a - b\n"}
MEND = "sed -i 's/a - b/a + b/' calc.py\n"
TESTS = """
{first}
grep -q hang calc.py && sleep 600
grep -q slow calc.py && sleep 5
name=$(sed -n 's/^def \\(test_[a-z_]*\\)().*/\\1/p' /tests/test_*_???.py)
{{ echo "<testsuites><testcase classname='q' name='$name'><failure/></testcase>"
  grep -q 'a + b' calc.py && echo "<testcase classname='q' name='adds'/>" \\
    || echo "<testcase classname='q' name='adds'><failure/></testcase>"
  echo "</testsuites>"; }} > /logs/verifier/junit.xml
exit 1
"""
LONG_S = 300.0


@pytest.fixture
async def engine(shed_home: Path) -> AsyncIterator[NativeEngine]:
    """The engine of one test."""
    made = NativeEngine(shed_home)
    yield made
    await made.close()


class Does:
    """An agent that runs a script."""

    needs_model = False

    def __init__(self, script: str) -> None:
        self.script = script

    async def act(self, acting: Acting) -> StopReason:
        await acting.sandbox.exec(["bash", "-c", self.script])
        return StopReason.FINISHED


class Judged:
    """Attempts at one task whose tests may take five minutes, judged by one verifier. ``runs`` are its runs by name."""

    def __init__(self, engine: NativeEngine, folder: Path, *, first: str = "", solve: str = MEND) -> None:
        self.engine, self.verifier = engine, FreshVerifier()
        hidden = {"test_q.py": "", "test.sh": TESTS.format(first=first)}
        self.task: Task = make_task(folder, start=START, hidden=hidden, solve=solve, expected=("q::adds",),
                                    timeout_s=LONG_S)
        self.runs: list[str] = []

    def emit(self, kind: EventKind, data: Mapping[str, Any]) -> None:
        if kind is EventKind.VERIFIER:
            self.runs.append(data["run"])

    async def by(self, script: str, within_s: float | None) -> Outcome:
        parts = Parts(engine=self.engine, harness=Does(script), model=None, blobs=MemoryBlobs(), verifier=self.verifier,
                      deadlines=Deadlines(verify_s=within_s), emit=self.emit)
        return await run_attempt(self.task, Agent(name="s", harness="s"), parts, seed=0)


async def test_changes_that_hang_are_cut_off_by_the_deadline(engine: NativeEngine, tmp_path: Path) -> None:
    """Valid, 0 and flagged, long before the tests' own five minutes, as the reference is known not to hang."""
    judged = Judged(engine, tmp_path)
    judged.verifier._paces[judged.task.digest, 0] = Pace(seconds=0.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("woodshed.verify.hurry.LEAST_S", 0.2)
        verdict = (await judged.by("echo '# hang' >> calc.py", 0.4)).verdict
    assert isinstance(verdict, Valid), verdict
    assert (verdict.total, verdict.cause, verdict.flags) == (0.0, Cause.AGENT, ("verifier_timeout",))
    assert judged.runs == ["verify"]


@pytest.mark.slow
async def test_changes_that_hang_are_the_agents_and_end_in_time(engine: NativeEngine, tmp_path: Path) -> None:
    """Valid, 0 and flagged, long before the tests' own five minutes; the reference was judged once for all attempts."""
    judged = Judged(engine, tmp_path)
    began = time.monotonic()
    hung, mended, again = [(await judged.by(script, 12.0)).verdict for script in (
        "echo '# hang' >> calc.py", MEND, MEND + "echo '# hang' >> calc.py")]
    assert time.monotonic() - began < LONG_S  # its own timeout, which nothing waited for
    for verdict in (hung, again):
        assert isinstance(verdict, Valid), verdict
        assert (verdict.total, verdict.cause, verdict.flags) == (0.0, Cause.AGENT, ("verifier_timeout",))
    assert isinstance(mended, Valid)
    assert mended.passed
    assert judged.runs == ["control", "verify", "verify", "verify"]


@pytest.mark.slow
async def test_slow_work_is_granted_the_references_pace_whatever_the_deadline(
    engine: NativeEngine, tmp_path: Path
) -> None:
    """Tests that take far longer than the deadline leaves pass, within ten times the reference: no false zero.

    The control: with nothing granted the same work is cut off.
    """
    judged = Judged(engine, tmp_path, first="sleep 0.5")
    slow = MEND + "echo '# slow' >> calc.py"
    assert TIMES * 0.5 + LEAST_S > 6
    verdict = (await judged.by(slow, 4.0)).verdict
    assert isinstance(verdict, Valid), verdict
    assert verdict.passed, verdict
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("woodshed.verify.hurry.TIMES", 0.0)
        patch.setattr("woodshed.verify.hurry.LEAST_S", 0.5)
        cut_off = (await judged.by(slow, 4.0)).verdict
    assert isinstance(cut_off, Valid)
    assert cut_off.flags == ("verifier_timeout",)


@pytest.mark.slow
async def test_a_verifier_that_hangs_by_itself_ends_in_time_and_is_invalid(
    engine: NativeEngine, tmp_path: Path
) -> None:
    """The reference hangs as well: nobody's 0, and after a second look no further try is worth it."""
    judged = Judged(engine, tmp_path, first="sleep 600")
    began = time.monotonic()
    found = [(await judged.by(MEND, 9.0)).verdict for _ in range(3)]
    assert time.monotonic() - began < LONG_S
    for verdict in found:
        assert isinstance(verdict, Invalid), verdict
        assert verdict.cause is Cause.VERIFIER
        assert "without the agent: the reference fails too (verifier_timeout)" in verdict.detail
    assert [verdict.retryable for verdict in found if isinstance(verdict, Invalid)] == [True, False, False]
    assert judged.runs.count("control") == 2


@pytest.mark.slow
async def test_a_reference_that_is_long_to_play_makes_nobody_invalid(engine: NativeEngine, tmp_path: Path) -> None:
    """Where it cannot be played in half of the deadline, the tests have their own time: a hang stays the agent's."""
    judged = Judged(engine, tmp_path, solve="sleep 5\n" + MEND)
    judged.task = judged.task.model_copy(
        update={"verifier": judged.task.verifier.model_copy(update={"timeout_s": 1.0})})
    verdict = (await judged.by("echo '# hang' >> calc.py", 0.5)).verdict
    assert isinstance(verdict, Valid), verdict
    assert (verdict.total, verdict.flags) == (0.0, ("verifier_timeout",))


async def test_without_a_short_deadline_nothing_is_judged_first(engine: NativeEngine, tmp_path: Path) -> None:
    """One run, as ever."""
    judged = Judged(engine, tmp_path)
    assert isinstance((await judged.by(MEND, None)).verdict, Valid)
    assert isinstance((await judged.by(MEND, 10_000.0)).verdict, Valid)
    assert judged.runs == ["verify", "verify"]


@pytest.mark.slow
async def test_a_hang_in_a_later_step_is_the_agents(engine: NativeEngine, tmp_path: Path) -> None:
    """The control plays the references of all steps up to it: the second step's alone would fail by itself."""
    hanging = '#!/bin/bash\ntest -e hang && sleep 60\ntest "$(tail -n1 log)" = d -a -s seen && r=1 || r=0\n' \
              'test $(wc -l <log) -gt 3 || r=0\necho $r > /logs/verifier/reward.txt\n'
    task = a_task(tmp_path / "task", {"steps/two/tests/test.sh": hanging})
    [one, two, three] = task.steps
    two = two.model_copy(update={"verifier": two.verifier.model_copy(update={"timeout_s": 5.0})})
    task = task.model_copy(update={"steps": (one, two, three)})
    script = {"one": ("echo a >>log; echo b >>log",), "two": ("echo c >>log; echo d >>log; touch hang",), "three": ()}
    attempt = Stepped(tmp_path / "one", engine, task, script=script)
    verdict = (await attempt.run()).verdict
    assert isinstance(verdict, Valid), verdict
    assert (verdict.flags, verdict.rewards["reward"]) == (("verifier_timeout",), 1 / 3)
    with pytest.MonkeyPatch.context() as patch:  # the control: as it was, each reference upon an untouched start
        patch.setattr("woodshed.verify.control._of_steps", lambda task: False)
        wronged = (await Stepped(tmp_path / "two", engine, task, script=script).run()).verdict
    assert isinstance(wronged, Invalid)
