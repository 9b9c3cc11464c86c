"""Holding what was done again against the record, and cutting a record after a step: pure, on hand-made events."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from woodshed.errors import Cause
from woodshed.measure.prefix import first, inherited, steps
from woodshed.measure.replayed import compared, files_difference, verdict_difference
from woodshed.measure.trajectory import from_events
from woodshed.measure.volatile import settled
from woodshed.model import Assurance, Change, ChangeKind, ChangeSet, Event, EventKind, Invalid, TestOutcome, Valid
from woodshed.model.event import now

PAGE = Path(__file__).parents[2] / "docs" / "replay.md"


def log(*facts: tuple[EventKind, dict[str, Any]]) -> list[Event]:
    """Events of one execution."""
    return [Event(attempt="a", execution=1, seq=seq, kind=kind, at=now(), data=data)
            for seq, (kind, data) in enumerate(facts)]


def call(name: str, content: str = "", exit_code: int = 0, **more: Any) -> list[tuple[EventKind, dict[str, Any]]]:
    """A call of bash and its result."""
    return [(EventKind.TOOL_CALL, {"call": name, "name": "bash", "arguments": {"command": "x"}, **more}),
            (EventKind.TOOL_RESULT, {"call": name, "content": content, "exit_code": exit_code, **more})]


def turn(number: int, *calls: Any, **more: Any) -> list[tuple[EventKind, dict[str, Any]]]:
    """An answer of a model with its calls."""
    return [(EventKind.MODEL_CALL, {"call": f"m{number}", **more}),
            (EventKind.MODEL_RESULT, {"call": f"m{number}", "content": f"turn {number}", **more}),
            *(fact for one in calls for fact in one)]


def test_every_example_of_the_page_is_volatile() -> None:
    """Each is said to differ each time: two of the same kind are the same to us."""
    rows = PAGE.read_text().split("<!-- volatile -->")[1].split("\n\n")[0].splitlines()[3:]
    examples = [example for row in rows for example in re.findall(r"`([^`]+)`", row.split("|")[2])
                if example != "ps aux"]
    assert len(examples) >= 12
    for example in examples:
        text = example + "x" if example.endswith("/") else example
        assert settled(text) != text, example


@pytest.mark.parametrize(("then", "now_"), [
    ("1 passed in 0.03s", "1 passed in 1.2s"),
    ("-rw-r--r-- 1 root root 12 Nov 30 21:32 hello.txt", "-rw-r--r-- 1 root root 12 Dec  1 00:01 hello.txt"),
    ("started as pid 17", "started as pid 4242"),
    ("wrote /tmp/tmp.aB3x/out", "wrote /tmp/tmp.Zz9y/out"),
    ("<object at 0x7f95e4dc16d0>", "<object at 0x7f95e4dc1000>"),
])
def test_what_varies_is_the_same(then: str, now_: str) -> None:
    """It is settled, and neither equal nor a divergence."""
    found = compared(log(*call("c", then)), log(*call("c", now_)))
    assert (found.same, found.settled, found.diverged) == (0, 1, ())


@pytest.mark.parametrize(("then", "now_"), [
    ("2 passed in 0.03s", "1 passed in 0.03s"), ("line 12", "line 13"), ("port 8000", "port 8001"),
    ("version 3.11.2", "version 3.11.3"), ("/workspace/a", "/workspace/b"), ("deadbeef", "deadbee0"),
])
def test_what_says_something_is_not(then: str, now_: str) -> None:
    """Counts, lines, versions and paths of the work are no matter of chance."""
    [found] = compared(log(*call("c", then)), log(*call("c", now_))).diverged
    assert (found.what, found.then, found.now) == ("another output", then, now_)


def test_calls_are_held_against_each_other_by_id_and_occurrence() -> None:
    """Exit codes, calls that are missing or more, other calls, and those that were held or interrupted."""
    then = log(*call("a"), *call("b"), *call("a", "second"), *call("c"), *call("held"),
               (EventKind.TOOL_CALL, {"call": "cut", "name": "bash", "arguments": {}}))
    again = log(*call("a"), *call("b", exit_code=1), *call("a", "second"), *call("new"), *call("held"))
    found = compared(then, again)
    assert found.same == 3
    assert [(one.call, one.what) for one in found.diverged] == [
        ("b", "exit code 1, was 0"), ("c", "it was not made again"), ("new", "it is not in the record")]
    assert compared(log(*call("a", "x")), log(), held={"a"}).diverged == ()


def test_verdicts_differ_in_what_says_something_about_the_work() -> None:
    """Rewards, causes, flags and tests; not the sentence, nor the total of rules."""
    good = Valid(rewards={"reward": 1.0}, total=0.5, assurance=Assurance.CANARY, tests={"t": TestOutcome.PASSED})
    assert verdict_difference(good, good.model_copy(update={"detail": "other", "total": 1.0})) == []
    bad = Valid(rewards={"reward": 0.0}, total=0.0, cause=Cause.AGENT, assurance=Assurance.CANARY, flags=("x",),
                tests={"t": TestOutcome.FAILED})
    assert len(verdict_difference(good, bad)) == 5
    assert len(verdict_difference(good, Invalid(cause=Cause.ENVIRONMENT, detail=""))) == 1


def test_files_differ_by_anything_of_them() -> None:
    """Content, mode, and being there."""
    one, two = Change(path="/a", kind=ChangeKind.FILE, sha256="0" * 64), Change(path="/b", kind=ChangeKind.DELETED)
    other = one.model_copy(update={"mode": 0o600})
    assert files_difference(ChangeSet(changes=(one, two)), ChangeSet(changes=(other,))) == ["/a", "/b"]
    assert files_difference(ChangeSet(changes=(one, two)), ChangeSet(changes=(two, one))) == []


TURNS = st.lists(st.integers(0, 3), min_size=1, max_size=6)


@given(TURNS, st.data())
def test_a_record_is_cut_after_any_step(shape: list[int], data: st.DataObject) -> None:
    """It then has exactly these steps with all their results, and what is copied of it reads as the same steps."""
    facts: list[tuple[EventKind, dict[str, Any]]] = [(EventKind.MESSAGE, {"role": "user", "content": "do it"})]
    for number, count in enumerate(shape, 1):
        facts += turn(number, *(call(f"t{number}c{one}", f"{number}.{one}") for one in range(count)))
        facts.append((EventKind.MESSAGE, {"role": "user", "content": f"after {number}"}))
    facts.append((EventKind.STATE, {"state": "acted", "stop": "finished"}))
    whole = log(*facts)
    assert steps(whole) == len(shape)
    step = data.draw(st.integers(0, len(shape)))
    cut = first(whole, step)
    assert cut == whole[:len(cut)]
    assert steps(cut) == step
    if step:
        told = [one for one in from_events(cut, task="t", agent="a").steps if one.source == "agent"]
        assert [len(one.tool_calls) for one in told] == shape[:step]
        assert not any(seen.interrupted for one in told for seen in one.observations)
        copied = log(*inherited(cut, "a"))
        same = from_events(copied, task="t", agent="a").steps
        assert all(one.inherited for one in same)
        assert [one.model_copy(update={"inherited": False}) for one in same] == list(
            from_events(cut, task="t", agent="a").steps)
    with pytest.raises(ValueError, match=f"there are {len(shape)} steps"):
        first(whole, len(shape) + 1)


def test_what_a_helper_did_belongs_to_the_step_that_delegated_it() -> None:
    """Its answers and calls are no steps of their own, and the cut comes after all of them."""
    helper = [*turn(2, call("a1", parent="t1"), parent="t1")]
    whole = log(*turn(1), (EventKind.TOOL_CALL, {"call": "t1", "name": "delegate", "arguments": {}}), *helper,
                (EventKind.TOOL_RESULT, {"call": "t1", "content": "done"}), *turn(3))
    assert steps(whole) == 2
    assert first(whole, 1)[-1].data == {"call": "t1", "content": "done"}


def test_a_call_that_was_made_again_after_a_failure_of_the_model_begins_no_step() -> None:
    """An answer ends one: what was asked and never answered is a part of the step that follows it."""
    whole = log((EventKind.MODEL_CALL, {"call": "m0"}), *turn(1, call("a")), (EventKind.MODEL_CALL, {"call": "m2"}))
    assert steps(whole) == 1
    assert len(first(whole, 1)) == 5


def test_where_no_model_was_asked_each_call_is_a_step() -> None:
    """The reference, or a record that is played."""
    whole = log(*call("a"), *call("b"))
    assert [len(first(whole, step)) for step in range(3)] == [0, 2, 4]
