"""The verifier in real sandboxes: rewards, bounds, and who is at fault when there is no verdict."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from cheatbench import EXPECTED, HIDDEN, SOLVED, Bench, make_task
from woodshed.errors import Cause, EnvironmentFault, VerifierFault
from woodshed.interfaces import Verifier
from woodshed.model import Assurance, ChangeSet, EventKind, Task, TestOutcome, Verdict
from woodshed.sandbox.native.engine import NativeEngine
from woodshed.verify.verifier import FreshVerifier

pytestmark = pytest.mark.asyncio(loop_scope="module")

HALF = "cat > calc.py <<'E'\ndef add(a, b):\n    return 4\n\n\ndef mul(a, b):\n    return a * b\nE\n"
# A stand-in for a test runner, as fast as a shell: fails under the canary's name as a runner would.
QUICK = """
name=$(sed -n 's/^def \\(test_[a-z_]*\\)().*/\\1/p' /tests/test_*_???.py)
good=$(cat answer 2>/dev/null)
{ echo "<testsuites><testcase classname='q' name='$name'><failure/></testcase>"
  [ "$good" = yes ] && echo "<testcase classname='q' name='answers'/>" \
    || echo "<testcase classname='q' name='answers'><failure/></testcase>"
  echo "</testsuites>"; } > /logs/verifier/junit.xml
exit 1
"""
QUICK_EXPECTED = ("q::answers",)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(shed_home: Path) -> AsyncIterator[NativeEngine]:
    engine = NativeEngine(shed_home)
    yield engine
    await engine.close()


@pytest_asyncio.fixture(loop_scope="module")
async def bench(engine: NativeEngine) -> AsyncIterator[Bench]:
    yield Bench(engine)
    assert engine._boxes == {}, "no sandbox outlives a verification"


def quick(folder: Path, script: str = QUICK, **more: object) -> Task:
    """A task judged in a few milliseconds; its solution writes ``answer``."""
    given: dict[str, object] = {
        "start": {"readme": ""}, "hidden": {"test.sh": script, "test_q.py": ""}, "solve": "echo yes > answer\n",
        "expected": QUICK_EXPECTED, **more}
    return make_task(folder, **given)  # type: ignore[arg-type]  # keywords of make_task


async def test_it_is_a_verifier() -> None:
    """FreshVerifier has the shape of the protocol."""
    verifier: Verifier = FreshVerifier()
    assert verifier


async def test_rewards_by_name(bench: Bench, tmp_path: Path) -> None:
    """Each named reward is judged on its own tests; total needs all; every expected test has its outcome."""
    task = make_task(tmp_path, rewards={"positive": EXPECTED[:1], "negative": EXPECTED[1:2], "kept": EXPECTED[2:]})
    verdict = await bench.judge(task, HALF)
    assert verdict.rewards == {"positive": 1.0, "negative": 0.0, "kept": 1.0, "reward": 0.0}
    outcomes = (TestOutcome.PASSED, TestOutcome.FAILED, TestOutcome.PASSED)
    assert verdict.tests == dict(zip(EXPECTED, outcomes, strict=True))
    assert verdict.image_digest
    (event,) = [data for kind, data in bench.events if kind is EventKind.VERIFIER]
    assert (event["exit_code"], event["report"], event["touched"]) == (1, "junit", [])
    assert b"test_add_negative" in bench.blobs.content[event["output_blob"]]


async def test_broken_source_is_the_agents(bench: Bench, tmp_path: Path) -> None:
    """A syntax error in the agent's file is its own failure: ids are missing, nobody tampered, no control is asked."""
    verdict = await bench.judge(make_task(tmp_path, solve=None), "echo 'def add(:' > calc.py")
    assert (verdict.total, verdict.cause, verdict.flags) == (0.0, Cause.AGENT, ("missing_ids",))


async def test_over_a_limit_is_no_run(bench: Bench, tmp_path: Path) -> None:
    """Changes cut by a declared limit are valid, 0, the budget's, and no test is run."""
    verdict = await bench.verify(quick(tmp_path), ChangeSet(over_limit="disk_mb"))
    assert (verdict.total, verdict.cause, verdict.flags) == (0.0, Cause.BUDGET, ("over:disk_mb",))
    assert bench.events == []


