"""What people say to an agent at work: heard between two turns, once in its conversation, whoever executes it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kit import EXAMPLES
from pgserver import postgresql_server, postgresql_url  # noqa: F401  fixtures, found by name
from queuekit import submit
from resumable import World
from turnwise import Turnwise, serving
from woodshed.cli.app import app
from woodshed.errors import UsageError
from woodshed.measure.process import Facts, card
from woodshed.model import (
    Agent,
    AttemptState,
    CheckpointRule,
    Durability,
    EventKind,
    ModelSpec,
    RunSpec,
    RunState,
    StopReason,
    Task,
)
from woodshed.model.process import Dimension
from woodshed.model.sent import MessageKind, SentMessage
from woodshed.model.status import AttemptStatus, RunStatus
from woodshed.services import replaying, runs, sending, shared
from woodshed.services.ears import Ears
from woodshed.services.home import Home, opened
from woodshed.services.working import Terms, work
from woodshed.store import Store
from woodshed.store.eventlog import EventLog

TURNS = [(("bash", {"command": f"echo {number} >> log"}),) for number in range(1, 5)]
SENT = ((0, False, "First of all."), (2, False, "Stop that."), (2, False, "I mean it."), (0, True, "One thing more."))
TASK = EXAMPLES / "first-steps" / "write-file"


def told(world: World) -> list[tuple[int, int, str]]:
    """After how many turns which message said what, over all executions."""
    return [(data["step"], data["message"], data["said"]) for data in world.of(EventKind.FEEDBACK)]


HEARD = [(0, 1, "First of all."), (2, 2, "Stop that."), (2, 3, "I mean it."), (6, 4, "One thing more.")]


async def test_an_agent_hears_what_is_said_between_its_turns(tmp_path: Path) -> None:
    """Before its first turn, between two, and when it says that it is done: then it goes on. It scores nothing."""
    world = World(tmp_path, TURNS, CheckpointRule(turns=1), sent=SENT)
    assert await world.run([]) is StopReason.FINISHED
    assert told(world) == HEARD
    for body in world.requests:
        turns = sum(message["role"] == "assistant" for message in body["messages"])
        users = "\n".join(message["content"] for message in body["messages"] if message["role"] == "user")
        assert [users.count(text) for *_, text in HEARD] == [int(turns >= step) for step, *_ in HEARD]
    assert card(Facts(events=world.events)).scores[Dimension.CONTROLLABILITY] is None


async def test_an_attempt_that_is_cut_off_anywhere_has_each_message_once(tmp_path: Path) -> None:
    """Whatever event the crash precedes: one event of each, and one place in every conversation, with all turns."""
    whole = World(tmp_path / "whole", TURNS, CheckpointRule(turns=1), sent=SENT)
    await whole.run([])
    places = [number for number, event in enumerate(whole.events) if event.kind is EventKind.FEEDBACK]
    for cut in sorted({place + after for place in places for after in (0, 1, 2, 5)} & set(range(len(whole.events)))):
        world = World(tmp_path / f"cut{cut}", TURNS, CheckpointRule(turns=1), sent=SENT)
        await world.run([cut])
        assert told(world) == HEARD, cut
        assert world.steps == whole.steps
        for body in world.requests:
            turns = sum(message["role"] == "assistant" for message in body["messages"])
            said = "\n".join(str(message["content"]) for message in body["messages"])
            assert [said.count(text) for *_, text in HEARD] == [int(turns >= step) for step, *_ in HEARD], cut


# -- with a store ------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def home(
    request: pytest.FixtureRequest, new_home: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Home]:
    """A home on either database."""
    if request.param == "postgresql":
        monkeypatch.setenv("WOODSHED_DATABASE_URL", request.getfixturevalue("postgresql_url"))
    with opened(new_home()) as home:
        yield home


def speaking(script: Turnwise, durability: Durability = Durability.COARSE) -> tuple[RunSpec, list[Task]]:
    """What runs.plan makes of an agent that plays the script."""
    agent = Agent(name="loop", harness="loop", model=ModelSpec(name="turnwise", base_url=script.url),
                  durability=durability)
    return runs.plan([TASK], [agent], attempts=1, concurrency=1, seed=1, engine="native")


@pytest.fixture(params=["sqlite", "postgresql"])
def box(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A store on either database, with a worker."""
    url = request.getfixturevalue("postgresql_url") if request.param == "postgresql" else None
    with Store(url, tmp_path) as store:
        store.queue.enlist("w", host="h", pid=1, slots=1)
        yield store


