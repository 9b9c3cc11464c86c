"""Laws of reward rules: no None becomes a number, totals stay in bounds, tampering wins, reads and checks are free."""

from __future__ import annotations

import json
import math
from itertools import product
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rulekit import TESTS, Call, bash, changed, patch, rules, seen, tool, verdict
from woodshed.errors import Cause
from woodshed.model import StopReason
from woodshed.model.grade import Checked, CheckRun, Component, Grade, Observed
from woodshed.verify.lines import Steps, edited
from woodshed.verify.rules import Evidence, graded, total_of

READS_AND_CHECKS = (
    bash("ls -la"), bash("cat add.py"), bash("grep -rn add . | head"), bash("git diff"),
    tool("read_file", path="add.py"), tool("search", pattern="add"), tool("diff"), tool("run_tests"),
    tool("run_tests", exit_code=1), bash("pytest -q"),
    bash("pytest -q", exit_code=1, content="1 failed"), bash("python3 -m mypy src"), bash("python3 add.py"),
    bash("cd src && make test 2>&1 | tail -3"), bash("pytest > log.txt"), bash("python3 -c 'import add'", exit_code=1),
)
OTHERS = (
    tool("edit_file", path="add.py", old="-", new="+"), tool("write_file", path="x.py", content="x = 1"),
    tool("edit_file", exit_code=1, path="add.py", old="?", new="+"), bash("sed -i s/a/b/ add.py"), bash("rm x.py"),
    bash("pip install x"), bash("python3 - <<'E'\nopen('a','w')\nE"), bash("git stash"), bash("strange --thing"),
)
values = st.none() | st.floats(0, 1)
components = st.builds(
    Component, name=st.just("c"), kind=st.just("tests"), value=values, weight=st.just(0.0) | st.floats(1e-6, 1e6),
    gate=st.booleans(),
)
calls = st.lists(st.sampled_from(READS_AND_CHECKS + OTHERS), max_size=8)
judged = st.integers(0, len(TESTS)).map(verdict)
observed = st.builds(
    Observed,
    patch=st.none() | st.builds(patch, add=st.integers(0, 5000), other=st.integers(0, 50)),
    reference=st.none() | st.builds(patch, add=st.integers(0, 100)),
    start_tests=st.none() | st.just(TESTS[:2]), weakened=st.none() | st.just(()) | st.just(("/workspace/tests/a.py",)),
    checks=st.just(()) | st.builds(
        lambda code, before, after: (Checked(
            command="lint", timeout_s=60.0, repeats=1, before=CheckRun(exit_code=code, seconds=1.0, output=before),
            after=CheckRun(exit_code=0, seconds=2.0, output=after)),),
        st.sampled_from((0, 1, 127)), st.text(max_size=8), st.text(max_size=8)),
)
evidence = st.builds(
    lambda calls, judged, observed, stop, said: seen(*calls, judged=judged, observed=observed, stop=stop, said=said),
    calls, judged, observed, st.none() | st.sampled_from(StopReason), st.text(max_size=20))
TABLES: tuple[dict[str, Any], ...] = (
    {"kind": "tests"}, {"kind": "tests", "name": "part", "mode": "fraction"}, {"kind": "no_regression"},
    {"kind": "patch_size"}, {"kind": "scope"}, {"kind": "protected"}, {"kind": "tool_budget", "calls": 2},
    {"kind": "unsafe_actions", "patterns": ["rm "]}, {"kind": "verified_before_finish"}, {"kind": "claim_matches"},
    {"kind": "check", "command": "lint", "measure": "number"},
    {"kind": "check", "command": "lint", "name": "fast", "measure": "seconds", "target": 0.5},
    {"kind": "check", "command": "lint", "name": "more", "measure": "number", "better": "higher", "target": 2},
)
rule_sets = st.lists(
    st.tuples(st.sampled_from(TABLES), st.floats(0, 10), st.booleans()), min_size=1, max_size=6,
    unique_by=lambda drawn: drawn[0].get("name", drawn[0]["kind"]),
).map(lambda drawn: rules(*[{**table, "weight": weight, "gate": gate} for table, weight, gate in drawn]))


@settings(max_examples=50)
@given(st.lists(components, max_size=6), judged)
def test_a_missing_score_never_becomes_a_number(parts: list[Component], verdict: Any) -> None:
    """The total is None exactly where a component that counts is None; else from 0 to 1, and a mean times gates."""
    total = total_of(parts, verdict)
    counted = [part for part in parts if part.gate or part.weight > 0]
    if any(part.value is None for part in counted):
        assert total is None
        return
    assert total is not None
    assert 0.0 <= total <= 1.0
    gates = [part.value for part in parts if part.gate and part.value is not None]
    assert total <= min(gates, default=1.0) + 1e-9
    weighed = [part.value for part in counted if not part.gate and part.value is not None]
    if weighed and not gates:
        assert min(weighed) - 1e-9 <= total <= max(weighed) + 1e-9


