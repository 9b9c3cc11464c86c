"""Release pairs become tasks: real source distributions from a folder of links, real pytest runs as the probe."""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ET  # reports of our own runs
from collections.abc import Mapping
from pathlib import Path

import pytest

from woodshed.errors import EnvironmentFault, UsageError
from woodshed.model import Framework, Task, TestOutcome
from woodshed.pypi import extract, fetch
from woodshed.tasks import load_task, pypi_pair
from woodshed.tasks.import_pypi import State
from woodshed.tasks.sdist import Sdist

OLD = {
    "PKG-INFO": "Metadata-Version: 2.1\nName: tiny-pair\nVersion: 1.0\n",
    "pyproject.toml": "[project]\nname = 'tiny-pair'\n",
    "CHANGES.rst": "1.0\n---\n\n* First.\n",
    "src/tiny_pair/__init__.py": "from tiny_pair.adding import add\n__version__ = '1.0'\n",
    "src/tiny_pair/adding.py": "def add(a, b):\n    return a - b\n",
    "src/tiny_pair/gone.py": "",
    "src/tiny_pair.egg-info/top_level.txt": "tiny_pair\n",
    "tests/test_old.py": "def test_old():\n    pass\n",
    "conftest.py": "",
}
TESTS = """\
import importlib.metadata
import pathlib
import random

import pytest
import tiny_pair


@pytest.mark.parametrize("n", [0, 1])
def test_add(n, one):
    assert tiny_pair.add(n, one) == n + 1


def test_version_is_found():
    assert importlib.metadata.version("tiny-pair")


def test_data():
    assert (pathlib.Path(__file__).parent / "data" / "a.txt").read_text() == "a"


def test_fails_anyway():
    assert (pathlib.Path(__file__).parent.parent / "README").exists()


def test_skips():
    pytest.skip("no")
"""
NEW = {
    **OLD,
    "PKG-INFO": "Metadata-Version: 2.1\nName: tiny-pair\nVersion: 1.1\n"
                "Classifier: License :: OSI Approved :: MIT License\n"
                "Requires-Dist: idna>=2 ; python_version >= '3.8'\nRequires-Dist: rich ; extra == 'x'\n"
                "Requires-Dist: bad @ https://example.org/bad.whl\n",
    "pyproject.toml": "[tool.pytest.ini_options]\npython_files = ['tests.py']\nmarkers = ['slow: takes long']\n",
    "CHANGES.rst": "1.1\n---\n\n* ``add`` adds.\n\n1.0\n---\n\n* First.\n",
    "src/tiny_pair/__init__.py": "from tiny_pair.adding import add\n__version__ = '1.1'\n",
    "src/tiny_pair/adding.py": "from tiny_pair.more import plus\ndef add(a, b):\n    return plus(a, b)\n",
    "src/tiny_pair/more.py": "def plus(a, b):\n    return a + b\n",
    "tests/tests.py": TESTS,
    "tests/data/a.txt": "a",
    "tests/__init__.py": "",
    "conftest.py": "import pytest\n@pytest.fixture\ndef one():\n    return 1\n",
}
del NEW["src/tiny_pair/gone.py"], NEW["tests/test_old.py"]


def sdist(folder: Path, version: str, files: Mapping[str, str], name: str = "tiny_pair") -> None:
    with tarfile.open(folder / f"{name}-{version}.tar.gz", "w:gz") as archive:
        for path, text in files.items():
            info = tarfile.TarInfo(f"{name}-{version}/{path}")
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))


@pytest.fixture
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole index, with both releases in it."""
    folder = tmp_path / "links"
    folder.mkdir()
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    sdist(folder, "1.0", OLD)
    sdist(folder, "1.1", NEW)
    return folder


class Bench:
    """A probe that runs the task's pytest with its folders moved below ``place``; counts what it was asked."""

    def __init__(self, place: Path) -> None:
        self.place, self.asked, self.flip = place, list[str](), False

    async def __call__(self, task: Task, state: State) -> Mapping[str, TestOutcome]:
        self.asked.append(state)
        outcomes = await asyncio.to_thread(self._run, task, state, self.place / str(len(self.asked)))
        if self.flip and len(self.asked) == 3:
            outcomes["tests::test_data"] = TestOutcome.FAILED
        return outcomes

    def _run(self, task: Task, state: State, place: Path) -> dict[str, TestOutcome]:
        work, tests = place / "workspace", place / "tests"
        shutil.copytree(task.environment.uploads[0].source, work)
        shutil.copytree(task.verifier.tests, tests)
        if state == "reference":
            assert task.solution is not None
            script = (task.solution / "solve.sh").read_text().replace("/solution/", f"{task.solution}/")
            subprocess.run(["bash", "-c", script], cwd=work, check=True)
        ini = (tests / "pytest.ini").read_text().replace("/workspace", str(work))
        (tests / "pytest.ini").write_text(ini)
        subprocess.run([sys.executable, "-P", "-m", "pytest", "-c", tests / "pytest.ini", f"--rootdir={tests}", "-q",
                        "-p", "no:cacheprovider", tests, f"--junitxml={place}/junit.xml"], cwd=work,
                       env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}, capture_output=True)
        return {f"{case.get('classname')}::{case.get('name')}": _outcome(case)
                for case in ET.parse(place / "junit.xml").iter("testcase")}


