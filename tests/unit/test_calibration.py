"""From evidence to a label; the record beside a task; and how tasks stand before a run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from woodshed.errors import Cause, UsageError
from woodshed.model import (
    Assurance,
    Calibration,
    CheckSpec,
    Invalid,
    Label,
    StopReason,
    Survivor,
    Task,
    TestOutcome,
    Valid,
)
from woodshed.plugins import cheats
from woodshed.services.calibration.check import plan
from woodshed.services.calibration.report import verifier_digest
from woodshed.services.calibration.ruling import (
    REWARD,
    Evidence,
    Judged,
    Try,
    flake_rates,
    limit_warnings,
    p95,
    rule,
    strength,
    survivors,
)
from woodshed.services.calibration.standing import admitted, standing
from woodshed.tasks import Draft, write_task
from woodshed.tasks.calibrated import FILE, read_calibration, write_calibration
from woodshed.tasks.runners import script_files
from woodshed.verify import JUDGING

P, F = TestOutcome.PASSED, TestOutcome.FAILED


def passes(**tests: TestOutcome) -> Try:
    verdict = Valid(rewards={"reward": 1.0}, total=1.0, assurance=Assurance.POISONED, tests=tests or {"a": P})
    return Try(verdict, StopReason.FINISHED, act_s=0.1, verify_s=0.2, memory_bytes=1 << 20)


def fails(*flags: str, output: str = "", detail: str = "0 of 1", stop: StopReason = StopReason.FINISHED) -> Try:
    verdict = Valid(rewards={"reward": 0.0}, total=0.0, cause=Cause.AGENT, assurance=Assurance.CANARY, flags=flags,
                    tests={"a": F}, detail=detail)
    return Try(verdict, stop, output=output)


def breaks(cause: Cause = Cause.ENVIRONMENT, *, retryable: bool = True, output: str = "") -> Try:
    return Try(Invalid(cause=cause, detail="it broke", retryable=retryable), StopReason.ERROR, output=output)


def judged(*outcomes: Try) -> list[Judged]:
    return [Judged(Survivor(name=f"v{n}", kind="mutant", path="a.py", patch="-a\n+b\n"), one)
            for n, one in enumerate(outcomes)]


GOOD: dict[str, Any] = {"nop": [fails()] * 3, "reference": [passes()] * 5, "variants": judged(*[fails()] * 9, passes()),
                        "cheats": {"cheat:a": fails("tamper:canary_passed")}}


@pytest.mark.parametrize(("label", "reason", "evidence"), [
    (Label.SOUND, "", {}),
    (Label.SOUND, "", {"variants": []}),
    (Label.WEAK, "8 of 10", {"variants": judged(*[fails()] * 8, *[passes()] * 2)}),
    (Label.WEAK, "cheat:a", {"cheats": {"cheat:a": passes(), "cheat:b": fails()}}),
    (Label.LEAKS_SOLUTION, "a.orig", {"leaks": ["a.orig is the reference's own a"]}),
    (Label.ACCEPTS_ANYTHING, "3 of 3", {"nop": [passes()] * 3}),
    (Label.FLAKY, "4 of 5", {"reference": [*[passes()] * 4, fails()]}),
    (Label.FLAKY, "1 of 3", {"nop": [passes(), fails(), fails()]}),
    (Label.FLAKY, "b disagrees", {"reference": [*[passes(a=P, b=P)] * 4, passes(a=P, b=TestOutcome.SKIPPED)]}),
    (Label.ACCEPTS_NOTHING, "0 of 1", {"reference": [fails()] * 5}),
    (Label.ACCEPTS_NOTHING, "solve.sh fails", {"reference": [fails(stop=StopReason.SOLUTION_FAILED)] * 5}),
    (Label.ACCEPTS_NOTHING, "no reference", {"reference": [], "solvable": False}),
    (Label.BROKEN_ENVIRONMENT, "missing_ids", {"reference": [fails("missing_ids")] * 5}),
    (Label.BROKEN_ENVIRONMENT, "No module named 'x'",
     {"reference": [fails(output="E  ModuleNotFoundError: No module named 'x'\n")] * 5}),
    (Label.BROKEN_ENVIRONMENT, "frob: command not found",
     {"reference": [fails(output="/tests/test.sh: line 3: frob: command not found\n")] * 5}),
    (Label.BROKEN_ENVIRONMENT, "it broke",
     {"nop": [breaks(retryable=False)] * 3, "reference": [breaks(retryable=False)] * 5}),
    (Label.BROKEN_ENVIRONMENT, "y: not found", {"reference": [
        breaks(Cause.VERIFIER, retryable=False, output="libx.so: cannot open\nbash: y: not found\nno such file")] * 5}),
    (Label.ACCEPTS_NOTHING, "it broke", {"reference": [breaks(Cause.VERIFIER, retryable=False)] * 5}),
    (None, "it broke", {"nop": [fails(), breaks(), breaks()]}),
    (None, "it broke", {"nop": [breaks()] * 3, "reference": [breaks()] * 5}),
    (None, "not judged", {"reference": [Try(None)] * 5}),
    (None, "it broke", {"reference": [breaks(Cause.HARNESS)] * 5}),
])  # fmt: skip
def test_evidence_has_its_label(label: Label | None, reason: str, evidence: Mapping[str, Any]) -> None:
    """Each label follows from its evidence, and says why."""
    ruling = rule(Evidence(**{"solvable": True, **GOOD, **evidence}))
    assert ruling.label == label
    assert reason in "; ".join(ruling.reasons)


def test_what_broke_is_no_evidence() -> None:
    """Invalid attempts are counted, and move neither the label nor the strength nor a flake rate."""
    evidence = Evidence(True, [fails(), fails(), breaks()], [*[passes()] * 4, breaks()],
                        {"cheat:a": breaks()}, judged(fails(), breaks(), passes(), *[fails()] * 8))
    assert rule(evidence).label is Label.SOUND
    assert "1 variants could not be judged" in rule(evidence).warnings
    assert sum("say nothing" in told for told in rule(evidence).warnings) == 2
    assert strength(evidence) == (9, 10, 0.9)
    assert [one.name for one in survivors(evidence)] == ["v2"]
    assert flake_rates(evidence.reference) == {"a": 0.0}


def test_strength_of_nothing_is_no_number() -> None:
    """Without a judged variant strength is None, neither 0 nor 1."""
    assert strength(Evidence(True)) == (0, 0, None)
    assert strength(Evidence(True, variants=judged(breaks()))) == (0, 0, None)


def test_flake_rates_are_of_single_tests() -> None:
    """A test's rate is the share of repeats that disagree with its majority; the total stands in for none."""
    repeats = [passes(a=P, b=P), passes(a=P, b=F), passes(a=P, b=P), passes(a=P, b=P), passes(a=P)]
    assert flake_rates(repeats) == pytest.approx({"a": 0.0, "b": 0.4})
    bare = Valid(rewards={"reward": 1.0}, total=1.0, assurance=Assurance.REPORT_ONLY)
    other = bare.model_copy(update={"rewards": {"reward": 0.0}, "total": 0.0})
    assert flake_rates([Try(bare), Try(bare), Try(other), Try(bare)]) == {REWARD: 0.25}
    assert flake_rates([passes()]) == {}


