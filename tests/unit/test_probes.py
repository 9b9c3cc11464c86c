"""Probes: what task.toml may ask, how answers are compared, and that only answers cross over."""

from __future__ import annotations

import json
import tomllib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from cheatbench import SOLVED, Bench, make_task
from cheatgrounds import SCRIPT_EXPECTED, SCRIPT_HIDDEN
from woodshed.errors import Cause, UsageError, VerifierFault
from woodshed.harness.cheats import reached
from woodshed.model import Assurance, EventKind, Task, TestOutcome
from woodshed.model.probe import Probe
from woodshed.sandbox.native.engine import NativeEngine
from woodshed.tasks import toml
from woodshed.tasks.load import load_task
from woodshed.tasks.probes import ProbeTable
from woodshed.tasks.write import Draft, write_task
from woodshed.verify.judge import Answers, Demands, Facts, Found, judge
from woodshed.verify.probes import equal
from woodshed.verify.reports import Report

CALL = ["python3", "-c", "import sys, calc; print(calc.add(*map(int, sys.stdin.read().split())))"]


def a_folder(folder: Path, probes: dict[str, Any], **more: Any) -> Path:
    """A task folder with these probes."""
    (folder / "tests").mkdir(parents=True)
    (folder / "tests" / "test.sh").write_text("exit 1\n")
    (folder / "tests" / "answer.txt").write_text("4\n")
    (folder / "instruction.md").write_text("Mend it.\n")
    (folder / "task.toml").write_text(toml.dumps({"woodshed": {"image": "host", "probes": probes, **more}}))
    return folder


def test_a_table_is_read_whole(tmp_path: Path) -> None:
    """Files of the task become host paths, places in the sandbox absolute ones, and the rest stays as written."""
    probes = {"adds two": {"argv": CALL, "stdin": "2 2", "stdout_file": "answer.txt", "match": "lines",
                           "inputs": {"data/in.txt": "answer.txt"}, "files": {"/srv/out": "answer.txt"},
                           "exit_code": 3, "timeout_sec": 2.5}}
    folder = a_folder(tmp_path / "t", probes)
    answer = folder / "tests" / "answer.txt"
    (probe,) = load_task(folder).verifier.probes
    assert probe == Probe(
        name="adds two", argv=tuple(CALL), stdin="2 2", stdout_file=answer, match="lines", exit_code=3, timeout_s=2.5,
        inputs={"/workspace/data/in.txt": answer}, files={"/srv/out": answer})
    assert probe.id == "probe::adds two"


def test_a_draft_writes_what_is_read(tmp_path: Path) -> None:
    """Probes of a written task are those of the draft, with their files."""
    ask = ProbeTable(argv=("cat", "a \"b\" \\n"), stdin="x\ny", inputs={"in": "deep/in.txt"}, exit_code=0)
    draft = Draft(instruction="Do it.\n", tests={"test.sh": b"exit 1\n", "deep/in.txt": b"\xff"}, probes={"a b": ask})
    (probe,) = write_task(tmp_path / "t", draft).verifier.probes
    assert (probe.name, probe.argv, probe.stdin) == ("a b", ask.argv, ask.stdin)
    assert probe.inputs["/workspace/in"].read_bytes() == b"\xff"


GOOD = {"argv": ["true"], "exit_code": 0}


@pytest.mark.parametrize(("probes", "field"), [
    ({"a": {**GOOD, "argv": []}}, "a.argv"),
    ({"a": {**GOOD, "argv": ["x\0y"]}}, "a.argv"),
    ({"a": {"argv": ["true"]}}, "a"),
    ({"a/b": GOOD}, "a/b"),
    ({"a": {**GOOD, "stdin": "x", "stdin_file": "answer.txt"}}, "a.stdin_file"),
    ({"a": {**GOOD, "stdout": "x", "stdout_file": "answer.txt"}}, "a.stdout_file"),
    ({"a": {**GOOD, "stdin_file": "../instruction.md"}}, "a.stdin_file"),
    ({"a": {**GOOD, "stdin_file": "/etc/passwd"}}, "a.stdin_file"),
    ({"a": {**GOOD, "stdout_file": "nothing.txt"}}, "a.stdout_file"),
    ({"a": {**GOOD, "inputs": {"in": "nothing.txt"}}}, "a.inputs.in"),
    ({"a": {**GOOD, "files": {"/tests/out": "answer.txt"}}}, "a.files"),
    ({"a": {**GOOD, "inputs": {"../proc/x": "answer.txt"}}}, "a.inputs"),
    ({"a": {**GOOD, "match": "json"}}, "a.match"),
    ({"a": {**GOOD, "match": "json", "stdout": "{"}}, "a.stdout"),
    ({"a": {**GOOD, "match": "roughly"}}, "a.match"),
    ({"a": {**GOOD, "exit_code": 256}}, "a.exit_code"),
    ({"a": {**GOOD, "timeout_sec": 0}}, "a.timeout_sec"),
    ({"a": {**GOOD, "stdot": "x"}}, "a.stdot"),
    ({f"p{number}": GOOD for number in range(201)}, ""),
])
def test_a_probe_that_cannot_be_asked_is_refused(tmp_path: Path, probes: dict[str, Any], field: str) -> None:
    """The error names the file, the field and a remedy."""
    folder = a_folder(tmp_path / "t", probes)
    with pytest.raises(UsageError) as caught:
        load_task(folder)
    assert caught.value.file == folder / "task.toml"
    assert caught.value.field == f"woodshed.probes.{field}".rstrip(".")
    assert caught.value.remedy


