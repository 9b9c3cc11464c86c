"""Wherever an attempt of fine durability is cut off, it goes on as though nothing had happened."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from resumable import Turn, World
from woodshed.measure.resume import joined, past
from woodshed.model import CheckpointRule, Event, EventKind, Past
from woodshed.model.event import now

TEXT = st.text("ab\n", max_size=5)
CALL: st.SearchStrategy[tuple[str, dict[str, Any]]] = st.one_of(
    st.tuples(st.just("write_file"), st.fixed_dictionaries({"path": st.sampled_from("xyz"), "content": TEXT})),
    st.tuples(st.just("edit_file"), st.fixed_dictionaries(
        {"path": st.sampled_from("xyz"), "old": st.sampled_from("ab"), "new": TEXT})),
    st.tuples(st.just("read_file"), st.fixed_dictionaries({"path": st.sampled_from("xyz")})),
    st.tuples(st.just("no_such_tool"), st.just({})),
)
TURNS = st.lists(st.lists(CALL, max_size=3).map(tuple), min_size=1, max_size=5)
CUTS = st.lists(st.integers(0, 40), max_size=3)


@settings(deadline=None, max_examples=12, suppress_health_check=[HealthCheck.too_slow])
@given(turns=TURNS, cuts=CUTS, every=st.integers(1, 3))
def test_an_attempt_cut_off_anywhere_ends_as_one_that_was_not(
    turns: list[Turn], cuts: list[int], every: int
) -> None:
    """The same steps, files, usage and reason to stop; each call once in the record, no recorded answer asked again."""
    with TemporaryDirectory() as folder:
        calm = World(Path(folder) / "calm", turns, CheckpointRule(turns=every))
        broken = World(Path(folder) / "broken", turns, CheckpointRule(turns=every))
        for world in (calm, broken):
            world.folder.mkdir()
        ended = asyncio.run(calm.run([]))
        assert asyncio.run(broken.run(cuts)) is ended
        assert broken.usage == calm.usage
        assert broken.steps == calm.steps
        assert broken.boxes[-1].digest() == calm.boxes[-1].digest()
        results = Counter(e.data["call"] for e in broken.events if e.kind is EventKind.MODEL_RESULT)
        assert results == Counter(e.data["call"] for e in calm.events if e.kind is EventKind.MODEL_RESULT)
        assert sum(broken.asked.values()) - sum(calm.asked.values()) <= broken.execution - 1
        whole = joined(broken.events, broken.execution)
        calls = [e.data["call"] for e in whole if e.kind is EventKind.TOOL_CALL]
        assert calls == [e.data["call"] for e in calm.events if e.kind is EventKind.TOOL_CALL]
        assert not [e for e in broken.events if e.kind is EventKind.RESUME and e.data["state"] == "differs"]


def recomputed(events: Sequence[Event]) -> dict[str, Any]:
    """What a new execution must know, read from one execution's events in the plainest way."""
    results = [e for e in events if e.kind is EventKind.MODEL_RESULT]
    seen = [e for e in events if e.kind is EventKind.TOOL_RESULT]
    begun = [e.data["call"] for e in events if e.kind is EventKind.TOOL_CALL]
    kept = [(i, e) for i, e in enumerate(events) if e.kind is EventKind.CHECKPOINT]
    return {
        "answers": [e.data["content"] for e in results],
        "calls": [e.data["call"] for e in seen] + [c for c in begun if c not in {e.data["call"] for e in seen}],
        "interrupted": len(begun) - len(seen),
        "checkpoints": [(e.data["digest"], sum(x.kind is EventKind.TOOL_RESULT for x in events[:i]))
                        for i, e in reversed(kept)],
        "messages": [e.data["content"] for e in events if e.kind is EventKind.MESSAGE],
        "seq": events[-1].seq,
    }


def told(plan: Past) -> dict[str, Any]:
    """The same of a plan."""
    return {
        "answers": [answer.content for answer in plan.answers], "calls": [call.call for call in plan.calls],
        "interrupted": sum(call.seen is None for call in plan.calls),
        "checkpoints": [(checkpoint.digest, checkpoint.held) for checkpoint in plan.checkpoints],
        "messages": [json.loads(data)["content"] for kind, data in plan.said if kind == "message"], "seq": plan.seq,
    }


