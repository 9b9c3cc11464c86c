"""The example tasks are whole: every part stands where a task folder must have it."""

from __future__ import annotations

import ast
import os
import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "tasks"
TASKS = sorted(path.parent for path in EXAMPLES.glob("*/*/task.toml"))
TABLES = {"schema_version", "artifacts", "task", "metadata", "agent", "verifier", "environment", "woodshed"}
MAX_FILE_BYTES = 200_000


def _config(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "task.toml").read_text())


def _pytest_ids(folder: Path) -> set[str]:
    """The ``module::function`` of every test function; parametrised ids are cut at the bracket."""
    found = set()
    for file in folder.glob("tests/test_*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                found.add(f"{file.stem}::{node.name}")
    return found


def _node_ids(folder: Path) -> set[str]:
    """Node's JUnit reporter calls every class ``test`` and names a test by its title."""
    source = "".join(file.read_text() for file in folder.glob("tests/*.test.*"))
    return {f"test::{title}" for title in re.findall(r'^\s*(?:test|it)\("([^"]+)"', source, re.MULTILINE)}


def test_the_collections_are_complete() -> None:
    """Ten first steps and at least twelve workbench tasks are there, and no folder beside them lacks a task.toml."""
    counts = Counter(folder.parent.name for folder in TASKS)
    assert counts["first-steps"] == 10
    assert counts["workbench"] >= 12
    assert {path for path in EXAMPLES.glob("*/*") if path.is_dir()} == set(TASKS)


def test_names_are_unique_and_match_their_folders() -> None:
    """A task is named after its folder, and no two folders share a name, whatever their collection."""
    assert [_config(folder)["task"]["name"] for folder in TASKS] == [f"woodshed/{folder.name}" for folder in TASKS]
    assert max(Counter(folder.name for folder in TASKS).values()) == 1


@pytest.mark.parametrize("folder", TASKS, ids=lambda folder: folder.name)
def test_the_task_file_declares_what_a_task_needs(folder: Path) -> None:
    """The tables are known ones, the licence is ours, and the limits, the image and the expected tests are stated."""
    config = _config(folder)
    assert config["schema_version"] == "1.4"
    assert set(config) <= TABLES
    assert config["task"]["description"]
    assert config["task"]["keywords"]
    assert config["metadata"]["licence"] == "Apache-2.0"
    assert config["agent"]["timeout_sec"] > 0
    assert config["verifier"]["timeout_sec"] > 0
    assert config["environment"]["workdir"] == "/workspace"
    assert config["woodshed"]["image"] == "host"


@pytest.mark.parametrize("folder", TASKS, ids=lambda folder: folder.name)
def test_every_part_is_there(folder: Path) -> None:
    """Instruction, Dockerfile, start files, an executable test.sh and an executable solve.sh stand in the folder."""
    assert (folder / "instruction.md").read_text().strip()
    assert "COPY workspace/ /workspace/" in (folder / "environment" / "Dockerfile").read_text()
    assert any(path.is_file() for path in (folder / "environment" / "workspace").rglob("*"))
    for script in (folder / "tests" / "test.sh", folder / "solution" / "solve.sh"):
        assert script.read_text().startswith("#!/bin/bash\n")
        assert os.access(script, os.X_OK), script


@pytest.mark.parametrize("folder", TASKS, ids=lambda folder: folder.name)
def test_the_folder_holds_nothing_it_should_not(folder: Path) -> None:
    """No git history, no bytecode, no link and no large file comes with a task."""
    for path in folder.rglob("*"):
        assert path.name not in {".git", "__pycache__", "node_modules"}
        assert not path.is_symlink()
        assert path.is_dir() or path.stat().st_size <= MAX_FILE_BYTES, path


@pytest.mark.parametrize("folder", TASKS, ids=lambda folder: folder.name)
def test_the_expected_tests_are_the_hidden_tests(folder: Path) -> None:
    """The ids are distinct and name exactly the tests of the folder; reward names use these ids only."""
    woodshed = _config(folder)["woodshed"]
    expected = woodshed["expected_tests"]
    assert expected
    assert max(Counter(expected).values()) == 1
    if woodshed["framework"] == "node":
        assert set(expected) == _node_ids(folder)
    else:
        assert {test.partition("[")[0] for test in expected} == _pytest_ids(folder)
    assert {test for tests in woodshed.get("rewards", {}).values() for test in tests} <= set(expected)


@pytest.mark.parametrize("folder", TASKS, ids=lambda folder: folder.name)
def test_the_instruction_is_silent_about_the_hidden_tests(folder: Path) -> None:
    """The user's words name no hidden test file, no mount of the verifier and no expected test."""
    words = (folder / "instruction.md").read_text()
    hidden = [path.name for path in (folder / "tests").rglob("*") if path.is_file()] + ["/solution", "/logs/verifier"]
    hidden += [test.partition("::")[2] for test in _config(folder)["woodshed"]["expected_tests"]]
    assert not [name for name in hidden if name in words]