@settings(max_examples=50)
@given(rule_sets, evidence)
def test_a_grade_is_in_bounds_and_keeps_the_verifiers_word(asked: Any, seen: Evidence) -> None:
    """Every component and total is None or from 0 to 1; whether it passed, and the own reward, stay as they were."""
    grade = graded(asked, seen, {})
    for value in (grade.total, *(part.value for part in grade.components)):
        assert value is None or (math.isfinite(value) and 0.0 <= value <= 1.0)
    applied = grade.applied()
    assert applied.passed == seen.verdict.passed
    assert applied.rewards["reward"] == seen.verdict.rewards["reward"]
    assert applied.total == grade.total
    assert set(applied.rewards) == {"reward", *(rule.name for rule in asked.rules)}


@settings(max_examples=50)
@given(rule_sets, evidence, st.sampled_from((Cause.TAMPER, Cause.BUDGET)))
def test_tampering_has_total_zero_whatever_the_rules(asked: Any, seen: Evidence, cause: Cause) -> None:
    """Nor does it turn what is unknown into a number."""
    caught = seen.verdict.model_copy(update={"cause": cause, "total": 0.0, "rewards": {"reward": 0.0}})
    honest = graded(asked, seen, {})
    guilty = graded(asked, Evidence(caught, seen.changes, seen.trajectory, seen.task, seen.policy, seen.stop,
                                    seen.observed), {})
    assert guilty.total == 0.0
    if cause is Cause.TAMPER:
        assert all(part.value in (None, 0.0) for part in guilty.components)
    unknown = {part.name for part in honest.components if part.value is None}
    assert unknown <= {part.name for part in guilty.components if part.value is None}


@settings(max_examples=50)
@given(calls, st.sampled_from(READS_AND_CHECKS), st.integers(0, 8), judged, st.none() | st.sampled_from(StopReason))
def test_one_more_read_or_check_never_lowers_a_score(
    done: list[Call], more: Call, place: int, verdict: Any, stop: StopReason | None
) -> None:
    """Whatever was done, and wherever it comes: every component is at least what it was."""
    asked = rules(*TABLES)
    known = Observed(patch=patch(add=3), reference=patch(add=3), start_tests=TESTS[:1], weakened=())
    files = changed("/workspace/add.py", "/workspace/x.py")
    place = min(place, len(done))
    before = graded(asked, seen(*done, judged=verdict, observed=known, changes=files, stop=stop), {})
    after = graded(asked, seen(*done[:place], more, *done[place:], judged=verdict, observed=known, changes=files,
                               stop=stop), {})
    for first, second in zip(before.components, after.components, strict=True):
        assert (first.value is None) == (second.value is None)
        assert first.value is None or second.value is None or second.value >= first.value, first.name


@settings(max_examples=50)
@given(rule_sets, evidence)
def test_a_grade_read_back_from_storage_gives_the_same_by_the_same_rules(asked: Any, seen: Evidence) -> None:
    """What was measured is in the grade: with it, and the verdict from before, nothing else comes out."""
    grade = graded(asked, seen, {})
    stored = Grade.model_validate(json.loads(json.dumps(grade.to_json())))
    again = graded(stored.rules, Evidence(stored.verdict, seen.changes, seen.trajectory, seen.task, seen.policy,
                                          seen.stop, stored.observed), {})
    assert again == grade


@settings(max_examples=50)
@given(st.integers(1, 10_000), st.integers(1, 10_000), st.integers(1, 500))
def test_a_larger_patch_never_scores_more(one: int, other: int, reference: int) -> None:
    """Size and score fall together, down to the floor and no further."""
    asked = rules({"kind": "patch_size", "floor": 0.2})

    def score(lines: int) -> float:
        found = graded(asked, seen(observed=Observed(patch=patch(add=lines), reference=patch(add=reference))), {})
        assert found.total is not None
        return found.total

    small, large = sorted((one, other))
    assert score(small) >= score(large) >= 0.2


@settings(max_examples=50)
@given(*(st.lists(st.sampled_from(["a", "b", "c", ""]), max_size=12) for _ in range(2)))
def test_lines_are_those_of_the_shortest_edit_script(old: list[str], new: list[str]) -> None:
    """What is neither added nor removed is a longest common subsequence; with no steps left, there are no more."""
    def text(lines: list[str]) -> bytes:
        return "".join(line + "\n" for line in lines).encode()

    common = [[0] * (len(new) + 1) for _ in range(len(old) + 1)]
    for i, j in product(range(len(old)), range(len(new))):
        same = common[i][j] + 1 if old[i] == new[j] else 0
        common[i + 1][j + 1] = max(same, common[i][j + 1], common[i + 1][j])
    added, removed = edited(text(old), text(new), Steps())
    assert (len(new) - added, len(old) - removed) == (common[-1][-1], common[-1][-1])
    fewer = edited(text(old), text(new), Steps(0))
    assert fewer == (added, removed) or (fewer[0] <= max(1, added) and fewer[1] <= max(1, removed))


def test_texts_made_to_be_hard_to_compare_end_within_the_bound() -> None:
    """The bound is of steps, so that the same texts give the same count on any machine."""
    steps = Steps(200_000)
    old, new = b"a\nb\n" * 20_000, b"b\nb\na\n" * 20_000
    first = edited(old, new, steps)
    assert steps.left < 0
    assert first == edited(old, new, Steps(200_000)) == (20_000, 1)