@settings(deadline=None, max_examples=5, suppress_health_check=[HealthCheck.too_slow])
@given(turns=TURNS, cuts=CUTS)
def test_the_plan_is_right_at_every_cut(turns: list[Turn], cuts: list[int]) -> None:
    """After each event of an attempt, in one execution or in several, the plan holds what stands in the log by then."""
    with TemporaryDirectory() as folder:
        world = World(Path(folder), turns, CheckpointRule(turns=1))
        asyncio.run(world.run(cuts))
        for end in range(len(world.events) + 1):
            log = world.events[:end]
            plan = past(log)
            acted = [e for e in log if e.kind is not EventKind.NOTE]
            assert (plan is None) == (not acted)
            if plan is None:
                continue
            assert plan.execution == acted[-1].execution
            whole = joined(log, plan.execution)
            expected = recomputed(whole)
            assert told(plan) == expected | {"seq": log[-1].seq}
            assert 0 <= plan.acted_s < 600


def an_event(execution: int, seq: int, kind: EventKind, /, **data: Any) -> Event:
    return Event(attempt="x", execution=execution, seq=seq, kind=kind, at=now(), data=data)


def test_what_a_process_taken_for_dead_still_wrote_is_no_part_of_the_attempt() -> None:
    """Events of an earlier execution after the one that the next went on from are evidence, and no more."""
    log = [
        an_event(1, 0, EventKind.MODEL_CALL, call="m1"), an_event(1, 1, EventKind.MODEL_RESULT, call="m1", content="a"),
        an_event(1, 2, EventKind.MODEL_CALL, call="m2"), an_event(1, 3, EventKind.MODEL_RESULT, call="m2", content="z"),
        an_event(2, 0, EventKind.RESUME, state="begun", execution=1, seq=1),
        an_event(2, 1, EventKind.MODEL_CALL, call="m2"), an_event(2, 2, EventKind.MODEL_RESULT, call="m2", content="b"),
    ]
    assert [e.data["content"] for e in joined(log, 2) if e.kind is EventKind.MODEL_RESULT] == ["a", "b"]
    plan = past(log)
    assert plan is not None
    assert [answer.content for answer in plan.answers] == ["a", "b"]


def test_a_failure_that_the_loop_went_on_after_is_recalled_and_the_last_one_is_not() -> None:
    """A call that failed for good and was followed by another failed then, too; the one that ended it is made again."""
    log = [
        an_event(1, 0, EventKind.MODEL_CALL, call="m1"),
        an_event(1, 1, EventKind.NOTE, call="m1", fault="ContextExceeded", message="too long", text="..."),
        an_event(1, 2, EventKind.MODEL_CALL, call="m2"),
        an_event(1, 3, EventKind.NOTE, call="m2", fault="ModelUnreachable", message="gone", text="..."),
    ]
    plan = past(log)
    assert plan is not None
    assert [(answer.call, answer.fault, answer.content) for answer in plan.answers] == [
        ("m1", "ContextExceeded", "too long")]


def test_time_is_counted_from_when_all_was_restored() -> None:
    """An execution that went on counts from its going live; one that never did counts nothing."""
    begin = now()

    def at(seconds: float, event: Event) -> Event:
        return event.model_copy(update={"at": begin + timedelta(seconds=seconds)})

    log = [
        at(0, an_event(1, 0, EventKind.MESSAGE, content="x")), at(7, an_event(1, 1, EventKind.MODEL_CALL, call="m1")),
        at(8, an_event(1, 2, EventKind.STAGE, stage="act")),
        at(100, an_event(2, 0, EventKind.RESUME, state="begun", execution=1, seq=2)),
        at(130, an_event(2, 1, EventKind.RESUME, state="redone", call="c")),
        at(200, an_event(3, 0, EventKind.RESUME, state="begun", execution=2, seq=1)),
        at(230, an_event(3, 1, EventKind.RESUME, state="live", turn=0)),
        at(233, an_event(3, 2, EventKind.MODEL_CALL, call="m1")),
    ]
    plan = past(log)
    assert plan is not None
    assert plan.acted_s == 7 + 3
