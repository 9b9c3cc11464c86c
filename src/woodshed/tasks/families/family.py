"""Families: tasks made from templates. The same template and number are the same task, byte for byte, wherever made.

Of each template's tasks a fifth is held out: which ones is a function of what they say, so that no task that an agent
was trained on is among those that it is measured by, whatever the seeds were.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from woodshed.errors import UsageError
from woodshed.model import Framework
from woodshed.tasks.runners import script_files
from woodshed.tasks.write import Draft

HELD_OUT = 5
"""One task in so many is held out."""
_TRIES = 400
"""So many numbers for each task that is wanted are tried, before a template is said to have no more."""


class Split(StrEnum):
    """``train`` and ``heldout`` have the same templates and no task in common; ``unseen`` has templates of its own."""

    TRAIN = "train"
    HELDOUT = "heldout"
    UNSEEN = "unseen"


@dataclass(frozen=True, slots=True)
class Exercise:
    """What a template makes. ``end`` is what must stand in files afterwards, one of the texts given; None: nothing.

    Files of ``start`` that ``end`` does not name must be as they were; ``folders`` must be there. Texts are compared by
    lines, without spaces at their ends. ``reference`` is a shell command that does it; ``calls`` are the tool calls by
    which an agent would, who knows nothing but what it is told and what it has read.
    """

    instruction: str
    start: Mapping[str, str]
    end: Mapping[str, tuple[str, ...] | None]
    reference: str
    folders: tuple[str, ...] = ()
    calls: tuple[tuple[str, Mapping[str, str]], ...] = ()

    def mark(self) -> int:
        """A number by which two exercises that ask the same of the same start are one."""
        said = json.dumps([self.instruction, sorted(self.start.items())]).encode()
        return int.from_bytes(hashlib.sha256(said).digest()[:8], "big")


Template = Callable[[random.Random], Exercise]


@dataclass(frozen=True, slots=True)
class Family:
    """Templates by name: those to train on, and those that training never sees."""

    name: str
    description: str
    templates: Mapping[str, Template]
    unseen: Mapping[str, Template]

    def of(self, split: Split) -> Mapping[str, Template]:
        """The templates of a split."""
        return self.unseen if split is Split.UNSEEN else self.templates


@dataclass(frozen=True, slots=True)
class Instance:
    """One task of a family, before it is a folder."""

    family: str
    template: str
    number: int
    split: Split
    exercise: Exercise

    @property
    def name(self) -> str:
        """Of its folder; with the family before it, the task's id."""
        return f"{self.template}-{self.number}"


def instance(family: Family, template: str, number: int) -> Instance:
    """The task of this template and number, which says itself of what split it is. Raises KeyError for no template."""
    known = template in family.templates
    make = family.templates[template] if known else family.unseen[template]
    exercise = make(random.Random(f"{family.name}/{template}/{number}"))  # noqa: S311 (repeatable, nothing secret)
    held = Split.HELDOUT if exercise.mark() % HELD_OUT == 0 else Split.TRAIN
    return Instance(family.name, template, number, held if known else Split.UNSEEN, exercise)


def instances(family: Family, split: Split, *, count: int, seed: int) -> Iterator[Instance]:
    """``count`` different tasks, of all templates in turn. Numbers go up from ``seed`` times a million.

    Raises UsageError where a template has not so many tasks.
    """
    names = list(family.of(split))
    shares = {name: count // len(names) + (place < count % len(names)) for place, name in enumerate(names)}
    made = {name: _distinct(family, name, split, share, seed) for name, share in shares.items()}
    for _ in range(max(shares.values(), default=0)):
        for name in names:
            if (one := next(made[name], None)) is not None:
                yield one


def _distinct(family: Family, name: str, split: Split, count: int, seed: int) -> Iterator[Instance]:
    seen: set[int] = set()
    first = seed * 1_000_000
    for number in range(first, first + _TRIES * count):
        if len(seen) == count:
            return
        one = instance(family, name, number)
        if one.split is split and (mark := one.exercise.mark()) not in seen:
            seen.add(mark)
            yield one
    if len(seen) < count:
        raise UsageError(f"the template {name} has no {count} different tasks for {split.value}", field="--count",
                         remedy="Ask for fewer.")


def draft(one: Instance) -> Draft:
    """The task as a folder holds it: its checks run as a script beside the end state, and import nothing of it."""
    exercise = one.exercise
    checks = {"check_result.py": _result(exercise), "check_rest.py": _rest(exercise)}
    return Draft(
        name=f"{one.family}/{one.name}",
        description=f"{one.template}, number {one.number}",
        instruction=exercise.instruction + "\n",
        workspace={path: text.encode() for path, text in exercise.start.items()},
        tests=script_files({name: text.encode() for name, text in checks.items()}),
        solution={"solve.sh": f"#!/bin/bash\nset -euo pipefail\n{exercise.reference}\n".encode()},
        framework=Framework.SCRIPT,
        expected_tests=("check_rest", "check_result"),
        agent_timeout_s=60.0,
        verifier_timeout_s=20.0,
        metadata={"difficulty": "trivial", "family": one.family, "template": one.template, "number": one.number,
                  "split": one.split.value, "licence": "Apache-2.0"},
    )


_READ = '''\
from posix import stat


def lines(path):
    with open("/workspace/" + path) as file:
        return [line.rstrip() for line in file.read().rstrip().split("\\n")]


def there(path):
    try:
        return stat("/workspace/" + path, follow_symlinks=False).st_mode & 0o170000
    except FileNotFoundError:
        return 0


'''


def _result(exercise: Exercise) -> str:
    """A script that fails unless what was asked for stands there. It imports nothing that an agent can have written."""
    told = [_READ]
    for path, texts in exercise.end.items():
        if texts is None:
            told.append(f"assert not there({path!r}), {path!r}\n")
        else:
            told.append(f"assert lines({path!r}) in {[_lines(text) for text in texts]!r}, {path!r}\n")
    told += [f"assert there({path!r}) == 0o040000, {path!r}\n" for path in exercise.folders]
    return "".join(told)


def _rest(exercise: Exercise) -> str:
    """A script that fails where a file that nobody spoke of is not what it was."""
    rest = {path: _lines(text) for path, text in exercise.start.items() if path not in exercise.end}
    return _READ + "".join(f"assert lines({path!r}) == {text!r}, {path!r}\n" for path, text in rest.items())


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]
