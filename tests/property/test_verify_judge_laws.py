"""Laws of judging that hold for every report, every exit status and all bytes."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from xml.sax.saxutils import quoteattr

from hypothesis import given
from hypothesis import strategies as st

from woodshed.errors import Cause
from woodshed.model import TestOutcome
from woodshed.verify.judge import Demands, Facts, Found, judge
from woodshed.verify.reports import (
    Case,
    Report,
    Unreadable,
    read_ctrf,
    read_junit,
    read_reward_json,
    read_reward_txt,
)

NAMES = st.sampled_from(["a", "b", "c", "canary", "other"])
CASES = st.lists(st.tuples(NAMES, st.sampled_from(
    [TestOutcome.PASSED, TestOutcome.FAILED, TestOutcome.ERROR, TestOutcome.SKIPPED])), max_size=8)
DEMANDS = st.lists(st.sampled_from(["t::a", "t::b", "t::c"]), min_size=1, max_size=3, unique=True).map(
    lambda ids: Demands(tuple(ids), {"first": (ids[0],)}, "canary"))


def report(cases: list[tuple[str, TestOutcome]]) -> Report:
    return Report(tuple(Case(f"t::{name}", name, outcome) for name, outcome in cases), "junit")


FACTS = st.builds(
    Facts, exit_code=st.integers(0, 255), timed_out=st.booleans(), oom_killed=st.booleans(),
    found=st.sampled_from(Found), report=st.none() | CASES.map(report),
    reward=st.none() | st.dictionaries(NAMES, st.floats(-2, 2), min_size=1))


@given(FACTS, DEMANDS, st.booleans())
def test_no_reward_without_every_condition(facts: Facts, demands: Demands, control: bool) -> None:
    """A total above 0 means: own end, fresh report, each id once and passed, canary failed once, status not 0."""
    verdict = judge(facts, demands, control=control).verdict
    assert verdict.total is not None
    if verdict.total <= 0:
        return
    assert verdict.total == 1.0
    assert facts.report is not None
    assert facts.found is not Found.FORGED
    assert not facts.timed_out
    assert 0 < facts.exit_code < 126
    assert all(facts.report.outcomes(wanted) == (TestOutcome.PASSED,) for wanted in demands.expected)
    assert facts.report.named("canary") == (TestOutcome.FAILED,)


@given(CASES, DEMANDS)
def test_the_honest_pass_is_rewarded(noise: list[tuple[str, TestOutcome]], demands: Demands) -> None:
    """Whatever other tests say, all expected ids passed and a failed canary with status 1 give 1."""
    others = [case for case in noise if case[0] == "other"]
    needed = [(wanted.removeprefix("t::"), TestOutcome.PASSED) for wanted in demands.expected]
    facts = Facts(1, found=Found.FRESH, report=report([*others, *needed, ("canary", TestOutcome.FAILED)]))
    assert judge(facts, demands).verdict.total == 1.0


@given(FACTS, DEMANDS | st.just(Demands()), st.booleans(), st.lists(st.sampled_from(["weakens_tests", "x"])))
def test_every_verdict_is_whole(facts: Facts, demands: Demands, control: bool, flags: list[str]) -> None:
    """Every verdict is valid and finite, has ``reward`` equal to its total, repeats no flag, and survives JSON."""
    verdict = judge(facts, demands, touched=tuple(flags), control=control).verdict
    assert verdict.rewards["reward"] == verdict.total
    assert all(value is None or math.isfinite(value) for value in verdict.rewards.values())
    assert len(set(verdict.flags)) == len(verdict.flags)
    assert set(verdict.tests) == set(demands.expected)
    assert (verdict.cause is None) == verdict.passed
    assert verdict.cause in (None, Cause.AGENT, Cause.TAMPER)
    assert type(verdict).parse(json.loads(json.dumps(verdict.to_json()))) == verdict


@given(FACTS, DEMANDS)
def test_controls_never_help(facts: Facts, demands: Demands) -> None:
    """Laying hands on controls never raises a total."""
    handled, honest = judge(facts, demands, control=True).verdict.total, judge(facts, demands).verdict.total
    assert handled is not None
    assert honest is not None
    assert handled <= honest


@given(st.binary(max_size=400) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_no_bytes_break_a_reader(content: bytes) -> None:
    """Whatever the bytes, a reader gives a report or says Unreadable."""
    for reader in (read_junit, read_ctrf, read_reward_json, read_reward_txt):
        for wrapped in (content, b"<testsuites>" + content + b"</testsuites>",
                        b'{"results": {"tests": [' + content + b"]}}", b'{"reward": ' + content + b"}"):
            try:
                found = reader(wrapped)
            except Unreadable:
                continue
            assert found if isinstance(found, dict) else isinstance(found, Report)


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
                    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(
                        st.sampled_from(["results", "tests", "name", "status", "suite", "reward"]), inner, max_size=4))


@given(JSON)
def test_no_json_breaks_a_reader(value: object) -> None:
    """Whatever the JSON, a reader gives a report or says Unreadable; rewards are finite."""
    content = json.dumps(value).encode()
    with suppress(Unreadable):
        read_ctrf(content)
    try:
        rewards = read_reward_json(content)
    except Unreadable:
        return
    assert rewards
    assert all(math.isfinite(number) for number in rewards.values())


SAFE = st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="\ufffe\uffff"),
               min_size=1, max_size=20)
CHILD = {"passed": "", "failed": "<failure/>", "error": "<error/>", "skipped": "<skipped/>"}


@given(st.lists(st.tuples(SAFE, SAFE, st.sampled_from(sorted(CHILD))), max_size=10))
def test_junit_round_trip(cases: list[tuple[str, str, str]]) -> None:
    """Names with any printable sign come back from JUnit as ``classname::name`` with their outcome, in order."""
    body = "".join(f"<testcase classname={quoteattr(group)} name={quoteattr(name)}>{CHILD[outcome]}</testcase>"
                   for group, name, outcome in cases)
    read = read_junit(f"<testsuites><testsuite>{body}</testsuite></testsuites>".encode())
    assert [(case.id, case.outcome.value) for case in read.cases] == [
        (f"{group}::{name}", outcome) for group, name, outcome in cases]


@given(st.lists(st.tuples(SAFE, SAFE, st.sampled_from(sorted(CHILD))), max_size=10))
def test_ctrf_round_trip(cases: list[tuple[str, str, str]]) -> None:
    """Names with any printable sign come back from CTRF as ``suite::name`` with their outcome, in order."""
    tests = [{"suite": group, "name": name, "status": "other" if outcome == "error" else outcome}
             for group, name, outcome in cases]
    read = read_ctrf(json.dumps({"results": {"tests": tests}}).encode())
    assert [(case.id, case.outcome.value) for case in read.cases] == [
        (f"{group}::{name}", outcome) for group, name, outcome in cases]
