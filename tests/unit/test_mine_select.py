"""What mining reads off commits: kinds of paths, layout-only changes, reasons, and what a project says of itself."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from kit import ROOT
from woodshed.tasks.mine import Candidate, Commit, Project, Reason, Rejection, screen, select
from woodshed.tasks.mine.formatting import difference
from woodshed.tasks.mine.history import Changed
from woodshed.tasks.mine.licence import licence
from woodshed.tasks.mine.paths import Kind, kind_of

NOW = datetime(2025, 1, 1, tzinfo=UTC)
CODE = b"def f(x):\n    return x\n"
OTHER = b"def f(x):\n    return x + 1\n"
TEST = b"def test_f():\n    assert f(1) == 2\n"


def commit(message: str = "Change", parents: tuple[str, ...] = ("p",), sha: str = "c" * 40) -> Commit:
    return Commit(sha, parents, NOW, message)


def chosen(**files: tuple[bytes | None, bytes | None]) -> Candidate | Rejection:
    """What a commit with these changes is; ``__`` in a name stands for a slash, ``_py`` for .py."""
    blobs: dict[str, bytes] = {}
    changed = []
    for name, (before, after) in files.items():
        path = name.replace("__", "/").replace("_py", ".py").replace("_md", ".md")
        ids = [None if content is None else f"{side}-{path}" for side, content in enumerate((before, after))]
        blobs |= {blob: content for blob, content in zip(ids, (before, after), strict=True)
                  if blob is not None and content is not None}
        changed.append(Changed(path, ids[0], ids[1]))
    return select(commit(), changed, lambda blob: blobs[blob])


@pytest.mark.parametrize(("path", "kind"), [
    ("tests/test_a.py", Kind.TEST), ("pkg/tests/test_a.py", Kind.TEST), ("pkg/a_test.py", Kind.TEST),
    ("tests/data/in.json", Kind.SUPPORT), ("conftest.py", Kind.SUPPORT), ("tests/helpers.py", Kind.SUPPORT),
    ("pkg/a.py", Kind.SOURCE), ("pkg/latest.py", Kind.SOURCE), ("pkg/data.json", Kind.SOURCE),
    ("docs/index.md", Kind.DOCS), ("CHANGELOG", Kind.DOCS), ("LICENSE.txt", Kind.DOCS), ("pkg/README.rst", Kind.DOCS),
    ("pyproject.toml", Kind.CONFIG), (".github/workflows/ci.yml", Kind.CONFIG), ("requirements-dev.txt", Kind.CONFIG),
])  # fmt: skip
def test_every_path_has_a_kind(path: str, kind: Kind) -> None:
    """Tests, what they stand on, source, documents and configuration are told apart by their paths."""
    assert kind_of(path) is kind


@pytest.mark.parametrize(("before", "after", "expected"), [
    (b"x = 1\n", b"x = 1\n", "none"),
    (b"x = {'a': 1}\n", b"x = {\n    'a': 1,\n}  # why\n", "layout"),
    (b'def f():\n    """Old."""\n', b'def f():\n    """New."""\n', "docstrings"),
    (b"def f():\n    return 1\n", b'def f():\n    """New."""\n    return 1\n', "docstrings"),
    (b"x = 1\n", b"x = 2\n", "code"), (b"x = (\n", b"x = 1\n", "code"), (None, b"", "code"),
    (b"'\\d'\n", b'"\\d"\n', "layout"), (b"-" * 9000 + b"1\n", b"-" * 9001 + b"1\n", "code"),
], ids=["same", "layout", "docstring", "documented", "value", "broken", "new file", "escape", "deep"])  # fmt: skip
def test_layout_is_told_from_code(before: bytes | None, after: bytes | None, expected: str) -> None:
    """Equal syntax trees differ in layout alone, whatever the bytes; what cannot be parsed counts as code."""
    assert difference(before, after) == expected


@pytest.mark.parametrize(("files", "reason"), [
    ({"docs__a_md": (b"a", b"b")}, Reason.DOCS_ONLY),
    ({"a_py": (CODE, b"def f(x):\n    return (x)\n")}, Reason.FORMATTING_ONLY),
    ({"a_py": (CODE, OTHER)}, Reason.NO_TESTS_CHANGED),
    ({"tests__test_a_py": (None, TEST)}, Reason.NO_SOURCE_CHANGED),
    ({"a_py": (CODE, CODE + b"# why\n"), "tests__test_a_py": (None, TEST)}, Reason.FORMATTING_ONLY),
    ({"a_py": (CODE, OTHER), "tests__test_a_py": (TEST, TEST + b"# why\n")}, Reason.FORMATTING_ONLY),
    ({"a_py": (None, b"x = 1\n" * 2000), "tests__test_a_py": (None, TEST)}, Reason.TOO_LARGE),
    ({"a_py": (None, b"#" * 1_000_001), "tests__test_a_py": (None, TEST)}, Reason.TOO_LARGE),
    ({}, Reason.DOCS_ONLY),
])  # fmt: skip
def test_what_cannot_be_a_task_has_its_reason(
    files: dict[str, tuple[bytes | None, bytes | None]], reason: Reason
) -> None:
    """A commit without an effective change of source and of tests is refused by name before anything runs."""
    found = chosen(**files)
    assert isinstance(found, Rejection)
    assert found.reason is reason


def test_layout_only_files_are_left_out_of_a_candidate() -> None:
    """The fix of a candidate is what changes the program, not what was formatted beside it."""
    found = chosen(a_py=(CODE, OTHER), b_py=(CODE, CODE + b"# why\n"), tests__test_a_py=(None, TEST))
    assert isinstance(found, Candidate)
    assert [edit.path for edit in found.source] == ["a.py"]
    assert found.test_files == ("tests/test_a.py",)


@pytest.mark.parametrize(("message", "parents", "reason"), [
    ("Merge", ("a", "b"), Reason.MERGE), ("Begin", (), Reason.INITIAL),
    ('Revert "Add x"\n\nThis reverts commit 0123456789.', ("a",), Reason.REVERT),
])  # fmt: skip
def test_the_head_of_a_commit_may_be_enough(message: str, parents: tuple[str, ...], reason: Reason) -> None:
    """Merges, first commits and reverts are known by their head."""
    found = screen(commit(message, parents), {})
    assert found is not None
    assert found.reason is reason


def test_what_was_taken_back_later_is_no_task() -> None:
    """A commit that a later one reverts is refused, and its neighbours are not."""
    reverted = {"c" * 12: "d" * 40}
    found = screen(commit(), reverted)
    assert found is not None
    assert found.reason is Reason.REVERTED
    assert screen(commit(sha="e" * 40), reverted) is None


def project(**files: str) -> Project:
    named = {name.replace("__", "/").replace("_toml", ".toml").replace("_cfg", ".cfg").replace("_py", ".py")
             .replace("_txt", ".txt"): text.encode() for name, text in files.items()}
    return Project.of(named, named.get)


def test_requirements_come_from_wherever_a_project_names_them() -> None:
    """Runtime requirements always, test extras where tests use them, and imports that nothing names as guesses."""
    made = project(
        pyproject_toml='[project]\nname = "kit"\ndependencies = ["attrs>=22", "kit", "x @ https://e.example/x.whl"]\n'
        '[project.optional-dependencies]\ntest = ["hypothesis>=6", "black", "pytest>=7"]\n',
        setup_py="from setuptools import setup\nneeds = ['click>=8']\nsetup(install_requires=needs)\n",
        kit____init___py="", tests__helpers_py="",
    )
    tests = {"tests/test_a.py": b"import os, helpers, yaml, hypothesis, pytest, kit\n\ndef test_x(mocker): ...\n"}
    needs = made.needs(tests)
    assert needs.declared == ("attrs>=22", "click>=8", "hypothesis>=6")
    assert needs.guessed == ("pytest-mock", "PyYAML")


@pytest.mark.parametrize(("written", "meant"), [
    ("^1.2", ">=1.2,<2"), ("^0.3.1", ">=0.3.1,<0.4"), ("~1.2.3", ">=1.2.3,<1.3"), (">=1,<3", ">=1,<3"),
    ("1.4", "==1.4"), ("*", ""),
])  # fmt: skip
def test_poetrys_ranges_mean_what_they_mean(written: str, meant: str) -> None:
    """Caret and tilde become plain bounds."""
    made = project(pyproject_toml=f'[tool.poetry]\nname = "kit"\n[tool.poetry.dependencies]\nattrs = "{written}"\n')
    (found,) = made.needs({}).declared
    assert set(found.removeprefix("attrs").split(",")) == set(meant.split(","))


def test_a_src_layout_is_found_and_generated_files_are_made() -> None:
    """Packages below src are imported from there; a version module and metadata that a build makes stand in for it."""
    made = project(
        pyproject_toml='[project]\nname = "my-kit"\n[tool.setuptools_scm]\nversion_file = "src/kit/_version.py"\n',
        src__kit____init___py="import importlib.metadata\n", tests__test_a_py="",
    )
    assert made.bases == ("src", "")
    assert made.packages() == {"kit"}
    assert set(made.generated()) == {"src/kit/_version.py", "src/my_kit-0.0.0.dist-info/METADATA"}


@pytest.mark.parametrize("path", ["/etc/x.py", "../x.py", "a/../../x.py", ".git/x.py", "x"])
def test_no_file_is_generated_outside_the_project(path: str) -> None:
    """A version module is only made at a plain path below the project."""
    assert project(pyproject_toml=f'[tool.setuptools_scm]\nwrite_to = "{path}"\n').generated() == {}


BSD = "Redistribution and use in source and binary forms, with or without modification, are permitted."


@pytest.mark.parametrize(("files", "name"), [
    ({"LICENSE": (ROOT / "LICENSE").read_text()}, "Apache-2.0"),
    ({"COPYING_txt": "The MIT License\n\nPermission is hereby granted, free of charge, to any person\nobtaining a "
                     "copy"}, "MIT"),
    ({"LICENCE": f"{BSD} Neither the name of the author"}, "BSD-3-Clause"), ({"LICENSE": BSD}, "BSD-2-Clause"),
    ({"LICENSE": "GNU GENERAL PUBLIC LICENSE\n  Version 3, 29 June 2007"}, "GPL-3.0"),
    ({"LICENSE": "Permission is hereby granted, free of charge, to any person obtaining a copy. Parts: Apache License, "
                 "Version 2.0"}, "MIT"),
    ({"LICENSE": "All rights reserved.", "pyproject_toml": '[project]\nlicense = "LicenseRef-X"\n'}, "LicenseRef-X"),
    ({"pyproject_toml": '[project]\nlicense = {text = "MIT"}\n'}, "MIT"),
    ({"pyproject_toml": '[tool.poetry]\nlicense = "ISC"\n'}, "ISC"),
    ({"setup_py": "from setuptools import setup\nsetup(license='BSD')\n"}, "BSD"),
    ({"setup_cfg": "[metadata]\nlicense = <script>\n"}, "undeclared"), ({"src__LICENSE": "MIT License"}, "undeclared"),
    ({}, "undeclared"),
], ids=map(str, range(13)))
def test_the_licence_of_a_repository_is_named(files: dict[str, str], name: str) -> None:
    """By the text of its licence file, or else by what its project says; what is no name is none."""
    assert licence(project(**files)) == name
