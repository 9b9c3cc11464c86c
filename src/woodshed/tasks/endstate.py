"""An approved end state becomes a draft task: the start, the changes as its reference, and a verifier to be edited.

The draft verifier compares files and runs commands. It demands what was done to the letter, which few tasks mean: its
two lists (``tests/files.txt``, ``tests/commands.txt``) are there for the author to shorten.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from woodshed.model import Framework
from woodshed.tasks.runners import script_files
from woodshed.tasks.write import Draft

CHECK_FILES = '''\
"""The files of files.txt are as in expected/; ``!path`` must not be there; ``path -> target`` is a link."""

import os

TESTS, WORKSPACE = "/tests", {workdir!r}


def content(path):
    """The bytes of the regular file at path, None where there is none."""
    if os.path.islink(path) or not os.path.isfile(path):
        return None
    with open(path, "rb") as file:
        return file.read()


with open(TESTS + "/files.txt", encoding="utf-8", errors="surrogateescape") as listed:
    lines = [line.rstrip("\\n") for line in listed if line.strip() and not line.startswith("#")]
assert lines, "files.txt names no file"
for line in lines:
    name, _, target = line.removeprefix("!").partition(" -> ")
    place = os.path.join(WORKSPACE, name)
    if line.startswith("!"):
        assert not os.path.lexists(place), name + " is there"
    elif target:
        assert os.path.islink(place) and os.readlink(place) == target, name + " is no link to " + target
    else:
        assert content(place) == content(os.path.join(TESTS, "expected", name)) is not None, name + " differs"
'''
CHECK_COMMANDS = '''\
"""Every command of commands.txt ends with exit status 0 in the workspace, in a process of its own."""

import subprocess

with open("/tests/commands.txt", encoding="utf-8") as listed:
    commands = [line.strip() for line in listed if line.strip() and not line.startswith("#")]
for command in commands:
    done = subprocess.run(["bash", "-c", command], cwd={workdir!r}, timeout=600, capture_output=True)
    assert done.returncode == 0, command + ": exit " + str(done.returncode) + ": " + (done.stdout + done.stderr)[
        -2000:].decode(errors="replace")
'''
_FILES_HEAD = """\
# Files that must be as in expected/, a path a line; "!path" must not be there; "path -> target" is a link.
# Draft: everything that changed. Keep what the instruction asks for to the letter, and let tests say the rest.
"""
_COMMANDS_HEAD = """\
# Commands that must end with exit status 0 in the workspace, one a line.
# Draft: those the attempt itself ran with success after its last change, switched off. Keep what proves the work.
"""


@dataclass(frozen=True, slots=True)
class End:
    """What changed below the workdir: contents by path, permission bits, links by target, and what is gone."""

    files: Mapping[str, bytes] = field(default_factory=dict)
    executable: frozenset[str] = frozenset()
    links: Mapping[str, str] = field(default_factory=dict)
    gone: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.files or self.links or self.gone)


def draft_of_end(
    base: Draft, end: End, *, commands: Sequence[str], suggested: Sequence[str]
) -> Draft:
    """``base`` (instruction and world) with verifier and reference; the workspace is the writer's to fill.

    ``commands`` must pass; ``suggested`` stand beside them, switched off. None of them, and no path, holds a line end.
    """
    workdir = base.workdir
    listed = [*sorted(end.files), *(f"{path} -> {target}" for path, target in sorted(end.links.items())),
              *(f"!{path}" for path in sorted(end.gone))]
    hidden = {
        "check_files.py": CHECK_FILES.format(workdir=workdir).encode(),
        "files.txt": (_FILES_HEAD + "".join(f"{name}\n" for name in listed)).encode("utf-8", "surrogateescape"),
        **{f"expected/{path}": content for path, content in end.files.items()},
    }
    wanted = ["check_files"]
    lines = [*(f"{command}\n" for command in commands), *(f"# {command}\n" for command in suggested)]
    hidden["commands.txt"] = (_COMMANDS_HEAD + "".join(lines)).encode()
    hidden["check_commands.py"] = CHECK_COMMANDS.format(workdir=workdir).encode()
    if commands:
        wanted.append("check_commands")
    return base.model_copy(update={
        "tests": script_files(hidden),
        "solution": _solution(end),
        "framework": Framework.SCRIPT,
        "expected_tests": tuple(wanted),
    })


def _solution(end: End) -> dict[str, bytes]:
    lines = ["#!/bin/bash", "set -e"]
    lines += [f"rm -rf -- {shlex.quote(path)}" for path in end.gone]
    if end.files:
        lines.append("cp -R --remove-destination /solution/files/. .")
    lines += [f"chmod +x -- {shlex.quote(path)}" for path in sorted(end.executable)]
    for path, target in end.links.items():
        folder = shlex.quote(path.rpartition("/")[0] or ".")
        lines.append(f"mkdir -p -- {folder} && rm -rf -- {shlex.quote(path)} && "
                     f"ln -s -- {shlex.quote(target)} {shlex.quote(path)}")
    script = ("\n".join(lines) + "\n").encode("utf-8", "surrogateescape")
    return {"solve.sh": script, **{f"files/{path}": content for path, content in end.files.items()}}