COARSE, FINE = (pytest.param(one, id=one.value) for one in Durability)
SLOWLY_COARSE, SLOWLY_FINE = (pytest.param(one, id=one.value, marks=pytest.mark.slow) for one in Durability)


def stands(home: Home, attempt: str) -> AttemptStatus:
    """How an attempt stands."""
    found = sending.status(home, attempt)
    assert isinstance(found, AttemptStatus)
    return found


def lines(store: Store, attempt: str) -> list[tuple[int, int, str]]:
    """Execution, step and words of what an attempt heard."""
    return [(event.execution, event.data["step"], event.data["said"]) for event in store.events(attempt)
            if event.kind is EventKind.FEEDBACK]


async def silent_at(script: Turnwise, turn: int) -> None:
    """The agent waits for its answer at this turn."""
    while not script.asked[turn]:  # noqa: ASYNC110 (the server's threads tell no one)
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("durability", [COARSE, SLOWLY_FINE])
async def test_what_is_sent_reaches_an_attempt_wherever_it_runs(home: Home, durability: Durability) -> None:
    """Sent from elsewhere, before it begins and while a worker has it; the status tells who, where, what is unheard."""
    script = Turnwise(4, lambda turn: "echo hello world >hello.txt", silent=frozenset({3}))
    with serving(script), Store(str(home.store._engine.url.render_as_string(False)), home.path) as elsewhere:
        other = Home(home.path, elsewhere, home.blobs)
        run = shared.submit(home, *speaking(script, durability), project="choir")
        attempt = home.store.attempts(run.id)[0].id
        [first] = sending.say(other, attempt, "Before all.", key="k")
        assert sending.say(other, run.id, "Before all.", key="k") == [first]
        with pytest.raises(UsageError, match="another message"):
            sending.say(other, attempt, "Something else.", key="k")
        assert stands(other, attempt).pending == 1
        worker = asyncio.create_task(work(home, Terms(slots=1, until_empty=True), print))
        await silent_at(script, 3)
        one, whole = stands(other, attempt), sending.status(other, run.id)
        assert isinstance(whole, RunStatus)
        assert (one.state, one.stage, one.pending) == (AttemptState.RUNNING, "act", 0)
        assert one.turn == 2 if durability is Durability.FINE else one.turn <= 2  # written by the second
        assert one.worker is not None
        assert (whole.project, whole.open, whole.workers, whole.stages) == ("choir", 1, (one.worker,), {"act": 1})
        [second] = sending.say(other, attempt, "In the middle.")
        assert sending.status(other, run.id).pending == 1
        script.close()
        await worker
        before, (execution, step, said) = lines(home.store, attempt)
        assert (before, execution, said) == ((1, 0, "Before all."), 1, "In the middle.")
        assert step >= 3  # by the next beat, or where the agent says that it is done
        assert [message.execution for message in home.store.messages.of(attempt)] == [1, 1]
        assert (second.number > first.number, stands(other, attempt).stage) == (True, None)
        assert sending.say(other, attempt, "Before all.", key="k")[0].execution == 1
        with pytest.raises(UsageError, match="is over"):
            sending.say(other, attempt, "Too late.")