def _outcome(case: ET.Element) -> TestOutcome:
    tags = {"failure": TestOutcome.FAILED, "error": TestOutcome.ERROR, "skipped": TestOutcome.SKIPPED}
    return next((outcome for tag, outcome in tags.items() if case.find(tag) is not None), TestOutcome.PASSED)


async def test_a_pair_becomes_a_task_whose_tests_are_measured(tmp_path: Path, links: Path) -> None:
    """Expected are the tests that pass on the newer source; the start is the older one without tests or answers."""
    probe, heard = Bench(tmp_path / "bench"), list[int]()
    (tmp_path / "out/other").mkdir(parents=True)
    folder = await pypi_pair("tiny-pair", "1.0", "1.1", tmp_path / "out", probe=probe,
                             progress=lambda done, total, what: heard.append(done))
    task = load_task(folder)
    assert (task.id, task.verifier.framework) == ("tiny-pair-1.0-to-1.1", Framework.PYTEST)
    assert task.verifier.expected_tests == (
        "tests::test_add[0]", "tests::test_add[1]", "tests::test_data", "tests::test_version_is_found")
    assert (task.metadata["fail_to_pass"], task.metadata["pass_to_pass"], task.metadata["license"]) == (
        2, 2, "MIT License")
    assert task.environment.requirements == ('idna>=2; python_version >= "3.8"',)
    assert probe.asked == ["start", "reference", "reference"]
    assert heard == [1, 2, 3, 4, 5]
    assert "``add`` adds." in task.instruction
    assert "First." not in task.instruction
    start = task.environment.uploads[0].source
    assert sorted(str(path.relative_to(start)) for path in start.rglob("*") if path.is_file()) == [
        "CHANGES.rst", "pyproject.toml", "src/tiny_pair-1.0.dist-info/METADATA", "src/tiny_pair/__init__.py",
        "src/tiny_pair/adding.py", "src/tiny_pair/gone.py"]
    assert "a - b" in (start / "src/tiny_pair/adding.py").read_text()
    assert sorted(path.name for path in task.verifier.tests.iterdir()) == [
        "conftest.py", "data", "pytest.ini", "test.sh", "tests.py"]


async def test_the_reference_brings_and_removes_exactly_what_differs(tmp_path: Path, links: Path) -> None:
    """The solution holds the package's changed files, and removes those the newer release dropped."""
    folder = await pypi_pair("tiny-pair", "1.0", "1.1", tmp_path / "out", probe=Bench(tmp_path / "bench"))
    files = folder / "solution/files"
    assert sorted(str(path.relative_to(files)) for path in files.rglob("*.*")) == [
        "src/tiny_pair/__init__.py", "src/tiny_pair/adding.py", "src/tiny_pair/more.py"]
    assert "rm -f -- src/tiny_pair/gone.py" in (folder / "solution/solve.sh").read_text()


async def test_a_test_that_does_not_repeat_is_not_expected(tmp_path: Path, links: Path) -> None:
    """What passes once of twice on the newer source is counted as unstable and left out."""
    probe = Bench(tmp_path / "bench")
    probe.flip = True
    task = load_task(await pypi_pair("tiny-pair", "1.0", "1.1", tmp_path / "out", probe=probe))
    assert "tests::test_data" not in task.verifier.expected_tests
    assert task.metadata["unstable"] == 1


async def test_without_notes_the_failing_tests_are_named(tmp_path: Path, links: Path) -> None:
    """An agent that gets no change log is told which tests do not pass yet."""
    sdist(links, "1.1", {name: text for name, text in NEW.items() if name != "CHANGES.rst"})
    folder = await pypi_pair("tiny-pair", "1.0", "1.1", tmp_path / "out", probe=Bench(tmp_path / "bench"))
    assert "- `tests::test_add[0]`\n- `tests::test_add[1]`\n" in (folder / "instruction.md").read_text()


