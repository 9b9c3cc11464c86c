"""Stages of an execution are cut off at their deadline, attributed once, and accounted for; the sandbox always goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
import pytest_asyncio

from cheatbench import make_task
from woodshed.attempt import Parts, run_attempt
from woodshed.attempt.stages import Ledger, Overrun, Stages, cut
from woodshed.errors import Cause, WoodshedError
from woodshed.interfaces import Acting, Sandbox, SandboxEngine, Verifier
from woodshed.model import (
    Agent,
    Deadlines,
    EventKind,
    Healthcheck,
    Invalid,
    Limits,
    Outcome,
    StopReason,
    Task,
    Used,
    Valid,
)
from woodshed.model.deadlines import least_verify_s
from woodshed.model.used import total
from woodshed.sandbox.conformance import MemoryBlobs
from woodshed.sandbox.native.engine import NativeEngine
from woodshed.verify.verifier import FreshVerifier

pytestmark = pytest.mark.asyncio(loop_scope="module")
START = {"calc.py": "def add(a, b):\n    return a - b\n"}
HIDDEN = {"test_q.py": "", "test.sh": """
grep -q hang calc.py && sleep 600
name=$(sed -n 's/^def \\(test_[a-z_]*\\)().*/\\1/p' /tests/test_*_???.py)
{ echo "<testsuites><testcase classname='q' name='$name'><failure/></testcase>"
  grep -q 'a + b' calc.py && echo "<testcase classname='q' name='adds'/>" \\
    || echo "<testcase classname='q' name='adds'><failure/></testcase>"
  echo "</testsuites>"; } > /logs/verifier/junit.xml
exit 1
"""}
MEND = "sed -i 's/a - b/a + b/' calc.py\n"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(shed_home: Path) -> AsyncIterator[NativeEngine]:
    engine = NativeEngine(shed_home)
    yield engine
    await engine.close()


async def never(*_args: Any, **_more: Any) -> Any:
    """What hangs."""
    await asyncio.Event().wait()


class Hanging:
    """An engine whose sandboxes never come, or hang in one call; all else is the real one's."""

    def __init__(self, engine: NativeEngine, *calls: str) -> None:
        self._engine, self._calls = engine, calls
        self.made: list[Sandbox] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def create(self, *args: Any, **more: Any) -> Sandbox:
        if "create" in self._calls:
            await never()
        box = await self._engine.create(*args, **more)
        if not self.made:  # the agent's; the verifier's work
            for call in self._calls:
                setattr(box, call, never)
        self.made.append(cast(Sandbox, box))
        return cast(Sandbox, box)


class Script:
    """An agent that runs a script and, if told to, stops for nothing."""

    needs_model = False

    def __init__(self, script: str = MEND, *, then: bool = False) -> None:
        self.script, self.then = script, then
        self.begun = asyncio.Event()

    async def act(self, acting: Acting) -> StopReason:
        self.begun.set()
        await acting.sandbox.exec(["bash", "-c", self.script])
        if self.then:
            await never()
        return StopReason.FINISHED


class Attempt:
    """One attempt at a small task, and what it told."""

    def __init__(self, engine: NativeEngine, folder: Path, **verifier: Any) -> None:
        self.engine: Any = engine
        self.task: Task = make_task(folder, start=START, hidden=HIDDEN, solve=MEND, expected=("q::adds",), **verifier)
        self.events: list[tuple[EventKind, dict[str, Any]]] = []

    async def run(self, harness: Any = None, *, verifier: Any = None, **deadlines: float) -> Outcome:
        parts = Parts(
            engine=cast(SandboxEngine, self.engine), harness=harness or Script(), model=None, blobs=MemoryBlobs(),
            verifier=cast(Verifier, verifier or FreshVerifier()), deadlines=Deadlines(**deadlines),
            emit=lambda kind, data: self.events.append((kind, dict(data))))
        return await run_attempt(self.task, Agent(name="s", harness="s"), parts, seed=0)

    def stages(self) -> list[str]:
        return [data["stage"] for kind, data in self.events if kind is EventKind.STAGE]


@pytest.mark.parametrize(("calls", "deadline", "stage"), [
    (("create",), {"prepare_s": 0.3}, "prepare"), (("changes",), {"capture_s": 0.3}, "capture"),
    (("kill_all",), {"capture_s": 0.3}, "capture"),
], ids=["create", "changes", "kill_all"])
async def test_a_stage_of_ours_that_hangs_is_invalid_and_can_be_tried_again(
    engine: NativeEngine, tmp_path: Path, calls: tuple[str, ...], deadline: dict[str, float], stage: str
) -> None:
    """Preparing and capturing are cut off, attributed to the environment at their boundary, and nothing is left."""
    attempt = Attempt(engine, tmp_path)
    attempt.engine = Hanging(engine, *calls)
    outcome = await attempt.run(**deadline)
    assert isinstance(outcome.verdict, Invalid)
    assert (outcome.verdict.cause, outcome.verdict.retryable) == (Cause.ENVIRONMENT, True)
    assert f"cut off after 0.3 s (deadline {stage})" in outcome.verdict.detail
    assert outcome.broke is not None
    assert outcome.broke.stage == stage
    assert attempt.stages()[-1] == ("close" if stage == "capture" else "prepare")
    assert engine._boxes == {}


