"""The simulated person of a task: what may be declared, when each remark is said, and what becomes of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from kit import EXAMPLES, ROOT
from resumable import World
from scripted import Given, a_task, act, bash, fenced, said
from woodshed.errors import UsageError
from woodshed.harness.loop import Loop
from woodshed.measure.process import Facts, card
from woodshed.measure.trajectory import from_events
from woodshed.model import CheckpointRule, EventKind, ModelSpec, StopReason, Task
from woodshed.model.feedback import Remark
from woodshed.model.process import Dimension
from woodshed.services import agents, runs
from woodshed.tasks.load import load_task

ANY = ModelSpec(name="any", base_url="http://127.0.0.1:9/v1")
DONE = said("", ("finish", {"summary": "done"}))


def remark(says: str = "Use the other file.", **table: Any) -> Remark:
    """One as it stands in task.toml."""
    return Remark.model_validate({"says": says, **table})


async def heard(folder: Path, *answers: Given, remarks: tuple[Remark, ...], **how: Any) -> Any:
    """The loop at a task in which somebody speaks."""
    return await act(Loop(), folder, *answers, task=a_task(folder, feedback=remarks), **how)


def told(done: Any) -> list[tuple[int, str]]:
    """After how many turns what was said."""
    return [(data["step"], data["said"]) for data in done.of(EventKind.FEEDBACK)]


@pytest.mark.parametrize(("when", "step"), [
    ({"turn": 2}, 2),
    ({"edits": "src/*.py"}, 2),
    ({"command": "cat .*app"}, 3),
    ({"tool": "read_file"}, 4),
    ({"file": "src/app.py"}, 2),
    ({"file": "src/app.py", "contains": "^two$"}, None),
    ({"check": "test -e src/app.py"}, 2),
    ({"check": "test -e src/app.py", "exit_code": 1}, 1),
    ({"turn": 3, "check": "test -e src/app.py"}, 3),
    ({"edits": "*.txt"}, None),
    ({"finish": True}, 5),
], ids=lambda value: json.dumps(value))
async def test_a_remark_is_made_once_when_its_time_has_come(
    tmp_path: Path, when: dict[str, Any], step: int | None
) -> None:
    """Between two turns, as a message of the user, recorded before it is sent."""
    done = await heard(
        tmp_path, bash("ls"), bash("mkdir src; echo one > src/app.py"), bash("cat ./src/app.py"),
        said("", ("read_file", {"path": "src/app.py"})), DONE, DONE, remarks=(remark(when=when),))
    assert done.stop is StopReason.FINISHED
    assert told(done) == ([] if step is None else [(step, "Use the other file.")])
    for number, request in enumerate(done.requests):
        users = "\n".join(message["content"] for message in request["messages"] if message["role"] == "user")
        assert users.count("Use the other file.") == (step is not None and number >= step)
    kinds = [event.kind for event in done.events]
    if step is not None:
        assert kinds[kinds.index(EventKind.FEEDBACK) + 1] is EventKind.MESSAGE


async def test_who_was_told_that_all_is_done_may_want_more(tmp_path: Path) -> None:
    """The attempt goes on after its finish, calls that stood after it are answered, and the next finish ends it."""
    both = said("", ("finish", {"summary": "done"}), ("bash", {"command": "echo never > never"}))
    done = await heard(tmp_path, bash("true"), both, bash("echo more > more"), DONE,
                       remarks=(remark("One thing more.", when={"finish": True}),))
    assert (done.stop, told(done)) == (StopReason.FINISHED, [(2, "One thing more.")])
    assert not (done.box.root / "workspace" / "never").exists()
    assert (done.box.root / "workspace" / "more").exists()
    sent = done.requests[2]["messages"]
    calls = {call["id"] for message in sent for call in message.get("tool_calls", ())}
    assert calls == {message["tool_call_id"] for message in sent if message["role"] == "tool"}


async def test_words_that_end_an_attempt_can_be_answered_as_well(tmp_path: Path) -> None:
    """In the text dialect an agent ends by saying so; it is told what else is wanted, and goes on."""
    done = await heard(tmp_path, fenced("true"), said("DONE"), fenced("echo more > more"), said("DONE"), dialect="text",
                       remarks=(remark(when={"finish": True}),))
    assert (done.stop, len(told(done))) == (StopReason.FINISHED, 1)
    assert (done.box.root / "workspace" / "more").exists()


async def test_nobody_speaks_to_an_agent_that_has_no_turn_left(tmp_path: Path) -> None:
    """What it could not heed is not said: it would count against it."""
    done = await heard(tmp_path, bash("true"), DONE, limits={"turns": 2},
                       remarks=(remark(when={"finish": True}), remark(when={"turn": 2})))
    assert (done.stop, told(done)) == (StopReason.FINISHED, [])


async def test_the_obedient_and_the_stubborn_are_told_apart(tmp_path: Path) -> None:
    """The same words to both: who heeds them scores 1, who goes on as before 0, with the cost of the old path."""
    wish = remark("Leave old.txt alone and write new.txt.", when={"edits": "old.txt"},
                  expects={"path": "new.txt", "not_path": "old.txt", "within": 3})
    obedient = await heard(tmp_path / "a", bash("echo 1 > old.txt"), bash("echo 1 > new.txt"), DONE, remarks=(wish,))
    stubborn = await heard(tmp_path / "b", bash("echo 1 > old.txt"), bash("echo 2 > old.txt"),
                           bash("echo 3 > old.txt"), DONE, remarks=(wish,))
    cards = [card(Facts(events=done.events)) for done in (obedient, stubborn)]
    assert [made.scores[Dimension.CONTROLLABILITY] for made in cards] == [1.0, 0.0]
    assert [made.named("abandoned_calls").value for made in cards] == [0.0, 4.0]
    assert "old.txt" in cards[1].named("feedback_heeded").cited[0].why


TURNS = [(("bash", {"command": f"echo {number} >> log"}),) for number in range(1, 6)]


@pytest.mark.parametrize("when", [{"turn": 2}, {"check": "grep -q 2 log"}, {"finish": True}], ids=json.dumps)
async def test_an_attempt_that_is_cut_off_anywhere_hears_each_remark_once(tmp_path: Path, when: dict[str, Any]) -> None:
    """Whatever event the crash precedes: one record of it, one message, at the same turn, in every conversation."""
    spoken = {"feedback": (remark("Stop that.", when=when),)}
    whole = World(tmp_path / "whole", TURNS, CheckpointRule(turns=1), task_changes=spoken)
    await whole.run([])
    [(first, _)] = said_in(whole)
    place = next(number for number, event in enumerate(whole.events) if event.kind is EventKind.FEEDBACK)
    for cut in (place - 1, place, place + 1, place + 2, place + 4):
        world = World(tmp_path / f"cut{cut}", TURNS, CheckpointRule(turns=1), task_changes=spoken)
        await world.run([cut])
        assert said_in(world) == [(first, "Stop that.")]
        for body in world.requests:
            turns = sum(message["role"] == "assistant" for message in body["messages"])
            count = sum(message["content"].count("Stop that.") for message in body["messages"])
            assert count == (turns >= first)


def said_in(world: World) -> list[tuple[int, str]]:
    return [(data["step"], data["said"]) for data in world.of(EventKind.FEEDBACK)]


def written(folder: Path, feedback: str) -> Task:
    """A copy of an example in which somebody speaks."""
    source = EXAMPLES / "first-steps" / "write-file"
    for path in source.rglob("*"):
        if path.is_file() and path.name != "calibration.json":
            target = folder / path.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    with (folder / "task.toml").open("a") as file:
        file.write("\n" + feedback)
    return load_task(folder)


def test_a_person_stands_in_the_task_file(tmp_path: Path) -> None:
    """The table is read into the task, and is a part of its digest like everything else."""
    task = written(tmp_path / "spoken", """
