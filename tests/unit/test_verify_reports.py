"""Reading test reports: the formats as their writers write them, and what is refused."""

from __future__ import annotations

import json

import pytest

from woodshed.model import TestOutcome
from woodshed.verify.reports import (
    MAX_DEPTH,
    MAX_REPORT_BYTES,
    Unreadable,
    read_ctrf,
    read_junit,
    read_reward_json,
    read_reward_txt,
    total_of,
)

PYTEST = """<?xml version="1.0" encoding="utf-8"?><testsuites name="pytest tests"><testsuite name="pytest" errors="1">
<testcase classname="tests.test_a.TestC" name="test_in" time="0.001" />
<testcase classname="tests.test_a" name="test_p[\u00e9 b]" time="0.0"></testcase>
<testcase classname="tests.test_a" name="test_s"><skipped type="pytest.skip" message="x">why</skipped></testcase>
<testcase classname="tests.test_a" name="test_xf"><skipped type="pytest.xfail" message="" /></testcase>
<testcase classname="tests.test_a" name="test_td"><failure message="assert 0">bad</failure></testcase>
<testcase classname="tests.test_a" name="test_td"><error message="failed on teardown">no</error></testcase>
<testcase classname="" name="tests.test_b"><error message="collection failure">no</error></testcase>
</testsuite></testsuites>"""

NODE = """<?xml version="1.0" encoding="utf-8"?>
<testsuites>
  <testcase name="adds" time="0.000955" classname="test"/>
  <testsuite name="suite" time="0.000738" tests="3">
    <testsuite name="inner"><testcase name="works" classname="test"/></testsuite>
    <testcase name="later" time="0.000075" classname="test"><skipped type="todo" message="true"/></testcase>
  </testsuite>
  <testcase name="zz_ab" classname="test" failure="no">
    <failure type="testCodeFailure" message="no">\x1b[31m</failure></testcase>
  <!-- tests 4 -->
</testsuites>"""


def test_junit_of_pytest() -> None:
    """A pytest report gives every id with its outcome; xfail is a skip, and duplicates stay apart."""
    report = read_junit(PYTEST.encode())
    assert [(case.id, case.outcome.value) for case in report.cases] == [
        ("tests.test_a.TestC::test_in", "passed"), ("tests.test_a::test_p[é b]", "passed"),
        ("tests.test_a::test_s", "skipped"), ("tests.test_a::test_xf", "skipped"),
        ("tests.test_a::test_td", "failed"), ("tests.test_a::test_td", "error"), ("tests.test_b", "error"),
    ]
    assert report.outcomes("tests.test_a::test_td") == (TestOutcome.FAILED, TestOutcome.ERROR)


def test_junit_of_node() -> None:
    """A node:test report, with nested suites and raw colour codes in a message, reads the same way."""
    report = read_junit(NODE.encode())
    assert {case.id: case.outcome.value for case in report.cases} == {
        "test::adds": "passed", "test::works": "passed", "test::later": "skipped", "test::zz_ab": "failed"}
    assert report.named("zz_ab") == (TestOutcome.FAILED,)


def test_a_lone_suite_is_a_report() -> None:
    """Older writers have one testsuite as the root; a status attribute that says no pass is no pass."""
    report = read_junit(
        b'<testsuite><testcase name="a" status="notrun"/><testcase name="b" status="weird"/></testsuite>')
    assert [case.outcome for case in report.cases] == [TestOutcome.SKIPPED, TestOutcome.ERROR]


LAUGHS = ('<!DOCTYPE l [<!ENTITY a "aaaaaaaaaa">' + "".join(
    f'<!ENTITY {chr(98 + i)} "{("&" + chr(97 + i) + ";") * 10}">' for i in range(9)) + "]><testsuites>&j;</testsuites>")


@pytest.mark.parametrize("content", [
    LAUGHS,
    '<!DOCTYPE x SYSTEM "file:///etc/passwd"><testsuites/>',
    '<!DOCTYPE testsuites><testsuites/>',
    "<testsuites>" + "<testsuite>" * (MAX_DEPTH + 1) + "</testsuite>" * (MAX_DEPTH + 1) + "</testsuites>",
])
def test_junit_that_no_runner_writes_is_forged(content: str) -> None:
    """Document types, entities and absurd nesting are refused as forgeries, without being expanded."""
    with pytest.raises(Unreadable) as caught:
        read_junit(content.encode())
    assert caught.value.forged