def in_steps(folder: Path, table: dict[str, Any]) -> Path:
    """The task in ``folder`` as the second of two steps, with ``table`` for [woodshed.steps]."""
    for name in ("one", "two"):
        (folder / "steps" / name / "tests").mkdir(parents=True)
        (folder / "steps" / name / "instruction.md").write_text("Do it.\n")
        (folder / "steps" / name / "tests" / "test.sh").write_text("echo 1 > /logs/verifier/reward.txt\n")
    (folder / "steps" / "two" / "tests" / "asked.txt").write_text("4\n")
    told = tomllib.loads((folder / "task.toml").read_text())
    told["woodshed"] = {name: value for name, value in told["woodshed"].items() if name != "probes"} | {"steps": table}
    (folder / "task.toml").write_text(toml.dumps({**told, "steps": [{"name": "one"}, {"name": "two"}]}))
    return folder


def test_a_step_has_probes_of_its_own(tmp_path: Path) -> None:
    """They are asked after that step alone, their files are its tests', and a fault names the step's table."""
    ask = {"argv": ["cat", "out"], "stdout_file": "asked.txt"}
    table = {"two": {"probes": {"a": ask}, "rewards": {"r": ["probe::a"]}}}
    task = load_task(in_steps(a_folder(tmp_path / "t", {}), table))
    assert [probe.id for probe in task.at(0).verifier.probes] == []
    [probe] = task.at(1).verifier.probes
    assert (probe.id, probe.stdout_file) == ("probe::a", task.folder / "steps" / "two" / "tests" / "asked.txt")
    assert task.at(1).verifier.rewards == {"r": ("probe::a",)}
    assert reached(task) is reached(task.at(0)) is not reached(task.at(1)) is Assurance.OUT_OF_PROCESS
    with pytest.raises(UsageError, match="no file in tests/") as caught:
        load_task(in_steps(a_folder(tmp_path / "u", {}), {"one": {"probes": {"a": ask}}}))
    assert caught.value.field == "woodshed.steps.one.probes.a.stdout_file"


def test_probes_of_a_task_with_steps_say_after_which(tmp_path: Path) -> None:
    """Those of the whole task are refused, with the table to write them in."""
    folder = in_steps(a_folder(tmp_path / "t", {}), {})
    told = tomllib.loads((folder / "task.toml").read_text())
    told["woodshed"]["probes"] = {"a": GOOD}
    (folder / "task.toml").write_text(toml.dumps(told))
    with pytest.raises(UsageError, match=r"after which step.*\[woodshed\.steps\.two\.probes\.NAME\]") as caught:
        load_task(folder)
    assert caught.value.field == "woodshed.probes"


def test_rewards_may_name_probes(tmp_path: Path) -> None:
    """A named reward is made of tests and probes alike; of probes that are not there it is refused."""
    task = load_task(a_folder(tmp_path / "t", {"a": GOOD}, rewards={"works": ["probe::a"]}))
    assert task.verifier.rewards == {"works": ("probe::a",)}
    with pytest.raises(UsageError, match="probe::b"):
        load_task(a_folder(tmp_path / "u", {"a": GOOD}, rewards={"works": ["probe::b"]}))


@pytest.mark.parametrize(("match", "found", "expected", "same"), [
    ("exact", b"4\n", b"4\n", True), ("exact", b"4", b"4\n", False),
    ("lines", b"4  \r\n5\n\n", b"4\n5", True), ("lines", b"4\n\n5", b"4\n5", False), ("lines", b" 4", b"4", False),
    ("json", b'{"b": [1, 2.0], "a": null}', b'{"a": null, "b": [1.0, 2]}', True),
    ("json", b"true", b"1", False), ("json", b"[1]", b"[true]", False), ("json", b"NaN", b"1", False),
    ("json", b"[" * 100_000, b"[]", False), ("json", b"\xff", b"1", False),
    ("json", b'{"a": 1}', b'{"a": 1, "b": 2}', False),
])
def test_answers_are_compared_as_the_task_says(match: str, found: bytes, expected: bytes, same: bool) -> None:
    """Exactly; by lines without blanks at their ends; or as JSON values of the same kinds."""
    assert equal(match, found, expected) is same


