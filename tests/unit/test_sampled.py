"""A run of some of its tasks: drawn by what is known of them, and the draw recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kit import EXAMPLES
from servekit import an_offer
from woodshed.errors import UsageError
from woodshed.measure.curriculum import History, Tried
from woodshed.model import Agent, RunSpec, Task
from woodshed.model.delivery import Asked
from woodshed.model.sample import Sample
from woodshed.services import curriculum, rollouts, runs, shared
from woodshed.services.home import Home, opened

TASKS = EXAMPLES / "first-steps"


@pytest.fixture
def home(new_home: Callable[[], Path]) -> Iterator[Home]:
    """A home of its own."""
    with opened(new_home()) as home:
        yield home


@pytest.fixture(scope="module")
def asked() -> tuple[RunSpec, list[Task]]:
    """A run of all first steps, four attempts each."""
    agent = Agent(name="oracle", harness="oracle")
    return runs.plan([TASKS], [agent], attempts=4, concurrency=1, seed=7, engine="native")


def past(monkeypatch: pytest.MonkeyPatch, tasks: list[Task], mixed: str) -> None:
    """Every task was always solved, but for one."""
    known = History({task.id: Tried(4, 4, 1) if task.id == mixed else Tried(40, 0, 5) for task in tasks})
    monkeypatch.setattr(curriculum, "history", lambda home, tasks: known)


def test_a_draw_and_all_that_it_followed_from_are_recorded(
    home: Home, asked: tuple[RunSpec, list[Task]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run has the drawn tasks alone, and its record the seed, the history's state, the tasks and their worths."""
    spec, tasks = asked
    past(monkeypatch, tasks, tasks[3].id)
    narrow, chosen = curriculum.narrowed(home, spec, tasks, Sample(count=3))
    run = home.store.run(shared.submit(home, narrow, chosen).id)
    drawn = run.spec.drawn
    assert drawn is not None
    assert (drawn.count, drawn.among, drawn.by, drawn.seed, drawn.size) == (3, len(tasks), "informative", 7, 4)
    assert (drawn.groups, len(str(drawn.history))) == (5 * (len(tasks) - 1) + 1, 64)
    assert drawn.tasks == tuple(task.id for task in chosen)
    assert set(drawn.worths) == set(drawn.tasks) == set(run.spec.groups)
    assert run.spec.tasks == tuple(str(task.folder) for task in chosen)
    assert {one.task for one in home.store.attempts(run.id)} == set(drawn.tasks)
    assert len(runs.unchanged(run)) == 3
    assert curriculum.narrowed(home, spec, tasks[::-1], Sample(count=3))[0].drawn == drawn


def test_the_informative_task_is_drawn_most(
    home: Home, asked: tuple[RunSpec, list[Task]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what is known the one task that is sometimes solved nearly always; by chance as often as any other."""
    spec, tasks = asked
    past(monkeypatch, tasks, tasks[3].id)

    def times(sample: Sample) -> int:
        return sum(curriculum.narrowed(home, spec.model_copy(update={"seed": seed}), tasks, sample)[1][0] is tasks[3]
                   for seed in range(60))

    assert times(Sample(count=1)) > 45
    assert times(Sample(count=1, by="chance")) < 20
    by_chance = curriculum.narrowed(home, spec, tasks, Sample(count=2, by="chance"))[0].drawn
    assert by_chance is not None
    assert (by_chance.history, by_chance.worths) == (None, {})


def test_more_than_there_is_cannot_be_drawn(home: Home, asked: tuple[RunSpec, list[Task]]) -> None:
    """Nothing is drawn twice: who asks for more is told how many there are."""
    with pytest.raises(UsageError, match=f"there are {len(asked[1])}"):
        curriculum.narrowed(home, *asked, Sample(count=len(asked[1]) + 1))


def test_a_request_for_rollouts_may_draw(home: Home) -> None:
    """Its attempts are those of the drawn tasks; asked again with the key, it is the same request."""
    offer = an_offer()
    body = {"tasks": "first-steps", "n": 2, "agent": "oracle", "seed": 3, "idempotency_key": "k",
            "sample": {"count": 4, "by": "informative"}}
    made = rollouts.ask(home, offer, Asked.model_validate(body))
    drawn = home.store.run(made.id).spec.drawn
    assert drawn is not None
    assert (len(made.attempts), len(drawn.tasks), drawn.seed) == (8, 4, 3)
    assert rollouts.ask(home, offer, Asked.model_validate(body)).id == made.id
