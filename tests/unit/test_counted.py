"""Numbers and what they count, as people say them."""

from __future__ import annotations

import re
from pathlib import Path

import woodshed
from woodshed.model.counted import counted

SOURCE = Path(woodshed.__file__).parent
SAID = ("cli", "services", "measure/process", "verify/rules", "trainers")
"""Whose sentences people read."""
MANY = ("bench", "acted", "rollouts", "scaling", "trl")
"""Benchmarks, and modules that name a number only where it is beyond a bound."""
BARE = re.compile(r"(?<!of )(?<!than )(?<!last )\{(?![A-Z_])[^{}]+\} "
                  r"(?:attempts|tasks|runs|steps|hunks|files|rows|workers)\b")


def test_one_is_one_and_none_are_many() -> None:
    """The noun follows the number; thousands are parted."""
    assert [counted(n, "attempt") for n in (0, 1, 2, 1200)] == ["0 attempts", "1 attempt", "2 attempts",
                                                               "1,200 attempts"]
    assert [counted(n, "entry", "entries") for n in (1, 2)] == ["1 entry", "2 entries"]


def test_no_sentence_takes_its_plural_for_granted() -> None:
    """Who writes a number before a noun goes by ``counted``."""
    files = [path for part in SAID for path in sorted((SOURCE / part).rglob("*.py"))
             if "benching" not in path.parts and path.stem not in MANY]
    found = [f"{path.relative_to(SOURCE)}: {match[0]}" for path in files for match in BARE.finditer(path.read_text())]
    assert found == []
    assert BARE.search('f"{len(made)} tasks in"')  # the positive control
