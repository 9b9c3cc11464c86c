"""Hidden tests that belong inside a project: test.sh links them to their places in the workspace and runs them there.

Tests of a repository import each other, read files beside them and lie within packages, so they run where they lay.
They stay links into /tests, where the verifier sees whether a run rewrote them, and where its canary joins them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

OWN = ("test.sh", "pytest.ini", "run_linked.py")
"""Names at the top of tests/ that are ours."""
_SCRIPT = """\
#!/bin/bash
mkdir -p /logs/verifier
python3 -I -S -B /tests/run_linked.py
status=$?
if [ $status -eq 0 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
exit $status
"""
_RUN = '''\
"""Links every file beside this one to its place in the workspace and becomes pytest over those that hold tests."""

import os
import sys
from fnmatch import fnmatchcase

TESTS, WORKSPACE = "/tests", {workspace!r}
OWN = {own!r}
PATTERNS = {patterns!r}
CHOSEN = {chosen!r}


def clear(path):
    """Nothing stands at path any more: neither a link, nor a file, nor a folder."""
    if os.path.isdir(path) and not os.path.islink(path):
        for name in os.listdir(path):
            clear(os.path.join(path, name))
        os.rmdir(path)
    elif os.path.lexists(path):
        os.unlink(path)


def lay():
    """Every hidden file in its place; the paths of those that hold tests."""
    found = []
    for folder, _, names in os.walk(TESTS):
        inside = os.path.relpath(folder, TESTS)
        place = WORKSPACE if inside == "." else os.path.join(WORKSPACE, inside)
        for name in sorted(names):
            if inside == "." and name in OWN:
                continue
            if os.path.lexists(place) and not os.path.isdir(place):
                clear(place)
            os.makedirs(place, exist_ok=True)
            target = os.path.join(place, name)
            clear(target)
            os.symlink(os.path.join(folder, name), target)
            path = os.path.relpath(target, WORKSPACE)
            canary = inside == "." and fnmatchcase(name, "test_*.py")
            if name.endswith(".py") and any(fnmatchcase(name, pattern) for pattern in PATTERNS):
                if canary or not CHOSEN or path in CHOSEN:
                    found.append(path)
    return sorted(found)


if __name__ == "__main__":
    found = lay()
    os.chdir(WORKSPACE)
    os.execvp("python3", [
        "python3", "-P", "-B", "-m", "pytest", "-c", TESTS + "/pytest.ini", "--rootdir=" + WORKSPACE,
        "-p", "no:cacheprovider", "--continue-on-collection-errors", "-q",
        "--junitxml=/logs/verifier/junit.xml", "--", *found,
    ])
'''


def linked_files(
    tests: Mapping[str, bytes], *, workspace: str, pythonpath: Sequence[str], patterns: Sequence[str],
    options: Mapping[str, str] | None = None, chosen: Sequence[str] = (),
) -> dict[str, bytes]:
    """``tests`` (by their paths in the project) with what runs them. Ids are ``dotted.path.of.module::name``.

    ``pythonpath`` are absolute folders; ``options`` further lines of pytest.ini; ``chosen`` the only files of tests
    that are run, beside those at the top of the project (all of them where it is empty).
    """
    lines = {"junit_family": "xunit1", "pythonpath": " ".join(pythonpath), **(options or {})}
    lines["python_files"] = " ".join(patterns)
    ini = "[pytest]\n" + "".join(f"{name} = {value}\n" for name, value in lines.items())
    script = _RUN.format(workspace=workspace, own=OWN, patterns=tuple(patterns), chosen=tuple(sorted(chosen)))
    return {**tests, "test.sh": _SCRIPT.encode(), "pytest.ini": ini.encode(), "run_linked.py": script.encode()}