async def test_hidden_tests_and_the_solution_stay_apart(bench: Bench, tmp_path: Path) -> None:
    """The verifier's box has the tests and not the solution; the report folder starts empty."""
    script = "ls -a /solution /logs/verifier > /workspace/seen 2>&1; ls /logs/verifier; ls /solution; exit 3\n"
    task = quick(tmp_path, script, solve=None)
    with pytest.raises(VerifierFault):
        await bench.judge(task, "true")
    outputs = [bench.blobs.content[data["output_blob"]] for kind, data in bench.events if kind is EventKind.VERIFIER]
    assert outputs
    assert all(b"No such file" in output and b"xml" not in output for output in outputs)


async def test_output_is_bounded_and_need_not_be_text(bench: Bench, tmp_path: Path) -> None:
    """A hundred megabytes of bytes that are no UTF-8 are cut, kept as a blob, and change no verdict."""
    task = quick(tmp_path, "head -c 100000000 /dev/zero | tr '\\0' '\\377'\n" + QUICK)
    verdict = await bench.judge(task, "echo yes > answer")
    assert (verdict.total, verdict.flags) == (1.0, ())
    output = bench.blobs.content[bench.events[0][1]["output_blob"]]
    assert b"\xff" in output
    assert len(output) < 3_000_000


@pytest.mark.parametrize(("script", "flag"), [
    ("[ -e answer ] || sleep 1000\n" + QUICK, "verifier_timeout"),
    ("[ -e answer ] || exit 1\n" + QUICK, "no_report"),
    ("[ -e answer ] || exit 127\n" + QUICK, "not_runnable"),
    (QUICK + "[ -e answer ] || exit 0\n".replace("exit 0", "kill -9 $$"), None),
])
async def test_what_only_the_agents_changes_bring_about_is_valid(
    bench: Bench, tmp_path: Path, script: str, flag: str | None
) -> None:
    """Where the reference gets its verdict, a hang or a missing report is the agent's: valid, 0, flagged."""
    task = quick(tmp_path, script, timeout_s=3.0)
    verdict = await bench.judge(task, "true")
    assert (verdict.total, verdict.cause) == (0.0, Cause.AGENT)
    assert flag is None or flag in verdict.flags


@pytest.mark.parametrize(("script", "solve"), [
    ("sleep 1000\n", "echo yes > answer\n"),
    ("exit 1\n", "echo yes > answer\n"),
    ("exit 127\n", "echo yes > answer\n"),
    ("sleep 1000\n", None),
    ("exit 1\n", None),
    ("exit 0\n", None),
    ("exit 0\n", "echo yes > answer\n"),
    (QUICK.replace("exit 1", "exit 0"), None),
    (QUICK.replace("exit 1", "exit 0"), "echo yes > answer\n"),
    ("mkfifo /logs/verifier/junit.xml\nexit 1\n", "echo yes > answer\n"),
    ("[ -e answer ] && exit 1 || exit 127\n", "echo yes > answer\n"),
    ("exit 127\n", "sleep 1000\n"),
])
async def test_a_verifier_that_fails_by_itself_is_at_fault(
    bench: Bench, tmp_path: Path, script: str, solve: str | None
) -> None:
    """Where the reference, or the untouched start, gets no verdict either, the fault is the verifier's."""
    task = quick(tmp_path, script, solve=solve, timeout_s=1.5).model_copy(update={"agent_timeout_s": 1.5})
    with pytest.raises(VerifierFault):
        await bench.judge(task, "true")


@pytest.mark.parametrize("hook", [
    "rm -rf /logs/verifier; exit 0",
    "rm -rf /logs/verifier; ln -s verifier /logs/verifier; exit 0",
    "rm -rf /logs/verifier; touch /logs/verifier; exit 1",
    "rm -rf /logs; exit 0",
    "mkdir /logs/verifier/junit.xml; exit 1",
    "mkfifo /logs/verifier/junit.xml; exit 1",
    "ln -s /dev/zero /logs/verifier/junit.xml; exit 0",
    "head -c 20000000 /dev/zero > /logs/verifier/junit.xml; exit 1",
    "truncate -s 1T /logs/verifier/junit.xml; exit 1",
    "echo '<testsuites>' > /logs/verifier/junit.xml; exit 1",
    "cd /logs/verifier; seq 20000 | xargs touch; exit 1",
    "kill -9 -1; exit 1",
    "python3 -c 'import os, resource; resource.prlimit(1, resource.RLIMIT_CPU, (0, 0)); "
    "[os.kill(1, 17) for _ in range(10**7)]'; exit 1",
    "kill -9 1; kill -9 $PPID; kill -9 $$",
    "rm -rf /workspace /tests; exit 1",
    "chmod 000 /logs/verifier /tests; exit 1",
    ":(){ :|:& };:; sleep 0.2; exit 1",
])
async def test_no_hook_of_the_agent_makes_its_attempt_invalid(bench: Bench, tmp_path: Path, hook: str) -> None:
    """Whatever code of the agent does to the verifier's box while the tests run, the verdict is valid with total 0."""
    task = quick(tmp_path, "[ -e hook ] && . ./hook\n" + QUICK, timeout_s=20.0)
    verdict = await bench.judge(task, f"echo yes > answer; cat > hook <<'HOOK'\n{hook}\nHOOK\n")
    assert verdict.total == 0.0
    assert verdict.flags
    assert verdict.cause in (Cause.AGENT, Cause.TAMPER)