@given(st.binary(), st.recursive(st.none() | st.booleans() | st.integers() | st.text(),
                                 lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8))
def test_comparing_never_raises(found: bytes, value: Any) -> None:
    """Whatever a program writes is equal or not; a value written in another way is equal to itself."""
    expected = json.dumps(value).encode()
    for match in ("exact", "lines", "json"):
        assert equal(match, found, expected) in (True, False)
    assert equal("json", json.dumps(value, indent=3).encode(), expected)


PASSED = Facts(exit_code=0, found=Found.FRESH, reward={"reward": 1.0})


@pytest.mark.parametrize(("answers", "total", "flags"), [
    (Answers({"probe::a": TestOutcome.PASSED, "probe::b": TestOutcome.PASSED}), 1.0, ()),
    (Answers({"probe::a": TestOutcome.PASSED}), 0.0, ("probe_failed",)),
    (Answers(), 0.0, ("probe_failed",)),
    (Answers({"probe::a": TestOutcome.PASSED, "probe::b": TestOutcome.FAILED}), 0.0, ("probe_failed",)),
    (Answers({"probe::a": TestOutcome.PASSED, "probe::b": TestOutcome.ERROR}, timed_out=True), 0.0, ("probe_timeout",)),
])
def test_every_probe_must_have_passed(answers: Answers, total: float, flags: tuple[str, ...]) -> None:
    """Of probes, one that failed, did not end or was not asked is enough for a total of 0; assurance is what it is."""
    facts = Facts(exit_code=0, found=Found.FRESH, reward={"reward": 1.0}, answers=answers)
    verdict = judge(facts, Demands(probes=("probe::a", "probe::b"))).verdict
    assert (verdict.total, verdict.flags, verdict.assurance) == (total, flags, Assurance.OUT_OF_PROCESS)
    assert set(verdict.tests) == {"probe::a", "probe::b"}


def test_probes_take_away_and_never_give() -> None:
    """Without a passing run of the tests, probes that all passed bring nothing."""
    answers = Answers({"probe::a": TestOutcome.PASSED})
    facts = Facts(exit_code=1, found=Found.FRESH, report=Report((), "junit"), answers=answers)
    assert judge(facts, Demands(("x",), canary="c", probes=("probe::a",))).verdict.total == 0.0
    facts = Facts(exit_code=0, found=Found.FRESH, reward={"reward": 0.25}, answers=answers)
    assert judge(facts, Demands(probes=("probe::a",))).verdict.total == 0.25


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(shed_home: Path) -> AsyncIterator[NativeEngine]:
    engine = NativeEngine(shed_home)
    yield engine
    await engine.close()


@pytest_asyncio.fixture(loop_scope="module")
async def bench(engine: NativeEngine) -> AsyncIterator[Bench]:
    yield Bench(engine)
    assert engine._boxes == {}, "no sandbox outlives a verification"


def probed(folder: Path, *probes: Probe, **more: Any) -> Task:
    """A task of check scripts that also asks ``probes``."""
    return make_task(folder, hidden=SCRIPT_HIDDEN, expected=SCRIPT_EXPECTED, probes=probes, **more)


ADDS = Probe(name="adds", argv=tuple(CALL), stdin="20 3", stdout="23\n")


@pytest.mark.asyncio(loop_scope="module")
async def test_a_program_is_asked_beside_its_tests(bench: Bench, tmp_path: Path) -> None:
    """The reference answers, the start does not; each probe stands among the verdict's tests, and in the event."""
    task = probed(tmp_path, ADDS, Probe(name="multiplies", argv=("python3", "-c", "import calc; print(calc.mul(3, 4))"),
                                        stdout="12", match="lines"),
                  rewards={"sum": ("check_add", "probe::adds"), "product": ("probe::multiplies",)})
    solved = await bench.judge(task, SOLVED)
    assert (solved.total, solved.flags, solved.assurance) == (1.0, (), Assurance.OUT_OF_PROCESS)
    assert solved.tests["probe::adds"] is solved.tests["probe::multiplies"] is TestOutcome.PASSED
    bench.events.clear()
    nothing = await bench.judge(task, "true")
    assert (nothing.total, nothing.cause, nothing.flags) == (0.0, Cause.AGENT, ("probe_failed",))
    assert nothing.rewards == {"sum": 0.0, "product": 1.0, "reward": 0.0}
    (event,) = [data for kind, data in bench.events if kind is EventKind.VERIFIER]
    assert event["probes"] == {"probe::adds": "failed", "probe::multiplies": "passed"}
    assert event["probe_notes"] == {"probe::adds": "standard output differs"}


