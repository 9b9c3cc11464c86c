"""Two releases of a package become a task: the older source is the start, the newer one's tests judge.

Which tests count is measured, not guessed: a probe runs them on the older source once and on the newer one twice.
"""

from __future__ import annotations

import asyncio
import re
import shlex
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from woodshed.errors import UsageError
from woodshed.model import Framework, Task, TestOutcome
from woodshed.pypi import extract, fetch
from woodshed.tasks.collection import Progress, check_place, quiet, write_collection
from woodshed.tasks.declare import WORKDIR
from woodshed.tasks.runners import pytest_files
from woodshed.tasks.sdist import Sdist
from woodshed.tasks.write import Draft, write_task

State = Literal["start", "reference"]
Probe = Callable[[Task, State], Awaitable[Mapping[str, TestOutcome]]]
"""Runs the task's tests in a fresh sandbox, on its start or after its solution; every id of the report.

An id that the report names twice is left out: it could not be demanded. Raises the fault where the sandbox, the
solution or the report broke.
"""
_STEPS = ("fetched", "start probed", "reference probed", "reference probed again", "written")
_MAX_NAMED = 100
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_TASK = """\
# Bring {package} from {old} to {new}

The source of the Python package `{package}` {old} lies in the current folder; the package itself is `{where}`. Change
it so that it behaves as its next release, {new}, does. Tests of that release that you do not see judge the result.
Every test that passes today must still pass.
"""


@dataclass(frozen=True, slots=True)
class _Pair:
    old: Sdist
    new: Sdist
    requirements: tuple[str, ...]


async def pypi_pair(
    package: str, old: str, new: str, out: Path, *, probe: Probe, requirements: Sequence[str] | None = None,
    force: bool = False, progress: Progress = quiet,
) -> Path:
    """The task folder ``out``/PACKAGE-OLD-to-NEW. ``out`` may hold other tasks.

    ``requirements`` replace those read from the newer release and its tests. Raises UsageError when a release, its
    source or its tests are not there, when no test passes on the newer source in both runs, or when all that do pass
    on the older one; EnvironmentFault where the index cannot be reached; and whatever ``probe`` raises.
    """
    name = _task_name(package, old, new)
    out = out.expanduser().absolute()
    check_place(out / name, force)
    with tempfile.TemporaryDirectory(prefix="pypi-pair-") as temporary:
        folder = Path(temporary)
        pair = await asyncio.to_thread(_fetch, package, old, new, folder, requirements)
        progress(1, len(_STEPS), _STEPS[0])
        draft = await asyncio.to_thread(_draft, pair)
        task = await asyncio.to_thread(write_task, folder / "probed" / name, draft)
        outcomes = []
        for index, state in enumerate(("start", "reference", "reference"), start=1):
            outcomes.append(await probe(task, "start" if state == "start" else "reference"))
            progress(index + 1, len(_STEPS), _STEPS[index])
        judged = _judged(pair, draft, *outcomes)
        made = await asyncio.to_thread(write_collection, out, [(name, judged)], force=force, beside=True)
    progress(len(_STEPS), len(_STEPS), _STEPS[-1])
    return made[0]


def _task_name(package: str, old: str, new: str) -> str:
    if not _NAME.fullmatch(package):
        raise UsageError(f"{package!r} is no package name", remedy="Write it as the index does, e.g. more-itertools.")
    for version in (old, new):
        try:
            Version(version)
        except InvalidVersion:
            raise UsageError(f"{version!r} is no version", remedy="Write a release of it, e.g. 1.0.2.") from None
    if Version(old) >= Version(new):
        raise UsageError(f"{old} is not older than {new}", remedy="Name the older release first.")
    return f"{canonicalize_name(package)}-{Version(old)}-to-{Version(new)}".replace("+", "-").replace("!", "-")


