"""A person whom a model plays: when they are asked, what they see, what is recorded of it, and what it costs whom."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from kit import EXAMPLES
from resumable import World
from scripted import Attempt, Given, Script, a_task, act, bash, said
from woodshed.errors import ModelUnreachable, UsageError
from woodshed.harness.loop import Loop
from woodshed.interfaces import ModelRequest, ModelResponse
from woodshed.measure.process import Facts
from woodshed.measure.resume import past
from woodshed.model import CheckpointRule, EventKind, ModelSpec, StopReason
from woodshed.model.person import PersonSpec
from woodshed.services import agents, runs
from woodshed.tasks.load import load_task

ANY = ModelSpec(name="any", base_url="http://127.0.0.1:9/v1")
DONE = said("", ("finish", {"summary": "All is done."}))
GOAL = "You want the report in GERMAN; you know that the folder is called 'berichte'."


async def played(folder: Path, *answers: Given, says: list[Given], **spec: Any) -> tuple[Attempt, Script]:
    """The loop at a task with a person; and what their model was asked."""
    script = Script(says)
    person = PersonSpec(goal=GOAL, **spec)
    done = await act(Loop(), folder, *answers, task=a_task(folder, person=person), person=script)
    return done, script


def told(done: Attempt) -> list[tuple[int, str, str]]:
    return [(data["step"], data["occasion"], data["said"]) for data in done.of(EventKind.FEEDBACK)
            if data["by"] == "model"]


async def test_whoever_is_told_that_all_is_done_may_want_more(tmp_path: Path) -> None:
    """The attempt goes on with what the person said, until they have nothing to say."""
    done, script = await played(tmp_path, bash("echo a"), DONE, bash("echo b"), DONE,
                                says=[said("In German, please."), said("NOTHING")])
    assert done.stop is StopReason.FINISHED
    assert told(done) == [(2, "finish", "In German, please.")]
    assert "In German, please." in json.dumps(done.requests[2]["messages"])
    assert len(script.requests) == 2


async def test_a_question_is_answered_and_is_no_idleness(tmp_path: Path) -> None:
    """Words that ask, without a call, go to the person; their answer comes in the place of a reminder."""
    done, script = await played(tmp_path, *[said("Which folder shall I take?")] * 4, bash("mkdir berichte"), DONE,
                                says=[said("It is 'berichte'.")], when=("question",))
    assert done.stop is StopReason.FINISHED
    assert [occasion for _, occasion, _ in told(done)] == ["question"] * 4
    assert "holds no command" not in json.dumps(done.requests[1]["messages"])
    assert "It said: Which folder shall I take?" in script.requests[0]["messages"][1]["content"]


async def test_silence_leaves_a_question_to_the_reminder(tmp_path: Path) -> None:
    """A person with nothing to say is no message, and the agent is reminded as ever."""
    done, _ = await played(tmp_path, said("Which?"), bash("true"), DONE, says=[said(" *nothing.* ")],
                           when=("question",))
    assert told(done) == []
    assert "holds no command" in json.dumps(done.requests[1]["messages"])


async def test_they_are_asked_every_few_turns_and_speak_no_more_often_than_declared(tmp_path: Path) -> None:
    """Between turns, too, and never more than so many times."""
    done, script = await played(tmp_path, *[bash(f"echo {number}") for number in range(7)], DONE,
                                says=[said("Faster.")], when=(), every=2, times=2)
    assert told(done) == [(2, "turns", "Faster."), (4, "turns", "Faster.")]
    assert len(script.requests) == 2


async def test_their_tokens_are_bounded(tmp_path: Path) -> None:
    """All their calls together: then they are silent, and a note says so."""
    done, script = await played(tmp_path, *[bash(f"echo {number}") for number in range(5)], DONE,
                                says=[said("NOTHING", tokens=120)], when=(), every=1, tokens=200)
    assert len(script.requests) == 2
    assert any("the person is silent" in data["text"] for data in done.of(EventKind.NOTE))
    assert all(request["max_tokens"] == 300 for request in script.requests)


async def test_what_the_agent_sees_has_nothing_of_the_person_and_the_reverse_only_what_it_did(tmp_path: Path) -> None:
    """Goal and character never reach the agent's model; the person sees the task, words and calls."""
    done, script = await played(tmp_path, said("I look.", ("bash", {"command": "echo result-7"})), DONE,
                                says=[said("NOTHING")], character="You are in a hurry.")
    assert not any(secret in json.dumps(done.requests) for secret in ("GERMAN", "in a hurry"))
    system, seen = script.requests[0]["messages"]
    assert all(secret in system["content"] for secret in ("GERMAN", "in a hurry"))
    for shown in ("Do it.", "I look.", "echo result-7", "result-7", "All is done."):
        assert shown in seen["content"]
    assert "tools" not in script.requests[0]