def test_an_unsteady_start_is_told_and_not_held_against_the_task() -> None:
    """Tests that disagree where nobody did anything are a warning: a start may be broken by chance, on purpose."""
    unsteady = Valid(rewards={"reward": 0.0}, total=0.0, assurance=Assurance.CANARY, tests={"a": P})
    ruling = rule(Evidence(**{"solvable": True, **GOOD, "nop": [fails(), Try(unsteady), fails()]}))
    assert ruling.label is Label.SOUND
    assert "untouched start" in ruling.warnings[0]


def test_percentiles_are_by_nearest_rank() -> None:
    """The 95th of twenty is the nineteenth, of five the last, of none unknown."""
    assert p95(list(range(1, 21))) == 19
    assert p95([3, 1, 2]) == 3
    assert p95([]) is None


def test_tight_limits_are_told() -> None:
    """More than half of a time or four fifths of the memory is tight; what is unknown is not."""
    assert limit_warnings((None, 600), (29, 60), (None, 100)) == ()
    assert limit_warnings((1, 600), (31, 60), (79, 100)) == ("verifier.timeout_sec 60 is tight: the reference takes "
                                                             "31.0 s",)
    assert len(limit_warnings((599, 600), (59, 60), (99, 100))) == 3


def a_task(folder: Path) -> Task:
    return write_task(folder, Draft(
        instruction="Do it.\n", tests=script_files({"check_a.py": b"assert open('a').read() == 'a'\n"}),
        solution={"solve.sh": b"printf a > a\n"}, framework="script", expected_tests=("check_a",)))


def a_record(task: Task, label: Label = Label.SOUND, **more: Any) -> Calibration:
    facts: dict[str, Any] = {
        "task": task.id, "digest": task.digest, "image": "host", "image_digest": "0" * 64, "verifier": "calibrating",
        "verifier_version": JUDGING, "verifier_digest": verifier_digest(), "engine": "native", "woodshed": "1",
        "run": "r-1", "at": datetime(2026, 1, 2, tzinfo=UTC), "label": label, "strength": 1 / 3,
        "flake_rates": {"ä": 0.2}, "survivors": [Survivor(name="s", kind="hunk", path="p", patch="-a\n+ä\n")],
    }
    return Calibration(**{**facts, **more})


def test_a_record_comes_back_as_it_was_and_leaves_the_digest_alone(tmp_path: Path) -> None:
    """Writing and reading gives the same record, sealed; the task's digest is what it was."""
    task = a_task(tmp_path / "task")
    record = a_record(task)
    file = write_calibration(task.folder, record)
    assert file == task.folder / FILE
    assert read_calibration(task.folder) == record.sealed()
    assert standing(task).record == record.sealed()
    from woodshed.tasks import load_task

    assert load_task(task.folder).digest == task.digest
    assert [path.name for path in task.folder.glob(".calibration*")] == []