@pytest.mark.parametrize(("change", "says"), [
    ({"src/tiny_pair/adding.py": OLD["src/tiny_pair/adding.py"], "tests/tests.py": "def test_a():\n    pass\n"},
     "all 1 tests pass on 1.0 already"),
    ({"tests/tests.py": "import nowhere_to_be_found\n"}, "none of its .* passes on its own source"),
    ({"tests/tests.py": None, "tests/__init__.py": None}, "ships no tests"),
    ({"src/tiny_pair/__init__.py": None}, "no package or module"),
])
async def test_a_pair_that_makes_no_task_is_refused(
    tmp_path: Path, links: Path, change: dict[str, str | None], says: str
) -> None:
    """Nothing to mend, nothing that passes, no tests, no package: each is named, and nothing is written."""
    sdist(links, "1.1", {name: text for name, text in {**NEW, **change}.items() if text is not None})
    with pytest.raises(UsageError, match=says):
        await pypi_pair("tiny-pair", "1.0", "1.1", tmp_path / "out", probe=Bench(tmp_path / "bench"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("package", "old", "new", "says"), [
    ("../x", "1.0", "1.1", "no package name"), ("tiny-pair", "one", "1.1", "no version"),
    ("tiny-pair", "1.1", "1.0", "not older"), ("tiny-pair", "1.0", "9.9", "9.9"),
])
async def test_what_cannot_be_a_pair_is_refused(
    tmp_path: Path, links: Path, package: str, old: str, new: str, says: str
) -> None:
    """Names and versions are checked before anything is fetched; an absent release is named."""
    with pytest.raises(UsageError, match=says):
        await pypi_pair(package, old, new, tmp_path / "out", probe=Bench(tmp_path / "bench"))


async def test_an_existing_task_is_kept_unless_forced(tmp_path: Path, links: Path) -> None:
    """A second import refuses before it fetches, and replaces by force."""
    probe = Bench(tmp_path / "bench")
    folder = await pypi_pair("tiny-pair", "1.0", "1.1", tmp_path / "out", probe=probe)
    with pytest.raises(UsageError, match="exists already"):
        await pypi_pair("tiny-pair", "1.0", "1.1", tmp_path / "out", probe=probe)
    assert len(probe.asked) == 3
    assert await pypi_pair("tiny-pair", "1.0", "1.1", tmp_path / "out", probe=probe, force=True) == folder


async def test_a_failing_probe_leaves_nothing(tmp_path: Path, links: Path) -> None:
    """A fault of the sandbox passes through unchanged, and no half task stays behind."""
    async def broken(task: Task, state: State) -> Mapping[str, TestOutcome]:
        raise EnvironmentFault("the disk is full")

    with pytest.raises(EnvironmentFault, match="disk is full"):
        await pypi_pair("tiny-pair", "1.0", "1.1", tmp_path / "out", probe=broken)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["links"]


REAL = [
    ("voluptuous", "0.15.1", "0.15.2", [], "tests.py", "ALLOW_EXTRA"),
    ("xmltodict", "1.0.2", "1.0.3", [], "test_dicttoxml.py", ""),
    ("more-itertools", "10.6.0", "10.7.0", [], "test_more.py", "multinomial"),
    ("jinja2", "3.1.4", "3.1.5", ["MarkupSafe>=2.0", "trio"], "conftest.py", ""),
]


@pytest.mark.parametrize(("package", "old", "new", "needs", "test", "note"), REAL, ids=[row[0] for row in REAL])
def test_real_releases_are_understood(
    tmp_path: Path, package: str, old: str, new: str, needs: list[str], test: str, note: str
) -> None:
    """Package, tests, requirements and notes of four well-known packages are found in their source distributions."""
    releases = []
    for version in (old, new):
        try:
            archive = fetch(f"{package}=={version}", tmp_path / "archives", kind="sdist")
        except EnvironmentFault as fault:
            pytest.skip(f"needs the Python package index (set pip's index-url to one that answers): {fault}")
        extract(archive, tmp_path / version, strip=1)
        releases.append(Sdist(tmp_path / version, package, version))
    before, after = releases
    assert after.requirements() == needs
    assert test in after.hidden()
    assert note in after.notes()
    assert before.source() != after.source()
    assert not any(path.startswith(("tests/", "voluptuous/tests/")) for path in before.start())
