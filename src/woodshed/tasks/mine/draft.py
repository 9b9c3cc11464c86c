"""A candidate and the files of its two commits become the draft of a task."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from woodshed.errors import UsageError
from woodshed.model import Framework, Task
from woodshed.tasks.declare import WORKDIR
from woodshed.tasks.git import Entry, Repository
from woodshed.tasks.load import load_task
from woodshed.tasks.mine.instruct import instruction
from woodshed.tasks.mine.licence import licence
from woodshed.tasks.mine.outcome import Pair
from woodshed.tasks.mine.paths import Kind, kind_of
from woodshed.tasks.mine.project import Project
from woodshed.tasks.mine.runner import OWN, linked_files
from woodshed.tasks.mine.select import Candidate
from woodshed.tasks.write import Draft, write_task

MAX_TREE_BYTES = 60_000_000
"""Of the files an agent starts from."""
MAX_TREE_FILES = 20_000
_HIDDEN = frozenset({Kind.TEST, Kind.SUPPORT})
VERIFIER_S, AGENT_S = 600.0, 1800.0


@dataclass(frozen=True, slots=True)
class Material:
    """What a draft is made of, read from the repository once. ``tests`` are the hidden files by path."""

    candidate: Candidate
    name: str
    project: Project
    tests: Mapping[str, bytes]

    @classmethod
    def of(cls, repository: Repository, candidate: Candidate, name: str) -> Material:
        """The after-state's tests and facts. Raises UsageError for a tree that is too large."""
        entries = repository.entries(candidate.commit.id)
        plain = {entry.path: entry for entry in entries if not entry.link and not entry.submodule}
        _bounded(list(plain.values()), repository)
        contents = dict(repository.blobs(dict.fromkeys(entry.id for entry in plain.values())))
        project = Project.of(plain, lambda path: contents[plain[path].id] if path in plain else None)
        hidden = [entry for path, entry in plain.items() if kind_of(path, candidate.patterns) in _HIDDEN
                  and path not in OWN]
        return cls(candidate, name, project, {entry.path: contents[entry.id] for entry in hidden})

    def requirements(self, *, guess: bool) -> tuple[str, ...]:
        """pip requirements of the workspace and its tests, with or without what is only guessed."""
        needs = self.project.needs({path: text for path, text in self.tests.items() if path.endswith(".py")})
        return (*needs.declared, *(needs.guessed if guess else ()))


def draft(material: Material, *, requirements: Sequence[str], scope: Sequence[str] = (), pair: Pair | None = None,
          facts: Mapping[str, object] | None = None, described: str | None = None) -> Draft:
    """The task without its workspace. ``scope`` are the only test files to run (all where empty).

    Without ``pair`` it expects no test yet: it is there to be probed.
    """
    candidate, project = material.candidate, material.project
    failing = pair.fail_to_pass if pair else ()
    return Draft(
        instruction=instruction(candidate, name=material.name, own=project.packages(), failing=failing,
                                described=described),
        tests=linked_files(
            dict(material.tests), workspace=WORKDIR, patterns=candidate.patterns, options=project.options(),
            pythonpath=[f"{WORKDIR}/{base}".rstrip("/") for base in project.bases], chosen=scope,
        ),
        solution=_solution(candidate),
        framework=Framework.PYTEST,
        expected_tests=tuple(sorted((*pair.fail_to_pass, *pair.pass_to_pass))) if pair else (),
        requirements=tuple(requirements),
        agent_timeout_s=AGENT_S,
        verifier_timeout_s=VERIFIER_S,
        metadata={
            "dataset": "mined", "repository": material.name, "commit": candidate.commit.id,
            "parent": candidate.commit.parents[0], "committed": candidate.commit.at.isoformat(),
            "license": licence(project),
            **({"fail_to_pass": len(pair.fail_to_pass), "pass_to_pass": len(pair.pass_to_pass),
                "unstable": len(pair.unstable)} if pair else {}),
            **(facts or {}),
        },
    )


def write(repository: Repository, material: Material, made: Draft, folder: Path) -> tuple[Task, list[str]]:
    """The task folder, with the parent commit's files as its workspace; links that lead out of it are left out.

    Raises UsageError for files that cannot stand in a workspace (version control data, names no file system has).
    """
    write_task(folder, made)
    workspace = folder / "environment" / "workspace"
    entries = repository.export(material.candidate.commit.parents[0], workspace)
    dropped = _without_stray_links(workspace, entries)
    for path, content in material.project.generated().items():
        place = workspace / path
        if not place.exists() and not any(parent.is_symlink() for parent in place.parents if parent != folder):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
    return load_task(folder), dropped


def slug(text: str) -> str:
    """``text`` as the first part of a task's name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:60] or "repository"


def _bounded(entries: Sequence[Entry], repository: Repository) -> None:
    size = sum(entry.size for entry in entries)
    if size > MAX_TREE_BYTES or len(entries) > MAX_TREE_FILES:
        raise UsageError(f"{len(entries)} files of {size >> 20} MB", file=repository.path,
                         remedy=f"A task's start has at most {MAX_TREE_FILES} and {MAX_TREE_BYTES >> 20} MB.")


def _solution(candidate: Candidate) -> dict[str, bytes]:
    """The source files as they are afterwards, and the script that puts them in place."""
    files = {f"files/{edit.path}": edit.after for edit in candidate.source if edit.after is not None}
    gone = [edit.path for edit in candidate.source if edit.after is None]
    lines = ["#!/bin/bash", "set -e", *(["cp -R /solution/files/. ."] if files else []),
             *(f"rm -f -- {shlex.quote(path)}" for path in gone)]
    script = ("\n".join(lines) + "\n").encode("utf-8", "surrogateescape")
    return {"solve.sh": script, **files}


def _without_stray_links(workspace: Path, entries: Sequence[Entry]) -> list[str]:
    """Remove links that lead out of the workspace (also by way of others), until none is left; their paths."""
    root = workspace.resolve()
    dropped: list[str] = []
    for entry in entries:
        place = workspace / entry.path
        if entry.link and (place.readlink().is_absolute() or not _inside(place, root)):
            place.unlink()
            dropped.append(entry.path)
    return dropped


def _inside(place: Path, root: Path) -> bool:
    try:
        return place.resolve().is_relative_to(root)
    except (OSError, RuntimeError):  # a loop
        return False
