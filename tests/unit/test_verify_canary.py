"""The canary fails, under a name no one knows before; the poison fails under a name everyone knows."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from woodshed.errors import VerifierFault
from woodshed.model import Framework, TestOutcome, VerifierSpec
from woodshed.verify.canary import framework_of, make_canary
from woodshed.verify.poison import make_poison
from woodshed.verify.reports import Report, read_junit

SUITE = '''
"""Docs."""
from __future__ import annotations
import pytest
class TestC:
    def test_in(self): assert 1
    class TestD:
        def test_deep(self):
            """Doc."""
            assert 1
@pytest.mark.parametrize("x", [1, 2])
def test_p(x): assert x
if True:
    def test_if(): pass
'''


def pytest_report(folder: Path) -> Report:
    target = folder.parent / "junit.xml"
    subprocess.run([sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "--rootdir", str(folder),
                    "-p", "no:cacheprovider", f"--junitxml={target}", str(folder)], capture_output=True, check=False,
                   cwd=folder.parent, env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"})
    return read_junit(target.read_bytes())


def test_a_pytest_canary_fails_under_its_name(tmp_path: Path) -> None:
    """Pytest collects the canary's file among others and reports its name as failed."""
    tests = tmp_path / "tests"
    tests.mkdir()
    canaries = [make_canary(Framework.PYTEST, ["tests.test_x::test_retry_after"]) for _ in range(20)]
    for canary in canaries:
        (tests / canary.file).write_bytes(canary.content)
    report = pytest_report(tests)
    assert [report.named(canary.name) for canary in canaries] == [(TestOutcome.FAILED,)] * 20


def test_a_script_canary_fails(tmp_path: Path) -> None:
    """A script canary ends with an error, and its name is its file's stem."""
    for _ in range(20):
        canary = make_canary(Framework.SCRIPT, [])
        assert canary.file == f"{canary.name}.py"
        (tmp_path / canary.file).write_bytes(canary.content)
        ran = subprocess.run([sys.executable, str(tmp_path / canary.file)], capture_output=True, check=False)
        assert ran.returncode == 1


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node on PATH (apt-get install nodejs)")
def test_a_node_canary_fails_under_its_name(tmp_path: Path) -> None:
    """Node's own runner reports the canary's title as failed in JUnit XML."""
    canary = make_canary(Framework.NODE, ["test::adds two numbers"])
    (tmp_path / canary.file).write_bytes(canary.content)
    ran = subprocess.run(["node", "--test", "--test-reporter=junit", str(tmp_path / canary.file)],
                         capture_output=True, check=False)
    assert ran.returncode == 1
    assert read_junit(ran.stdout).named(canary.name) == (TestOutcome.FAILED,)


def test_names_never_repeat() -> None:
    """Two canaries never share a name, and all are made of the tests' own words."""
    names = {make_canary(Framework.PYTEST, ["t::test_alpha_beta", "t::test_gamma"]).name for _ in range(500)}
    assert len(names) == 500
    assert {name.split("_")[1] for name in names} == {"alpha", "beta", "gamma"}


@pytest.mark.parametrize(("name", "framework"), [
    ("test_a.py", Framework.PYTEST), ("sub/a_test.py", Framework.PYTEST), ("check_a.py", Framework.SCRIPT),
    ("a.test.ts", Framework.NODE), ("a.test.mjs", Framework.NODE),
])
def test_the_framework_shows_in_the_files(tmp_path: Path, name: str, framework: Framework) -> None:
    """An undeclared framework is read off the names of the test files; a declared one wins."""
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    assert framework_of(VerifierSpec(tests=tmp_path)) is framework
    assert framework_of(VerifierSpec(tests=tmp_path, framework=Framework.NODE)) is Framework.NODE


def test_no_framework_is_the_tasks_fault(tmp_path: Path) -> None:
    """Where no file tells the framework, the verifier is at fault and says what to set."""
    with pytest.raises(VerifierFault, match="set framework"):
        framework_of(VerifierSpec(tests=tmp_path))


def test_poisoned_pytest_ids_fail_and_others_do_not(tmp_path: Path) -> None:
    """A poisoned suite fails under exactly the poisoned ids, nested classes and parameters included."""
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "test_a.py").write_text(SUITE)
    ids = ("test_a.TestC::test_in", "test_a.TestC.TestD::test_deep", "test_a::test_p[1]", "test_a::test_p[2]",
           "test_a::test_if")
    spec = VerifierSpec(tests=tests, expected_tests=ids)
    seen: set[str] = set()
    for _ in range(4):
        poison = make_poison(spec, Framework.PYTEST)
        assert poison is not None
        assert poison.ids
        assert poison.ids < set(ids)
        seen |= poison.ids
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(tests, copy)
        for name, content in poison.files.items():
            (copy / name).write_bytes(content)
        outcomes = pytest_report(copy).by_id()
        assert {wanted: outcomes[wanted] for wanted in ids} == {
            wanted: [TestOutcome.FAILED if wanted in poison.ids else TestOutcome.PASSED] for wanted in ids}
    assert seen


def test_poisoned_scripts_fail(tmp_path: Path) -> None:
    """A poisoned check file fails before it checks anything, and after it has loaded what is to be checked."""
    (tmp_path / "loaded.py").write_text("print('loaded')\n")
    (tmp_path / "check_a.py").write_text(
        '"""Doc."""\nfrom __future__ import annotations\nimport sys\nsys.path.insert(0, ".")\ntry:\n    import loaded\n'
        'except ImportError:\n    loaded = None\nif loaded:\n    raise SystemExit(0)\nprint("ran")\n')
    poison = make_poison(VerifierSpec(tests=tmp_path, expected_tests=("check_a",)), Framework.SCRIPT)
    assert poison is not None
    assert poison.ids == {"check_a"}
    ran = subprocess.run([sys.executable, "-c", poison.files["check_a.py"]], cwd=tmp_path, capture_output=True,
                         check=False)
    assert (ran.returncode, ran.stdout) == (1, b"loaded\n")
    assert b"AssertionError" in ran.stderr


def test_what_cannot_be_poisoned_is_said(tmp_path: Path) -> None:
    """Node tests, and ids no file defines, give no poison."""
    assert make_poison(VerifierSpec(tests=tmp_path, expected_tests=("test::x",)), Framework.NODE) is None
    assert make_poison(VerifierSpec(tests=tmp_path, expected_tests=("test_a::x",)), Framework.PYTEST) is None
