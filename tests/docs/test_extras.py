"""Extras that pages name are there, and take the versions that tests hold them to."""

from __future__ import annotations

import re
import tomllib

import pytest
from packaging.requirements import Requirement

from kit import ROOT
from trlkit import NEEDS

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def test_every_extra_that_a_page_names_is_there() -> None:
    """And every trainer that a page is about has one."""
    pages = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]
    named = {name.strip() for page in pages for names in re.findall(r"woodshed\[([\w, -]+)\]", page.read_text())
             for name in names.split(",")}
    assert {"gymnasium", "trl", "verifiers"} <= named <= set(EXTRAS)


@pytest.mark.parametrize(("extra", "held"), [
    ("trl", NEEDS), ("verifiers", ("verifiers==0.4.0",)), ("gymnasium", ("gymnasium==1.4.0",)),
], ids=["trl", "verifiers", "gymnasium"])
def test_an_extra_takes_what_it_is_tested_with(extra: str, held: tuple[str, ...]) -> None:
    """The very version that the slow tests install, or the whole range."""
    taken = {wanted.name: wanted.specifier for wanted in map(Requirement, EXTRAS[extra])}
    for tested in map(Requirement, held):
        pinned = [one.version for one in tested.specifier if one.operator == "=="]
        assert all(version in taken[tested.name] for version in pinned)
        assert pinned or tested.specifier == taken[tested.name]
