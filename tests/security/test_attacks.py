"""Every attack of ``attack_*.py``: the engine stops it, and without its defence, in the same place, it succeeds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from outer import Place, gather

ATTACKS = gather()
LAYERED = {name: attack for name, attack in ATTACKS.items() if len(attack.defences) > 1}


@pytest.fixture(scope="module")
def place(shed_home: Path) -> Iterator[Place]:
    made = Place(shed_home)
    yield made
    made.close()


def _possible(place: Place, name: str) -> None:
    if (why := place.lacks(ATTACKS[name])) is not None:
        pytest.skip(why)


@pytest.mark.parametrize("name", ATTACKS)
def test_it_is_stopped_and_succeeds_without_the_defence(place: Place, name: str) -> None:
    """An attack gets nothing from the engine as it is, and what it is after from the one whose defences are off."""
    _possible(place, name)
    assert place.attack(name) is None
    assert place.attack(name, range(len(ATTACKS[name].defences))) is not None, f"no control: {place.said}"


@pytest.mark.parametrize("name", LAYERED)
def test_each_defence_of_several_is_enough(place: Place, name: str) -> None:
    """Where several defences stop an attack, each of them does it alone."""
    _possible(place, name)
    every = range(len(ATTACKS[name].defences))
    for kept in every:
        assert place.attack(name, [index for index in every if index != kept]) is None, ATTACKS[name].defences[kept]