def _fetch(package: str, old: str, new: str, folder: Path, requirements: Sequence[str] | None) -> _Pair:
    releases = [_unpacked(package, version, folder) for version in (old, new)]
    if releases[0].base != releases[1].base or releases[0].entry != releases[1].entry:
        raise releases[1].wrong(f"the package moved ({releases[0].entry} before)", "Choose neighbouring releases.")
    needed = releases[1].requirements() if requirements is None else requirements
    return _Pair(releases[0], releases[1], tuple(needed))


def _unpacked(package: str, version: str, folder: Path) -> Sdist:
    archive = fetch(f"{package}=={version}", folder / "archives", kind="sdist")
    root = folder / "source" / version
    extract(archive, root, strip=1)
    return Sdist(root, package, version)


def _draft(pair: _Pair) -> Draft:
    """The task before it is known which tests count."""
    old, new = pair.old, pair.new
    path = f"{WORKDIR}/{old.base}".rstrip("/")
    where = f"{old.base}/{old.entry}".lstrip("/")
    instruction = _TASK.format(package=old.name, old=old.version, new=new.version, where=where)
    if notes := new.notes():
        instruction += f"\nThe notes of {new.version}:\n\n{_quoted(notes)}"
    return Draft(
        instruction=instruction,
        workspace=old.start() | old.dist_info(),
        tests=pytest_files(new.hidden(), pythonpath=path, options=new.pytest_options()),
        solution=_solution(old.source(), new.source()),
        framework=Framework.PYTEST,
        requirements=pair.requirements,
        agent_timeout_s=1800.0,
        verifier_timeout_s=600.0,
        source=f"https://pypi.org/project/{old.name}/{new.version}/",
    )


def _solution(old: Mapping[str, bytes], new: Mapping[str, bytes]) -> dict[str, bytes]:
    """The newer release's package files, where they differ, and the script that puts them in place."""
    changed = {path: content for path, content in new.items() if old.get(path) != content}
    lines = ["#!/bin/bash", "set -e", *(["cp -R /solution/files/. ."] if changed else []),
             *(f"rm -f -- {shlex.quote(path)}" for path in sorted(old.keys() - new.keys()))]
    files = {f"files/{path}": content for path, content in changed.items()}
    return {"solve.sh": ("\n".join(lines) + "\n").encode(), **files}


def _judged(pair: _Pair, draft: Draft, start: Mapping[str, TestOutcome], first: Mapping[str, TestOutcome],
            second: Mapping[str, TestOutcome]) -> Draft:
    """``draft`` with its expected tests: those that passed on the newer source in both runs."""
    passing = [{test for test, outcome in outcomes.items() if outcome is TestOutcome.PASSED}
               for outcomes in (start, first, second)]
    expected = sorted(test for test in passing[1] & passing[2] if test.strip() and "\n" not in test)
    mended = [test for test in expected if test not in passing[0]]
    if not expected:
        raise pair.new.wrong(f"none of its {len(first)} tests passes on its own source",
                             f"Name what they need (tried: {', '.join(pair.requirements) or 'nothing'}).")
    if not mended:
        raise pair.new.wrong(f"all {len(expected)} tests pass on {pair.old.version} already",
                             "Choose another pair: this one has nothing to mend.")
    instruction = draft.instruction
    if "The notes of" not in instruction:
        named = "".join(f"- `{test}`\n" for test in mended[:_MAX_NAMED])
        more = f"- and {len(mended) - _MAX_NAMED} more\n" if len(mended) > _MAX_NAMED else ""
        instruction += f"\nThe tests that do not pass yet:\n\n{named}{more}"
    metadata = {
        "dataset": "pypi-pair", "package": pair.new.name, "old": pair.old.version, "new": pair.new.version,
        "license": pair.new.licence(), "fail_to_pass": len(mended),
        "pass_to_pass": len(expected) - len(mended), "unstable": len(passing[1] ^ passing[2]),
    }
    return draft.model_copy(update={"instruction": instruction, "expected_tests": tuple(expected),
                                    "metadata": metadata})


def _quoted(text: str) -> str:
    return "".join(f"    {line}".rstrip() + "\n" for line in text.splitlines())