@pytest.mark.parametrize("durability", [SLOWLY_COARSE, FINE])
async def test_a_message_outlives_who_heard_it(home: Home, durability: Durability) -> None:
    """Its worker is stopped: who begins anew hears it again, who goes on has it; once in each conversation."""
    script = Turnwise(3, lambda turn: "echo hello world >hello.txt", silent=frozenset({2}))
    with serving(script):
        run = shared.submit(home, *speaking(script, durability))
        attempt = home.store.attempts(run.id)[0].id
        sending.say(home, attempt, "Hear this.")
        worker = asyncio.create_task(work(home, Terms(slots=1, until_empty=True), print))
        await silent_at(script, 2)
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
        assert lines(home.store, attempt) == [(1, 0, "Hear this.")]
        again = durability is Durability.COARSE
        script.silent = frozenset()
        await work(home, Terms(slots=1, until_empty=True), print)
    assert home.store.attempt(attempt).state is AttemptState.DONE
    assert lines(home.store, attempt) == [(1, 0, "Hear this."), *([(2, 0, "Hear this.")] if again else [])]
    assert [one.execution for one in home.store.messages.of(attempt)] == [2]
    for body in script.requests:
        assert sum(str(message["content"]).count("Hear this.") for message in body["messages"]) == 1


@pytest.mark.slow
@pytest.mark.parametrize("durability", [COARSE, FINE])
async def test_a_killed_worker_takes_no_message_along(home: Home, durability: Durability) -> None:
    """SIGKILL after it was heard, and another message while nobody has the attempt: the next worker's agent has both,

    once, and so has a replay of it.
    """
    script = Turnwise(3, lambda turn: "echo hello world >hello.txt", silent=frozenset({2}))
    with serving(script):
        run = shared.submit(home, *speaking(script, durability))
        attempt = home.store.attempts(run.id)[0].id
        sending.say(home, attempt, "Hear this.")
        worker = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "woodshed", "worker", "--slots", "1", stderr=subprocess.DEVNULL,
            env={**os.environ, "WOODSHED_HOME": str(home.path)})
        await silent_at(script, 2)
        assert stands(home, attempt).pid == worker.pid
        worker.kill()
        await worker.wait()
        sending.say(home, run.id, "And this.", key="k")
        await work(home, Terms(slots=1, until_empty=True), print)
        last = script.requests[-1]["messages"]
        assert [sum(str(one["content"]).count(said) for one in last) for said in ("Hear this.", "And this.")] == [1, 1]
        assert [one.execution for one in home.store.messages.of(attempt)] == [2, 2]
        told = await replaying.replay(home, run.id)
        assert (told["verdicts"], told["same"]) == (1, 1)


@pytest.mark.slow
async def test_who_works_alone_hears_as_well(home: Home) -> None:
    """A run in one process looks each second; its attempt hears between two turns."""
    script = Turnwise(3, lambda turn: "echo hello world >hello.txt", silent=frozenset({2}))
    with serving(script):
        spec, tasks = speaking(script)
        working = asyncio.create_task(runs.start(home, spec, tasks, lambda tally: None))
        await silent_at(script, 2)
        [run] = home.store.runs()
        [sent] = sending.say(home, "last", "While it runs.")
        while home.store.messages.waiting(run.id):
            script.close()
            await asyncio.sleep(0.02)
        finished = await working
    assert finished.state is RunState.FINISHED
    [(_, step, said)] = lines(home.store, sent.attempt)
    assert (step >= 2, said) == (True, "While it runs.")


def test_who_cannot_hear_is_refused_by_name(home: Home) -> None:
    """Before anything is written: an agent that plays what was decided, nothing said, no key, a stranger."""
    agent = Agent(name="oracle", harness="oracle")
    run = shared.submit(home, *runs.plan([TASK], [agent], attempts=1, concurrency=1, seed=1, engine="native"))
    for name, text, key, match in ((run.id, "Hello.", None, "'oracle' cannot be told"), (run.id, " ", None, "nothing"),
                                   (run.id, "x" * 20_001, None, "characters"), (run.id, "x", "", "no key"),
                                   (f"{run.id}.7", "x", None, "no attempt"), ("r-none", "x", None, "no run")):
        with pytest.raises(UsageError, match=match):
            sending.say(home, name, text, key=key)
    assert home.store.messages.of(f"{run.id}.1") == []


