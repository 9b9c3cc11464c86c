"""Rows of five data sets become tasks with a start, a reference and hidden tests; hostile ones are refused by name."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swerows import FAILING, SOUND, git, rows
from woodshed.errors import UsageError
from woodshed.model import Framework
from woodshed.tasks import load_task
from woodshed.tasks.import_swe import swe_tasks
from woodshed.tasks.nodeids import Defined, mapped, report_id

IDS = ("tests.test_plane.TestArea::test_flat", "tests.test_plane.TestArea::test_square[1]",
       "tests.test_plane.TestArea::test_square[3]", "tests.test_plane::test_double")
R2E_IDS = ("r2e_tests.test_1.TestArea::test_flat", "r2e_tests.test_1.TestArea::test_square[1]",
           "r2e_tests.test_1::test_double")


def written(file: Path, *data: Any) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in data))
    return file


def test_each_data_sets_columns_make_a_task(tmp_path: Path) -> None:
    """The start has the bug and no history, the reference mends it, the tests that judge are hidden and protected."""
    made = rows(tmp_path)
    file = written(tmp_path / "rows.jsonl", *made.values())
    folders = swe_tasks(file, tmp_path, tmp_path / "out")
    assert [folder.name for folder in folders[:4]] == [row["instance_id"] for row in made.values() if "patch" in row]
    for family, folder in zip(made, folders, strict=True):
        task = load_task(folder)
        start = folder / "environment/workspace"
        assert "width + height" in (start / "src/shapes/plane.py").read_text(), family
        assert not (start / ".git").exists()
        assert (start / "README.md").read_text() == "Shapes.\n"
        assert (folder / "solution/files/src/shapes/plane.py").read_text() == SOUND
        assert sorted(path.name for path in (folder / "solution/files").rglob("*.py")) == ["plane.py"]
        hidden = "r2e_tests/test_1.py" if family == "r2e" else "tests/test_plane.py"
        assert "TestArea" in (folder / "tests" / hidden).read_text()
        assert task.verifier.expected_tests == (R2E_IDS if family == "r2e" else IDS)
        assert task.verifier.protected == (hidden,)
        assert task.verifier.framework is Framework.PYTEST
        assert task.metadata["dataset"] == family
        assert "It adds where it should multiply." in task.instruction
    assert load_task(folders[2]).environment.requirements == ("pytest-cov", "iniconfig>=2")
    assert "TestArea" in (folders[3] / "environment/workspace/tests/test_plane.py").read_text()


def test_an_archive_of_the_commit_will_do(tmp_path: Path) -> None:
    """Without a clone the source is NAME-COMMIT.tar.gz, with or without a folder at its top; the tasks are the same."""
    row = rows(tmp_path)["swe-bench"]
    file = written(tmp_path / "rows.jsonl", row)
    of_clone = load_task(swe_tasks(file, tmp_path, tmp_path / "a")[0])
    archives = tmp_path / "archives"
    archives.mkdir()
    for prefix in ((), ("--prefix=shapes-x/",)):
        archive = archives / f"shapes-{row['base_commit']}.tar.gz"
        git(tmp_path / "shapes", "archive", *prefix, "-o", str(archive), row["base_commit"])
        of_archive = load_task(swe_tasks(file, archives, tmp_path / "b", force=True)[0])
        assert of_archive.digest == of_clone.digest
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(tmp_path / "shapes", "shapes")
    with pytest.raises(UsageError, match="version control data"):
        swe_tasks(file, archives, tmp_path / "c")


HOSTILE: dict[str, tuple[str, Callable[[dict[str, Any]], dict[str, Any]], str, str]] = {
    "an id with a path": ("swe-bench", lambda row: {"instance_id": "../../x"}, "instance_id", "cannot be used"),
    "a repository elsewhere": ("swe-bench", lambda row: {"repo": "../shapes"}, "repo", "cannot be used"),
    "a repository of the host": ("swe-bench", lambda row: {"repo": "/etc"}, "repo", "cannot be used"),
    "no clone": ("swe-bench", lambda row: {"repo": "geometry/other"}, "--repo-dir", "neither a clone"),
    "an option": ("swe-bench", lambda row: {"base_commit": "--all"}, "base_commit", "cannot be used"),
    "an unknown commit": ("swe-bench", lambda row: {"base_commit": "0" * 40}, "None", "holds no commit"),
    "a patch out of the tree": (
        "swe-bench", lambda row: {"patch": row["patch"].replace("src/shapes", "../../shapes")}, "patch",
        "does not apply"),
    "a patch of git's own": (
        "swe-bench", lambda row: {"test_patch": "--- /dev/null\n+++ b/.git/hooks/x\n@@ -0,0 +1 @@\n+x\n"},
        "test_patch", "does not apply"),
    "a patch through a link": (
        "swe-bench", lambda row: {"test_patch": "diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n"
                                                "@@ -0,0 +1 @@\n+/tmp\n\\ No newline at end of file\n"
                                                "diff --git a/l/x b/l/x\nnew file mode 100644\n--- /dev/null\n"
                                                "+++ b/l/x\n@@ -0,0 +1 @@\n+x\n"}, "test_patch", "does not apply"),
    "another source": ("swe-bench", lambda row: {"patch": row["patch"].replace("+ height", "- height")}, "patch",
                       "does not apply"),
    "no patch": ("swe-gym", lambda row: {"patch": " "}, "patch", "empty"),
    "no text": ("swe-gym", lambda row: {"problem_statement": 7}, "problem_statement", "no text"),
    "no list": ("swe-gym", lambda row: {"FAIL_TO_PASS": "{}"}, "FAIL_TO_PASS", "no list"),
    "no test to mend": ("swe-gym", lambda row: {"FAIL_TO_PASS": []}, "FAIL_TO_PASS", "names no test"),
    "a test of no file": ("swe-gym", lambda row: {"FAIL_TO_PASS": ["tests/gone.py::test_a"]}, "FAIL_TO_PASS",
                          "no such test file"),
    "a test elsewhere": ("swe-gym", lambda row: {"FAIL_TO_PASS": ["../../x/test_a.py::test_a"]}, "FAIL_TO_PASS",
                         "no such test file"),
    "a test of unittest": ("swe-gym", lambda row: {"FAIL_TO_PASS": ["test_a (tests.test_plane.T)"]}, "FAIL_TO_PASS",
                           "no test that pytest could report"),
    "a cut id": ("swe-gym", lambda row: {"FAIL_TO_PASS": ["tests/test_plane.py::test_a[b"]}, "FAIL_TO_PASS",
                 "no test that pytest"),
    "no commit": ("swe-smith", lambda row: {"repo": "shapes"}, "repo", "names no commit"),
    "a test file's name": (
        "r2e", lambda row: {"execution_result_content": {"test_file_names": ["../x.py"], "test_file_codes": [""]}},
        "execution_result_content", "no test file's name"),
    "no test files": ("r2e", lambda row: {"execution_result_content": "[]"}, "execution_result_content", "no object"),
    "nothing expected": ("r2e", lambda row: {"expected_output_json": {"test_double": "FAILED"}},
                         "expected_output_json", "no test to pass"),
}


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, dict[str, Any]]]:
    """Where the clone lies, and a row of each kind."""
    folder = tmp_path_factory.mktemp("known")
    return folder, rows(folder)


@pytest.mark.parametrize(("family", "change", "field", "says"), list(HOSTILE.values()), ids=list(HOSTILE))
def test_a_hostile_row_is_refused_by_file_line_and_field(
    family: str, change: Callable[[dict[str, Any]], dict[str, Any]], field: str, says: str, tmp_path: Path,
    known: tuple[Path, dict[str, dict[str, Any]]],
) -> None:
    """Nothing is written, neither where the tasks would lie nor beside."""
    folder, sound = known
    row = {**sound[family], **change(sound[family])}
    file = tmp_path / "rows.jsonl"
    file.write_text("\n" + json.dumps(row))
    with pytest.raises(UsageError) as caught:
        swe_tasks(file, folder, tmp_path / "out")
    assert (str(caught.value.file), str(caught.value.field)) == (f"{file}:2", field)
    assert says in caught.value.message
    assert caught.value.remedy or "holds no commit" in says
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.jsonl"]


def test_rows_may_be_chosen_and_bad_ones_left_out(
    tmp_path: Path, known: tuple[Path, dict[str, dict[str, Any]]]
) -> None:
    """By id, by number, and with every refusal told; two rows of one id are one too many."""
    folder, sound = known
    bad = {**sound["swe-gym"], "repo": "../x"}
    twice = {**sound["swe-bench"], "problem_statement": "again"}
    file = written(tmp_path / "rows.jsonl", bad, sound["swe-bench"], twice, sound["swe-gym"])
    told: list[UsageError] = []
    made = swe_tasks(file, folder, tmp_path / "all", refused=told.append)
    assert [path.name for path in made] == ["geometry__shapes-1", "geometry__shapes-2"]
    assert [str(error.file).rpartition(":")[2] for error in told] == ["1", "3"]
    made = swe_tasks(file, folder, tmp_path / "one", refused=told.append, limit=1)
    assert [path.name for path in made] == ["geometry__shapes-1"]
    made = swe_tasks(file, folder, tmp_path / "named", refused=told.append, only=["geometry__shapes-2"])
    assert [path.name for path in made] == ["geometry__shapes-2"]
    assert load_task(made[0]).environment.requirements == ()
    made = swe_tasks(file, folder, tmp_path / "with", refused=told.append, limit=1, requirements=["iniconfig"])
    assert load_task(made[0]).environment.requirements == ("iniconfig",)
    with pytest.raises(UsageError, match="no row made a task"):
        swe_tasks(file, folder, tmp_path / "none", refused=told.append, only=["other"])


def test_parquet_rows_are_the_same(tmp_path: Path, known: tuple[Path, dict[str, dict[str, Any]]]) -> None:
    """A Parquet file makes the same tasks as JSONL; one that is none is refused."""
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'woodshed[parquet]'")
    from pyarrow import parquet  # type: ignore[import-untyped,unused-ignore]  # ships no types

    folder, sound = known
    row = sound["swe-gym"]
    parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "rows.parquet")
    of_parquet = load_task(swe_tasks(tmp_path / "rows.parquet", folder, tmp_path / "a")[0])
    of_lines = load_task(swe_tasks(written(tmp_path / "rows.jsonl", row), folder, tmp_path / "b")[0])
    assert of_parquet.digest == of_lines.digest
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(UsageError, match="no Parquet"):
        swe_tasks(tmp_path / "broken.parquet", folder, tmp_path / "c")


def test_ids_of_data_sets_become_ids_of_reports() -> None:
    """Whole node ids are mapped as pytest writes JUnit XML; cut ones, and other runners', are none."""
    assert report_id("a/b/test_c.py::T::test_d[x::y/z.py]") == "a.b.test_c.T::test_d[x::y/z.py]"
    assert report_id("test_c.py::test_d") == "test_c::test_d"
    for wrong in ("test_c.py", "test_d (a.B)", "test_c.py::test_d[x", "a::b", "test_c.py::", "test_c.py::a\nb"):
        assert report_id(wrong) is None
    defined = Defined({"a/test_x.py": b"def test_a(): ...\nclass T:\n    def test_b(self): ...\n", "test_y.py": b"("})
    ids, unknown = mapped(["test_a", "T.test_b[1]", "test_c", FAILING[0]], defined)
    assert ids == {"a.test_x::test_a": "a/test_x.py", "a.test_x.T::test_b[1]": "a/test_x.py",
                   "tests.test_plane.TestArea::test_square[1]": "tests/test_plane.py"}
    assert unknown == ["test_c"]
