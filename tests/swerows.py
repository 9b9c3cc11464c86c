"""A small repository with one mended bug, and rows about it with the columns of five data sets."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

ENV = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_GLOBAL": "/dev/null",
       "GIT_CONFIG_NOSYSTEM": "1", "GIT_AUTHOR_NAME": "A", "GIT_AUTHOR_EMAIL": "a@example.com",
       "GIT_COMMITTER_NAME": "A", "GIT_COMMITTER_EMAIL": "a@example.com"}
BROKEN = "def area(width, height):\n    return width + height\n\n\ndef double(x):\n    return 2 * x\n"
SOUND = BROKEN.replace("+", "*")
OLD_TESTS = "from shapes.plane import double\n\n\ndef test_double():\n    assert double(4) == 8\n"
NEW_TESTS = """\
import pytest

from shapes.plane import area, double


def test_double():
    assert double(4) == 8


class TestArea:
    @pytest.mark.parametrize("side", [1, 3])
    def test_square(self, side):
        assert area(side, side) == side * side

    def test_flat(self):
        assert area(0, 5) == 0
"""
FILES = {
    "pyproject.toml": '[project]\nname = "shapes"\nversion = "1.0"\n[tool.pytest.ini_options]\naddopts = "--cov"\n',
    "src/shapes/__init__.py": "",
    "src/shapes/plane.py": BROKEN,
    "tests/test_plane.py": OLD_TESTS,
    "README.md": "Shapes.\n",
}
FAILING = ["tests/test_plane.py::TestArea::test_square[1]", "tests/test_plane.py::TestArea::test_square[3]",
           "tests/test_plane.py::TestArea::test_flat"]
PASSING = ["tests/test_plane.py::test_double"]
ISSUE = "The area of a square is wrong.\n\nIt adds where it should multiply."


def git(repo: Path, *args: str) -> str:
    """The ordinary git of whoever made the repository."""
    done = subprocess.run(["git", *args], cwd=repo, env=ENV, check=True, capture_output=True, text=True)
    return done.stdout


def repository(folder: Path) -> tuple[str, str]:
    """(the commit before the fix, the one with it) of a new repository in ``folder``."""
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    commits: list[str] = []
    for files in (FILES, {"src/shapes/plane.py": SOUND, "tests/test_plane.py": NEW_TESTS}):
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content)
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "-m", "Mend the area" if commits else "Begin")
        commits.append(git(folder, "rev-parse", "HEAD").strip())
    return commits[0], commits[1]


def rows(folder: Path) -> dict[str, dict[str, Any]]:
    """A row of each data set about the repository in ``folder``/shapes, which is made."""
    repo = folder / "shapes"
    before, after = repository(repo)
    fix, test_patch = (git(repo, "diff", before, after, "--", part) for part in ("src", "tests"))
    bug = git(repo, "diff", after, before, "--", "src")
    swe = {
        "repo": "geometry/shapes", "instance_id": "geometry__shapes-1", "base_commit": before, "patch": fix,
        "test_patch": test_patch, "problem_statement": ISSUE, "hints_text": "", "created_at": "2026-01-01",
        "version": "1.0", "FAIL_TO_PASS": json.dumps(FAILING), "PASS_TO_PASS": json.dumps(PASSING),
        "environment_setup_commit": before,
    }
    gym = {**swe, "instance_id": "geometry__shapes-2", "FAIL_TO_PASS": FAILING, "PASS_TO_PASS": PASSING}
    del gym["environment_setup_commit"]
    rebench = {**gym, "instance_id": "geometry__shapes-3", "install_config": {
        "pip_packages": ["pytest", "pytest-cov", "-e .", "iniconfig>=2"], "test_cmd": "pytest"}}
    smith = {
        "instance_id": "geometry__shapes.abc.lm__1", "repo": f"swesmith/geometry__shapes.{after[:8]}", "patch": bug,
        "FAIL_TO_PASS": FAILING, "PASS_TO_PASS": PASSING, "image_name": "x", "problem_statement": ISSUE,
    }
    r2e = {
        "repo_name": "shapes", "commit_hash": after, "docker_image": "x", "problem_statement": ISSUE,
        "parsed_commit_content": json.dumps({"old_commit_hash": f"{after}^", "new_commit_hash": after}),
        "execution_result_content": json.dumps({"test_file_names": ["test_1.py"], "test_file_codes": [NEW_TESTS]}),
        "expected_output_json": json.dumps({"test_double": "PASSED", "TestArea.test_flat": "PASSED",
                                            "\x1b[1mTestArea.test_square[1]": "PASSED", "test_gone": "FAILED"}),
    }
    return {"swe-bench": swe, "swe-gym": gym, "swe-rebench": rebench, "swe-smith": smith, "r2e": r2e}