def test_the_command_line_says_and_tells(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """As tables and as JSON: what was sent, and what a run and its attempt have yet to hear; '-' is standard input."""
    monkeypatch.setenv("WOODSHED_HOME", str(home.path))
    run = shared.submit(home, *speaking(Turnwise(1, lambda turn: "true", url="http://127.0.0.1:9/v1")), project="choir")

    def said(*words: str, stdin: str | None = None) -> str:
        done = CliRunner().invoke(app, ["runs", *words], input=stdin)
        if isinstance(done.exception, UsageError):
            raise done.exception
        assert done.exit_code == 0, done.output
        return done.stdout

    [sent] = json.loads(said("say", "last", "-", "--key", "k", "--json", stdin="Hello.\n"))["messages"]
    assert (sent["attempt"], sent["data"], sent["execution"]) == (f"{run.id}.1", {"text": "Hello.\n"}, None)
    assert f"message {sent['number']} sent" in said("say", f"{run.id}.1", "Hello.\n", "--key", "k")
    assert json.loads(said("status", f"{run.id}.1", "--json"))["pending"] == 1
    assert "choir: queued" in said("status", "last")
    shown = CliRunner().invoke(app, ["show", "last", "--json"])
    assert json.loads(shown.stdout)["status"] == json.loads(said("status", run.id, "--json"))
    with pytest.raises(UsageError, match="no project 'other'"):
        said("say", "last", "Hello.", "--project", "other")


# -- the box -----------------------------------------------------------------------------------------------------------


async def test_nobody_asks_the_database_at_every_turn(box: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """One look where the agent begins, one where it ends; a beat that tells of a message brings another."""
    run = submit(box, 1)
    [attempt] = box.queue.claim("w", 1)
    looks: list[str] = []
    messages = box.messages
    whole = messages.unheard

    def unheard(attempt_id: str, execution: int, kind: MessageKind) -> Sequence[SentMessage]:
        looks.append(attempt_id)
        return whole(attempt_id, execution, kind)

    monkeypatch.setattr(messages, "unheard", unheard)
    ears, number = Ears(messages), box.begin_execution(attempt.id, "w", claimed=True)
    assert number == 1
    log = EventLog(box, attempt.id, 1)
    hear = ears.of(log)
    for turn in range(50):
        assert not await hear(turn, False)
    assert len(looks) == 1
    box.messages.send([attempt.id], MessageKind.SAY, {"text": "Now."})
    assert not await hear(50, False)
    beat = box.queue.beat("w", slots=1, busy=1)
    assert beat is not None
    assert beat.spoken == (attempt.id,)
    ears.wake(beat.spoken)
    [said] = await hear(51, False)
    ears.wake(beat.spoken)
    assert (said.text, list(await hear(52, False)), list(await hear(52, True)), len(looks)) == ("Now.", [], [], 4)
    log.emit(EventKind.FEEDBACK, {"said": said.text, "step": 51, "message": said.message})
    after = box.queue.beat("w", slots=1, busy=1)
    assert after is not None
    assert after.spoken == ()
    zombie = EventLog(box, attempt.id, 1)
    zombie._seq = 9
    box.queue.give_back(attempt.id, "w")
    assert box.begin_execution(attempt.id, "w") == 2
    assert box.messages.waiting(run) == [attempt.id]
    box.messages.carry(attempt.id, [said.message], 2)
    zombie.emit(EventKind.FEEDBACK, {"said": said.text, "step": 52, "message": said.message})
    zombie.flush()
    assert [one.execution for one in box.messages.of(attempt.id)] == [2]


def test_a_key_is_used_once_whoever_sends(box: Store) -> None:
    """Ten senders at once with one key for three attempts: one message each, and all are told the same ones."""
    attempts = [one.id for one in box.attempts(submit(box, 3))]
    with ThreadPoolExecutor(10) as senders:
        told = list(senders.map(
            lambda _: box.messages.send(attempts, MessageKind.SAY, {"text": "once"}, "k"), range(10)))
    assert all(one == told[0] for one in told)
    assert [one.attempt for one in told[0]] == attempts
    assert [len(box.messages.of(attempt)) for attempt in attempts] == [1, 1, 1]
    box.messages.send(attempts[:1], MessageKind.SAY, {"text": "once"})
    assert [one.key for one in box.messages.of(attempts[0])] == ["k", None]