async def test_an_agent_that_does_not_stop_is_cut_off_and_its_work_verified(
    engine: NativeEngine, tmp_path: Path
) -> None:
    """The deadline of acting is a wall limit: valid, and what was done until then counts."""
    outcome = await Attempt(engine, tmp_path).run(Script(then=True), act_s=0.5)
    assert isinstance(outcome.verdict, Valid), outcome.verdict
    assert (outcome.stop, outcome.verdict.total) == (StopReason.WALL, 1.0)


async def test_a_verifier_that_hangs_by_itself_is_invalid(engine: NativeEngine, tmp_path: Path) -> None:
    """What is not over at the deadline, which is never shorter than a task's own timeouts, is the verifier's fault."""
    attempt = Attempt(engine, tmp_path, timeout_s=0.1)
    spec = attempt.task.environment.model_copy(update={"setup_timeout_s": 0.1})
    attempt.task = attempt.task.model_copy(update={"environment": spec})

    class Hung:
        verify = staticmethod(never)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("woodshed.model.deadlines._OPENING_S", 0.1)
        outcome = await attempt.run(verifier=Hung(), verify_s=0.2)
    assert isinstance(outcome.verdict, Invalid)
    assert outcome.verdict.cause is Cause.VERIFIER
    assert "deadline verify" in outcome.verdict.detail


async def test_changes_that_hang_the_tests_stay_valid_whatever_the_deadline(
    engine: NativeEngine, tmp_path: Path
) -> None:
    """A deadline in which not even the reference can be played gives way: a hung suite is the agent's 0."""
    outcome = await Attempt(engine, tmp_path, timeout_s=1.0).run(Script("echo hang >> calc.py"), verify_s=0.002)
    assert isinstance(outcome.verdict, Valid), outcome.verdict
    assert outcome.verdict.total == 0.0


async def test_a_sandbox_that_cannot_be_closed_leaves_the_verdict_alone(engine: NativeEngine, tmp_path: Path) -> None:
    """The verdict is about captured work; the hanging close is cut off, told, and its sandbox goes with the engine."""
    attempt = Attempt(engine, tmp_path)
    attempt.engine = hanging = Hanging(engine, "close")
    outcome = await attempt.run(close_s=0.3)
    assert isinstance(outcome.verdict, Valid), outcome.verdict
    assert (outcome.verdict.total, outcome.broke) == (1.0, None)
    notes = [data["text"] for kind, data in attempt.events if kind is EventKind.NOTE]
    assert notes == ["closing the sandbox: cut off after 0.3 s (deadline close); what is left of it is removed later"]
    del hanging.made[0].close  # the real one is the class's
    await hanging.made[0].close()
    assert engine._boxes == {}


async def test_a_sandbox_is_closed_whatever_happens(engine: NativeEngine, tmp_path: Path) -> None:
    """Cancelled while the agent acts, an attempt leaves no sandbox, and its stages say so."""
    attempt, agent = Attempt(engine, tmp_path), Script(then=True)
    running = asyncio.ensure_future(attempt.run(agent))
    await agent.begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert attempt.stages()[-2:] == ["act", "close"]
    assert engine._boxes == {}


async def test_a_sandbox_outlives_its_agent_and_the_verifier(engine: NativeEngine, tmp_path: Path) -> None:
    """A task's wall time ends the acting alone: the sandbox is captured after it, and verifying takes longer still."""
    attempt = Attempt(engine, tmp_path)
    limits = attempt.task.environment.limits.model_copy(update={"wall_s": 0.5})
    spec = attempt.task.environment.model_copy(update={"limits": limits})
    slow = {**HIDDEN, "test.sh": f"sleep 1\n{HIDDEN['test.sh']}"}
    task = make_task(tmp_path / "slow", start=START, hidden=slow, solve=MEND, expected=("q::adds",))
    attempt.task = task.model_copy(update={"environment": spec})
    outcome = await attempt.run(Script(then=True))
    assert isinstance(outcome.verdict, Valid), outcome.verdict
    assert (outcome.stop, outcome.verdict.total) == (StopReason.WALL, 1.0)


async def test_what_sandboxes_used_is_told_by_stage_and_in_all(engine: NativeEngine, tmp_path: Path) -> None:
    """Each stage's event has its share; the agent's and the verifier's sandboxes are apart; the sums agree."""
    attempt = Attempt(engine, tmp_path)
    busy = "python3 -c 'import time\nwhile time.process_time() < 0.2: pass'\n"
    outcome = await attempt.run(Script(busy + MEND))
    told = [(data["stage"], Used.model_validate(data["used"])) for kind, data in attempt.events
            if kind is EventKind.STAGE]
    assert [name for name, _ in told] == ["prepare", "act", "capture", "verify", "close"]
    summed = total(used for _, used in told)
    assert summed.sandbox_s == pytest.approx(outcome.used_in_all.sandbox_s, abs=1e-4)
    assert 0.2 <= (outcome.used["act"].cpu_s or 0) < 5
    assert outcome.used["verify"].sandboxes >= 1
    assert sum(outcome.used[name].sandboxes for name in ("prepare", "act", "capture", "close")) == 1
    assert outcome.used["close"].disk_bytes
    assert outcome.used["capture"].memory_peak_bytes
    whole = outcome.used_in_all
    assert whole.cpu_s == pytest.approx(sum(used.cpu_s or 0 for used in outcome.used.values()))
    assert whole.sandbox_s >= outcome.stages_s["act"] + outcome.stages_s["verify"] - 0.1


