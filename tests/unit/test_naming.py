"""Which run or attempt a user means, told in one place for every command."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer

from exportkit import BROKEN, filled, valid
from woodshed.cli.app import app
from woodshed.errors import UsageError
from woodshed.model import Attempt, Run
from woodshed.services import naming
from woodshed.services.home import Home, opened


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """A home with an older run, and a newest one whose second valid attempt passed."""
    with opened(tmp_path_factory.mktemp("naming")) as place:
        filled(place, [("t", valid(1.0), None)], run="r-old")
        filled(place, [("t", BROKEN, None), ("t", valid(0.0), None), ("t", valid(1.0), None)], run="r-new")
        yield place


def test_last_is_the_newest_run_and_its_first_attempt_that_passed(home: Home) -> None:
    """As a run, as an attempt, and as either."""
    newest, attempt = naming.run(home, "last"), naming.attempt(home, "last")
    assert (newest.id, attempt.id) == ("r-new", "r-new-a02")
    assert naming.either(home, "last") == newest
    assert isinstance(naming.either(home, "r-old"), Run)
    assert isinstance(naming.either(home, "r-old-a00"), Attempt)


def test_the_one_where_the_other_is_asked_for_is_named_as_what_it_is(home: Home) -> None:
    """A run's id for an attempt, an attempt's for a run, and ids of nothing."""
    with pytest.raises(UsageError, match="'r-old' is a run, and an attempt is asked for"):
        naming.attempt(home, "r-old")
    with pytest.raises(UsageError, match=r"'r-old-a00' is an attempt.*It is of r-old"):
        naming.run(home, "r-old-a00")
    with pytest.raises(UsageError, match=r"no attempt 'r-old\.7'"):
        naming.either(home, "r-old.7")
    with pytest.raises(UsageError, match="no run 'gone'"):
        naming.either(home, "gone")


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every command of the command line, by the words that name it."""
    for name in group.list_commands(None):
        one = group.get_command(None, name)
        if hasattr(one, "list_commands"):
            yield from commands(one, (*path, name))
        else:
            yield " ".join((*path, name)), one


def test_every_command_that_takes_an_id_says_that_it_understands_last() -> None:
    """Whatever argument or option means a run or an attempt: its help names 'last'."""
    found = {}
    for name, command in commands(typer.main.get_command(app)):
        for one in command.params:
            text = f"{one.name} {one.metavar or ''}".lower()
            if {"run", "attempt", "resume"} & set(text.replace("|", " ").replace("…", " ").split()):
                found[f"{name} {one.name}"] = getattr(one, "help", None) or ""
    assert {"fork attempt", "rate attempt", "trace attempt", "tasks from-attempt attempt", "show run"} <= set(found)
    assert [name for name, text in found.items() if "'last'" not in text] == []