@pytest.mark.parametrize("spoil", [
    lambda data: {**data, "label": "sound"}, lambda data: {**data, "strength": 1.0}, lambda data: {**data, "seal": ""},
    lambda data: {**data, "further": 1}, lambda data: {**data, "version": 2}, lambda data: [data], lambda data: None,
])  # fmt: skip
def test_a_record_that_was_edited_is_none(spoil: Any, tmp_path: Path) -> None:
    """A changed figure, an unknown key, another version or another shape: the task counts as never checked."""
    task = a_task(tmp_path / "task")
    file = write_calibration(task.folder, a_record(task, Label.WEAK))
    file.write_text(json.dumps(spoil(json.loads(file.read_text()))))
    assert read_calibration(task.folder) is None
    assert standing(task).missing == "never checked"
    for hostile in (b"", b"{", b"[" * 100_000, b"\xff", b'{"task": "\\ud800"}'):
        file.write_bytes(hostile)
        assert read_calibration(task.folder) is None


def test_a_record_through_a_link_is_none(tmp_path: Path) -> None:
    """A link in the record's place is not followed."""
    task = a_task(tmp_path / "task")
    write_calibration(task.folder, a_record(task)).rename(tmp_path / "elsewhere")
    (task.folder / FILE).symlink_to(tmp_path / "elsewhere")
    assert read_calibration(task.folder) is None


def told(tasks: Sequence[Task], **how: bool) -> tuple[list[str], list[str]]:
    """Ids of the admitted tasks, and what was said about them."""
    lines: list[str] = []
    settled = {"strict": False, "quarantined": False, **how}
    return [task.id for task in admitted(tasks, tell=lines.append, **settled)], lines


def test_a_run_admits_tasks_by_their_standing(tmp_path: Path) -> None:
    """Sound and weak ones run; unchecked ones run with one line for all; quarantined ones are left out, with one."""
    tasks = [a_task(tmp_path / name) for name in ("sound", "weak", "never", "stale", "old", "flaky", "leaking")]
    by_id = {task.id: task for task in tasks}
    for name, label, more in (
        ("sound", Label.SOUND, {}), ("weak", Label.WEAK, {}), ("stale", Label.FLAKY, {"digest": "1" * 64}),
        ("old", Label.SOUND, {"verifier_version": JUDGING - 1}), ("leaking", Label.LEAKS_SOLUTION, {}),
        ("flaky", Label.FLAKY, {"reasons": ("a disagrees",)}),
    ):  # fmt: skip
        write_calibration(by_id[name].folder, a_record(by_id[name], label, **more))
    ids, lines = told(tasks)
    assert ids == ["sound", "weak", "never", "stale", "old"]
    assert len(lines) == 2
    assert lines[0].startswith("3 of 7 tasks without a current calibration")
    assert "2 tasks left out" in lines[1]
    assert "a disagrees" in lines[1]
    assert told(tasks, quarantined=True)[0] == [task.id for task in tasks]
    assert told([by_id["sound"], by_id["weak"]], strict=True) == (["sound", "weak"], [])
    for refused, why in (("never", "never checked"), ("stale", "changed"), ("old", "older way"), ("flaky", "a disa")):
        with pytest.raises(UsageError, match=why):
            told([by_id["sound"], by_id[refused]], strict=True)
    with pytest.raises(UsageError, match="in quarantine"):
        told([by_id["flaky"]])


def test_a_check_is_planned_with_the_cheats_that_fit(tmp_path: Path) -> None:
    """The run knows nobody, the reference, variants and every fitting cheat, all judged by the calibrating verifier."""
    task = a_task(tmp_path / "task")
    spec = plan([task], CheckSpec(), concurrency=2, seed=0, engine="native")
    names = [agent.name for agent in spec.agents]
    assert names[:3] == ["nop", "oracle", "variant"]
    assert names[3:] == sorted(cheats(task, Assurance.OUT_OF_PROCESS, slow=False))
    assert all(set(cheats(task, level, slow=False)) <= set(names) for level in Assurance)
    assert len(names) > 3
    assert spec.verifier == "calibrating"
    without = plan([task], CheckSpec(cheats="none"), concurrency=2, seed=0, engine="native")
    assert len(without.agents) == 3
    everything = plan([task], CheckSpec(cheats="all"), concurrency=2, seed=0, engine="native")
    assert set(names) <= {agent.name for agent in everything.agents}


@pytest.mark.parametrize("label", list(Label))
def test_labels_but_sound_and_weak_are_quarantined(label: Label) -> None:
    """A verdict on any other task would say nothing about who attempted it."""
    assert label.quarantined == (label not in (Label.SOUND, Label.WEAK))