@pytest.mark.parametrize("content", [
    b"", b"\xff\xfe<\x00t", b"{}", b"<html/>", b"<testsuites>", b"<testsuites>\xff</testsuites>", b"\0" * 100,
    b'<?xml version="1.0" encoding="nonsense"?><testsuites/>', b"<testsuites>&a;</testsuites>",
    b'<?xml version="1.0" encoding="utf-16"?><testsuites/>', b"<testsuites/><testsuites/>",
    b" " * (MAX_REPORT_BYTES + 1),
])
def test_junit_that_is_none_is_unreadable(content: bytes) -> None:
    """Truncated, binary, oversized or foreign bytes are unreadable, and are no accusation."""
    with pytest.raises(Unreadable) as caught:
        read_junit(content)
    assert not caught.value.forged


def test_ctrf() -> None:
    """A CTRF report gives ``suite::name``, ``name`` alone without a suite, and a list of suites joined."""
    tests = [{"name": "check_a", "status": "passed", "duration": 1}, {"name": "b", "status": "failed", "suite": "s"},
             {"name": "c", "status": "pending", "suite": ["x", "y"]}, {"name": "d", "status": "other"},
             {"name": "test_a.py::test_b", "status": "skipped"}]
    report = read_ctrf(json.dumps({"results": {"tool": {"name": "x"}, "tests": tests}}).encode())
    assert [(case.id, case.outcome.value) for case in report.cases] == [
        ("check_a", "passed"), ("s::b", "failed"), ("x > y::c", "skipped"), ("d", "error"),
        ("test_a.py::test_b", "skipped")]
    assert report.named("test_b") == (TestOutcome.SKIPPED,)


@pytest.mark.parametrize("content", [
    b"", b"[]", b"{}", b'{"results": {}}', b'{"results": {"tests": {}}}', b'{"results": {"tests": [1]}}',
    b'{"results": {"tests": [{"name": "a"}]}}', b'{"results": {"tests": [{"name": 1, "status": "passed"}]}}',
    b'{"results": {"tests": [{"name": "a", "status": "passed", "suite": 3}]}}', b"[" * 200_000, b"\xff",
    b'{"results": {"tests": [], "n": NaN}}', b'{"results": {"tests": [], "n": ' + b"9" * 5000 + b"}}",
])
def test_ctrf_that_is_none_is_unreadable(content: bytes) -> None:
    """Anything but results.tests with names and states is unreadable: deep nesting and NaN included."""
    with pytest.raises(Unreadable):
        read_ctrf(content)


def test_reward_files() -> None:
    """Harbor's reward files give finite numbers by name; the total is ``reward``, else the least."""
    assert read_reward_txt(b" 1\n") == {"reward": 1.0}
    assert read_reward_json(b'{"reward": 0.5, "speed": 2}') == {"reward": 0.5, "speed": 2.0}
    assert total_of({"reward": 0.5, "speed": 0.1}) == 0.5
    assert total_of({"a": 1.0, "b": 0.25}) == 0.25


@pytest.mark.parametrize("content", [
    b"", b"[]", b"1", b"{}", b'{"reward": NaN}', b'{"reward": Infinity}', b'{"reward": 1e999}', b'{"reward": true}',
    b'{"reward": "1"}', b'{"reward": null}', b'{"reward": {"a": 1}}', b'{"": 1}', b'{"a\\nb": 1}', b"\xff",
    b'{"reward": ' + b"9" * 400 + b"}", b'{"a": ' * 60_000, b'{"\\ud800": 1}',
])
def test_reward_json_that_is_none_is_unreadable(content: bytes) -> None:
    """A reward that is no finite number, or a file that is no flat object, is unreadable."""
    with pytest.raises(Unreadable):
        read_reward_json(content)


@pytest.mark.parametrize("content", [b"", b"nan", b"inf", b"-inf", b"1e999", b"1 1", b"one", b"\xff", "١".encode()])
def test_reward_txt_that_is_none_is_unreadable(content: bytes) -> None:
    """A reward.txt that is not one finite number in ASCII is unreadable."""
    with pytest.raises(Unreadable):
        read_reward_txt(content)