async def test_a_directory_too_large_to_list_makes_nothing_invalid(bench: Bench, tmp_path: Path) -> None:
    """A report's folder flooded with long names, whose listing is no message, is the agent's: valid, total 0."""
    flood = "import os; [os.mknod(b'/logs/verifier/%06d' % n + b'\\xff' * 240) for n in range(46000)]"
    task = quick(tmp_path, "[ -e hook ] && . ./hook\n" + QUICK, timeout_s=60.0)
    verdict = await bench.judge(task, f'echo yes > answer; cat > hook <<\'HOOK\'\npython3 -c "{flood}"\nHOOK\n')
    assert (verdict.total, verdict.cause, verdict.flags) == (0.0, Cause.TAMPER, ("tamper:report_forged",))


async def test_a_host_that_fails_for_a_moment_gives_no_zero(bench: Bench, tmp_path: Path) -> None:
    """A sandbox that did not open a few times is opened again; a full disk is a fault; nothing of it is the agent's."""
    task = quick(tmp_path, solve=None)
    changes = await bench.work(task, "echo yes > answer")
    real, faults = bench.engine.create, list[EnvironmentFault]()

    async def failing(spec: Any, policy: Any, *, restore: Any = None) -> Any:
        if faults and restore is not None and any(change.path == "/workspace/answer" for change in restore[0].changes):
            raise faults.pop()
        return await real(spec, policy, restore=restore)

    bench.engine.create = failing  # type: ignore[method-assign]  # fails as told, else calls the real one
    try:
        for times in (1, 2, 4):  # by chance, and not by the changes, with which it is opened at last
            faults += times * [EnvironmentFault("the sandbox could not be made")]
            assert (await bench.verify(task, changes)).passed
        full = EnvironmentFault("the captured changes could not be restored")
        full.__cause__ = OSError(errno.ENOSPC, "No space left on device")
        faults.append(full)
        with pytest.raises(EnvironmentFault, match="restored"):
            await bench.verify(task, changes)
    finally:
        del bench.engine.create


async def test_changes_that_keep_the_world_shut_are_the_agents(bench: Bench, tmp_path: Path) -> None:
    """Where a sandbox opens without the changes and never with them, the verdict is valid, total 0 and flagged."""
    task = quick(tmp_path, solve=None)
    changes = await bench.work(task, "echo yes > answer")
    real = bench.engine.create

    async def failing(spec: Any, policy: Any, *, restore: Any = None) -> Any:
        if restore is not None and any(change.path == "/workspace/answer" for change in restore[0].changes):
            raise EnvironmentFault("the sandbox could not be made")
        return await real(spec, policy, restore=restore)

    bench.engine.create = failing  # type: ignore[method-assign]  # fails as told, else calls the real one
    try:
        verdict = await bench.verify(task, changes)
    finally:
        del bench.engine.create
    assert (verdict.total, verdict.cause, verdict.flags) == (0.0, Cause.AGENT, ("setup_failed",))


async def test_the_control_runs_once(bench: Bench, tmp_path: Path) -> None:
    """Many suspicious attempts of one task at once share one control run."""
    count = tmp_path / "count"
    count.mkdir()
    task = quick(tmp_path, "[ -e answer ] || exit 1\n" + QUICK)
    changes = await bench.work(task, "true")
    ran = 0
    real = bench.engine.create

    async def counted(*given: Any, **more: Any) -> Any:
        nonlocal ran
        ran += 1
        return await real(*given, **more)

    bench.engine.create = counted  # type: ignore[method-assign]  # counts, and calls the real one
    try:
        verdicts = await asyncio.gather(*(bench.verify(task, changes) for _ in range(4)))
    finally:
        del bench.engine.create
    assert {verdict.flags for verdict in verdicts} == {("no_report",)}
    assert ran == 4 + 2  # each attempt's box, and two for the control: the reference's and its verification