[[woodshed.feedback]]
says = "Not there: the file belongs in docs/."
when = { edits = "*.txt", turn = 1 }
expects = { path = "docs/hello.txt", within = 3 }
""")
    [found] = task.feedback
    assert (found.when.edits, found.expects.path if found.expects else None) == ("*.txt", "docs/hello.txt")


def test_the_example_of_the_page_is_read(tmp_path: Path) -> None:
    """Both remarks of it, each with what it expects; in a task of steps they are said in each."""
    page = (ROOT / "docs" / "writing-tasks.md").read_text().split("## A person")[1]
    example = page.split("```toml\n")[1].split("```")[0]
    first, second = written(tmp_path / "page", example).feedback
    assert (first.when.edits, second.when.finish) == ("old.py", True)
    assert first.expects is not None
    assert first.expects.unwanted == {"path": "old.py"}
    shutil.copytree(tmp_path / "page" / "tests", tmp_path / "page" / "steps" / "one" / "tests")
    (tmp_path / "page" / "steps" / "one" / "instruction.md").write_text("Do it.")
    with (tmp_path / "page" / "task.toml").open("a") as file:
        file.write('\n[[steps]]\nname = "one"\n')
    assert load_task(tmp_path / "page").at(0).feedback == (first, second)


@pytest.mark.parametrize(("table", "field", "words"), [
    ('says = "x"', "woodshed.feedback.0.when", "required"),
    ('says = ""\nwhen = { turn = 1 }', "woodshed.feedback.0.says", "at least 1"),
    ('says = "x"\nwhen = { turn = 0 }', "woodshed.feedback.0.when.turn", "greater than or equal to 1"),
    ('says = "x"\nwhen = { trun = 1 }', "woodshed.feedback.0.when.trun", "Did you mean 'turn'?"),
    ('says = "x"\nwhen = {}', "woodshed.feedback.0.when", "says no time"),
    ('says = "x"\nwhen = { contains = "y" }', "woodshed.feedback.0.when", "says no time"),
    ('says = "x"\nwhen = { turn = 1, exit_code = 1 }', "woodshed.feedback.0.when", "that of a check"),
    ('says = "x"\nwhen = { command = "(" }', "woodshed.feedback.0.when.command", "no regular expression"),
    ('says = "x"\nwhen = { turn = 1 }\nexpects = {}', "woodshed.feedback.0.expects", "expects nothing"),
    ('says = "x"\nwhn = 1\nwhen = { turn = 1 }', "woodshed.feedback.0.whn", "Did you mean 'when'?"),
])
def test_what_nobody_could_say_is_refused(tmp_path: Path, table: str, field: str, words: str) -> None:
    """With the file, the field and the remedy."""
    with pytest.raises(UsageError) as refused:
        written(tmp_path / "spoken", f"[[woodshed.feedback]]\n{table}\n")
    assert field in str(refused.value)
    assert words in str(refused.value)
    assert "task.toml" in str(refused.value)


def test_who_cannot_be_told_is_refused_by_name_before_the_run(tmp_path: Path) -> None:
    """A program of others is told its task and left alone; the reference and those that play a record just play."""
    task = written(tmp_path / "spoken", '[[woodshed.feedback]]\nsays = "x"\nwhen = { turn = 1 }\n')

    def planned(name: str) -> Any:
        return runs.plan([task.folder], agents.build([name], ANY), attempts=1, concurrency=1, seed=0, engine="native")

    planned("oracle")
    planned("nop")
    with pytest.raises(UsageError, match=r"'external:command:true .*' cannot be told"):
        planned("external:command:true {instruction_file}")


async def test_what_was_said_is_a_step_of_the_trajectory(tmp_path: Path) -> None:
    """It stands where it was said, as the user's."""
    done = await heard(tmp_path, bash("true"), DONE, remarks=(remark(when={"turn": 1}),))
    steps = from_events(done.events, task="t", agent="a").steps
    assert [step.source for step in steps] == ["system", "user", "agent", "user", "agent"]
