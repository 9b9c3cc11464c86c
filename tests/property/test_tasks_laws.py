"""Laws of task folders: what is written loads equal, any change shows in the digest, no path leaves its folder."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from woodshed.errors import UsageError
from woodshed.model import Framework, Record, Task
from woodshed.tasks import Draft, load_task, write_task
from woodshed.tasks.folder import digest
from woodshed.tasks.schema import (
    AgentTable,
    ArtifactTable,
    EnvironmentTable,
    PackageTable,
    VerifierTable,
    WoodshedTable,
)
from woodshed.tasks.toml import dumps

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | TEXT
    | st.datetimes() | st.dates() | st.times(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=12,
)
NAMES = st.from_regex(r"[a-z0-9][a-z0-9_.-]{0,10}", fullmatch=True).filter(lambda name: name.strip("."))
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join).filter(lambda path: "__pycache__" not in path)
FILES = st.dictionaries(PATHS, st.binary(max_size=200), max_size=5)
IDS = st.lists(st.from_regex(r"test_[a-z]{1,8}::test_[a-z]{1,8}(\[[ -~]{0,8}\])?", fullmatch=True), max_size=30,
               unique=True)
VARIABLES = TEXT.filter(lambda text: "\0" not in text and "${" not in text)
SHELL = b"#!/bin/bash\n"


@contextmanager
def scratch() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp()).resolve()
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def tree(files: dict[str, bytes]) -> bool:
    """True when no file is also a folder of another."""
    return not any(other.startswith(path + "/") for path in files for other in files)


@given(st.dictionaries(TEXT, VALUES, max_size=5))
def test_what_is_written_as_toml_is_read_back_equal(table: dict[str, Any]) -> None:
    """The standard library reads every table we write, with the same keys, types and values."""
    assert tomllib.loads(dumps(table)) == table


@pytest.mark.parametrize("value", [object(), None, b"x", "\ud800", {"a": {1, 2}}])
def test_what_toml_cannot_hold_is_refused(value: Any) -> None:
    """Nothing is written as text that would read back as something else."""
    with pytest.raises(UsageError):
        dumps({"a": [value]})


def test_numbers_that_are_not_finite_keep_their_value() -> None:
    """TOML has infinity and NaN; records refuse them, the writer does not change them."""
    read = tomllib.loads(dumps({"a": math.inf, "b": -math.inf, "c": math.nan}))
    assert (read["a"], read["b"]) == (math.inf, -math.inf)
    assert math.isnan(read["c"])


@settings(max_examples=60, deadline=None)
@given(st.builds(
    Draft,
    instruction=TEXT.filter(str.strip),
    workspace=FILES.filter(tree),
    tests=FILES.filter(tree).map(lambda files: {f"d/{path}": content for path, content in files.items()}),
    solution=FILES.filter(tree).map(lambda files: {f"d/{path}": content for path, content in files.items()}),
    framework=st.sampled_from([Framework.PYTEST, Framework.SCRIPT, Framework.NODE]),
    expected_tests=IDS.map(tuple),
    protected=st.lists(NAMES, max_size=2).map(tuple),
    requirements=st.lists(st.sampled_from(["a", "b[c]>=1,<2", "d ; python_version > '3'"]), unique=True).map(tuple),
    workdir=st.sampled_from(["/workspace", "/app", "/srv/deep/down"]),
    limits=st.dictionaries(st.sampled_from(["pids", "disk_mb", "memory_mb"]), st.integers(1, 10**6)),
    env=st.dictionaries(st.from_regex(r"[A-Z_]{1,8}", fullmatch=True), VARIABLES, max_size=2),
    agent_timeout_s=st.floats(0.001, 1e9), verifier_timeout_s=st.floats(0.001, 1e9),
    metadata=st.dictionaries(TEXT, VALUES, max_size=3),
))
def test_a_task_loads_as_it_was_written(draft: Draft) -> None:
    """load(write(x)) == x: every value and every file, in what the agent sees, in the tests and in the solution."""
    tests = {**draft.tests, "test.sh": SHELL}
    solution = {**draft.solution, "solve.sh": SHELL} if draft.solution else {}
    rewards = {"all": draft.expected_tests} if draft.expected_tests else {}
    draft = draft.model_copy(update={"tests": tests, "solution": solution, "rewards": rewards})
    with scratch() as place:
        written = write_task(place / "set" / "one", draft)
        task = load_task(place / "set" / "one")
        assert task == written
        assert (task.id, task.group, task.instruction) == ("one", "set", draft.instruction)
        assert files_of(task.environment.uploads[0].source) == draft.workspace
        assert files_of(task.verifier.tests) == tests
        assert (files_of(task.solution) if task.solution else {}) == solution
        assert task.metadata == draft.metadata
        environment, verifier = task.environment, task.verifier
        assert (environment.workdir, environment.env, environment.requirements) == (
            draft.workdir, draft.env, draft.requirements)
        assert {name: getattr(environment.limits, name) for name in draft.limits} == draft.limits
        assert (verifier.expected_tests, verifier.framework, verifier.protected, verifier.rewards) == (
            draft.expected_tests, draft.framework, draft.protected, rewards)
        assert (task.agent_timeout_s, verifier.timeout_s) == (draft.agent_timeout_s, draft.verifier_timeout_s)


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@settings(max_examples=60, deadline=None)
@given(FILES.filter(lambda files: tree(files) and bool(files)), st.data())
def test_any_change_of_a_file_changes_the_digest(files: dict[str, bytes], data: st.DataObject) -> None:
    """A byte, a name, the executable bit, a file more or less: each gives another digest; undone, the first one."""
    with scratch() as place:
        for name, content in files.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes(content)
        before = digest(place)
        victim = place / data.draw(st.sampled_from(sorted(files)))
        content = victim.read_bytes()
        seen = {before}
        victim.write_bytes(content + b"x")
        seen.add(digest(place))
        if content:
            index = data.draw(st.integers(0, len(content) - 1))
            victim.write_bytes(content[:index] + bytes([content[index] ^ 1]) + content[index + 1:])
            seen.add(digest(place))
        victim.write_bytes(content)
        victim.chmod(0o755)
        seen.add(digest(place))
        victim.chmod(0o644)
        victim.rename(victim.with_name(victim.name + "~"))
        seen.add(digest(place))
        victim.with_name(victim.name + "~").unlink()
        seen.add(digest(place))
        victim.mkdir()
        seen.add(digest(place))
        victim.rmdir()
        victim.symlink_to("x")
        seen.add(digest(place))
        assert len(seen) == (8 if content else 7)
        victim.unlink()
        victim.write_bytes(content)
        assert digest(place) == before


def test_the_digest_leaves_out_what_runs_leave_behind(tmp_path: Path) -> None:
    """A calibration record, byte code and a stricter umask are no change of the task; such names below are."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a/file.py").write_text("x")
    before = digest(tmp_path)
    (tmp_path / "calibration.json").write_text("{}")
    (tmp_path / "a/__pycache__").mkdir()
    (tmp_path / "a/__pycache__/file.pyc").write_bytes(b"x")
    (tmp_path / "a/file.py").chmod(0o600)
    assert digest(tmp_path) == before
    (tmp_path / "a/calibration.json").write_text("{}")
    assert digest(tmp_path) != before