async def test_what_cannot_be_told_is_unknown(engine: NativeEngine, tmp_path: Path) -> None:
    """A sandbox that keeps no accounts has unknown CPU, memory and disk, never 0; what it stood is known."""
    class Plain:
        def __init__(self, box: Any) -> None:
            self.exec, self.changes, self.kill_all, self.close = box.exec, box.changes, box.kill_all, box.close

    class Other(Hanging):
        async def create(self, *args: Any, **more: Any) -> Sandbox:
            box = await super().create(*args, **more)
            return box if len(self.made) > 1 else cast(Sandbox, Plain(box))

    attempt = Attempt(engine, tmp_path)
    attempt.engine = Other(engine)
    outcome = await attempt.run()
    act = outcome.used["act"]
    assert (act.cpu_s, act.memory_peak_bytes, act.disk_bytes) == (None, None, None)
    assert act.sandbox_s > 0
    assert outcome.used_in_all.cpu_s is None


async def test_a_sandbox_from_a_reserve_is_paid_for_from_its_claim_on() -> None:
    """What it stood before anybody asked for it is nobody's."""
    class Old:
        def used(self) -> Used:
            return Used(sandboxes=1, sandbox_s=100.0)

    class Reserve:
        async def create(self, *_args: Any, **_more: Any) -> Any:
            return Old()

    ledger = Ledger(cast(SandboxEngine, Reserve()))
    await ledger.create(cast(Any, None), cast(Any, None))
    assert ledger.draw().sandbox_s < 1
    assert ledger.draw().sandboxes == 0


async def test_what_ignores_its_end_is_left_behind() -> None:
    """A coroutine that swallows every cancellation is abandoned after its grace; a result that comes late counts."""
    asked = 0

    async def stubborn() -> None:
        nonlocal asked
        while asked < 4:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                asked += 1

    with pytest.raises(Overrun):
        await cut(stubborn(), 0.05, grace_s=0.05)
    assert asked == 2
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        while "stubborn" in repr(task) and not task.done():
            task.cancel()
            await asyncio.sleep(0)

    async def late() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "made"
        return ""

    assert await cut(late(), 0.05) == "made"


async def test_a_fault_before_the_deadline_is_its_own() -> None:
    """What breaks by itself has its own message and owner, not the deadline's; time and stage are told all the same."""
    told: list[dict[str, Any]] = []

    async def breaks() -> None:
        raise ValueError("bad")

    stages = Stages(lambda kind, data: told.append(dict(data)))
    with pytest.raises(WoodshedError, match="doing it: ValueError: bad") as caught:
        await stages.run("act", breaks(), owner=Cause.HARNESS, doing="doing it", within_s=5.0)
    assert (caught.value.cause, stages.broke_at, told[0]["stage"]) == (Cause.HARNESS, "act", "act")


async def test_deadlines_follow_from_what_the_task_declares(tmp_path: Path) -> None:
    """Opening has the build's time and the health check's; verifying four runs; none is below what hung tests take."""
    task = make_task(tmp_path, timeout_s=100.0)
    plain = Deadlines().of(task)
    assert (plain.prepare_s, plain.act_s) == (600.0 + 600.0, None)
    assert plain.verify_s == 1200.0 + 4 * 100.0
    assert Deadlines(verify_s=5.0).of(task).verify_s == least_verify_s(task) == 1200.0 + 2 * 100.0
    assert Deadlines(verify_s=9000.0).of(task).verify_s == 9000.0
    check = Healthcheck(command="true", interval_s=1, timeout_s=2, retries=3, start_period_s=5, start_interval_s=1)
    world = task.environment.model_copy(update={"setup": "make", "image": "dockerfile:x", "healthcheck": check})
    built = Deadlines().of(task.model_copy(update={"environment": world}))
    assert built.prepare_s == 600.0 + 2 * 600.0 + 5 + 4 * 3
    assert Deadlines(prepare_s=3.0, capture_s=4.0, close_s=5.0).of(task).model_dump() | {"verify_s": 0, "grade_s": 0} \
        == {"prepare_s": 3.0, "act_s": None, "capture_s": 4.0, "verify_s": 0, "grade_s": 0, "close_s": 5.0,
            "hurry_s": None}
    assert [Deadlines(verify_s=seconds).of(task).hurry_s for seconds in (5.0, 9000.0)] == [5.0, None]
    assert Limits().wall_s is None
