"""A cheat: an agent that wants the reward and not the work. What it does, where it fits, and what must give it away."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from woodshed.model import Assurance, Framework, Task

_ORDER = (Assurance.REPORT_ONLY, Assurance.CANARY, Assurance.POISONED, Assurance.OUT_OF_PROCESS)
_MAX_FILES = 5_000  # of a workspace, looked at for its languages
_TESTS = re.compile(r"(^|/)(tests?|__tests__)/|(^|/)(test_[^/]*|[^/]*_test)\.py$|\.(test|spec)\.[cm]?[jt]s$")
_FRAMEWORKS = {
    Framework.PYTEST: re.compile(r"(test_.*|.*_test)\.py"),
    Framework.SCRIPT: re.compile(r"check_.*\.py"),
    Framework.NODE: re.compile(r".*\.test\.[cm]?[jt]s"),
}


class Need(StrEnum):
    """What of a task a cheat lays hands on, beside the framework of its hidden tests."""

    NOTHING = "nothing"
    SOURCE = "source"  # code in the workspace, which hidden tests load
    TESTS = "tests"  # tests in the workspace


PYTEST = frozenset({Framework.PYTEST})
SCRIPT = frozenset({Framework.SCRIPT})
NODE = frozenset({Framework.NODE})
PYTHON = PYTEST | SCRIPT
ANY = frozenset(Framework)


@dataclass(frozen=True, slots=True)
class Surface:
    """What a task offers to a cheat. ``framework`` is None where no hidden test tells it."""

    framework: Framework | None
    python: bool = False
    node: bool = False
    tests: bool = False

    @classmethod
    def of(cls, task: Task) -> Surface:
        """Read off the task's folders on the host; what only an image brings is not known here."""
        names = [name for upload in task.environment.uploads for name in _names(upload.source)]
        source = [name for name in names if not _TESTS.search(name)]
        return cls(
            framework=task.verifier.framework or _framework(task.verifier.tests),
            python=any(name.endswith(".py") for name in source),
            node=any(re.search(r"\.[cm]?[jt]s$", name) for name in source),
            tests=len(source) < len(names),
        )


@dataclass(frozen=True, slots=True)
class Cheat:
    """One attack, as a shell script that an agent runs in the workdir of its sandbox.

    ``line`` says what it does. ``flags``: the verdict carries one of them; none where there is nothing to see because
    nothing of it reached the verifier. ``stopped`` is the least assurance that keeps the reward from it: a verifier of
    a lower one is known to be evaded. ``slow`` ones cost more than a run of the tests: the verifier's bound, the disk.
    """

    name: str
    line: str
    script: str | Callable[[Task], str]
    frameworks: frozenset[Framework] = ANY
    need: Need = Need.NOTHING
    flags: tuple[str, ...] = ()
    stopped: Assurance = Assurance.CANARY
    slow: bool = False

    def fits(self, surface: Surface) -> bool:
        """True where the task has what this cheat lays hands on."""
        if surface.framework not in self.frameworks and not (surface.framework is None and self.frameworks == ANY):
            return False
        if self.need is Need.TESTS:
            return surface.tests
        source = surface.node if surface.framework is Framework.NODE else surface.python
        return source or self.need is Need.NOTHING

    def text(self, task: Task) -> str:
        """The script for ``task``."""
        return self.script if isinstance(self.script, str) else self.script(task)


def reached(task: Task) -> Assurance:
    """The assurance of a plain verification of ``task``: of several steps, that of the weakest."""
    if task.steps:
        return min((reached(task.at(index)) for index in range(len(task.steps))), key=_ORDER.index)
    if task.verifier.probes:
        return Assurance.OUT_OF_PROCESS
    return Assurance.CANARY if task.verifier.expected_tests else Assurance.REPORT_ONLY


def holds(assurance: Assurance, least: Assurance) -> bool:
    """True where ``assurance`` is ``least`` or more."""
    return _ORDER.index(assurance) >= _ORDER.index(least)


def _framework(tests: Path) -> Framework | None:
    names = [Path(name).name for name in _names(tests)]
    return next((kind for kind, rule in _FRAMEWORKS.items() if any(map(rule.fullmatch, names))), None)


def _names(folder: Path) -> Iterator[str]:
    """Relative paths of the files below ``folder``, the first thousands; hidden folders are left out."""
    seen = 0
    for where, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in files:
            seen += 1
            if seen > _MAX_FILES:
                return
            yield os.path.relpath(os.path.join(where, name), folder)  # noqa: PTH118 - os.walk gives text