async def test_nothing_of_their_calls_is_the_agents(tmp_path: Path) -> None:
    """Their calls are events of their own kinds: usage, turns, calls and steps are those of an agent left alone."""
    answers = [bash("echo a"), DONE]
    alone = await act(Loop(), tmp_path / "alone", *answers)
    done, _ = await played(tmp_path / "played", *answers, says=[said("NOTHING", tokens=500)])
    assert done.acting.usage == alone.acting.usage
    assert [data["call"] for data in done.of(EventKind.MODEL_RESULT)] == ["m00001", "m00002"]
    [asked], [answered] = done.of(EventKind.PERSON_CALL), done.of(EventKind.PERSON_RESULT)
    assert (asked["model"], answered["usage"]["prompt_tokens"]) == ("person", 500)
    steps = [step.model_dump(exclude={"index"}) for step in done.trajectory.steps]
    assert steps == [step.model_dump(exclude={"index"}) for step in alone.trajectory.steps]
    found, other = (Facts([event for event in one.events if event.kind is not EventKind.TOOL_RESULT])
                    for one in (done, alone))
    assert len(list(found.of(EventKind.MODEL_RESULT))) == len(list(other.of(EventKind.MODEL_RESULT)))


async def test_the_same_endpoint_makes_the_same_attempt(tmp_path: Path) -> None:
    """With scripted models an attempt is the same twice, whatever is said in it."""
    answers = [bash("true"), said("What now?"), bash("echo x"), DONE, DONE]
    says = [said("Go on."), said("Good. NOTHING")]
    kept = []
    for number in (1, 2):
        done, _ = await played(tmp_path / str(number), *answers, says=list(says))
        kept.append([(event.kind, event.data.get("said"), event.data.get("content")) for event in done.events])
    assert kept[0] == kept[1]


async def test_a_person_out_of_reach_is_no_doing_of_the_agents(tmp_path: Path) -> None:
    """Their endpoint's failure is a fault of the model's side, as the agent's own would be."""
    with pytest.raises(ModelUnreachable):
        await played(tmp_path, bash("true"), DONE, says=[(500, "down")])


class Once:
    """A model that says one thing and then nothing. It counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    async def call(self, request: ModelRequest) -> ModelResponse:
        self.asked += 1
        return ModelResponse("Stop that." if self.asked == 1 else "NOTHING", prompt_tokens=5, completion_tokens=1)


TURNS = tuple((("bash", {"command": f"echo {number} > f{number}"}),) for number in range(4))


@pytest.mark.parametrize("after", [1, 2, 5])
async def test_what_was_said_is_decided_once_whatever_is_cut_off(tmp_path: Path, after: int) -> None:
    """An attempt that goes on hears the same at the same turn, and the person is not asked about it again."""
    spoken = {"person": PersonSpec(goal="Speak once.", when=(), every=2)}
    whole = World(tmp_path / "whole", TURNS, CheckpointRule(turns=1), task_changes=spoken, person=Once())
    await whole.run([])
    place = next(number for number, event in enumerate(whole.events) if event.kind is EventKind.FEEDBACK)
    once = Once()
    world = World(tmp_path / "cut", TURNS, CheckpointRule(turns=1), task_changes=spoken, person=once)
    await world.run([place + after])
    assert [(data["step"], data["said"]) for data in world.of(EventKind.FEEDBACK)] == [(2, "Stop that.")]
    assert all(json.dumps(body).count("Stop that.") <= 1 for body in world.requests)
    record = past(world.events)
    assert record is not None
    assert record.played == {(2, "turns"): "Stop that."}
    assert once.asked <= 1 + len(TURNS) // 2


def test_a_person_stands_in_the_task_file_and_needs_a_model(tmp_path: Path) -> None:
    """The table is read; a run of an agent that hears needs --person; one that plays what is known does not."""
    folder = tmp_path / "asked"
    source = EXAMPLES / "first-steps" / "write-file"
    for path in source.rglob("*"):
        if path.is_file() and path.name != "calibration.json":
            target = folder / path.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    with (folder / "task.toml").open("a") as file:
        file.write(f'\n[woodshed.person]\ngoal = """{GOAL}"""\nevery = 3\n')
    task = load_task(folder)
    assert task.person is not None
    assert (task.person.every, task.person.when) == (3, ("finish", "question"))
    asked: dict[str, Any] = {"attempts": 1, "concurrency": 1, "seed": 0, "engine": "native"}
    with pytest.raises(UsageError, match="none is named"):
        runs.plan([folder], agents.build(["loop"], ANY), **asked)
    spec, _ = runs.plan([folder], agents.build(["loop"], ANY), person=ANY, **asked)
    assert spec.person == ANY
    runs.plan([folder], agents.build(["oracle", "nop"], None), **asked)
    with pytest.raises(UsageError, match="cannot be told"):
        runs.plan([folder], agents.build(["external:mini-swe-agent"], ANY), person=ANY, **asked)


@pytest.mark.parametrize("table", [{"goal": ""}, {"goal": "x", "when": ()}, {"goal": "x", "when": ("never",)},
                                   {"goal": "x", "times": 0}, {"goal": "x", "hidden_tests": True}])
def test_a_person_without_sense_is_refused(table: dict[str, Any]) -> None:
    """No goal, no occasion, no times, an unknown key."""
    with pytest.raises(ValidationError):
        PersonSpec.model_validate(table)
