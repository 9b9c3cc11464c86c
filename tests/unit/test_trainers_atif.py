"""Trajectories from events, and their ATIF export, checked against the rules of ATIF 1.8."""

from __future__ import annotations

import json
from typing import Any

import pytest

from woodshed.errors import Cause
from woodshed.measure.trajectory import from_events
from woodshed.model import Assurance, Event, EventKind, Invalid, Observation, Trajectory, Valid
from woodshed.model.event import now
from woodshed.trainers.atif import to_atif

K = EventKind
Told = tuple[EventKind, dict[str, Any]]
STORY: list[Told] = [
    (K.STATE, {"state": "acting"}),
    (K.MESSAGE, {"role": "system", "content": "sys"}),
    (K.MESSAGE, {"role": "user", "content": "fix it"}),
    (K.MODEL_CALL, {"call": "m1"}),
    (K.MODEL_RESULT, {"call": "m1", "content": "look", "usage": {"prompt_tokens": 9, "completion_tokens": 3}}),
    (K.TOOL_CALL, {"call": "t1", "name": "bash", "arguments": {"command": "ls"}}),
    (K.TOOL_RESULT, {"call": "t1", "content": "a.py", "exit_code": 0}),
    (K.TOOL_CALL, {"call": "t2", "name": "bsh", "arguments": {}, "raw": "{", "error": "no tool"}),
    (K.TOOL_RESULT, {"call": "t2", "content": "no tool", "exit_code": 2, "truncated": True, "timed_out": True}),
    (K.NOTE, {"text": "retry"}),
    (K.MODEL_CALL, {"call": "m2"}),
    (K.MODEL_RESULT, {"call": "m2", "content": "", "usage": {"prompt_tokens": 20, "completion_tokens": 4}}),
    (K.TOOL_CALL, {"call": "t3", "name": "bash", "arguments": {"command": "make"}}),
]


def events(story: list[Told]) -> list[Event]:
    return [Event(attempt="x", execution=2, seq=seq, kind=kind, at=now(), data=data)
            for seq, (kind, data) in enumerate(story)]


def told(story: list[Told] | None = None) -> Trajectory:
    return from_events(events(STORY if story is None else story), task="t", agent="loop", model="m")


def test_events_become_steps() -> None:
    """Messages and answers are steps; calls and observations belong to the answer that asked for them."""
    story = told()
    assert [(step.source, step.message) for step in story.steps] == [
        ("system", "sys"), ("user", "fix it"), ("agent", "look"), ("agent", "")]
    look = story.steps[2]
    assert [call.id for call in look.tool_calls] == [seen.call for seen in look.observations] == ["t1", "t2"]
    assert (look.tool_calls[1].raw, look.tool_calls[1].error) == ("{", "no tool")
    assert (look.prompt_tokens, look.completion_tokens) == (9, 3)
    assert (story.attempt, story.execution) == ("x", 2)


def test_an_intent_without_a_result_is_interrupted() -> None:
    """What was begun and has no end says so; it is not taken for an empty result."""
    assert told().steps[-1].observations == (Observation(call="t3", content="", interrupted=True),)


def test_a_model_call_without_an_answer_is_no_step() -> None:
    """A call that was cut off left nothing to show."""
    assert len(told(STORY[:4]).steps) == 2


def test_calls_that_no_model_asked_for_are_steps_of_their_own() -> None:
    """Reference solutions and replays act without a model."""
    steps = told([(K.TOOL_CALL, {"call": "r1", "name": "bash", "arguments": {}}),
                  (K.TOOL_RESULT, {"call": "r1", "content": "1"}),
                  (K.TOOL_CALL, {"call": "r2", "name": "bash", "arguments": {}}),
                  (K.TOOL_RESULT, {"call": "r2", "content": "2"})]).steps
    assert [step.observations[0].content for step in steps] == ["1", "2"]
    assert steps[0].completion_tokens is None


def test_order_is_by_seq_and_executions_do_not_mix() -> None:
    """Events may come in any order; those of another execution, or none at all, are refused."""
    assert from_events(events(STORY)[::-1], task="t", agent="loop", model="m") == told()
    other = Event(attempt="x", execution=3, seq=0, kind=K.STATE, at=now(), data={})
    for wrong in ([], [*events(STORY), other]):
        with pytest.raises(ValueError, match="one execution"):
            from_events(wrong, task="t", agent="a")


STEP_KEYS = {"step_id", "source", "message", "tool_calls", "observation", "metrics", "llm_call_count"}


def check(document: dict[str, Any]) -> None:
    """The rules of ATIF 1.8 that our documents can break."""
    assert document["schema_version"] == "ATIF-v1.8"
    assert set(document) <= {"schema_version", "session_id", "trajectory_id", "agent", "steps", "final_metrics",
                             "extra"}
    assert {"name", "version"} <= set(document["agent"]) <= {"name", "version", "model_name", "tool_definitions"}
    assert document["steps"]
    ids = list[str]()
    for number, step in enumerate(document["steps"], 1):
        assert step["step_id"] == number
        assert set(step) <= STEP_KEYS
        assert step["source"] in ("system", "user", "agent")
        assert isinstance(step["message"], str)
        if step["source"] != "agent":
            assert set(step) == {"step_id", "source", "message"}
        assert not ("metrics" in step and step["llm_call_count"] == 0)
        own = {call["tool_call_id"] for call in step.get("tool_calls", [])}
        assert all(isinstance(call["arguments"], dict) for call in step.get("tool_calls", []))
        assert {seen["source_call_id"] for seen in step.get("observation", {"results": []})["results"]} <= own
        ids += own
    assert len(ids) == len(set(ids))
    assert document["final_metrics"]["total_steps"] == len(document["steps"])
    json.dumps(document, allow_nan=False)


def test_export_follows_atif() -> None:
    """Every rule holds; exit codes, flags and malformed calls stand in extra; totals add up."""
    document = to_atif(told(), run="r7")
    check(document)
    look = document["steps"][2]
    assert look["tool_calls"][1]["extra"] == {"error": "no tool", "raw": "{"}
    assert look["observation"]["results"][1]["extra"] == {"truncated": True, "timed_out": True, "exit_code": 2}
    assert document["steps"][3]["observation"]["results"][0]["extra"] == {"interrupted": True}
    assert look["metrics"] == {"prompt_tokens": 9, "completion_tokens": 3}
    assert document["final_metrics"]["total_prompt_tokens"] == 29
    assert (document["session_id"], document["trajectory_id"]) == ("r7", "x-2")
    assert document["agent"]["model_name"] == "m"


def test_export_of_nothing_is_still_a_document() -> None:
    """ATIF needs a step; an attempt that did nothing has one that says so."""
    document = to_atif(told([(K.STATE, {"state": "acting"})]))
    check(document)
    assert [step["message"] for step in document["steps"]] == ["Nothing was done."]


def test_verdicts_stand_apart_from_rewards() -> None:
    """A valid verdict and an invalid one are both told, each as what it is."""
    valid = Valid(rewards={"total": 1.0}, total=1.0, assurance=Assurance.CANARY)
    invalid = Invalid(cause=Cause.ENVIRONMENT, detail="disk full")
    for verdict in (valid, invalid):
        document = to_atif(told(), verdict)
        check(document)
        assert document["extra"]["woodshed"]["verdict"] == verdict.to_json()
    assert "rewards" not in to_atif(told(), invalid)["extra"]["woodshed"]["verdict"]