@pytest.mark.asyncio(loop_scope="module")
async def test_nothing_that_is_expected_is_in_the_probes_sandbox(bench: Bench, tmp_path: Path) -> None:
    """A program that looks around finds no tests, no report and no expected answer, but its input."""
    for name, content in (("in.txt", "7\n"), ("out.txt", "hidden answer\n")):
        (tmp_path / name).write_text(content)
    look = "ls -a /tests /solution /logs/verifier; cat in.txt; grep -rla 'hidden answer' / --exclude-dir=proc " \
           "--exclude-dir=usr --exclude-dir=opt --exclude-dir=sys --devices=skip; env; true"
    task = probed(tmp_path / "t", Probe(
        name="looks", argv=("sh", "-c", look), inputs={"/workspace/in.txt": tmp_path / "in.txt"}, stdout="7\n",
        files={"/workspace/in.txt": tmp_path / "in.txt", "/workspace/out": tmp_path / "out.txt"}))
    verdict = await bench.judge(task, "echo 1 > in.txt")
    (event,) = [data for kind, data in bench.events if kind is EventKind.VERIFIER and data["run"] == "verify"]
    assert event["probe_notes"] == {"probe::looks": "/workspace/out: No such file or directory"} \
        or event["probe_notes"] == {"probe::looks": "standard output differs"}
    assert verdict.tests["probe::looks"] is TestOutcome.FAILED


@pytest.mark.asyncio(loop_scope="module")
async def test_files_are_compared_and_a_link_cannot_stand_in(bench: Bench, tmp_path: Path) -> None:
    """What a program writes is read inside its sandbox; another content, a folder or a link to nothing is a failure."""
    (tmp_path / "out.txt").write_text("good\n")
    task = probed(tmp_path / "t", Probe(name="writes", argv=("sh", "write"),
                                        files={"/workspace/made/out.txt": tmp_path / "out.txt"}))
    for script, passed in (("mkdir -p made; echo good > made/out.txt", True), ("echo bad", False),
                           ("mkdir -p made/out.txt", False), ("mkdir made; ln -s /tests/out.txt made/out.txt", False),
                           ("mkdir made; mkfifo made/out.txt", False),
                           ("mkdir made; echo goods > made/out.txt", False)):
        verdict = await bench.judge(task, SOLVED + f"echo '{script}' > write")
        assert (verdict.total == 1.0) is passed, script


@pytest.mark.asyncio(loop_scope="module")
async def test_a_probe_cannot_reach_the_next(bench: Bench, tmp_path: Path) -> None:
    """What one leaves running is ended before the next is asked."""
    alive = Probe(name="b", argv=("sh", "-c", "pgrep -x sleep >/dev/null && echo alive || echo gone"), stdout="gone\n")
    leaves = "setsid sleep 987 >/dev/null 2>&1 & pgrep -x sleep >/dev/null || sleep 0.1; pgrep -x sleep | wc -l"
    task = probed(tmp_path, Probe(name="a", argv=("sh", "-c", leaves), stdout="1\n"), alive)
    assert (await bench.judge(task, SOLVED)).total == 1.0


@pytest.mark.asyncio(loop_scope="module")
async def test_who_is_at_fault_for_a_probe_that_does_not_end(bench: Bench, tmp_path: Path) -> None:
    """Where the reference answers in time it is the agent's; where it does not, or cannot be run, the verifier's."""
    slow = Probe(name="slow", argv=("sh", "-c", ". ./wait; echo done"), stdout="done\n", timeout_s=1.0)
    task = probed(tmp_path / "a", slow, solve=SOLVED + "echo true > wait\n")
    verdict = await bench.judge(task, SOLVED + "echo 'sleep 60' > wait")
    assert (verdict.total, verdict.cause, verdict.flags) == (0.0, Cause.AGENT, ("probe_timeout",))
    assert verdict.tests["probe::slow"] is TestOutcome.ERROR
    for name, argv in (("b", ("sleep", "60")), ("c", ("no-such-program",))):
        task = probed(tmp_path / name, Probe(name="x", argv=argv, stdout="", timeout_s=0.5))
        with pytest.raises(VerifierFault):
            await bench.judge(task, SOLVED)


@pytest.mark.asyncio(loop_scope="module")
async def test_an_agents_folder_in_an_inputs_place_is_its_failure(bench: Bench, tmp_path: Path) -> None:
    """Where an input cannot be laid because of the agent's files, the probe failed and the verdict is valid."""
    (tmp_path / "in.txt").write_text("7\n")
    task = probed(tmp_path / "t", Probe(name="a", argv=("cat", "in.txt"), stdout="7\n",
                                        inputs={"/workspace/in.txt": tmp_path / "in.txt"}))
    verdict = await bench.judge(task, SOLVED + "mkdir -p in.txt/x")
    assert (verdict.total, verdict.flags) == (0.0, ("probe_failed",))