async def test_harbor_rewards(bench: Bench, tmp_path: Path) -> None:
    """A task without expected tests is judged by its reward file, and says that this is all."""
    script = """cd /logs/verifier
[ -e /workspace/answer ] && echo '{"reward": 0.5, "speed": 2}' > reward.json || echo 0 > reward.txt
"""
    task = quick(tmp_path, script, expected=())
    some = await bench.judge(task, "echo yes > answer")
    assert (some.total, some.rewards, some.assurance) == (0.5, {"reward": 0.5, "speed": 2.0}, Assurance.REPORT_ONLY)
    none = await bench.judge(task, "true")
    assert (none.total, none.cause, none.flags) == (0.0, Cause.AGENT, ())


@pytest.mark.parametrize("script", ["true\n", "echo nan > /logs/verifier/reward.txt\n",
                                    "echo '{\"reward\": 1e999}' > /logs/verifier/reward.json\n"])
async def test_no_finite_reward_is_the_verifiers_fault(bench: Bench, tmp_path: Path, script: str) -> None:
    """A test.sh that leaves no finite reward even for the reference is at fault; NaN never becomes a reward."""
    with pytest.raises(VerifierFault):
        await bench.judge(quick(tmp_path, script, expected=()), "true")


async def test_a_broken_setup_is_the_environments(bench: Bench, tmp_path: Path) -> None:
    """A setup that fails for everyone is an environment fault, whoever's turn it is."""
    task = quick(tmp_path)
    changes = await bench.work(task, "echo yes > answer")
    broken = task.model_copy(update={"environment": task.environment.model_copy(update={"setup": "exit 1"})})
    with pytest.raises(EnvironmentFault):
        await bench.verify(broken, changes)


async def test_a_bad_pattern_is_the_verifiers(bench: Bench, tmp_path: Path) -> None:
    """A protected pattern that would hold everywhere is a fault that names the field."""
    with pytest.raises(VerifierFault, match="protected"):
        await bench.judge(quick(tmp_path, protected=("**",)), "true")


async def test_cancelling_leaves_no_sandbox(bench: Bench, tmp_path: Path) -> None:
    """A cancelled verification closes its sandbox."""
    task = quick(tmp_path, "touch /logs/verifier/started\nsleep 1000\n")
    changes = await bench.work(task, "true")
    running = asyncio.create_task(bench.verify(task, changes))
    while not bench.engine._boxes:  # noqa: ASYNC110 - the engine has no event for this, nor need of one
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_verdicts_survive_json(bench: Bench, tmp_path: Path) -> None:
    """A verdict written as JSON reads back as itself."""
    from pydantic import TypeAdapter

    verdict = await bench.judge(quick(tmp_path), "echo yes > answer")
    assert verdict.passed
    assert TypeAdapter[Verdict](Verdict).validate_python(verdict.to_json()) == verdict


async def test_poison_raises_the_assurance(bench: Bench, tmp_path: Path) -> None:
    """With the poisoned run an honest pass has the assurance ``poisoned``, and a failure is not run twice."""
    bench.verifier = FreshVerifier(poison=True)
    task = make_task(tmp_path)
    verdict = await bench.judge(task, SOLVED)
    assert (verdict.total, verdict.assurance, verdict.flags) == (1.0, Assurance.POISONED, ())
    assert len(bench.events) == 2
    failed = await bench.judge(task, "true")
    assert (failed.total, failed.assurance) == (0.0, Assurance.CANARY)
    assert len(bench.events) == 3


async def test_hidden_tests_may_stand_alone(bench: Bench, tmp_path: Path) -> None:
    """Tests run where they stand, with their own ini, as the examples do it."""
    hidden = {**HIDDEN, "test.sh": "python3 -m pytest -c /tests/pytest.ini --rootdir=/tests -q /tests "
                                   "--junitxml=/logs/verifier/junit.xml\n",
              "pytest.ini": "[pytest]\npythonpath = /workspace /workspace/tests\n"}
    task = make_task(tmp_path, hidden=hidden, expected=tuple(wanted.removeprefix("tests.") for wanted in EXPECTED))
    assert (await bench.judge(task, SOLVED)).passed