def keys(record: type[Record]) -> st.SearchStrategy[dict[str, Any]]:
    """Tables with some of a record's keys and any values at all."""
    return st.dictionaries(st.sampled_from([*record.model_fields, "other"]), VALUES, max_size=3)


@settings(max_examples=300, deadline=None)
@given(st.fixed_dictionaries({}, optional={
    "environment": keys(EnvironmentTable) | VALUES, "verifier": keys(VerifierTable), "agent": keys(AgentTable),
    "woodshed": keys(WoodshedTable), "task": keys(PackageTable), "artifacts": st.lists(keys(ArtifactTable) | TEXT),
    "schema_version": VALUES, "metadata": VALUES,
}))
def test_any_task_file_gives_a_task_or_a_usage_error(table: dict[str, Any]) -> None:
    """No value of any key, however odd, ends in a traceback; and what loads keeps its world apart from ours."""
    with scratch() as place:
        write_task(place / "t", Draft(instruction="x", tests={"test.sh": SHELL}))
        (place / "t/environment/Dockerfile").unlink()
        (place / "t/task.toml").write_text(dumps(table), encoding="utf-8")
        outcome: Task | UsageError
        try:
            outcome = load_task(place / "t")
        except UsageError as error:
            outcome = error
        if isinstance(outcome, UsageError):
            assert outcome.file
            assert outcome.remedy
        else:
            assert not outcome.environment.workdir.startswith(("/tests", "/solution", "/logs/verifier"))


STEPS = st.sampled_from(["..", ".", "a", "workspace", "environment", "tests", "solution", "/", "//", "instruction.md"])


@settings(max_examples=100, deadline=None)
@given(st.lists(STEPS, min_size=1, max_size=7), st.booleans())
def test_no_written_path_leaves_its_part(steps: list[str], absolute: bool) -> None:
    """Whatever a draft calls a file, it lands below its own part of the folder or is refused."""
    path = ("/" if absolute else "") + "/".join(steps)
    with scratch() as place:
        draft = Draft(instruction="x", tests={"test.sh": SHELL}, workspace={path: b"mark"})
        try:
            write_task(place / "t", draft)
        except UsageError:
            found = [file for file in place.rglob("*") if file.is_file() and file.read_bytes() == b"mark"]
            assert not found
        else:
            assert (place / "t/environment/workspace" / path).read_bytes() == b"mark"
            assert ".." not in path.split("/")


@settings(max_examples=100, deadline=None)
@given(st.lists(STEPS, min_size=1, max_size=8), st.sampled_from(["l", "a/l"]))
def test_no_link_brings_an_attempt_to_tests_or_solution(steps: list[str], name: str) -> None:
    """A workspace link loads only when where it leads lies within the workspace."""
    with scratch() as place:
        files = {"test.sh": SHELL}
        write_task(place / "t", Draft(instruction="x", tests=files, solution={"solve.sh": SHELL},
                                      workspace={"a/f": b"", "b": b""}))
        target = "/".join(steps)
        workspace = place / "t/environment/workspace"
        link = workspace / name
        link.symlink_to(target)
        try:
            load_task(place / "t")
        except UsageError:
            return
        assert Path(os.path.realpath(link)).is_relative_to(workspace)
        assert not target.startswith("/")


@settings(max_examples=100, deadline=None)
@given(st.lists(STEPS, min_size=1, max_size=6))
def test_no_declared_workspace_shows_tests_or_solution(steps: list[str]) -> None:
    """Whatever folder a task names as its workspace, it is apart from the tests and the solution."""
    with scratch() as place:
        draft = Draft(instruction="x", tests={"test.sh": SHELL}, solution={"solve.sh": SHELL}, workspace={"a/f": b""})
        write_task(place / "t", draft)
        with (place / "t/task.toml").open("a") as file:
            file.write(f'workspace = "{"/".join(steps)}"\n')
        try:
            [upload] = load_task(place / "t").environment.uploads
        except UsageError:
            return
        seen = {path.resolve() for path in upload.source.rglob("*")} | {upload.source.resolve()}
        assert not seen & {place / "t/tests", place / "t/solution", place / "t/task.toml"}
        assert upload.source.is_relative_to(place / "t")
